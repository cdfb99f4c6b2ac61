"""What every command shares: where it speaks to, as whom, and how it tells."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, TypeVar, cast

import click

from whs import show
from whs.client import Client, checked_url, part
from whs.config import DEFAULT_URL, Config, config_path, load_config
from whs.errors import LocalError, NotSignedInError

F = TypeVar("F", bound=Callable[..., Any])
_AGENT_ID: Final = re.compile(r"agt_[0-9a-f]{32}")


class App:
    """One run of the program."""

    def __init__(self, url: str | None = None) -> None:
        self._given_url = url
        self.is_json = False

    @cached_property
    def config(self) -> Config:
        """What is kept of earlier logins."""
        return load_config(config_path(), self.warn)

    @cached_property
    def url(self) -> str:
        """The address: of the command line, the environment, the last login, or the service's own."""
        return checked_url(self._given_url or os.environ.get("WHS_URL") or self.config.url or DEFAULT_URL)

    @cached_property
    def client(self) -> Client:
        """The API, as who is signed in. WHS_TOKEN wins over a login."""
        token = os.environ.get("WHS_TOKEN") or self.config.tokens.get(self.url)
        if not token:
            raise NotSignedInError(self.url)
        return Client(self.url, token)

    @property
    def known_url(self) -> str:
        """The address for an error message, which must not fail."""
        try:
            return self.url
        except LocalError:
            return DEFAULT_URL

    def say(self, text: str = "") -> None:
        """Tell a person; programs hear nothing."""
        if not self.is_json:
            click.echo(text)

    def answer(self, value: Any) -> None:
        """Tell a program the outcome, as one line of JSON; people hear nothing."""
        if self.is_json:
            click.echo(json.dumps(value, ensure_ascii=False))

    def warn(self, text: str) -> None:
        """Tell on standard error."""
        click.echo(f"Note: {show.clean(text)}", err=True)

    def agent(self, name: str) -> dict[str, Any]:
        """Return the agent of that name or id."""
        found = self.find_agent(name)
        if found is None:
            raise LocalError(
                "NOT_FOUND",
                f"There is no agent called {name}.",
                todo="See `whs agents list`, or deploy one of that name.",
            )
        return found

    def find_agent(self, name: str) -> dict[str, Any] | None:
        """Return the agent of that name or id, or None where no agent has the name."""
        if _AGENT_ID.fullmatch(name):
            return cast("dict[str, Any]", self.client.get(f"/v1/agents/{part(name)}"))
        return next((agent for agent in self.client.pages("/v1/agents") if agent["name"] == name), None)


pass_app = click.make_pass_decorator(App)


def _choose_json(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's own call
    if value:
        context.ensure_object(App).is_json = True


def json_option(command: F) -> F:
    """Give a command `--json`: one JSON value on standard output, also where it fails."""
    return click.option(
        "--json", is_flag=True, expose_value=False, is_eager=True, callback=_choose_json,
        help="For programs: the answer, or the error's envelope, as JSON.",
    )(command)  # fmt: skip
