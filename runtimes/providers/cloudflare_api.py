"""Cloudflare's management API: requests, its envelope, and a truthful table of its errors."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import requests
from django.conf import settings

from runtimes.errors import DeploymentFailedError

logger = logging.getLogger(__name__)

_INVALID_SCRIPT: Final = 10021
_MODIFIED: Final = 10035
# What a code means to the owner of an agent. The provider's own text may name our account: never shown.
_MEANINGS: Final[Mapping[int, str]] = {
    10015: "This platform is not entitled to that at Cloudflare.",
    _INVALID_SCRIPT: "The agent does not start: its modules cannot be loaded.",
    10027: "The bundle is too large for Cloudflare.",
    _MODIFIED: "Cloudflare was changing the same script; please deploy again.",
    10054: "There are too many secrets or variables for Cloudflare.",
    10055: "The secrets or variables are too large for Cloudflare.",
    10056: "Cloudflare misses something that the agent is bound to.",
    10057: "A binding that should be inherited does not exist.",
}
# The one exception: what the agent's own code threw while it was loaded, with the name of its author's file.
_THROWN: Final = re.compile(r"Uncaught (?P<what>[A-Za-z]*(?:Error|Exception)\b[^\n]{0,200})")
_TIMEOUT: Final = (5, 30)
_ATTEMPTS: Final = 4
# For one call with all its waits; a deploy's deadline is some times that.
_BUDGET_SECONDS: Final = 45.0
_LONGEST_RETRY_AFTER: Final = 600.0
_IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE", "PATCH"})
_SERVER_ERROR: Final = HTTPStatus.INTERNAL_SERVER_ERROR
_local = threading.local()


class CloudflareError(DeploymentFailedError):
    """An answer of Cloudflare that is not success, or none. `provider_code` and `http_status` are its own."""

    def __init__(
        self,
        message: str,
        *,
        error_class: str,
        retryable: bool,
        provider_code: int | None = None,
        http_status: int | None = None,
    ) -> None:
        super().__init__(message, error_class=error_class, retryable=retryable)
        self.provider_code = provider_code
        self.http_status = http_status
        self.retry_after_seconds: float | None = None

    @property
    def is_not_found(self) -> bool:
        """Whether Cloudflare itself, and nobody on the way, says that there is no such script or namespace."""
        return self.http_status == HTTPStatus.NOT_FOUND and bool(self.provider_code)

    @property
    def is_outcome_unknown(self) -> bool:
        """Whether the call may have had its effect all the same: no answer, or none of Cloudflare's own."""
        refused = self.http_status is not None and HTTPStatus.BAD_REQUEST <= self.http_status < _SERVER_ERROR
        return self.provider_code is None and not refused


def call(method: str, path: str, *, done: Callable[[], bool] | None = None, **options: Any) -> Any:
    """Call the management API below the account and return `result`. Raises CloudflareError.

    Only what may be repeated is repeated: 429 after the wait that it asks for, and, for methods that
    are idempotent by their name, 5xx, 10035 and broken connections. Other 4xx never are. Where nobody knows
    whether it had its effect, `done` looks before anything is sent again, and then the result is None.
    """
    deadline = time.monotonic() + _BUDGET_SECONDS
    for attempt in range(1, _ATTEMPTS + 1):
        failure = _send(method, path, options)
        if not isinstance(failure, CloudflareError):
            return failure
        if failure.is_outcome_unknown and done is not None and done():
            return None
        wait = failure.retry_after_seconds or 0.3 * attempt
        if not _may_repeat(method, failure) or attempt == _ATTEMPTS or time.monotonic() + wait > deadline:
            if not failure.is_not_found:  # which many calls are made to find out
                logger.warning("Cloudflare: %s %s: %s", method, path.partition("?")[0], failure.error_class)
            raise failure
        time.sleep(wait)
    raise AssertionError  # pragma: no cover - the loop returns or raises


def _may_repeat(method: str, failure: CloudflareError) -> bool:
    if failure.http_status == HTTPStatus.TOO_MANY_REQUESTS:
        return True
    if method not in _IDEMPOTENT:
        return False
    server_side = failure.http_status is not None and failure.http_status >= _SERVER_ERROR
    return server_side or failure.is_outcome_unknown or failure.provider_code == _MODIFIED


def _session() -> requests.Session:
    # One per thread: requests does not promise that a session may be shared.
    if not hasattr(_local, "session"):
        _local.session = requests.Session()
        # Neither a proxy nor a .netrc of the machine gets to see the token.
        _local.session.trust_env = False
    session: requests.Session = _local.session
    return session


def _send(method: str, path: str, options: dict[str, Any]) -> Any:
    """Send once; return the result or the error."""
    url = f"{settings.CLOUDFLARE_API_URL}/accounts/{settings.CLOUDFLARE_ACCOUNT_ID}{path}"
    headers = {"Authorization": f"Bearer {settings.CLOUDFLARE_API_TOKEN}", **options.get("headers", {})}
    options = options | {"headers": headers, "timeout": _TIMEOUT, "allow_redirects": False}
    try:
        answer = _session().request(method, url, **options)
    except requests.RequestException as error:
        # The kind only: the text of such an error holds addresses.
        return CloudflareError("Cloudflare could not be reached.", error_class=type(error).__name__, retryable=True)
    return _read(answer)


def _read(answer: requests.Response) -> Any:
    """Read the envelope; an HTML page, an empty or truncated body and `success: false` are all failures."""
    status = answer.status_code
    try:
        envelope = answer.json()
    except ValueError:
        envelope = None
    if not isinstance(envelope, dict) or "success" not in envelope:
        failure = CloudflareError(
            f"Cloudflare answered {status} without its usual envelope.",
            http_status=status,
            error_class=f"Cloudflare{status}",
            retryable=_is_passing(status) or answer.ok,
        )
    elif answer.ok and envelope["success"] is True:
        return envelope.get("result")
    else:
        failure = _refusal(status, envelope)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        failure.retry_after_seconds = _retry_after(answer)
    return failure


def _is_passing(status: int) -> bool:
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= _SERVER_ERROR


def _refusal(status: int, envelope: Mapping[str, Any]) -> CloudflareError:
    errors = envelope.get("errors")
    first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    given = first.get("code")
    code = given if isinstance(given, int) else 0
    message = _MEANINGS.get(code, f"Cloudflare refused ({code or status}).")
    if code == _INVALID_SCRIPT and (thrown := _THROWN.search(str(first.get("message")))):
        message = f"The agent does not start: {_safe(thrown['what'])}"
    return CloudflareError(
        message,
        provider_code=code,
        http_status=status,
        error_class=f"Cloudflare{code or status}",
        retryable=_is_passing(status) or code == _MODIFIED,
    )


def _safe(text: str) -> str:
    """Return what an agent's code threw, under its author's names and without any of ours."""
    for ours in (settings.CLOUDFLARE_API_TOKEN, settings.CLOUDFLARE_ACCOUNT_ID):
        text = text.replace(ours, "...")
    return "".join(c for c in text.replace("bundle/", "") if c.isprintable()).strip()


def _retry_after(answer: requests.Response) -> float:
    try:
        return min(max(float(answer.headers.get("retry-after", "1")), 0.1), _LONGEST_RETRY_AFTER)
    except ValueError:
        return 1.0
