"""What every page of an account costs the database after a year of usage, and that nobody else's year is on it."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest
from allauth.account.models import EmailAddress
from django.test import Client
from django.urls import URLPattern
from pytest_django.plugin import DjangoDbBlocker

import webhost.pages
from bench.desk.measure import clocked
from entitlements import ledger
from entitlements.actions import addresses, passwords
from entitlements.models import ApiToken, PeriodCounter
from telemetry.actions import alert_targets
from telemetry.actions.breakdown import MEASURES, Group, breakdown_of, month_of
from telemetry.models import AlertKind, AlertTarget
from tests.factories import make_token
from tests.year import Year, year_of_usage
from webhost.ids import Prefix, public_id

MARK: Final = "charlie-was-here"
QUERIES, MILLISECONDS, TIMES, ROUNDS = 15, 100, 3, 8
SEEDED_IN: Final = 20


def target_of(year: Year) -> AlertTarget:
    target, _ = AlertTarget.objects.get_or_create(
        account_id=year.account.pk, kind=AlertKind.EMAIL, address=year.account.email
    )
    return target


def link_of(year: Year) -> str:
    return alert_targets.link_of(target_of(year).pk)


def token_of(year: Year) -> str:
    make_token(year.account)
    return public_id(Prefix.TOKEN, ApiToken.objects.filter(user=year.account)[0].id)


def address_link_of(year: Year) -> str:
    address, _ = EmailAddress.objects.get_or_create(user=year.account, email=year.account.email)
    return addresses.link_of(address)


def password_link_of(year: Year) -> str:
    return passwords.link_of(year.account)


# What stands in an address for each parameter of a route, or in one route alone.
MAKERS: Final[Mapping[str, Callable[[Year], str]]] = {
    "agent": lambda year: year.agent.public_id,
    "deployment": lambda year: year.deployment.public_id,
    "invocation": lambda year: year.invocation,
    "alerts/confirm/<str:link>/": link_of,
    "confirm/<str:link>/": address_link_of,
    "reset/<str:link>/": password_link_of,
    "token": token_of,
    "target": lambda year: public_id(Prefix.ALERT_TARGET, target_of(year).pk),
}
EXEMPT: Final[Mapping[str, str]] = {
    "docs/": "a file, no database",
    "docs/<path:path>": "a file, no database",
}
# What else a page is asked for.
MORE: Final = (
    "usage/events/?status=rejected", "invocations/?outcome=failed", "usage/?by=deployment", "usage/?by=day", "usage/csv/?by=deployment",
    "agents/<str:agent>/metrics/?range=day", "agents/<str:agent>/metrics/?range=minute",
)  # fmt: skip
ROUTES: Final = [str(pattern.pattern) for pattern in webhost.pages.urlpatterns if isinstance(pattern, URLPattern)]


@pytest.fixture(scope="module")
def year(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Year]:
    """Alice's year, beside one of charlie, whose every name is marked."""
    with django_db_blocker.unblock():
        year_of_usage("charlie", agents=4, mark=MARK)
        yield year_of_usage()


def address_of(route: str, year: Year) -> str:
    """Return the address of a route; KeyError for a parameter that has no maker."""

    def made(found: re.Match[str]) -> str:
        return (MAKERS[route] if route in MAKERS else MAKERS[found[1]])(year)

    return "/" + re.sub(r"<\w+:(\w+)>", made, route)


def client_of(year: Year) -> Client:
    client = Client()
    client.force_login(year.account)
    return client


def opened(client: Client, address: str, most: float = MILLISECONDS) -> tuple[Any, str, int, float]:
    """Open a page three times; return the answer, its text, its queries and the median of its database time in ms.

    Where that is over budget it is done again, a few times: what else this machine does is no cost of the page.
    """
    for _ in range(ROUNDS):
        costs = []
        for _ in range(TIMES):
            with clocked() as clock:
                answer = client.get(address)
                text = (answer.getvalue() if answer.streaming else answer.content).decode()
            costs.append((clock.seconds * 1000, clock.queries))
        ms = statistics.median(ms for ms, _ in costs)
        if ms <= most:
            break
        time.sleep(1)
    return answer, text, max(queries for _, queries in costs), ms


@pytest.mark.parametrize("route", [*(r for r in ROUTES if r not in EXEMPT), *MORE])
def test_no_page_costs_more_than_its_budget_nor_shows_a_stranger(live_db: None, year: Year, route: str) -> None:
    answer, text, queries, ms = opened(client_of(year), address_of(route, year))
    # A page for POST alone answers 405, and one that leads elsewhere 302: at no higher cost.
    assert answer.status_code in (200, 302, 405), answer.status_code
    assert queries <= QUERIES, f"{queries} queries"
    assert ms <= MILLISECONDS, f"{ms:.1f} ms"
    assert MARK not in text


def test_most_pages_are_really_opened(live_db: None, year: Year) -> None:
    client = client_of(year)
    routes = [r for r in ROUTES if r not in EXEMPT]
    shown = [r for r in routes if client.get(address_of(r, year)).status_code == 200]
    assert {"", "agents/", "agents/<str:agent>/", "usage/", "usage/csv/", "billing/"} <= set(shown)
    assert len(shown) * 3 > len(routes)


def test_the_overview_keeps_its_own_narrower_budget(live_db: None, year: Year) -> None:
    answer, _, queries, ms = opened(client_of(year), "/", most=30)
    assert answer.status_code == 200
    assert queries <= 12, f"{queries} queries"
    assert ms <= 30, f"{ms:.1f} ms"


def test_what_is_exempt_is_a_route() -> None:
    assert set(EXEMPT) <= set(ROUTES)


def test_the_marked_name_would_be_seen(live_db: None, year: Year) -> None:
    client = Client()
    other = year_of_usage("charlie", agents=1, mark=MARK)
    client.force_login(other.account)
    assert all(MARK in client.get(address).content.decode() for address in ("/", "/agents/", "/usage/"))


def test_a_year_is_made_in_seconds_and_its_books_agree(live_db: None, year: Year) -> None:
    assert year.seconds < SEEDED_IN
    assert ledger.verify(account_id=year.account.pk) == []
    counters = list(PeriodCounter.objects.filter(account_id=year.account.pk))
    assert len(counters) in (12, 13)
    for counter in counters:
        total = breakdown_of(year.account.pk, month_of(counter.period), Group.AGENT).total
        assert {m: getattr(total.quantities, m) for m in MEASURES} == {
            m: getattr(counter, f"used_{m}") for m in MEASURES
        }
