"""The way to AWS: boto3's clients, and a truthful table of what its management APIs answer."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from django.conf import settings

from runtimes.errors import DeploymentFailedError

logger = logging.getLogger(__name__)
# At DEBUG botocore writes whole requests, with the secrets and prompts in them.
logging.getLogger("botocore").setLevel(logging.INFO)

# For what may be repeated, which all management calls may: by their name, their content or their clientToken.
_MANAGEMENT: Final = {
    "connect_timeout": 3,
    "read_timeout": 10,
    "retries": {"total_max_attempts": 3, "mode": "standard"},
}
# For what must be sent once. boto3's own defaults would send a call that takes a minute three times.
_ONCE: Final = {"connect_timeout": 5, "retries": {"total_max_attempts": 1, "mode": "standard"}}
_MOST_CONNECTIONS: Final = 1024
_MOST_CLIENTS: Final = 32
_NOT_FOUND: Final = frozenset({"ResourceNotFoundException", "NoSuchEntity", "NoSuchKey", "404"})
_CONFLICT: Final = frozenset({"ConflictException", "EntityAlreadyExists", "ResourceExistsException"})
_THROTTLED: Final = frozenset({"ThrottlingException", "ThrottledException", "Throttling", "SlowDown"})
_QUOTA: Final = frozenset({"ServiceQuotaExceededException", "LimitExceeded", "LimitExceededException"})
_MOMENTARY: Final = frozenset({"ConcurrentModification", "OperationAborted", "EntityTemporarilyUnmodifiable"})
_INVALID: Final = frozenset({"ValidationException", "InvalidParameterException", "InvalidRequestException"})


class AgentCoreError(DeploymentFailedError):
    """An answer of AWS that is not success, or none; in our own words. `provider_code` is AWS's own."""

    def __init__(self, message: str, *, error_class: str, retryable: bool, provider_code: str = "") -> None:
        super().__init__(message, error_class=error_class, retryable=retryable)
        self.provider_code = provider_code

    @property
    def is_not_found(self) -> bool:
        """Whether AWS itself says that there is no such thing; a missing bucket is not meant."""
        return self.provider_code in _NOT_FOUND

    @property
    def is_conflict(self) -> bool:
        """Whether there is one of that name already, or it is busy."""
        return self.provider_code in _CONFLICT

    @property
    def is_invalid(self) -> bool:
        """Whether AWS takes the request for wrong."""
        return self.provider_code in _INVALID


@dataclass(frozen=True)
class Deadline:
    """When something must be over, by the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline that many seconds from now."""
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """How many seconds are left; never negative."""
        return max(self.at - time.monotonic(), 0.0)

    def pauses(self) -> Iterator[None]:
        """Come back after pauses that grow from a fifth of a second to two seconds, until the time is up."""
        pause = 0.2
        while True:
            yield
            if self.left <= pause:
                return
            time.sleep(pause)
            pause = min(pause * 1.5, 2.0)


class Clients:
    """boto3's clients, made when they are first needed: they may be shared by threads, and making one is slow."""

    def __init__(self) -> None:
        self._session: Any = None
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[str, float | None], Any] = OrderedDict()

    @property
    def control(self) -> Any:
        """AgentCore's own management."""
        return self._client("bedrock-agentcore-control")

    @property
    def iam(self) -> Any:
        """Roles and their policies."""
        return self._client("iam")

    @property
    def s3(self) -> Any:
        """The bucket with the zips."""
        return self._client("s3")

    @property
    def secrets(self) -> Any:
        """Secrets Manager."""
        return self._client("secretsmanager")

    @property
    def tools(self) -> Any:
        """The sessions of interpreters and browsers: looking and stopping, which may be repeated."""
        return self._client("bedrock-agentcore")

    def once(self, read_seconds: float) -> Any:
        """Return a client for AgentCore's data plane that sends once and waits that long for an answer."""
        return self._client("bedrock-agentcore", read_seconds)

    def _client(self, service: str, read_seconds: float | None = None) -> Any:
        key = (service, read_seconds)
        with self._lock:
            client = self._made.get(key)
            if client is None:
                client = self._made[key] = self._make(service, read_seconds)
                if len(self._made) > _MOST_CLIENTS:  # one that is in use stays until its users are done
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
        return client

    def _make(self, service: str, read_seconds: float | None) -> Any:
        if self._session is None:
            self._session = boto3.session.Session()
        if read_seconds is None:
            config = Config(**_MANAGEMENT)
        else:
            config = Config(**_ONCE, read_timeout=read_seconds, max_pool_connections=_MOST_CONNECTIONS)
        return self._session.client(service, region_name=settings.AWS_REGION, config=config)


def call(operation: Callable[..., Any], /, **arguments: Any) -> Any:
    """Call a management API. Raises AgentCoreError, which holds nothing that AWS wrote but its code."""
    try:
        return operation(**arguments)
    except ClientError as error:
        failure = read_error(error.response)
    except (BotoCoreError, ResponseParserError) as error:
        name = type(error).__name__
        failure = AgentCoreError("AWS could not be reached.", error_class=name, retryable=True)
    if not failure.is_not_found and not failure.is_conflict:  # which many calls are made to find out
        logger.warning("AWS: %s: %s", operation.__name__, failure.error_class)
    raise failure


def gone_is_none(operation: Callable[..., Any], /, **arguments: Any) -> Any:
    """Call a management API; None where there is no such thing."""
    try:
        return call(operation, **arguments)
    except AgentCoreError as error:
        if error.is_not_found:
            return None
        raise


def read_error(response: Mapping[str, Any]) -> AgentCoreError:
    """Say what an error answer of a management API means: auth and validation stay, throttling and 5xx pass."""
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    message, retryable = _meaning(code, status)
    return AgentCoreError(message, error_class=code[:60] or f"Aws{status}", retryable=retryable, provider_code=code)


def _meaning(code: str, status: int) -> tuple[str, bool]:
    if code in _THROTTLED or status == HTTPStatus.TOO_MANY_REQUESTS:
        return "AWS takes no more calls at the moment.", True
    if code in _QUOTA:
        return "The platform's own quota at AWS is used up.", False
    if code in _CONFLICT or code in _MOMENTARY:
        return "AWS was changing the same thing.", True
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "AWS failed to answer.", True
    if code in _NOT_FOUND:
        return "AWS does not have it.", False
    return "AWS refused the request.", False


def pages(operation: Callable[..., Any], items: str, /, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Return every item of a list that comes in pages, whatever the service calls its token."""
    more: dict[str, Any] = {}
    while True:
        answer = call(operation, **arguments, **more)
        yield from answer.get(items, ())
        token_name = "NextToken" if "NextToken" in answer else "nextToken"
        token = answer.get(token_name)
        if not token:
            return
        more = {token_name: token}
