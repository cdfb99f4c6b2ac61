"""The local Cloudflare: it refuses what the real one refuses, forgets what it forgets, and dies whole."""

import json
import os
import signal
import threading
import time

import psutil
import pytest
import requests

from runtimes.providers.base import AgentRef
from runtimes.providers.cloudflare import script_name
from tests.runtimes.cloud import agent_zip, example, until

CODE = "export default { fetch() { return new Response('hi'); } }"
METADATA = {"main_module": "main.mjs", "compatibility_date": "2026-09-01"}


class Api:
    """The management API as curl would use it."""

    def __init__(self, cloud):
        self.base = f"{cloud.url}/client/v4/accounts/{cloud.account}/workers/dispatch/namespaces"
        self.headers = {"Authorization": f"Bearer {cloud.token}"}
        requests.post(self.base, json={"name": "whs"}, headers=self.headers, timeout=10)

    def __call__(self, method, path, **options):
        headers = self.headers | options.pop("headers", {})
        answer = requests.request(method, f"{self.base}{path}", headers=headers, timeout=10, **options)
        body = answer.json()
        assert body["success"] == answer.ok
        code = body["errors"][0]["code"] if body["errors"] else None
        return answer.status_code, code, body["result"]

    def put(self, name, metadata=None, query="", parts=()):
        files = {
            "metadata": (None, json.dumps(METADATA | (metadata or {})), "application/json"),
            "main.mjs": ("main.mjs", CODE, "application/javascript+module"),
        } | dict(parts)
        files = {name: part for name, part in files.items() if part}
        return self("PUT", f"/whs/scripts/{name}{query}", files=files)

    def bindings(self, name):
        return {b["name"]: b for b in self("GET", f"/whs/scripts/{name}/bindings")[2]}


@pytest.fixture
def api(cloud):
    """Its management API."""
    return Api(cloud)


def var(name, text="x"):
    return {"type": "plain_text", "name": name, "text": text}


class TestEnvelope:
    def test_a_call_without_the_token_is_refused(self, api):
        for header in ("", "Bearer wrong", "Bearer "):
            api.headers = {"Authorization": header}
            assert api("GET", "/whs")[:2] == (403, 10000)

    def test_an_unknown_script_namespace_or_path_is_not_found(self, api):
        assert api("GET", "/whs/scripts/nobody")[:2] == (404, 10007)
        assert api("DELETE", "/whs/scripts/nobody?force=true")[:2] == (404, 10007)
        assert api("GET", "/elsewhere")[0] == 404
        assert api("GET", "/whs/scripts/nobody/unheard-of")[:2] == (404, 7003)

    @pytest.mark.parametrize("name", ["UPPER", "-dash", "a" * 64, "sp%20ace"])
    def test_a_name_that_cannot_be_a_scripts_is_refused(self, api, name):
        assert api("GET", f"/whs/scripts/{name}")[:2] == (400, 10016)


class TestUpload:
    def test_a_script_is_kept_with_its_tags(self, api):
        status, _, made = api.put("kept", {"tags": ["tenant-1", "x"]})
        assert status == 200
        assert api("GET", "/whs/scripts/kept")[2]["script"]["etag"] == made["etag"]
        assert [s["id"] for s in api("GET", "/whs/scripts?tags=tenant-1:yes")[2]] == ["kept"]

    @pytest.mark.parametrize(
        ("parts", "code"),
        [
            ({"metadata": None}, 10026),
            ({"metadata": (None, "{", "application/json")}, 10026),
            ({"metadata": (None, json.dumps(METADATA), "text/plain")}, 10026),
            ({"main.mjs": None}, 10021),
            ({"main.mjs": ("other.mjs", CODE, "application/javascript+module")}, 10021),
            ({"main.mjs": ("main.mjs", CODE, "application/x-unknown")}, 10021),
        ],
    )
    def test_an_upload_of_the_wrong_shape_is_refused(self, api, parts, code):
        assert api.put("shape", parts=parts)[1] == code

    @pytest.mark.parametrize(
        ("metadata", "code"),
        [
            ({"compatibility_date": "2099-01-01"}, 10021),
            ({"compatibility_date": None}, 10021),
            ({"tags": [str(n) for n in range(9)]}, 10026),
            ({"tags": ["a,b"]}, 10026),
            ({"bindings": [var("A"), var("A")]}, 10026),
            ({"bindings": [{"type": "teleport", "name": "A"}]}, 10021),
            ({"bindings": [var("A", "x" * 6000)]}, 10055),
            ({"bindings": [var(f"A{n}") for n in range(129)]}, 10054),
            ({"bindings": [{"type": "service", "name": "A", "service": "nobody"}]}, 10056),
        ],
    )
    def test_metadata_that_the_real_one_refuses_is_refused(self, api, metadata, code):
        assert api.put("metadata", metadata)[1] == code

    def test_a_cut_off_body_is_refused(self, api):
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        assert api("PUT", "/whs/scripts/cut", data=b"--x\r\nContent-Dispo", headers=headers)[1] == 10026

    def test_a_refused_upload_leaves_what_was_there(self, api):
        api.put("steady", {"tags": ["first"]})
        assert api.put("steady", {"tags": ["a,b"]})[0] == 400
        assert api("GET", "/whs/scripts/steady")[2]["script"]["tags"] == ["first"]


@pytest.mark.case("CFW-02")
class TestBindings:
    def test_an_upload_replaces_all_bindings_silently(self, api):
        api.put("replaced", {"bindings": [var("A"), var("B")]})
        api.put("replaced", {"bindings": [var("B", "y")]})
        assert api.bindings("replaced") == {"B": var("B", "y")}

    def test_inherited_and_kept_ones_stay(self, api):
        secret = {"type": "secret_text", "name": "S", "text": "hidden"}
        api.put("inherits", {"bindings": [var("A"), var("B"), secret]})
        api.put("inherits", {"bindings": [{"type": "inherit", "name": "A"}], "keep_bindings": ["secret_text"]})
        assert api.bindings("inherits") == {"A": var("A"), "S": {"type": "secret_text", "name": "S"}}

    def test_inheriting_what_never_was_is_silent_or_refused_as_asked(self, api):
        metadata = {"bindings": [{"type": "inherit", "name": "NEVER"}]}
        assert api.put("orphan", metadata)[0] == 200
        assert api.put("orphan", metadata, query="?bindings_inherit=strict")[:2] == (400, 10057)

    def test_secrets_are_merged_and_null_deletes(self, api):
        api.put("secrets")
        headers = {"Content-Type": "application/merge-patch+json"}

        def patch(secrets, headers=headers):
            return api(
                "PATCH", "/whs/scripts/secrets/secrets-bulk", data=json.dumps({"secrets": secrets}), headers=headers
            )

        a, b = ({"name": n, "type": "secret_text", "text": "t"} for n in "AB")
        assert [s["name"] for s in patch({"A": a, "B": b})[2]] == ["A", "B"]
        assert [s["name"] for s in patch({"A": None})[2]] == ["B"]
        assert patch({"A": {"name": "Z", "type": "secret_text", "text": "t"}})[1] == 10026
        assert patch({"A": a}, headers={"Content-Type": "application/json"})[0] == 415
        assert api("DELETE", "/whs/scripts/secrets/secrets/B")[0] == 200
        assert api("DELETE", "/whs/scripts/secrets/secrets/B")[:2] == (404, 10056)


class TestProcesses:
    def test_old_and_new_serve_side_by_side_until_the_old_is_done(self, cloud):
        slow = cloud.agent(
            "export default async () => { await new Promise((r) => setTimeout(r, 1500)); return 'old'; }"
        )
        texts = []
        caller = threading.Thread(target=lambda: texts.append(slow.invoke().text))
        caller.start()
        until(lambda: cloud.invocations(slow.target) == 1)
        new = slow.version(agent_zip("export default () => 'new'"))
        began = time.monotonic()
        assert new.invoke().text == "new"
        assert time.monotonic() - began < 1.2
        caller.join()
        assert texts == ["old"]

    def test_a_call_under_way_ends_well_though_a_secret_changes_meanwhile(self, cloud):
        code = "export default async (_, { env }) => { await new Promise((r) => setTimeout(r, 1000)); return env.A; }"
        deployed = cloud.agent(code, env={"optionalKeys": ["A"]})
        agent = AgentRef(deployed.target.account_id, deployed.target.agent_id)
        cloud.provider.put_secrets(agent, {"A": "1"})
        texts = []
        caller = threading.Thread(target=lambda: texts.append(deployed.invoke().text))
        caller.start()
        time.sleep(0.5)
        cloud.provider.put_secrets(agent, {"A": "2"})
        assert deployed.invoke().text == "2"
        caller.join()
        assert texts == ["1"]

    def test_a_restart_keeps_scripts_secrets_and_sessions(self, cloud):
        session = cloud.deployed(example("session"))
        secret = cloud.agent("export default (_, { env }) => env.A", env={"requiredKeys": ["A"]})
        cloud.provider.put_secrets(AgentRef(secret.target.account_id, secret.target.agent_id), {"A": "kept"})
        session.invoke(session="s")
        cloud.child.stop()
        cloud.start()
        assert session.invoke(session="s").text == "turn 2"
        assert secret.invoke().text == "kept"

    def test_nothing_outlives_it_even_when_it_is_killed(self, cloud):
        cloud.deployed(example("echo"))
        pids = list(cloud.calls()["processes"].values())
        assert len(pids) >= 2
        os.kill(cloud.child.pid, signal.SIGKILL)
        until(lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids), 5)
        cloud.child.stop()
        cloud.start()

    def test_it_keeps_secrets_where_its_owner_alone_can_read_them(self, cloud):
        deployed = cloud.agent("export default () => ''", env={"optionalKeys": ["A"]})
        cloud.provider.put_secrets(AgentRef(deployed.target.account_id, deployed.target.agent_id), {"A": "find-me"})
        holders = [p for p in cloud.directory.rglob("*") if p.is_file() and b"find-me" in p.read_bytes()]
        assert holders
        for path in holders:
            assert path.stat().st_mode & 0o077 == 0 or path.parents[1].stat().st_mode & 0o077 == 0

    def test_it_counts_what_was_called(self, cloud):
        deployed = cloud.deployed(example("echo"))
        deployed.invoke()
        list(cloud.provider.stream(deployed.target, deployed.invocation()))
        seen = cloud.calls()
        assert seen["invocations"]["byScript"][script_name(deployed.target)] == 2
        assert seen["api"]["byKind"]["PUT script"] >= 1
        assert seen["api"]["total"] == sum(seen["api"]["byKind"].values())

    def test_a_fault_that_makes_no_sense_is_refused(self, cloud):
        for fault in ({}, {"on": "api"}, {"on": "api", "fault": "earthquake"}, {"on": "x", "fault": "reset"}):
            assert requests.post(f"{cloud.url}/local/faults", json=fault, timeout=5).status_code == 400
