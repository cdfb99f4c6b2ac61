"""Changes that nobody signed: support is told once, looks, and says with a reason that they were in order."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.core import mail
from django.test import override_settings
from django.utils import timezone

from entitlements.actions.authorship import written_by
from entitlements.actions.unsigned import acknowledge_unsigned, report_unsigned
from entitlements.models import Tier, UnsignedChange
from entitlements.tasks import report_unsigned as task
from tests.entitlements.admin_pages import history, said
from tests.entitlements.raw_sql import psql
from tests.entitlements.test_groups import member
from tests.factories import make_tier
from webhost.errors import InvalidRequestError
from webhost.history import noted

pytestmark = pytest.mark.usefixtures("live_db", "nobody_sweeps", "told_already")


@pytest.fixture
def told_already() -> None:
    """Tell of what other tests did, so that only this one's changes wait."""
    with override_settings(EMAIL_BACKEND="django.core.mail.backends.dummy.EmailBackend"):
        while report_unsigned(timezone.now()):
            pass


@pytest.fixture
def outbox() -> list[Any]:
    mail.outbox.clear()
    return mail.outbox


@pytest.fixture
def tier() -> Tier:
    """A tier that is signed for."""
    with noted(source="command tests"):
        return make_tier(max_agents=1)


def change(tier: Tier, max_agents: int) -> UUID:
    """Change a tier by raw SQL; return the context of that."""
    with psql() as connection:
        connection.execute("UPDATE entitlements_tier SET max_agents = %s WHERE id = %s", [max_agents, tier.pk])
    context: UUID = history(tier)[-1].pgh_context_id
    return context


class TestTellingSupport:
    def test_raw_sql_is_mailed_once_with_who_from_where_and_what(self, tier: Tier, outbox: list[Any]) -> None:
        context = change(tier, 2)
        assert task() == 1
        (message,) = outbox
        assert message.to == ["support@webhost.systems"]
        assert f"database role webhost, from 127.0.0.1 (psql): tier {tier.name}" in message.body
        assert "1 transaction changed" in message.body
        assert UnsignedChange.objects.get(pk=context).mailed_at is not None
        assert task() == 0
        assert len(outbox) == 1

    def test_a_flood_is_one_mail(self, tier: Tier, outbox: list[Any]) -> None:
        for number in range(30):
            change(tier, number + 2)
        assert task() == 30
        (message,) = outbox
        assert "30 transactions changed" in message.body
        assert "and 10 transactions more." in message.body
        assert message.body.count("database role webhost") == 20

    def test_what_is_signed_is_not_mailed(self, tier: Tier, outbox: list[Any]) -> None:
        with written_by("stella", "Ticket 1"):
            Tier.objects.filter(pk=tier.pk).update(max_agents=2)
        assert task() == 0
        assert outbox == []

    def test_a_mail_that_fails_is_sent_by_the_next_sweep(self, tier: Tier, outbox: list[Any]) -> None:
        context = change(tier, 2)
        with (
            override_settings(
                EMAIL_BACKEND="django.core.mail.backends.smtp.EmailBackend", EMAIL_HOST="127.0.0.1", EMAIL_PORT=1
            ),
            pytest.raises(ConnectionRefusedError),
        ):
            report_unsigned(timezone.now())
        assert UnsignedChange.objects.get(pk=context).mailed_at is None
        assert task() == 1
        assert len(outbox) == 1


class TestAcknowledging:
    def test_support_acknowledges_with_a_reason_and_that_is_in_the_audit_log(self, tier: Tier) -> None:
        steve, context = member("support"), change(tier, 2)
        page = steve.client.get(steve.url(UnsignedChange, "changelist"), {"acknowledged": "no"})
        assert f"tier {tier.name}" in said(page)
        row = UnsignedChange.objects.get(pk=context)
        steve.run("acknowledge_selected", row, why="The migration of Monday")
        row.refresh_from_db()
        assert (row.acknowledged_by, row.acknowledged_reason) == (steve.account.email, "The migration of Monday")
        (event,) = history(row)
        assert event.pgh_context.metadata["actor"] == steve.account.email
        assert "The migration of Monday" in said(steve.client.get(steve.url(row)))

    def test_without_a_reason_nothing_is_acknowledged(self, tier: Tier) -> None:
        steve, context = member("support"), change(tier, 2)
        page = steve.run("acknowledge_selected", UnsignedChange.objects.get(pk=context), why=" ")
        assert "A change needs a reason." in said(page)
        assert UnsignedChange.objects.get(pk=context).acknowledged_at is None
        with pytest.raises(InvalidRequestError):
            acknowledge_unsigned([context], actor="steve", reason="")

    def test_the_first_who_looked_stays(self, tier: Tier) -> None:
        context = change(tier, 2)
        assert acknowledge_unsigned([context], actor="steve", reason="Mine") == 1
        assert acknowledge_unsigned([context], actor="paul", reason="No, mine") == 0
        assert UnsignedChange.objects.get(pk=context).acknowledged_by == "steve"

    @pytest.mark.parametrize("group", ["auditor", "pricing"])
    def test_who_only_looks_acknowledges_nothing(self, tier: Tier, group: str) -> None:
        anna, context = member(group), change(tier, 2)
        sent = {"action": "acknowledge_selected", "_selected_action": str(context), "why": "Mine", "index": "0"}
        assert anna.client.post(anna.url(UnsignedChange, "changelist"), sent).status_code == 403
        assert UnsignedChange.objects.get(pk=context).acknowledged_at is None

    def test_acknowledging_past_the_product_is_unsigned_again(self, tier: Tier) -> None:
        context = change(tier, 2)
        with psql() as connection:
            connection.execute(
                "UPDATE entitlements_unsignedchange SET acknowledged_at = now(), acknowledged_by = 'stella' "
                "WHERE context_id = %s", [context],
            )  # fmt: skip
        (event,) = history(UnsignedChange.objects.get(pk=context))
        assert UnsignedChange.objects.get(pk=event.pgh_context_id).acknowledged_at is None
