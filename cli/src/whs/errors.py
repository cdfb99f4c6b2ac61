"""What can go wrong, and the exit code that says which it was. A refusal of the service is its own envelope."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final


class Exit(IntEnum):
    """What the exit code means. Programs rely on these numbers: they never change."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_SIGNED_IN = 3
    LIMIT = 4
    BUSY = 5
    UNREACHABLE = 6
    INTERRUPTED = 130


EXIT_CODES: Final[Mapping[Exit, str]] = {
    Exit.OK: "done",
    Exit.FAILED: "the call, the deployment or the build failed",
    Exit.USAGE: "the command line, or a file it names, is wrong",
    Exit.NOT_SIGNED_IN: "not signed in, or the token is refused",
    Exit.LIMIT: "a limit of the tier is reached (402)",
    Exit.BUSY: "too many at once, or away for a moment (429, 503): try again later",
    Exit.UNREACHABLE: "the service cannot be reached, or the connection broke",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
}


class CliError(Exception):
    """An expected end of a command: an error in the shape of the API's envelope, and an exit code."""

    def __init__(self, envelope: Mapping[str, Any], code: Exit) -> None:
        super().__init__(str(envelope["error"]["message"]))
        self.envelope = envelope
        self.exit_code = code


class RefusedError(CliError):
    """The service answered with its envelope."""

    def __init__(self, envelope: Mapping[str, Any]) -> None:
        super().__init__(envelope, exit_of(envelope["error"]))


class LocalError(CliError):
    """Something that this program found out by itself. `todo` is a sentence about what would help."""

    def __init__(self, code: str, message: str, exit_code: Exit = Exit.FAILED, *, todo: str = "") -> None:
        details = {"todo": todo} if todo else {}
        error = {"code": code, "message": message, "details": details, "retryable": exit_code == Exit.UNREACHABLE}
        super().__init__({"error": error, "traceId": None}, exit_code)


class UsageError(LocalError):
    """The command line, or a file it names, is not as it has to be."""

    def __init__(self, message: str, *, todo: str = "") -> None:
        super().__init__("USAGE", message, Exit.USAGE, todo=todo)


class UnreachableError(LocalError):
    """Nobody answers, or the connection broke."""

    def __init__(self, message: str, *, todo: str = "") -> None:
        super().__init__("UNREACHABLE", message, Exit.UNREACHABLE, todo=todo)


class NotSignedInError(LocalError):
    """There is no token for the address."""

    def __init__(self, url: str) -> None:
        super().__init__(
            "NOT_SIGNED_IN", f"You are not signed in to {url}.", Exit.NOT_SIGNED_IN,
            todo="Run `whs login`, or set WHS_TOKEN.",
        )  # fmt: skip


def exit_of(error: Mapping[str, Any]) -> Exit:
    """Return the exit code of an error of the API, by its code and whether trying again can help."""
    match error["code"]:
        case "UNAUTHENTICATED" | "UNAUTHORIZED":
            return Exit.NOT_SIGNED_IN
        case "LIMIT_EXCEEDED":
            return Exit.LIMIT
        case "RATE_LIMITED":
            return Exit.BUSY
        case "INTERNAL" | "CONFLICT" if error.get("retryable"):
            return Exit.BUSY
        case _:
            return Exit.FAILED
