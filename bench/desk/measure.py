"""What each page of the support desk costs the database: queries and milliseconds, through the pages themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from django.contrib import admin
from django.db import connection
from django.test import Client
from django.urls import reverse

from entitlements.models import Account, Admission, Tier
from webhost import db

_TIMES: Final = 3  # each page is opened so often; the middle one counts


@dataclass(frozen=True)
class Cost:
    """One page: how many queries, how long the database worked for them, how many bytes came."""

    page: str
    queries: int
    database_ms: float
    kilobytes: int


class _Clock:
    """Adds up the time that queries take, as the page waits for them."""

    def __init__(self) -> None:
        self.queries = 0
        self.seconds = 0.0

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001 - Django's
        began = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            self.seconds += time.perf_counter() - began
            self.queries += 1


@contextmanager
def clocked() -> Iterator[_Clock]:
    """Count queries and their time, of Django's connection and of the hot path's own (webhost/db.py)."""
    clock, run = _Clock(), db._rows  # noqa: SLF001 - the one door to the pool's connections

    def counted(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return run(*arguments)
        finally:
            clock.seconds += time.perf_counter() - began
            clock.queries += 1

    with connection.execute_wrapper(clock), patch.object(db, "_rows", counted):
        yield clock


def stella() -> Client:
    """Return somebody who may see everything, signed in."""
    account, _ = Account.objects.get_or_create(
        email="stella@example.com", defaults={"is_staff": True, "is_superuser": True}
    )
    client = Client(HTTP_HOST="localhost")
    client.force_login(account)
    return client


def _measured(page: str, open_page: Callable[[], Any]) -> Cost:
    costs = []
    for _ in range(_TIMES):
        with clocked() as clock:
            answer = open_page()
            body = b"".join(answer.streaming_content) if answer.streaming else answer.content
        if answer.status_code != 200:
            raise RuntimeError(f"{page} answered {answer.status_code}.")
        costs.append(Cost(page, clock.queries, clock.seconds * 1000, len(body) // 1024))
    return sorted(costs, key=lambda cost: cost.database_ms)[len(costs) // 2]


def lists(client: Client) -> list[Cost]:
    """Open every list of the admin as it comes, and search it for the address of one customer."""
    found = []
    for model, options in sorted(admin.site._registry.items(), key=lambda item: item[0]._meta.label):  # noqa: SLF001 - documented
        url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")  # noqa: SLF001 - documented
        name = str(model._meta.verbose_name_plural)  # noqa: SLF001 - documented
        found.append(_measured(f"list: {name}", lambda url=url: client.get(url)))  # type: ignore[misc]
        if options.search_fields:
            query = {"q": "desk-77@example.com"}
            found.append(_measured(f"list: {name}, searched by e-mail", lambda url=url, q=query: client.get(url, q)))  # type: ignore[misc]
    return found


def pages(client: Client) -> list[Cost]:
    """Open what support opens most: the page of a busy account, the one search, refusals added up."""
    busy = Account.objects.get(email="desk-100@example.com")
    receipt = Admission.objects.filter(account_id=busy.pk).order_by("-pk")[0]
    search = reverse("admin:search")
    asked = {
        "e-mail": busy.email, "part of an e-mail": "desk-100", "account id": busy.public_id,
        "invocation id": f"inv_{receipt.pk.hex}", "trace id": receipt.trace_id,
    }  # fmt: skip
    opened: list[tuple[str, Callable[[], Any]]] = [
        ("account page, busy", lambda: client.get(reverse("admin:entitlements_account_change", args=[busy.pk]))),
        ("audit log of one account", lambda: client.get(
            reverse("admin:entitlements_historyentry_changelist"), {"account": busy.public_id})),
        *((f"search: {what}", lambda q=q: client.get(search, {"q": q}, follow=True)) for what, q in asked.items()),
    ]  # fmt: skip
    return [_measured(page, open_page) for page, open_page in opened]


def previews(client: Client) -> list[Cost]:
    """Preview three drafts: one that stops many, one that takes AgentCore from many, one that stops nobody."""
    drafts: dict[str, tuple[str, dict[str, Any]]] = {
        "free, 60 % of accounts, far fewer requests and tokens": (
            "free", {"max_requests_per_period": 20, "max_tokens_per_period": 9_000}),
        "enterprise, most of the calls, without AgentCore": (
            "enterprise", {"agentcore_enabled": "", "memory_enabled": "", "code_interpreter_enabled": "",
                           "browser_enabled": ""}),
        "starter, kinder": ("starter", {"max_requests_per_period": 10**9}),
    }  # fmt: skip
    return [
        _measured(f"impact preview: {name}", lambda slug=slug, changes=changes: _preview(client, slug, changes))  # type: ignore[misc]
        for name, (slug, changes) in drafts.items()
    ]


def _preview(client: Client, slug: str, changes: dict[str, Any]) -> Any:
    tier = Tier.objects.get(slug=slug)
    url = reverse("admin:entitlements_tier_change", args=[tier.pk])
    form = client.get(url).context["adminform"].form
    sent = {f.html_name: f.value() for f in form if not hasattr(f.field.widget, "widgets")}
    sent = {k: v for k, v in sent.items() if v not in (None, False)} | {"why": "Bench"} | changes
    answer = client.post(url, {k: v for k, v in sent.items() if v != ""})
    if b"Nothing is saved yet" not in answer.content:
        raise RuntimeError("There was no preview.")
    return answer


def everything() -> list[Cost]:
    """Measure all of it."""
    client = stella()
    return [*pages(client), *previews(client), *lists(client)]
