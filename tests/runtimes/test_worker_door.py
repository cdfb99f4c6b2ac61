"""The platform Worker's door: what the gateway signed gets in, once; nothing else does."""

import json
import time
from dataclasses import replace

import pytest

from runtimes.errors import NotReachedError
from runtimes.providers.cloudflare import _envelope, _signed
from tests.runtimes.cloud import example
from webhost import signing
from webhost.ids import new_id


@pytest.fixture(scope="module")
def echo(cloud):
    """An agent of alice's."""
    return cloud.deployed(example("echo"))


def signed(deployed, invocation, do="invoke"):
    body = _envelope(deployed.target, invocation, do)
    return _signed(deployed.target, invocation, body), body


def resigned(headers, body, *, timestamp=None, key="k1", purpose=signing.Purpose.INVOKE):
    """Sign a call anew, as somebody who had that key could."""
    headers = dict(headers)
    headers["X-Whs-Timestamp"] = str(timestamp if timestamp is not None else headers["X-Whs-Timestamp"])
    deployment = headers["X-Whs-Deployment"]
    secret = signing.deployment_key(key, purpose, deployment)
    data = f"{headers['X-Whs-Timestamp']}.{deployment}.{headers['X-Whs-Invocation']}.".encode() + body
    return headers | {"X-Whs-Signature": f"v1={signing.sign(secret, data)}"}


def refusal(cloud, headers, body, path="/invoke"):
    status, answer = cloud.post(path, headers, body)
    assert status == 401, answer
    return answer["error"]["errorClass"]


class TestSignature:
    def test_a_signed_call_gets_in(self, cloud, echo):
        assert cloud.post("/invoke", *signed(echo, echo.invocation()))[0] == 200

    def test_a_call_without_a_signature_is_refused(self, cloud, echo):
        headers, body = signed(echo, echo.invocation())
        assert refusal(cloud, {}, body) == "BadSignature"
        del headers["X-Whs-Signature"]
        assert refusal(cloud, headers, body) == "BadSignature"

    @pytest.mark.parametrize(
        "signature",
        ["", "v1=", "v1=" + "0" * 64, "v2=" + "0" * 64, "v1=" + "g" * 64, "v1=" + "0" * 63, "v1=" + "0" * 6400, "é"],
    )
    def test_a_wrong_signature_is_refused_whatever_its_shape(self, cloud, echo, signature):
        headers, body = signed(echo, echo.invocation())
        assert (
            refusal(cloud, headers | {"X-Whs-Signature": signature.encode().decode("latin-1")}, body) == "BadSignature"
        )

    @pytest.mark.parametrize("name", ["Deployment", "Key", "Timestamp", "Invocation"])
    def test_every_signed_header_is_covered_and_needed(self, cloud, echo, name):
        headers, body = signed(echo, echo.invocation())
        other = {
            "Deployment": f"dep_{new_id().hex}",
            "Key": "k2",
            "Timestamp": str(int(headers["X-Whs-Timestamp"]) + 1),
            "Invocation": f"inv_{new_id().hex}",
        }[name]
        assert refusal(cloud, headers | {f"X-Whs-{name}": other}, body) == "BadSignature"
        assert refusal(cloud, headers | {f"X-Whs-{name}": ""}, body) == "BadSignature"

    def test_a_changed_body_is_refused(self, cloud, echo):
        headers, body = signed(echo, echo.invocation())
        assert refusal(cloud, headers, body.replace(b"hello", b"hallo")) == "BadSignature"
        assert refusal(cloud, headers, body + b" ") == "BadSignature"

    def test_the_key_of_another_deployment_or_for_another_purpose_does_not_open(self, cloud, echo):
        headers, body = signed(echo, echo.invocation())
        telemetry = resigned(headers, body, purpose=signing.Purpose.TELEMETRY)
        assert refusal(cloud, telemetry, body) == "BadSignature"
        other = replace(echo.target, deployment_id=new_id())
        foreign = _signed(other, echo.invocation(), body) | {"X-Whs-Deployment": headers["X-Whs-Deployment"]}
        assert refusal(cloud, foreign, body) == "BadSignature"

    def test_an_unknown_root_key_is_refused_and_an_older_one_of_ours_is_not(self, cloud, echo):
        headers, body = signed(echo, echo.invocation())
        assert refusal(cloud, headers | {"X-Whs-Key": "k9"}, body) == "BadSignature"
        older = resigned(headers | {"X-Whs-Key": "k2"}, body, key="k2")
        assert cloud.post("/invoke", older, body)[0] == 200

    def test_nothing_but_post_gets_an_answer(self, cloud):
        import requests

        for method in ("GET", "PUT", "DELETE"):
            assert requests.request(method, f"{cloud.url}/invoke", timeout=10).status_code in {401, 405}


class TestAge:
    @pytest.mark.parametrize("seconds", [-3600, -75, 75, 3600])
    def test_a_signature_older_or_newer_than_a_minute_is_refused(self, cloud, echo, seconds):
        headers, body = signed(echo, echo.invocation())
        late = resigned(headers, body, timestamp=int(time.time()) + seconds)
        assert refusal(cloud, late, body) == "StaleSignature"

    @pytest.mark.parametrize("seconds", [-45, 45])
    def test_a_clock_that_is_a_little_off_does_no_harm(self, cloud, echo, seconds):
        headers, body = signed(echo, echo.invocation())
        assert cloud.post("/invoke", resigned(headers, body, timestamp=int(time.time()) + seconds), body)[0] == 200

    @pytest.mark.parametrize("text", ["", "soon", "1e9", "-1", "NaN", "99999999999999"])
    def test_a_timestamp_that_is_none_is_refused(self, cloud, echo, text):
        headers, body = signed(echo, echo.invocation())
        assert refusal(cloud, resigned(headers, body, timestamp=text), body) == "BadSignature"


class TestReplay:
    def test_a_captured_call_cannot_be_repeated(self, cloud, echo):
        headers, body = signed(echo, echo.invocation())
        assert cloud.post("/invoke", headers, body)[0] == 200
        assert refusal(cloud, headers, body) == "Repeated"
        assert refusal(cloud, headers, body, path="/invoke/stream") == "Repeated"

    def test_of_twenty_copies_at_once_one_gets_in(self, cloud, echo):
        from concurrent.futures import ThreadPoolExecutor

        headers, body = signed(echo, echo.invocation())
        with ThreadPoolExecutor(20) as callers:
            statuses = list(callers.map(lambda _: cloud.post("/invoke", headers, body)[0], range(20)))
        assert sorted(statuses) == [200] + [401] * 19

    def test_a_restart_of_every_process_does_not_forget_what_was_seen(self, cloud, echo):
        headers, body = signed(echo, echo.invocation())
        assert cloud.post("/invoke", headers, body)[0] == 200
        cloud.kill_processes()
        assert refusal(cloud, headers, body) == "Repeated"

    def test_the_adapter_tells_a_refused_call_from_one_that_ran(self, cloud, echo):
        invocation = echo.invocation()
        cloud.provider.invoke(echo.target, invocation)
        with pytest.raises(NotReachedError) as refused:
            cloud.provider.invoke(echo.target, invocation)
        assert refused.value.error_class == "Repeated"


class TestWhatIsThere:
    def test_a_deployment_that_is_not_there_is_told_as_certainly_not_run_and_is_not_reported(self, cloud, echo):
        nowhere = replace(echo.target, deployment_id=new_id())
        invocation = echo.invocation()
        with pytest.raises(NotReachedError) as refused:
            cloud.provider.invoke(nowhere, invocation)
        assert refused.value.error_class == "NotDeployed"
        time.sleep(0.3)
        assert cloud.reports.count(invocation) == 0

    def test_a_signed_call_for_nonsense_is_refused(self, cloud, echo):
        headers, body = signed(echo, echo.invocation(), do="everything")
        assert cloud.post("/invoke", headers, body)[0] == 400

    def test_a_retired_root_key_makes_a_deployment_unreachable_and_says_what_to_do(self, cloud, echo):
        with pytest.raises(NotReachedError) as refused:
            cloud.provider.invoke(replace(echo.target, root_key_id="k0"), echo.invocation())
        assert (refused.value.error_class, refused.value.retryable) == ("KeyRetired", False)

    def test_a_probe_runs_nothing_of_the_agents_and_reports_nothing(self, cloud):
        deployed = cloud.agent("export default () => { throw new Error('ran') }")
        before = len(cloud.reports.taken)
        cloud.provider.activate(deployed.target)
        assert cloud.invocations(deployed.target) == 0
        time.sleep(0.3)
        assert all(
            json.loads(b)["deploymentId"] != deployed.target.public_deployment_id
            for _, b in cloud.reports.taken[before:]
        )
