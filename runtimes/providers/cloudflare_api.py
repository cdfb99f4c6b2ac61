"""Cloudflare's management API: requests, its envelope, and a truthful table of its errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import requests
from django.conf import settings

from runtimes.errors import DeploymentFailedError

logger = logging.getLogger(__name__)

NOT_FOUND: Final = 10007
_MODIFIED: Final = 10035
# What a code means to the owner of an agent. The provider's own text may name our account: never shown.
_MEANINGS: Final[Mapping[int, str]] = {
    10015: "This platform is not entitled to that at Cloudflare.",
    10021: "The agent does not start: its modules cannot be loaded.",
    10027: "The bundle is too large for Cloudflare.",
    10035: "Cloudflare was changing the same script; please deploy again.",
    10054: "The secrets or variables are too large for Cloudflare.",
    10055: "There are too many secrets or variables for Cloudflare.",
    10057: "A binding that should be inherited does not exist.",
}
_TIMEOUT: Final = (5, 60)
# Cloudflare locks an account out for minutes after too many calls, so a wait may be long; the deploy's
# deadline is longer than these.
_LONGEST_WAIT: Final = 30.0
_ATTEMPTS: Final = 4
_local = threading.local()


class CloudflareError(DeploymentFailedError):
    """An answer of Cloudflare that is not success; `code` is its own."""

    def __init__(self, message: str, *, code: int | None, error_class: str, retryable: bool) -> None:
        super().__init__(message, error_class=error_class, retryable=retryable)
        self.provider_code = code


def _session() -> requests.Session:
    # One per thread: requests does not promise that a session may be shared.
    if not hasattr(_local, "session"):
        _local.session = requests.Session()
    session: requests.Session = _local.session
    return session


def call(method: str, path: str, **options: Any) -> Any:
    """Call the management API below the account and return `result`. Raises CloudflareError.

    Only what may be repeated is repeated: 429 after the wait that it asks for, and, for methods that
    are idempotent by their name, 5xx, 10035 and broken connections. Other 4xx never are.
    """
    url = f"{settings.CLOUDFLARE_API_URL}/accounts/{settings.CLOUDFLARE_ACCOUNT_ID}{path}"
    headers = {"Authorization": f"Bearer {settings.CLOUDFLARE_API_TOKEN}"}
    repeatable = method in ("GET", "PUT", "DELETE", "PATCH")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            answer = _session().request(method, url, headers=headers, timeout=_TIMEOUT, allow_redirects=False, **options)
        except requests.RequestException as error:
            failure = CloudflareError(
                "Cloudflare could not be reached.", code=None, error_class=type(error).__name__, retryable=True
            )
            wait, again = 0.3 * attempt, repeatable
        else:
            result, failed = _read(answer)
            if failed is None:
                return result
            failure = failed
            wait = _wait_of(answer) if answer.status_code == 429 else 0.3 * attempt
            again = answer.status_code == 429 or (
                repeatable and (answer.status_code >= 500 or failure.provider_code == _MODIFIED)
            )
        if not again or attempt == _ATTEMPTS or wait > _LONGEST_WAIT:
            logger.warning("Cloudflare: %s %s: %s", method, path.rsplit("/", 1)[0], failure.error_class)
            raise failure
        time.sleep(wait)
    raise AssertionError  # pragma: no cover - the loop returns or raises


def _wait_of(answer: requests.Response) -> float:
    try:
        return min(max(float(answer.headers.get("retry-after", "1")), 0.1), 600.0)
    except ValueError:
        return 1.0


def _read(answer: requests.Response) -> tuple[Any, CloudflareError | None]:
    """Read the envelope; an HTML page, an empty or truncated body and `success: false` are all failures."""
    retryable = answer.status_code == 429 or answer.status_code >= 500
    try:
        envelope = answer.json()
    except ValueError:
        envelope = None
    if not isinstance(envelope, dict) or "success" not in envelope:
        return None, CloudflareError(
            f"Cloudflare answered {answer.status_code} without its usual envelope.",
            code=None,
            error_class=f"Cloudflare{answer.status_code}",
            # Unreadable after 2xx: nobody knows, and repeating a PUT is safe.
            retryable=retryable or answer.ok,
        )
    if answer.ok and envelope["success"] is True:
        return envelope.get("result"), None
    errors = envelope.get("errors")
    code = errors[0].get("code") if isinstance(errors, list) and errors and isinstance(errors[0], dict) else None
    code = code if isinstance(code, int) else None
    return None, CloudflareError(
        _MEANINGS.get(code or 0, f"Cloudflare refused ({code or answer.status_code})."),
        code=code,
        error_class=f"Cloudflare{code or answer.status_code}",
        retryable=retryable or code == _MODIFIED,
    )
