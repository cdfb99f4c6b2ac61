"""The four tiers of a new installation: there once, staff's to edit ever after."""

from __future__ import annotations

from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import transaction
from django.db.models import Max

from entitlements.management.commands.seed_tiers import SEEDS, seed_tier
from entitlements.models import Tier
from entitlements.rules import Key, problems_of

pytestmark = pytest.mark.usefixtures("live_db")


def seeded(slug: str) -> Tier:
    return Tier(slug=slug, **SEEDS[slug])


def test_the_four_of_the_price_list_are_there() -> None:
    tiers = list(Tier.objects.filter(slug__in=SEEDS))
    assert [t.slug for t in tiers] == ["free", "starter", "pro", "enterprise"]
    assert Tier.objects.get(is_default=True).slug == "free"


@pytest.mark.parametrize("slug", SEEDS)
def test_each_obeys_the_rules(slug: str) -> None:
    assert problems_of(seeded(slug).values()) == []


def test_pro_has_agentcore_with_memory_and_enterprise_has_the_tools_with_quotas() -> None:
    on = {slug: {flag for flag, value in seeded(slug).values().flags.items() if value} for slug in SEEDS}
    assert on["free"] == on["starter"] == set()
    assert on["pro"] == {Key.AGENTCORE, Key.MEMORY}
    assert on["enterprise"] == {Key.AGENTCORE, Key.MEMORY, Key.CODE_INTERPRETER, Key.BROWSER}


def test_a_second_run_does_nothing_and_keeps_what_staff_edited() -> None:
    said = StringIO()
    with transaction.atomic():
        Tier.objects.filter(slug="starter").update(max_agents=77)
        call_command("seed_tiers", stdout=said)
        assert Tier.objects.get(slug="starter").max_agents == 77
        transaction.set_rollback(True)
    assert said.getvalue() == "nothing to do\n"


def test_a_tier_that_staff_deleted_does_not_come_back() -> None:
    slug = f"s-{uuid4().hex[:8]}"
    values = {"name": slug, "rank": (Tier.objects.aggregate(last=Max("rank"))["last"] or 0) + 1, "is_public": False}
    assert seed_tier(slug, values)
    Tier.objects.get(slug=slug).delete()
    assert not seed_tier(slug, values)


def test_a_default_that_staff_chose_stays() -> None:
    slug = f"s-{uuid4().hex[:8]}"
    rank = (Tier.objects.aggregate(last=Max("rank"))["last"] or 0) + 1
    seed_tier(slug, {"name": slug, "rank": rank, "is_public": False, "is_default": True})
    assert not Tier.objects.get(slug=slug).is_default
