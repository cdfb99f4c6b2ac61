"""A deploy's task may run twice, late, half, or before its time: it deploys once, in order, and always ends."""

from __future__ import annotations

import time
from typing import Any

import pytest
import requests

from tests.e2e.customers import Agent, Cloud, puppet, until
from tests.e2e.story import Books, customer, customers, deliver, operate, uuid_of
from webhost.ids import Prefix, parse_id
from webhost.local.product import Part, Product

pytestmark = pytest.mark.slow


def uploads(cloud: Cloud) -> int:
    """Return how many scripts were sent to the provider."""
    return int(cloud.seen()["api"]["byKind"].get("PUT script", 0))


def pointer(books: Books, agent: Agent) -> Any:
    """Return the deployment that serves an agent."""
    row = books.rows("SELECT active_deployment_id FROM runtimes_agent WHERE id = %s", parse_id(Prefix.AGENT, agent.id))
    return f"dep_{row[0]['active_deployment_id'].hex}"


def accepted(agent: Agent, bundle: bytes | None = None) -> Agent:
    """Upload a new version; return the agent as it will be."""
    answer = agent.owner.upload(agent.id, bundle or puppet())
    assert answer.status_code == 202, answer.text
    return Agent(agent.owner, agent.id, answer.json()["id"])


def ended(agent: Agent, seconds: float = 60) -> dict[str, Any]:
    """Wait until a deployment is no longer `deploying`; return how it ended."""
    found = until(lambda: (d := agent.owner.deployment(agent.deployment))["status"] != "deploying" and d, seconds)
    assert found, "It is still deploying."
    return found


_IN_A_TRANSACTION = """
import io, json, time, urllib.request
from uuid import UUID
from django.db import transaction
from runtimes.actions.agents import create_agent
from runtimes.actions.deployments import accept_deployment
from tests.e2e.customers import puppet
from webhost.ids import new_id
def uploads():
    seen = json.load(urllib.request.urlopen({cloud!r} + "/local/calls"))
    return seen["api"]["byKind"].get("PUT script", 0)
before = uploads()
try:
    with transaction.atomic():
        agent = create_agent(UUID({account!r}), new_id(), name="held", description="", runtime="cloudflare")
        deployment = accept_deployment(agent, io.BytesIO(puppet()))
        time.sleep(2)
        meanwhile = uploads() - before
        if {rollback}:
            raise InterruptedError
except InterruptedError:
    pass
print(json.dumps([agent.public_id, deployment.public_id, meanwhile]))
"""


@pytest.mark.case("API-01")
class TestDeployTasks:
    def test_one_that_is_delivered_four_times_at_once_deploys_once(
        self, own: Product, own_cloud: Cloud, books: Books
    ) -> None:
        first = customer(own).deploy(puppet())
        sent = uploads(own_cloud)
        own_cloud.fail_api("slow", method="PUT", seconds=4)
        second = accepted(first)
        deliver(own, *[second.deployment] * 3)
        assert ended(second)["status"] == "active"
        assert (uploads(own_cloud) - sent, pointer(books, first)) == (1, second.deployment)

    def test_one_that_is_delivered_again_later_does_nothing(self, own: Product, own_cloud: Cloud, books: Books) -> None:
        agent = customer(own).deploy(puppet())
        sent, lines = uploads(own_cloud), told(agent)
        deliver(own, *[agent.deployment] * 2)
        time.sleep(2)
        assert (uploads(own_cloud), told(agent), pointer(books, agent)) == (sent, lines, agent.deployment)

    def test_a_stale_one_does_not_overwrite_what_came_after_it(
        self, own: Product, own_cloud: Cloud, books: Books
    ) -> None:
        first = customer(own).deploy(puppet())
        own_cloud.fail_api("slow", method="PUT", seconds=8)
        sent = uploads(own_cloud)
        second = accepted(first)
        assert until(lambda: uploads(own_cloud) == sent + 1)
        landed = time.monotonic() + 8 + 2
        # Its worker is so slow that the deployment is given up, and the next version is deployed meanwhile.
        expire(books, second)
        deliver(own, second.deployment)
        assert ended(second)["error"]["code"] == "DeadlineExceeded"
        third = accepted(first)
        assert ended(third)["status"] == "active"
        deliver(own, first.deployment, second.deployment)
        time.sleep(max(0, landed - time.monotonic()))
        assert until(lambda: not present(own, second), 30), "What landed when nobody wanted it any more stays there."
        assert pointer(books, first) == third.deployment
        assert first.owner.deployment(second.deployment)["status"] == "failed"
        assert third.invoke("{}").status_code == 200
        assert own_cloud.calls(third) == 1

    @pytest.mark.parametrize("rollback", [False, True], ids=["committed", "rolled back"])
    def test_nothing_is_sent_before_the_commit_nor_after_a_rollback(
        self, own: Product, own_cloud: Cloud, books: Books, rollback: bool
    ) -> None:
        owner = customer(own)
        sent = uploads(own_cloud)
        agent_id, deployment, meanwhile = operate(
            own, _IN_A_TRANSACTION.format(cloud=own.cloud_url, account=str(uuid_of(owner)), rollback=rollback)
        )
        assert meanwhile == 0
        agent = Agent(owner, agent_id, deployment)
        if rollback:
            time.sleep(2)
            assert uploads(own_cloud) == sent
            assert owner.call("GET", f"/v1/agents/{agent_id}").status_code == 404
        else:
            assert ended(agent)["status"] == "active"
        assert "DoesNotExist" not in (own.logs / "worker.log").read_text()

    def test_a_worker_killed_half_way_leaves_nothing_half_done(
        self, own: Product, own_cloud: Cloud, books: Books
    ) -> None:
        lucky, late = [one.deploy(puppet()) for one in customers(own, 2)]
        sent = uploads(own_cloud)
        own_cloud.fail_api("slow", method="PUT", seconds=4, times=2)
        resumed, given_up = accepted(lucky), accepted(late)
        assert until(lambda: uploads(own_cloud) == sent + 2)
        own.kill(Part.WORKER)
        books.rows(
            "UPDATE runtimes_deployment SET deadline_at = now() WHERE id = %s",
            parse_id(Prefix.DEPLOYMENT, given_up.deployment),
        )
        own.start_part(Part.WORKER)
        # What served before goes on serving, and a new version has to wait.
        assert (lucky.invoke("{}").status_code, late.invoke("{}").status_code) == (200, 200)
        assert (own_cloud.calls(lucky), own_cloud.calls(late)) == (1, 1)
        refused = lucky.owner.upload(lucky.id, puppet())
        assert (refused.status_code, refused.json()["error"]["retryable"]) == (409, True)
        # Both end within the worker's lease and a sweep: one was resumed, the other's time was up.
        assert ended(resumed, 45)["status"] == "active"
        assert ended(given_up, 45)["error"]["code"] == "DeadlineExceeded"
        assert uploads(own_cloud) == sent + 2, "What the killed worker had uploaded is adopted."
        assert (pointer(books, lucky), pointer(books, late)) == (resumed.deployment, late.deployment)
        assert until(lambda: not present(own, given_up), 20)
        assert ended(accepted(late))["status"] == "active"


def told(agent: Agent) -> int:
    """Return how many lines a deployment's log has."""
    return len(agent.owner.call("GET", f"/v1/deployments/{agent.deployment}/logs").json()["items"])


def expire(books: Books, agent: Agent) -> None:
    """Let a deployment's time be up, and its worker's as well."""
    books.rows(
        "UPDATE runtimes_deployment SET deadline_at = now(), claimed_until = now() - interval '1 second' WHERE id = %s",
        parse_id(Prefix.DEPLOYMENT, agent.deployment),
    )


def present(own: Product, agent: Agent) -> bool:
    """Whether the provider has the script of a deployment."""
    env = own.env
    answer = requests.get(
        f"{env['CLOUDFLARE_API_URL']}/accounts/{env['CLOUDFLARE_ACCOUNT_ID']}/workers/dispatch/namespaces/"
        f"{env['CLOUDFLARE_NAMESPACE']}/scripts/{agent.script}",
        headers={"Authorization": f"Bearer {env['CLOUDFLARE_API_TOKEN']}"},
        timeout=10,
    )
    return answer.status_code == 200
