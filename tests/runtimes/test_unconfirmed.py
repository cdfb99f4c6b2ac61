"""Nobody deploys before their address is confirmed, by whichever door; what runs goes on."""

from __future__ import annotations

from io import BytesIO

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from entitlements.actions.addresses import CONFIRM_FIRST, require_confirmed, vouch_for_address
from runtimes.actions.deployments import accept_deployment
from runtimes.models import Deployment
from tests.api import Api
from tests.entitlements.admin_pages import said
from tests.factories import example, make_account, make_agent
from webhost.errors import ForbiddenError

pytestmark = pytest.mark.usefixtures("live_db", "nobody_sweeps")


def bundle() -> SimpleUploadedFile:
    return SimpleUploadedFile("agent.zip", example("echo"), "application/zip")


def test_the_action_refuses_before_it_reads_a_byte() -> None:
    agent = make_agent(make_account("alice", confirmed=False))
    with pytest.raises(ForbiddenError, match="Confirm your e-mail address"):
        accept_deployment(agent, BytesIO(b"no zip at all"))


def test_the_api_answers_403_with_what_to_do_in_the_envelope_that_the_command_line_prints() -> None:
    alice = make_account("alice", confirmed=False)
    agent = make_agent(alice)
    answer = Api(alice).upload(f"/v1/agents/{agent.public_id}/deployments", example("echo"))
    error = answer.json["error"]
    assert (answer.status, error["code"], error["retryable"]) == (403, "UNAUTHORIZED", False)
    assert error["message"] == CONFIRM_FIRST
    assert not Deployment.objects.filter(agent=agent).exists()


def test_the_page_says_the_same() -> None:
    alice = make_account("alice", confirmed=False)
    agent, client = make_agent(alice), Client()
    client.force_login(alice)
    page = client.post(f"/agents/{agent.public_id}/deploy/", {"bundle": bundle()})
    assert page.status_code == 403
    assert CONFIRM_FIRST in said(page)
    assert not Deployment.objects.filter(agent=agent).exists()


def test_once_confirmed_it_deploys() -> None:
    alice = make_account("alice", confirmed=False)
    agent = make_agent(alice)
    vouch_for_address(alice)
    assert accept_deployment(agent, BytesIO(example("echo"))).version == 1


def test_asking_costs_one_query() -> None:
    alice = make_account("alice")
    with CaptureQueriesContext(connection) as seen:
        require_confirmed(alice.pk)
    assert len(seen.captured_queries) == 1
