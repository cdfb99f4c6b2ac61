"""`whs init`: a folder to start from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import click

from whs.app import App, json_option, pass_app
from whs.building.project import CONFIG_NAME
from whs.errors import UsageError

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{3,64}")
_TYPESCRIPT: Final = """\
interface Request {
  input: { messages: { role: string; content: string }[] };
}

/** Say what the user said last, word by word, and report a token for each word. */
export default async function* agent(request: Request) {
  const said = request.input.messages.at(-1)?.content ?? "";
  const words = said.split(/\\s+/).filter(Boolean);
  yield "You said:";
  for (const word of words) yield ` ${word}`;
  return { usage: { tokens: words.length } };
}
"""
_PYTHON: Final = '''\
"""An agent: a generator, so that its answer is streamed."""


def agent(request, context):
    """Say what the user said last, word by word, and report a token for each word."""
    words = request["input"]["messages"][-1]["content"].split()
    yield "You said:"
    for word in words:
        yield f" {word}"
    return {"usage": {"tokens": len(words)}}
'''


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--name", help="What the agent is called [the folder's name].")
@click.option("--language", type=click.Choice(["typescript", "python"]), default="typescript", show_default=True)
@json_option
@pass_app
def init(app: App, folder: Path, name: str | None, language: str) -> None:
    """Write agent.config.json and an agent to start from into FOLDER. Never over a file that is there."""
    name = name or folder.resolve().name
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name} is no name for an agent: 3 to 64 letters, digits, - and _.", todo="Give one with --name."
        )
    is_python = language == "python"
    entrypoint = "agent.py" if is_python else "agent.ts"
    config: dict[str, Any] = {
        "name": name,
        "entrypoint": entrypoint,
        "runtimes": ["agentcore"] if is_python else ["cloudflare", "agentcore"],
        "protocol": "invoke/v1",
        "capabilities": {"streaming": True},
    }
    files = {CONFIG_NAME: json.dumps(config, indent=2) + "\n", entrypoint: _PYTHON if is_python else _TYPESCRIPT}
    if there := [file for file in files if (folder / file).exists() or (folder / file).is_symlink()]:
        raise UsageError(f"{folder / there[0]} is there already; nothing was written.")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        with (folder / file).open("x", encoding="utf-8") as opened:
            opened.write(text)
    app.answer({"folder": str(folder), "name": name, "files": list(files)})
    app.say(f"Wrote {' and '.join(files)} to {folder}. Next: whs deploy {folder}")
