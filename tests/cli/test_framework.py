"""A real agent framework from npm, bundled by `whs build` with esbuild, on both runtimes."""

from __future__ import annotations

import json
import shutil
import zipfile

import pytest

from tests.factories import EXAMPLES
from webhost.local import node
from whs.errors import Exit

SAID = "The tool counted 3 words.\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The example with its packages, exactly those of its lock file."""
    folder = shutil.copytree(EXAMPLES / "framework", tmp_path_factory.mktemp("npm") / "framework")
    node.npm(["ci"], folder)
    return folder


def test_every_package_is_pinned_with_its_hash():
    lock = json.loads((EXAMPLES / "framework" / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert len(packages) > 10
    assert all(
        package["integrity"].startswith("sha512-") and "resolved" not in package for package in packages.values()
    )


@pytest.mark.parametrize("runtime", ["cloudflare", "agentcore"])
def test_the_ai_sdk_uses_a_tool_and_streams_on_each_runtime(alice, installed, runtime):
    deployed = alice("deploy", str(installed), "--agent", f"sdk-{runtime}", "--runtime", runtime, "--json")
    assert deployed.code == Exit.OK, deployed.out
    assert deployed.json["runtimeProvider"] == runtime
    said = alice("invoke", f"sdk-{runtime}", "one two three")
    assert (said.code, said.out) == (Exit.OK, SAID), said.err
    events = alice("invoke", f"sdk-{runtime}", "one two three", "--json", "--stream").lines
    deltas = [event["data"]["text"] for event in events if event["event"] == "delta"]
    assert deltas == ["The tool", " counted ", "3", " words."]
    (usage,) = [event["data"] for event in events if event["event"] == "usage"]
    assert (usage["tokens"], usage["toolCalls"]) == (10, 1)


def test_the_same_build_serves_on_both(alice, installed):
    assert alice("build", str(installed), "-o", "out.zip").code == Exit.OK
    with zipfile.ZipFile(alice.folder / "out.zip") as bundle:
        assert bundle.namelist() == ["agent.config.json", "agent.js"]
    alice("agents", "create", "sdk")
    hashes = set()
    for runtime in ("cloudflare", "agentcore"):
        deployed = alice("deploy", "out.zip", "--agent", "sdk", "--runtime", runtime, "--json").json
        hashes.add(deployed["sourceSha256"])
        assert alice("invoke", "sdk", "one two three", "-q").out == SAID
    assert len(hashes) == 1


@pytest.mark.parametrize("runtime", ["cloudflare", "agentcore"])
def test_an_old_package_may_require_what_the_runtime_has(alice, installed, runtime):
    alice.write({
        "old/agent.config.json": json.dumps({"name": "old", "entrypoint": "agent.ts", "runtimes": [runtime]}),
        "old/package.json": "{}",
        "old/agent.ts": "import { place } from './place.cjs';\nexport default async () => place;\n",
        "old/place.cjs": "const { join } = require('path');\nexports.place = join('a', '..', 'b');\n",
    })  # fmt: skip
    (alice.folder / "old" / "node_modules").symlink_to(installed / "node_modules")
    deployed = alice("deploy", "old")
    assert deployed.code == Exit.OK, deployed.err
    assert alice("invoke", "old", "hi", "-q").out == "b\n"


def test_without_the_build_the_service_says_what_to_do(alice):
    alice.write({
        f"plain/{name}": (EXAMPLES / "framework" / name).read_bytes()
        for name in ("agent.config.json", "agent.ts", "rehearsal.ts")
    })  # fmt: skip
    with zipfile.ZipFile(alice.folder / "plain.zip", "w") as bundle:
        for path in (alice.folder / "plain").iterdir():
            bundle.write(path, path.name)
    alice("agents", "create", "plain")
    refused = alice("deploy", "plain.zip", "--agent", "plain")
    assert refused.code == Exit.FAILED
    assert "whs build" in refused.err
