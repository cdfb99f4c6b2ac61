"""`whs`: the commands, and the one place where an error becomes words and an exit code."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime

import click
from click.shell_completion import shell_complete

from whs import __version__, show
from whs.app import App
from whs.commands.account import limits, login, logout, usage, whoami
from whs.commands.agents import agents
from whs.commands.completion import COMPLETE_VARIABLE, completion
from whs.commands.deployments import activate, build, deploy, deployments, logs, rollback
from whs.commands.invoke import invoke
from whs.commands.project import init
from whs.commands.secrets import secrets
from whs.errors import EXIT_CODES, CliError, Exit, UsageError

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in EXIT_CODES.items())


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", metavar="URL", help="Address of the service [WHS_URL, the last login, or webhost.systems].")
@click.version_option(__version__, prog_name="whs")
@click.pass_context
def cli(context: click.Context, url: str | None) -> None:
    """Build, deploy and invoke AI agents on webhost.systems, and see what they use.

    Sign in with `whs login`, or set WHS_TOKEN (and WHS_URL for another address).
    """
    context.obj = App(url)


for _command in (
    login, logout, whoami, init, build, deploy, deployments, activate, rollback, invoke, logs, usage, limits, agents,
    secrets, completion,
):  # fmt: skip
    cli.add_command(_command)


def run(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        return shell_complete(cli, {}, "whs", COMPLETE_VARIABLE, instruction)
    given = list(sys.argv[1:] if arguments is None else arguments)
    context: click.Context | None = None
    try:
        with cli.make_context("whs", list(given)) as context:
            cli.invoke(context)
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except CliError as error:
        _tell(error, context.obj if context else App())
        return int(error.exit_code)
    except click.ClickException as error:
        if "--json" in given:
            click.echo(json.dumps(UsageError(error.format_message()).envelope))
        error.show()
        return int(Exit.USAGE)
    except (KeyboardInterrupt, click.Abort):
        click.echo("\nInterrupted.", err=True)
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read us has enough; nothing more can be written, not even at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.FAILED)
    return int(Exit.OK)


def main() -> None:
    """Run as a program."""
    sys.exit(run())


def _tell(error: CliError, app: App) -> None:
    app.answer(error.envelope)
    if not app.is_json:
        click.echo("\n".join(show.error_lines(error.envelope, app.known_url, datetime.now(UTC))), err=True)
