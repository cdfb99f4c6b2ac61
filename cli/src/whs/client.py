"""The public API over HTTP. Sends again only what cannot happen twice, and tells every failure as an error."""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlsplit

import requests
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError

from whs import __version__
from whs.errors import CliError, Exit, RefusedError, UnreachableError, UsageError
from whs.sse import Event, read_events

CONNECT_SECONDS: Final = 10
READ_SECONDS: Final = 60
# The longest that a call may take on any runtime, and some.
CALL_SECONDS: Final = 930
TRIES: Final = 3
LONGEST_WAIT: Final = 10
_PAGE: Final = 100
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
# What says by itself that nothing was done, or that the first try still runs.
_TRY_AGAIN: Final = frozenset({HTTPStatus.CONFLICT, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE})


class _Bearer(AuthBase):
    """Sends the token. Given as `auth`, so that no ~/.netrc takes its place."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def checked_url(url: str) -> str:
    """Return an address without its last slash; refuses what would send a token in clear over a network."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise UsageError(f"{url} is no address of a service.", todo="Give one like https://webhost.systems.")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK and os.environ.get("WHS_ALLOW_HTTP") != "1":
        raise UsageError(
            f"{url} is not encrypted: everybody on the way could read the token.",
            todo="Use https, or set WHS_ALLOW_HTTP=1 if you trust the network.",
        )
    return url.rstrip("/")


def part(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


class Client:
    """Somebody with a token, at one address."""

    def __init__(self, url: str, token: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.url = url
        self._sleep = sleep
        self._auth = _Bearer(token)
        self._session = requests.Session()
        self._session.headers["User-Agent"] = f"whs/{__version__} python/{platform.python_version()}"

    def get(self, path: str, **query: str | int) -> Any:
        """Return what is there."""
        return self._json(self._send("GET", path, is_safe=True, params=query))

    def pages(self, path: str, **query: str | int) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page by page, for as long as they are asked for."""
        cursor = ""
        while True:
            given = {"limit": _PAGE, **query} | ({"cursor": cursor} if cursor else {})
            page = self.get(path, **given)
            yield from page["items"]
            cursor = page["nextCursor"]
            if not cursor:
                return

    def post(self, path: str, body: Any, *, keyed: bool = False, seconds: float = READ_SECONDS) -> Any:
        """Make something. Where the API keeps a key (`keyed`), one is made, and a lost answer is asked for again."""
        return self._json(self._send("POST", path, is_safe=keyed, keyed=keyed, seconds=seconds, json=body))

    def upload(self, path: str, content: bytes) -> Any:
        """Send a bundle, under a key made once."""
        files = {"bundle": ("bundle.zip", content, "application/zip")}
        return self._json(self._send("POST", path, is_safe=True, keyed=True, seconds=120, files=files))

    def put(self, path: str, body: Any) -> Any:
        """Set something; twice is as once."""
        return self._json(self._send("PUT", path, is_safe=True, json=body))

    def patch(self, path: str, body: Any) -> Any:
        """Change something."""
        return self._json(self._send("PATCH", path, json=body))

    def delete(self, path: str) -> None:
        """Delete something."""
        self._send("DELETE", path)

    def stream(self, path: str, body: Any) -> Generator[Event, None, None]:
        """Yield the events of a call as they come; closing it hangs up, which stops the agent."""
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        answer = self._send(
            "POST", path, is_safe=True, keyed=True, stream=True, seconds=CALL_SECONDS, json=body, headers=headers
        )
        with answer:
            if not answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise _strange(answer, self.url)
            yield from read_events(_arriving(answer))

    def _send(
        self, method: str, path: str, *, is_safe: bool = False, keyed: bool = False, stream: bool = False,
        seconds: float = READ_SECONDS, headers: Mapping[str, str] | None = None, **content: Any,
    ) -> requests.Response:  # fmt: skip
        """Send a request, up to TRIES times where that is safe; return a success, raise what else there is."""
        given = dict(headers or {})
        if keyed:
            given["Idempotency-Key"] = uuid.uuid4().hex
        # Prepared once: a repeat has the same key and, byte for byte, the same body.
        request = self._session.prepare_request(
            requests.Request(method, self.url + path, headers=given, auth=self._auth, **content)
        )
        settings = self._session.merge_environment_settings(request.url, {}, stream, None, None)
        for attempt in range(1, TRIES + 1):
            is_last = attempt == TRIES or not is_safe
            try:
                answer = self._session.send(
                    request, timeout=(CONNECT_SECONDS, seconds), allow_redirects=False, **settings
                )
            except requests.exceptions.SSLError as error:
                raise UnreachableError(f"{self.url} cannot prove who it is: {_reason(error)}") from None
            except requests.ReadTimeout:
                raise UnreachableError(f"{self.url} did not answer within {seconds:.0f} seconds.") from None
            except requests.RequestException as error:
                if is_last:
                    raise UnreachableError(
                        f"{self.url} cannot be reached: {_reason(error)}", todo="Look at the address and the network."
                    ) from None
                self._sleep(0.5 * attempt)
                continue
            if answer.ok and not answer.is_redirect:
                return answer
            wait = _wait_of(answer)
            if is_last or wait is None:
                raise _refused(answer, self.url)
            answer.close()
            self._sleep(wait)
        raise AssertionError  # pragma: no cover - the last try returns or raises

    def _json(self, answer: requests.Response) -> Any:
        try:
            return answer.json()
        except ValueError:
            raise _strange(answer, self.url) from None


def _arriving(answer: requests.Response) -> Iterator[bytes]:
    """Yield bytes when they arrive, not when some number of them is there."""
    try:
        while chunk := answer.raw.read1(65_536):
            yield chunk
    except (OSError, HTTPError) as error:
        raise UnreachableError("The connection broke before the answer was complete.") from error


def _wait_of(answer: requests.Response) -> float | None:
    """Return how long to wait before the same request is sent again; None: not at all."""
    if answer.status_code not in _TRY_AGAIN:
        return None
    told = answer.headers.get("Retry-After", "")
    if not told.isdecimal() or int(told) > LONGEST_WAIT:
        return None
    return int(told)


def _refused(answer: requests.Response, url: str) -> CliError:
    try:
        envelope = answer.json()
        return RefusedError({"error": dict(envelope["error"]), "traceId": envelope.get("traceId")})
    except (ValueError, KeyError, TypeError, AttributeError):
        return _strange(answer, url)


def _strange(answer: requests.Response, url: str) -> CliError:
    """Return the error for what this service does not say: somebody else answers at the address."""
    is_busy = answer.status_code in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
    error = {
        "code": "STRANGE_ANSWER",
        "message": f"{url} answered {answer.status_code} with something that is not the service's own.",
        "details": {"todo": "Look at the address, and at what is between you and the service."},
        "retryable": is_busy,
    }
    return CliError(
        {"error": error, "traceId": answer.headers.get("X-Trace-Id")}, Exit.BUSY if is_busy else Exit.FAILED
    )


def _reason(error: Exception) -> str:
    """Return the innermost reason of an error of requests, which wraps those of its layers."""
    inner: BaseException = error
    while (deeper := getattr(inner, "reason", None) or (inner.args[0] if inner.args else None)) and isinstance(
        deeper, BaseException
    ):
        inner = deeper
    cause = inner.__cause__ or inner
    words = getattr(cause, "strerror", None) or str(cause)
    return f"{words}." if not words.endswith(".") else words
