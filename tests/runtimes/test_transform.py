"""From TypeScript to modules: types go, imports stay inside the bundle, and nothing else is read."""

import io
import json
import os
import re
import tempfile
import time
from pathlib import Path

import pytest
from django.test import override_settings

from runtimes import confined
from runtimes import transform as driver
from runtimes.bundle import ModuleKind, prepare_bundle, read_bundle
from runtimes.bundles.config import CONFIG_NAME
from runtimes.bundles.linking import output_name, resolve
from runtimes.transform import Broken, transform
from tests.factories import zip_of
from webhost.errors import InvalidRequestError, UnavailableError

END = "\nexport default async () => ({ text: 'hi' });\n"


def prepared(files, entrypoint="agent.ts"):
    config = {"name": "alices-agent", "entrypoint": entrypoint, "runtime": "cloudflare"}
    return prepare_bundle(read_bundle(io.BytesIO(zip_of({CONFIG_NAME: json.dumps(config), **files}))))


def modules_of(files, entrypoint="agent.ts"):
    return {module.name: module.content.decode() for module in prepared(files, entrypoint).modules}


def issues_of(files, entrypoint="agent.ts"):
    with pytest.raises(InvalidRequestError) as refused:
        prepared(files, entrypoint)
    assert tempfile.gettempdir() not in str(refused.value.details)
    return [(issue["path"], issue["message"]) for issue in refused.value.details["issues"]]


WRITTEN = {
    "./lib/a.ts": "./lib/a.js", "./lib/a.js": "./lib/a.js", "./lib/a": "./lib/a.js", "./lib/../lib/a": "./lib/a.js",
    "./lib": "./lib/index.mjs", "./lib/": "./lib/index.mjs", "./plain.js": "./plain.js", "./m.mts": "./m.mjs",
    "./m.mjs": "./m.mjs", "./data.json": "./data.json.js", "./notes.txt": "./notes.txt.js",
    "./.hidden/a": "./.hidden/a.js", "node:crypto": "node:crypto", "cloudflare:workers": "cloudflare:workers",
}  # fmt: skip


@pytest.mark.parametrize("form", ["import '{}';", "export * from '{}';", "await import('{}');", "await import(`{}`);"])
def test_an_import_is_written_as_the_name_that_is_deployed(form):
    files = {
        "lib/a.ts": "export default 1", "lib/index.mts": "export default 1", "plain.js": "export default 1",
        "m.mts": "export default 1", "data.json": "{}", "notes.txt": "x", ".hidden/a.ts": "export default 1",
    }  # fmt: skip
    code = modules_of({"agent.ts": "\n".join(map(form.format, WRITTEN)) + END, **files})["agent.js"]
    assert re.findall(r'"([^"]+)"', code)[: len(WRITTEN)] == list(WRITTEN.values())


def test_a_module_below_a_folder_reaches_up():
    made = modules_of(
        {"agent.ts": "import './lib/a'" + END, "lib/a.ts": "import '../b'; import './c'", "b.ts": "", "lib/c.ts": ""}
    )
    assert '"../b.js"' in made["lib/a.js"]
    assert '"./c.js"' in made["lib/a.js"]


def test_text_beyond_the_basic_plane_is_cut_at_the_right_places():
    made = modules_of(
        {
            "agent.ts": "const a: string = '😀😀'; import './b.ts'; const c = '😀'; import './b.ts';" + END,
            "b.ts": "'日'",
        }
    )
    assert made["agent.js"].count('"./b.js"') == 2
    assert "日" in made["b.js"]


def test_only_what_the_entrypoint_reaches_is_deployed():
    made = modules_of(
        {
            "agent.ts": END,
            "agent.test.ts": "import { test } from 'vitest'",
            "broken.ts": "let = ;",
            "package.json": "{}",
        }
    )
    assert list(made) == ["agent.js"]


def test_types_are_gone_and_imports_of_types_too():
    made = modules_of({"agent.ts": "import type { A } from 'lodash'; import { B } from 'other'; let b: B; b;" + END})
    assert "lodash" not in made["agent.js"]
    assert "other" not in made["agent.js"]


def test_data_becomes_a_module_that_both_runtimes_take():
    made = modules_of(
        {
            "agent.ts": "import d from './d.json' with { type: 'json' }; import t from './t.md'; d(t);" + END,
            "d.json": '{"__proto__": 1, "long": 12345678901234567890}',
            "t.md": "`${x}` \u2028 \\ \" '",
        }
    )
    assert json.loads(json.loads(made["d.json.js"].removeprefix("export default JSON.parse(").removesuffix(");\n")))
    assert json.loads(made["t.md.js"].removeprefix("export default ").removesuffix(";\n")) == "`${x}` \u2028 \\ \" '"
    assert "with" not in made["agent.js"]


@pytest.mark.parametrize(
    "specifier",
    ["lodash", "@scope/a", "fs", "/etc/passwd", "file:///etc/passwd", "https://evil.example/x.js", "data:text/javascript,1", "#a", "", "npm:x", "node:", "node:fs'x", "NODE:fs", "workerd:x"],
)  # fmt: skip
def test_an_import_from_elsewhere_is_refused_with_file_line_and_remedy(specifier):
    [(path, message)] = issues_of({"agent.ts": f"\n\nimport {json.dumps(specifier)};" + END})
    assert path == "agent.ts:3"
    assert json.dumps(specifier) in message
    assert "whs build" in message


@pytest.mark.parametrize("specifier", ["./nope", "../agent", "../../etc/passwd", "./agent.ts?x", "./agent.ts#x", "./%61gent.ts", "./AGENT.ts", "..", "./pic.png", "./x.tsx", "./x.cts", "./types.d.ts"])  # fmt: skip
def test_a_relative_import_that_is_no_module_of_the_bundle_is_refused(specifier):
    files = {"pic.png": "x", "x.tsx": "", "x.cts": "", "types.d.ts": ""}
    [(path, message)] = issues_of({"agent.ts": f"import {json.dumps(specifier)};" + END, **files})
    assert path == "agent.ts:1"
    assert json.dumps(specifier) in message


def test_an_escaped_specifier_is_judged_by_what_it_means():
    [(_, message)] = issues_of({"agent.js": "import '\\x6codash';" + END}, "agent.js")
    assert '"lodash"' in message


def test_an_import_that_is_computed_stays_and_finds_nothing():
    made = modules_of(
        {"agent.ts": "const f = (n: string) => import(`../../../etc/${n}.json`); f('x'); import(f.name);" + END}
    )
    assert list(made) == ["agent.js"]
    assert "${n}" in made["agent.js"]


def test_a_syntax_error_names_the_users_file_and_line():
    assert issues_of({"agent.ts": "import './b.ts'" + END, "b.ts": "\n\nlet a = ;\n"}) == [("b.ts:3", 'Unexpected ";"')]
    assert issues_of({"agent.js": "let a: number = 1" + END}, "agent.js")[0][0] == "agent.js:1"


def test_an_entrypoint_needs_a_default_export():
    assert "default" in issues_of({"agent.ts": "export const agent = 1"})[0][1]
    assert modules_of({"agent.ts": "export { run as default } from './run'", "run.ts": "export const run = () => 'x'"})


def test_two_files_that_become_one_module_are_refused():
    [(_, message)] = issues_of({"agent.ts": "import './a.ts'; import './a.js'" + END, "a.ts": "", "a.js": ""})
    assert "same module" in message
    assert issues_of({"agent.ts": "import './a.json'; import './a.json.js'" + END, "a.json": "1", "a.json.js": ""})


def test_a_module_with_an_unusual_name_is_refused():
    assert "ASCII" in issues_of({"agent.ts": "import './a\"b.ts'" + END, 'a"b.ts': ""})[0][1]
    assert "ASCII" in issues_of({"agent.ts": "import './é.ts'" + END, "é.ts": ""})[0][1]


def test_files_that_are_no_text_are_refused_by_name():
    assert issues_of({"agent.ts": b"\xff\xfe"}) == [("agent.ts", "agent.ts is not valid UTF-8.")]
    assert issues_of({"agent.ts": "import './a.txt'" + END, "a.txt": b"\xff"})[0][0] == "a.txt"
    for bad in ("{", "NaN", "[" * 100_000, ""):
        assert issues_of({"agent.ts": "import './a.json'" + END, "a.json": bad})[0][0] == "a.json"


def test_the_issues_told_are_bounded():
    assert len(issues_of({"agent.ts": "".join(f"import './n{n}';\n" for n in range(3000)) + END})) == 20


# --- provider-facts C7: nothing outside of the bundle is read ---


@pytest.mark.parametrize(
    "line",
    [
        "import s from '{}' with {{ type: 'text' }}; s();",
        "import s from '{}' with {{ type: 'json' }}; s();",
        "const s = require('{}');",
        "const s = require(`{}/${{1}}`);",
        "const s = import(`{}/${{1}}.json`);",
        "const s = new URL('{}', import.meta.url);",
        "//# sourceMappingURL={}",
        "//# sourceMappingURL=file://{}",
        "/// <reference path='{}' />",
        "/** @jsxImportSource {} */",
        "let a = ; // {}",
    ],
)
@pytest.mark.parametrize("how", ["absolute", "relative"])
def test_no_way_of_naming_a_file_outside_brings_its_content_in(line, how, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text('{"word": "xyzzy-secret"}')
    path = str(secret) if how == "absolute" else os.path.relpath(secret, tempfile.gettempdir())
    files = {
        "agent.ts": line.format(path) + END,
        "tsconfig.json": json.dumps({"extends": str(secret), "compilerOptions": {"paths": {"*": [str(secret)]}}}),
        "package.json": json.dumps({"browser": {"./a": str(secret)}}),
    }
    try:
        seen = json.dumps(modules_of(files))
    except InvalidRequestError as refused:
        seen = json.dumps(refused.details) + refused.message
    assert "xyzzy" not in seen


def test_the_node_process_has_no_environment_and_leaves_nothing_behind(monkeypatch, tmp_path):
    seen = {}
    popen = confined.subprocess.Popen

    def watched(command, **options):
        seen.update(options, listing=list(Path(options["cwd"]).iterdir()))
        return popen(command, **options)

    monkeypatch.setattr(confined.subprocess, "Popen", watched)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    prepared({"agent.ts": END})
    assert seen["env"] == {}
    assert seen["listing"] == []
    assert list(tmp_path.iterdir()) == []
    assert not Path(seen["cwd"]).exists()


# --- Caps ---


def test_a_file_that_kills_the_parser_is_named_and_the_others_are_still_read():
    made = transform({"a.ts": "(" * 3_000_000, "b.ts": "export const b: number = 1"})
    assert isinstance(made.results["a.ts"], Broken)
    assert "deeply nested" in made.results["a.ts"].text
    assert not isinstance(made.results["b.ts"], Broken)


def test_what_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(driver, "TIME_LIMIT", 1)
    began = time.monotonic()
    with pytest.raises(InvalidRequestError, match="longer than 1 s"):
        transform({f"{n}.ts": "(" * 900_000 for n in range(20)})
    assert time.monotonic() - began < 10


@pytest.mark.skipif(not hasattr(confined.resource, "prlimit"), reason="only Linux caps another process")
def test_what_becomes_too_large_is_stopped(monkeypatch):
    monkeypatch.setattr(driver, "LARGEST_OUTPUT", 100_000)
    with pytest.raises(InvalidRequestError) as refused:
        transform({"a.ts": f"export const a = '{'x' * 200_000}'"})
    assert refused.value.status == 413


@pytest.mark.skipif(not hasattr(confined.resource, "prlimit"), reason="only Linux caps another process")
def test_what_takes_too_much_memory_is_stopped(monkeypatch):
    monkeypatch.setattr(driver, "_MEMORY_LIMIT", 120 * 2**20)
    with pytest.raises(InvalidRequestError):
        prepared(
            {"agent.ts": "\n".join(f"export const f{n} = (a: number) => a * {n**3};" for n in range(120_000)) + END}
        )


@override_settings(NODE_BINARY="/nowhere/node")
def test_without_node_nothing_is_refused_for_good():
    with pytest.raises(UnavailableError) as away:
        transform({"agent.ts": END})
    assert away.value.retryable


@override_settings(NODE_MODULES_DIR="/nowhere")
def test_without_its_packages_it_says_no_more_than_that_it_is_away():
    with pytest.raises(UnavailableError) as away:
        transform({"agent.ts": END})
    assert "/nowhere" not in away.value.message


# --- The same in, the same out ---


def test_the_order_and_the_dates_in_a_zip_do_not_change_what_is_deployed():
    files = {"agent.ts": "import './a'; import './b'" + END, "a.ts": "", "b.ts": ""}
    one, other = prepared(files), prepared(dict(reversed(files.items())))
    assert one.source_sha256 != other.source_sha256
    assert one.deployed_sha256 == other.deployed_sha256
    assert one.modules == other.modules
    assert prepared(files | {"a.ts": "1"}).deployed_sha256 != one.deployed_sha256
    assert {module.kind for module in one.modules} == {ModuleKind.ESM}


@pytest.mark.parametrize(
    ("specifier", "importer", "found"),
    [
        ("./b", "a/x.ts", "a/b.ts"),
        ("../b", "a/x.ts", None),
        ("../a/b.js", "a/x.ts", "a/b.ts"),
        ("..", "a/x.ts", "index.js"),
        (".", "x.ts", "index.js"),
        ("./a/", "x.ts", None),
        ("../../x", "a/x.ts", None),
    ],
)
def test_a_relative_import_is_completed_as_typescript_does(specifier, importer, found):
    assert resolve(specifier, importer, {"a/b.ts": 1, "a/x.ts": 1, "index.js": 1}) == found


@pytest.mark.parametrize(("name", "made"), [("a.ts", "a.js"), ("a.mts", "a.mjs"), ("a.js", "a.js"), ("a.mjs", "a.mjs"), ("a.json", "a.json.js")])  # fmt: skip
def test_a_file_is_deployed_under_a_name_both_runtimes_know(name, made):
    assert output_name(name) == made
