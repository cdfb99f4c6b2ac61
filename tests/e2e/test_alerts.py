"""The running product tells alice by itself: rolled up, noticed, sent, by the real beat and worker."""

from __future__ import annotations

import pytest

from telemetry.models import AlertDelivery
from tests.api import Api
from tests.e2e.customers import until
from tests.entitlements.callers import Caller
from tests.factories import make_account, make_tier
from webhost.ids import new_id
from webhost.local.product import Product

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.mark.slow
def test_alice_uses_up_her_requests_and_is_told_within_seconds(product: Product) -> None:
    alice = Api(make_account("alice", make_tier(max_requests_per_period=5)))
    caller = Caller(alice.account_id, new_id(), new_id())
    for _ in range(4):
        caller.call()
    assert until(lambda: _sent(alice), 45) == [80]
    caller.call()
    assert until(lambda: len(_sent(alice)) == 2 and _sent(alice), 45) == [80, 100]
    log = alice.get("/v1/alerts/log").json["items"]
    assert [e["deliveries"][0]["attempts"] for e in log] == [1, 1]


def _sent(alice: Api) -> list[int]:
    found = AlertDelivery.objects.filter(event__account_id=alice.account_id, status="sent")
    return sorted(found.values_list("event__threshold", flat=True))
