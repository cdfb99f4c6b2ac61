"""Calling an agent, and reading what it says as it says it."""

from __future__ import annotations

import json
from typing import Any

import click

from whs import show
from whs.app import App, json_option, pass_app
from whs.client import CALL_SECONDS, part
from whs.errors import Exit, RefusedError, UnreachableError, UsageError
from whs.terminal import is_interactive, read_input, speaks_to_person


@click.command()
@click.argument("agent")
@click.argument("text", required=False)
@click.option("--session", metavar="ID", help="Go on with a conversation; without, a new one begins.")
@click.option("--max-tokens", type=click.IntRange(min=1))
@click.option("--max-steps", type=click.IntRange(min=1))
@click.option("--no-tools", is_flag=True, help="Without code interpreter and browser.")
@click.option("--stream/--no-stream", default=None, help="As it comes, or in one piece [with --json: one piece].")
@click.option("-q", "--quiet", is_flag=True, help="Only what the agent says.")
@json_option
@pass_app
def invoke(  # noqa: PLR0917 - click gives each by its name
    app: App, agent: str, text: str | None, session: str | None, max_tokens: int | None, max_steps: int | None,
    *, no_tools: bool, stream: bool | None, quiet: bool,
) -> None:  # fmt: skip
    """Say TEXT to an agent, or what comes on standard input, and print its answer as it comes.

    With --json --stream, every event is a line of JSON. Ctrl-C stops the agent; what it used until then counts.
    """
    given = {"maxTokens": max_tokens, "maxSteps": max_steps, "tools": "off" if no_tools else None}
    options = {name: value for name, value in given.items() if value is not None}
    body: dict[str, Any] = {"input": {"prompt": _prompt(text)}}
    body |= {"sessionId": session} if session else {}
    body |= {"options": options} if options else {}
    path = f"/v1/invoke/{part(agent)}"
    if stream if stream is not None else not app.is_json:
        _stream(app, f"{path}/stream", body, quiet=quiet)
        return
    answer = app.client.post(path, body, keyed=True, seconds=CALL_SECONDS)
    app.answer(answer)
    if not app.is_json:
        _say(answer["output"]["text"])
    if not quiet:
        _foot(app, answer, answer["usage"])


def _prompt(text: str | None) -> str:
    if text is None or text == "-":
        if text is None and is_interactive():
            raise UsageError("Say something: give a text, or - and standard input.")
        text = read_input()
    if not text.strip():
        raise UsageError("The text is empty.")
    return text


def _stream(app: App, path: str, body: dict[str, Any], *, quiet: bool) -> None:
    printer = _Printer(app, quiet=quiet)
    events = app.client.stream(path, body)
    try:
        for event in events:
            printer.take(event.name, json.loads(event.data))
            if printer.is_done:
                return
    except UnreachableError:
        if not printer.meta:
            raise
    except KeyboardInterrupt:
        # Closing the connection is what stops the agent.
        click.echo("\nStopped. What was used until now counts.", err=True)
        raise click.exceptions.Exit(int(Exit.INTERRUPTED)) from None
    finally:
        events.close()
    invocation = printer.meta.get("invocationId", "the call")
    raise UnreachableError(
        "The connection broke before the answer was complete.",
        todo=f"look whether {invocation} ran, before you repeat it: GET /v1/invocations.",
    )


class _Printer:
    """Prints a stream: text for people, a line of JSON per event for programs."""

    def __init__(self, app: App, *, quiet: bool) -> None:
        self._app = app
        self._quiet = quiet
        self._usage: dict[str, Any] | None = None
        self.meta: dict[str, Any] = {}
        self.is_done = False

    def take(self, name: str, data: dict[str, Any]) -> None:
        """Print an event; raises RefusedError for one that is an error."""
        if name == "error":
            if self.meta:
                self._app.say()  # what follows begins a line of its own
            raise RefusedError(data)
        self._app.answer({"event": name, "data": data})
        if name == "meta":
            self.meta = data
        elif name == "delta" and not self._app.is_json:
            _say(data["text"], end="")
        elif name == "usage":
            self._usage = data
        elif name == "done":
            self.is_done = True
            self._app.say()
            if self._usage is not None and not self._quiet:
                _foot(self._app, self.meta, self._usage)


def _say(text: str, *, end: str = "\n") -> None:
    """Print what the agent said: harmless for a terminal, and as it is for a file or a pipe."""
    click.echo((show.clean(text) if speaks_to_person() else text) + end, nl=False, color=True)


def _foot(app: App, meta: dict[str, Any], usage: dict[str, Any]) -> None:
    if app.is_json:
        return
    about = "about " if usage.get("tokensEstimated") else ""
    used = f"{about}{usage['tokens']:,} tokens, {usage['computeMs']:,} ms, {usage['toolCalls']:,} tool calls"
    click.echo(f"[{used}; session {show.clean(meta['sessionId'])}; {meta['invocationId']}]", err=True)
