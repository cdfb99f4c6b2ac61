"""From a folder to a zip: what goes in, what never does, and which words say what is missing.

What is built is read by the service's own reader, which judges it as an upload.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from runtimes.bundle import prepare_bundle, read_bundle
from runtimes.bundles import archive as service
from tests.cli.program import Program
from webhost.local import environment, node
from whs.building import archive, esbuild, project
from whs.errors import Exit, LocalError

CONFIG = {"name": "hello", "entrypoint": "agent.ts", "runtimes": ["cloudflare", "agentcore"], "protocol": "invoke/v1"}
AGENT = "export default async function agent() { return 'hi'; }\n"
PYTHON = CONFIG | {"entrypoint": "agent.py", "runtimes": ["agentcore"]}


@pytest.fixture(scope="module")
def npm(tmp_path_factory) -> Path:
    """A node_modules folder with esbuild and two packages, one of them in CommonJS, as npm leaves them."""
    modules = tmp_path_factory.mktemp("npm") / "node_modules"
    side = node.install(environment.STATE / "node")
    shutil.copytree(side.modules / "esbuild", modules / "esbuild")
    (modules / "@esbuild").symlink_to(side.modules / "@esbuild")
    (modules / ".bin").mkdir()
    (modules / ".bin" / "esbuild").symlink_to("../esbuild/bin/esbuild")
    packages = {
        "greeting": {
            "package.json": json.dumps({
                "name": "greeting", "type": "module", "main": "node.js", "browser": "browser.js",
                "exports": {"worker": "./browser.js", "node": "./node.js", "default": "./node.js"},
            }),
            "browser.js": "export const greeting = 'for Workers and Node';\n",
            "node.js": "import { sep } from 'node:path';\nexport const greeting = 'for Node' + sep;\n",
        },
        "old": {
            "package.json": json.dumps({"name": "old", "main": "main.js"}),
            "main.js": "const { join } = require('path');\nexports.place = join('a', 'b');\n",
        },
    }  # fmt: skip
    for name, files in packages.items():
        for file, text in files.items():
            (modules / name / file).parent.mkdir(exist_ok=True)
            (modules / name / file).write_text(text)
    return modules


def config(**more) -> str:
    return json.dumps(CONFIG | more)


def build(whs: Program, *options: str):
    """Build the folder `hello`; return the zip's files and the bundle that the service makes of it."""
    ended = whs("build", "hello", "-o", "out.zip", *options)
    assert ended.code == Exit.OK, ended.err
    content = (whs.folder / "out.zip").read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        files = {name: opened.read(name) for name in opened.namelist()}
    return files, prepare_bundle(read_bundle(io.BytesIO(content)))


def hello(whs: Program, **files: str) -> None:
    whs.write({f"hello/{name}": text for name, text in files.items()})


# --- A start ---


@pytest.mark.parametrize("language", ["typescript", "python"])
def test_init_writes_an_agent_that_the_service_takes(whs, language):
    assert whs("init", "hello", "--language", language).code == Exit.OK
    _, bundle = build(whs)
    assert bundle.config.name == "hello"
    assert bundle.config.streaming


@pytest.mark.parametrize("there", ["agent.config.json", "agent.ts"])
def test_init_never_writes_over_a_file(whs, there):
    whs.write({f"hello/{there}": "mine"})
    assert whs("init", "hello").code == Exit.USAGE
    assert {path.name: path.read_text() for path in (whs.folder / "hello").iterdir()} == {there: "mine"}


def test_init_refuses_what_is_no_name(whs):
    assert whs("init", "my agent").code == Exit.USAGE
    assert not (whs.folder / "my agent").exists()
    assert whs("init", "my agent", "--name", "mine").code == Exit.OK


# --- As it is ---


def test_without_a_package_json_the_sources_go_as_they_are(whs):
    hello(whs, **{"agent.config.json": config(), "agent.ts": "import { a } from './lib/a.js';\n" + AGENT + "a;\n"})
    hello(whs, **{"lib/a.ts": "export const a = 1;\n", "lib/words.txt": "x", "logo.png": "x"})
    files, bundle = build(whs)
    assert set(files) == {"agent.config.json", "agent.ts", "lib/a.ts", "lib/words.txt"}
    assert bundle.entrypoint == "agent.js"


def test_secrets_caches_packages_and_zips_stay_at_home(whs):
    hello(
        whs, **{"agent.config.json": json.dumps(PYTHON), "agent.py": "def agent(r, c): return 'hi'\n", "notes.txt": "x"}
    )
    hello(whs, **{
        ".env": "KEY=1", ".git/config": "x", "node_modules/a/index.js": "x", "venv/pyvenv.cfg": "", "venv/lib/x.py": "",
        "__pycache__/agent.pyc": "x", "old.zip": "PK", "lib/.secret": "x",
    })  # fmt: skip
    files, _ = build(whs)
    assert set(files) == {"agent.config.json", "agent.py", "notes.txt"}


def test_a_link_is_refused_wherever_it_leads(whs):
    hello(whs, **{"agent.config.json": config(), "agent.ts": AGENT})
    (whs.folder / "hello" / "data.json").symlink_to("/etc/passwd")
    ended = whs("build", "hello")
    assert ended.code == Exit.USAGE
    assert "data.json is a link" in ended.err


def test_the_same_files_give_the_same_zip(whs):
    hello(whs, **{"agent.config.json": config(), "agent.ts": AGENT})
    build(whs)
    first = (whs.folder / "out.zip").read_bytes()
    (whs.folder / "hello" / "agent.ts").touch()
    build(whs)
    assert (whs.folder / "out.zip").read_bytes() == first


def test_a_build_is_no_part_of_the_next_one(whs):
    hello(whs, **{"agent.config.json": config(), "agent.ts": AGENT})
    assert whs("build", "hello").code == Exit.OK
    assert (whs.folder / "hello" / ".whs" / "hello.zip").exists()
    files, _ = build(whs)
    assert set(files) == {"agent.config.json", "agent.ts"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "There is no agent.config.json"),
        ({"agent.config.json": "{"}, "cannot be read"),
        ({"agent.config.json": "[]"}, "must name"),
        ({"agent.config.json": config(runtimes=["lambda"]), "agent.ts": AGENT}, "must name `runtimes`"),
        ({"agent.config.json": config()}, "The entrypoint agent.ts is not in"),
        (
            {"agent.config.json": config(), "agent.ts": "import { z } from 'zod';\n" + AGENT},
            "imports zod, and there is no",
        ),
    ],
)
def test_a_folder_that_is_no_agent_is_told_what_is_missing(whs, files, words):
    (whs.folder / "hello").mkdir()
    hello(whs, **files)
    ended = whs("build", "hello")
    assert ended.code == Exit.USAGE
    assert words in ended.err
    assert not (whs.folder / "hello" / ".whs").exists()


def test_what_the_service_would_not_take_is_not_sent():
    assert (archive.MOST_FILES, archive.LARGEST_FILE) == (service.MOST_ENTRIES, service.LARGEST_ENTRY)
    with pytest.raises(LocalError, match="1,001 files"):
        archive.pack({f"{n}.txt": b"" for n in range(1001)})
    with pytest.raises(LocalError, match=r"a\.bin is larger than 16 MB"):
        archive.pack({"a.bin": bytes(16 * 1024 * 1024 + 1)})


def test_code_and_text_are_what_the_service_calls_so():
    from runtimes.bundles import linking  # its tables are its own business but here

    assert frozenset(linking._CODE) == project.CODE
    assert linking._TEXT == project.TEXT


# --- npm ---


def with_packages(whs: Program, npm: Path, code: str, **more) -> None:
    hello(whs, **{"agent.config.json": config(**more), "package.json": "{}", "agent.ts": code + AGENT})
    (whs.folder / "hello" / "node_modules").symlink_to(npm)


def test_packages_are_bundled_into_one_file_that_needs_no_other(whs, npm):
    with_packages(whs, npm, "import { greeting } from 'greeting';\nconsole.log(greeting);\n")
    hello(whs, **{"README.md": "x", "tests/agent.test.ts": "import 'vitest';"})
    files, bundle = build(whs)
    assert set(files) == {"agent.config.json", "agent.js"}
    assert json.loads(files["agent.config.json"]) == CONFIG | {"entrypoint": "agent.js"}
    assert b"for Workers and Node" in files["agent.js"]
    assert [module.name for module in bundle.modules] == ["agent.js"]


def test_for_node_alone_packages_are_taken_as_they_are_made_for_node(whs, npm):
    with_packages(whs, npm, "import { greeting } from 'greeting';\nconsole.log(greeting);\n", runtimes=["agentcore"])
    files, _ = build(whs)
    assert b"for Node" in files["agent.js"]
    assert b"for Workers" not in files["agent.js"]


def test_old_packages_may_require_what_the_runtime_has(whs, npm):
    with_packages(whs, npm, "import { place } from 'old';\nconsole.log(place);\n")
    files, _ = build(whs)
    assert files["agent.js"].startswith(b"import { createRequire")


def test_text_is_imported_as_the_service_does_it(whs, npm):
    with_packages(whs, npm, "import words from './words.md';\nconsole.log(words);\n")
    hello(whs, **{"words.md": "# of the file"})
    files, _ = build(whs)
    assert b"# of the file" in files["agent.js"]


def test_a_package_that_is_not_installed_is_named_with_its_line(whs, npm):
    with_packages(whs, npm, "import { z } from 'zod';\nconsole.log(z);\n")
    ended = whs("build", "hello")
    assert ended.code == Exit.FAILED
    assert 'Could not resolve "zod"' in ended.err
    assert "agent.ts:1:" in ended.err
    assert "npm install" in ended.err
    assert "node:internal" not in ended.err


def test_without_esbuild_it_says_how_to_get_it(whs):
    hello(whs, **{"agent.config.json": config(), "package.json": "{}", "agent.ts": AGENT})
    ended = whs("build", "hello", "--json", PATH=str(Path(sys.executable).parent))
    assert ended.code == Exit.FAILED
    assert "npm install --save-dev esbuild" in ended.json["error"]["details"]["todo"]


def test_the_esbuild_of_a_workspace_is_found(npm):
    inside = npm.parent / "packages" / "agent"
    inside.mkdir(parents=True)
    assert esbuild.find_esbuild(inside) == npm / ".bin" / "esbuild"


# --- Python ---


def wheel(name: str, tag: str, files: dict[str, bytes]) -> bytes:
    """A wheel of a package."""
    information = f"{name}-1.0.dist-info"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        for file, data in files.items():
            packed.writestr(file, data)
        packed.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        packed.writestr(f"{information}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        packed.writestr(f"{information}/RECORD", "")
    return content.getvalue()


def with_requirements(whs: Program, tag: str, files: dict[str, bytes]) -> None:
    hello(whs, **{"agent.config.json": json.dumps(PYTHON), "agent.py": "from kindly import words as agent\n"})
    hello(whs, **{"requirements.txt": "--no-index\n--find-links ../wheels\nkindly==1.0\n"})
    whs.write({f"wheels/kindly-1.0-{tag}.whl": wheel("kindly", tag, files)})


def test_pure_packages_of_a_requirements_txt_lie_beside_the_agent(whs):
    with_requirements(whs, "py3-none-any", {"kindly/__init__.py": b"def words(r, c): return 'hi'\n"})
    files, bundle = build(whs)
    assert {"agent.config.json", "agent.py", "kindly/__init__.py", "requirements.txt"} <= set(files)
    assert not any("__pycache__" in name for name in files)
    assert bundle.is_python


def test_packages_are_those_of_the_machine_that_will_run_them(whs):
    arm64 = b"\x7fELF\x02\x01\x01" + bytes(11) + (183).to_bytes(2, "little") + bytes(44)
    with_requirements(
        whs, "cp313-cp313-manylinux2014_aarch64", {"kindly/__init__.py": b"words = str\n", "kindly/fast.so": arm64}
    )
    files, _ = build(whs)
    assert files["kindly/fast.so"] == arm64


def test_packages_for_another_machine_are_refused(whs):
    with_requirements(whs, "cp313-cp313-manylinux2014_x86_64", {"kindly/__init__.py": b""})
    ended = whs("build", "hello")
    assert ended.code == Exit.FAILED
    assert "kindly" in ended.err
    assert "arm64" in ended.err


def test_a_file_of_the_project_is_not_hidden_by_a_package(whs):
    with_requirements(whs, "py3-none-any", {"agent.py": b"def agent(r, c): return 'theirs'\n"})
    ended = whs("build", "hello")
    assert ended.code == Exit.FAILED
    assert "agent.py is a file of the project as well as of a package" in ended.err
