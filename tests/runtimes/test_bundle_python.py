"""A Python bundle: checked, deployed as it is, for AgentCore alone; and what AgentCore adds to a config."""

import io
import json
import struct
import tempfile

import pytest

from runtimes.bundle import LONGEST_TIMEOUT, ModuleKind, lifecycle_of, prepare_bundle, read_bundle, timeout_for
from runtimes.bundles import python
from runtimes.bundles.config import CONFIG_NAME, parse_config
from runtimes.rules import DEFAULT_IDLE, DEFAULT_LIFETIME
from tests.factories import example, zip_of
from tests.runtimes.shims import FakeAws, call, running
from webhost.errors import InvalidRequestError

AGENT = "def agent(request, context):\n    return 'hi'\n"
CONFIG = {"name": "alices-agent", "entrypoint": "agent.py", "runtime": "agentcore"}


def prepared(files, **config):
    return prepare_bundle(read_bundle(io.BytesIO(zip_of({CONFIG_NAME: json.dumps(CONFIG | config), **files}))))


def issues_of(files, **config):
    with pytest.raises(InvalidRequestError) as refused:
        prepared(files, **config)
    assert tempfile.gettempdir() not in str(refused.value.details)
    return [(issue["path"], issue["message"]) for issue in refused.value.details["issues"]]


def elf(machine=183, *, bits=2, order=1):
    return b"\x7fELF" + bytes([bits, order, 1]) + bytes(9) + struct.pack("<HH", 3, machine) + bytes(40)


# --- Files ---


def test_all_files_are_deployed_as_they_are_but_the_config_and_caches():
    files = {
        "agent.py": AGENT, "lib/a.py": b"\xef\xbb\xbf# with a BOM\n", "lib/data.bin": b"\x00\xff", "notes.md": "x",
        "lib/__pycache__/a.cpython-312.pyc": b"\x00", "lib/native.so": elf(), "lib/native.so.1.2": elf(),
    }  # fmt: skip
    bundle = prepared(files)
    assert {module.name: module.content for module in bundle.modules} == {
        name: content if isinstance(content, bytes) else content.encode()
        for name, content in files.items()
        if "__pycache__" not in name
    }
    assert [module.name for module in bundle.modules] == sorted(module.name for module in bundle.modules)
    assert {module.name for module in bundle.modules if module.kind == ModuleKind.PYTHON} == {"agent.py", "lib/a.py"}
    assert (bundle.entrypoint, bundle.is_python) == ("agent.py", True)


def test_the_same_files_give_the_same_hash_and_others_another():
    files = {"agent.py": AGENT, "b.py": "", "c.txt": "c"}
    one = prepared(files)
    assert prepared(dict(reversed(files.items()))).deployed_sha256 == one.deployed_sha256
    assert prepared(files | {"c.txt": "d"}).deployed_sha256 != one.deployed_sha256


def test_a_python_bundle_needs_no_node(settings):
    settings.NODE_BINARY = "/nowhere/node"
    assert prepared({"agent.py": AGENT}).is_python


def test_typescript_is_not_python():
    bundle = prepared({"agent.ts": "export default () => 'hi'"}, entrypoint="agent.ts")
    assert not bundle.is_python


# --- Syntax ---


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\ndef broken(:\n", 2),
        ("return 1\n", 1),
        ("def f():\n    x = 1\n  y = 2\n", 3),
        ("# -*- coding: nonsense -*-\n", None),
        ("x = '\x00'", None),
    ],
)
def test_a_file_that_is_no_python_is_refused_with_its_line(source, line):
    [(path, message)] = issues_of({"agent.py": AGENT, "lib/a.py": source})
    assert path.split(":")[0] == "lib/a.py"
    assert line is None or path == f"lib/a.py:{line}"
    assert message


def test_every_broken_file_is_told_up_to_a_number():
    issues = issues_of({"agent.py": AGENT} | {f"m{n:02}.py": "(" for n in range(30)})
    assert len(issues) == python.MOST_ISSUES
    assert issues[0][0] == "m00.py:1"


def test_nothing_of_a_bundle_runs_while_it_is_checked(tmp_path):
    mark = tmp_path / "ran"
    prepared({"agent.py": f"open({str(mark)!r}, 'w').close()\n{AGENT}", "ast.py": "raise SystemExit", "json.py": "1/0"})
    assert not mark.exists()


@pytest.mark.parametrize("source", ["(" * 100_000, "-" * 200_000 + "1", "x" + ".a" * 200_000, "[" * 300 + "]" * 300])
def test_a_file_that_strains_the_parser_is_an_issue_and_not_a_failure(source):
    assert issues_of({"agent.py": AGENT, "deep.py": source})


def test_what_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(python, "TIME_LIMIT", 1)
    lines = "\n".join(f"x{n} = [{n * 7919}]" for n in range(50_000))
    [(path, message)] = issues_of({"agent.py": AGENT} | {f"{n}.py": lines for n in range(20)})
    assert (path, message) == ("bundle", "The files take longer than 1 s to read.")


@pytest.mark.parametrize(
    "source",
    [
        AGENT,
        "async def agent(request, context):\n    yield 'a'\n",
        "from lib import agent\n",
        "from lib import run as agent\n",
        "agent = lambda request, context: 'hi'\n",
        "try:\n    from fast import agent\nexcept ImportError:\n    def agent(request, context): return ''\n",
    ],
)
def test_an_entrypoint_may_define_its_agent_in_any_way(source):
    assert prepared({"agent.py": source})


@pytest.mark.parametrize("source", ["", "def Agent(r, c): ...", "class agent: ...", "def f():\n    def agent(): ...", "import agent.x", "agent: int"])  # fmt: skip
def test_an_entrypoint_without_an_agent_is_refused(source):
    [(path, message)] = issues_of({"agent.py": source})
    assert path == "agent.py"
    assert "called `agent`" in message


# --- Machine code ---


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.so", elf(62)),
        ("a.node", elf(62)),
        ("a.so.6", elf(40, bits=1)),
        ("program", elf(62)),
        ("a.so", elf(183, bits=1)),
        ("a.so", elf(183, order=2)),
        ("a.so", b"\x7fELF"),
        ("a.so", b"MZ not for Linux"),
        ("a.node", b"\xcf\xfa\xed\xfe"),
    ],
)
def test_a_library_for_another_machine_is_refused_and_named(name, content):
    [(path, message)] = issues_of({"agent.py": AGENT, name: content})
    assert path == name
    assert "arm64" in message


def test_compiled_python_is_refused():
    assert issues_of({"agent.py": AGENT, "lib.pyc": b"\xa7\r\r\n"}) == [
        ("lib.pyc", "Compiled Python is not taken; deploy its source.")
    ]


# --- Config ---


@pytest.mark.parametrize("runtimes", [{"runtime": "cloudflare"}, {"runtimes": ["cloudflare", "agentcore"]}])
def test_python_runs_on_agentcore_alone(runtimes):
    config = {"name": "alices-agent", "entrypoint": "agent.py"} | runtimes
    with pytest.raises(InvalidRequestError) as refused:
        parse_config(json.dumps(config).encode())
    [issue] = refused.value.details["issues"]
    assert issue["path"] == f"{CONFIG_NAME}/entrypoint"
    assert "agentcore" in issue["message"]


def config_of(**changes):
    config = {"name": "alices-agent", "entrypoint": "agent.ts", "runtimes": ["cloudflare", "agentcore"]}
    return parse_config(json.dumps(config | changes).encode())


def test_a_call_may_take_as_long_as_its_runtime_allows():
    config = config_of(timeoutSeconds=900)
    assert {runtime: timeout_for(config, runtime) for runtime in LONGEST_TIMEOUT} == {
        "cloudflare": 300, "agentcore": 900,
    }  # fmt: skip
    assert timeout_for(config_of(timeoutSeconds=20), "cloudflare") == 20


@pytest.mark.parametrize("changes", [{"timeoutSeconds": 901}, {"runtimes": ["cloudflare"], "timeoutSeconds": 301}])
def test_a_call_may_not_take_longer_than_every_runtime_allows(changes):
    with pytest.raises(InvalidRequestError) as refused:
        config_of(**changes)
    assert refused.value.details["issues"][0]["path"] == f"{CONFIG_NAME}/timeoutSeconds"


@pytest.mark.parametrize(
    ("given", "idle", "lifetime"),
    [
        ({}, DEFAULT_IDLE, DEFAULT_LIFETIME),
        ({"idleTimeoutSeconds": 60}, 60, DEFAULT_LIFETIME),
        ({"maxLifetimeSeconds": 600}, 600, 600),
        ({"idleTimeoutSeconds": 3600, "maxLifetimeSeconds": 7200}, 3600, 7200),
    ],
)
def test_a_lifecycle_is_filled_in_with_defaults(given, idle, lifetime):
    found = lifecycle_of(config_of(agentcore={"lifecycle": given}))
    assert (found.idle_seconds, found.lifetime_seconds) == (idle, lifetime)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"idleTimeoutSeconds": 119}, "idleTimeoutSeconds"),
        ({"maxLifetimeSeconds": 119}, "maxLifetimeSeconds"),
        ({"idleTimeoutSeconds": 700, "maxLifetimeSeconds": 600}, "idleTimeoutSeconds"),
    ],
)
def test_a_session_may_not_end_before_a_call_may(given, key):
    with pytest.raises(InvalidRequestError) as refused:
        config_of(timeoutSeconds=120, agentcore={"lifecycle": given})
    assert refused.value.details["issues"][0]["path"] == f"{CONFIG_NAME}/agentcore/lifecycle/{key}"


# --- The examples, on their shims ---


@pytest.fixture
def deployed(tmp_path):
    """Build an example as for a deployment, and run it behind its shim."""

    def run(name):
        bundle = prepare_bundle(read_bundle(io.BytesIO(example(name))))
        assert bundle.config.name == name
        files = {module.name: module.content for module in bundle.modules}
        language = "python" if bundle.is_python else "node"
        return running(language, files, bundle.entrypoint, tmp_path, aws)

    with FakeAws().listening() as aws:
        yield run


@pytest.mark.parametrize(
    ("name", "prompt", "text"),
    [
        ("echo", "日本語", "日本語"),
        ("tokens", "a b c", "a b c"),
        ("streaming", "one two", "one two"),
        ("session", "hi", "turn 1"),
        ("slow", "0.2", "slept 0.2 s"),
        ("python", "one two three", "one two three"),
        ("tools", "go", "code interpreter: 42 | browser: opened"),
    ],
)
def test_each_example_does_on_agentcore_what_its_readme_says(deployed, name, prompt, text):
    with deployed(name) as shim:
        assert shim.invoke(prompt)["text"] == text


def test_the_tools_example_says_what_it_may_not_use(deployed):
    with deployed("tools") as shim:
        assert shim.invoke("go", options={"tools": "off"})["text"] == (
            "code interpreter: unavailable | browser: unavailable"
        )


def test_the_python_example_counts_turns_in_its_log_and_its_own_tokens(deployed):
    with deployed("python") as shim:
        for turn in (1, 2):
            answer = json.loads(shim.post(call("one two three")).read())
            assert (answer["logs"], answer["usage"]["tokens"]) == ([f"turn {turn}"], 3)
