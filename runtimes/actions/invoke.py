"""The main job: resolve, admit, call the provider once, settle, answer.

No database connection is held while the provider works: each step lends one for one statement
(webhost/db.py) and gives it back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.conf import settings

from entitlements import ledger
from entitlements.actions.admit import admit
from entitlements.enums import LimitType, Outcome
from entitlements.errors import LimitExceededError
from runtimes import rules
from runtimes.actions.sessions import use_session, used_session
from runtimes.actions.tools import measured
from runtimes.errors import NotReachedError, RuntimeFailedError, SessionEndedError
from runtimes.providers import PROVIDERS
from runtimes.providers.base import Delta, Failure, Invocation, Stream, Target, Usage
from runtimes.providers.base import Final as FinalEvent
from webhost import db
from webhost.errors import ConflictError, NotFoundError, WebhostError
from webhost.ids import Prefix, new_id, parse_id, public_id
from webhost.period import ends_at, period_of
from webhost.wire import envelope_of

logger = logging.getLogger(__name__)

_RESOLVE: Final = """
SELECT g.id AS agent_id, g.disabled_at, d.id AS deployment_id, d.version, d.runtime_provider,
       d.timeout_seconds, d.root_key_id, d.remote, d.config #> '{{agentcore,lifecycle}}' AS lifecycle,
       s.invocations AS switched_on, s.message AS switch_message,
       -- What it has at the provider now, not what it asked for.
       CASE WHEN d.capabilities <> '{{}}' THEN ARRAY(SELECT capability FROM runtimes_grant
             WHERE deployment_id = d.id AND withdrawn_at IS NULL) ELSE '{{}}' END AS capabilities
  FROM runtimes_agent g
  LEFT JOIN runtimes_deployment d ON d.id = g.active_deployment_id
  LEFT JOIN runtimes_runtimeswitch s ON s.runtime = d.runtime_provider
 WHERE g.account_id = %(account)s AND g.deleted_at IS NULL AND {which} = %(agent)s
"""
_BY_ID: Final = _RESOLVE.format(which="g.id")
_BY_NAME: Final = _RESOLVE.format(which="g.name")
_LOG: Final = """
INSERT INTO runtimes_agentlogline (account_id, agent_id, deployment_id, invocation_id, at, text)
VALUES (%(account)s, %(agent)s, %(deployment)s, %(invocation)s, now(), %(text)s) RETURNING id
"""
_LONGEST_LOG: Final = 65_536


@dataclass(frozen=True)
class Resolved:
    """The deployment that serves, and how long its sessions live (rules.session_life)."""

    target: Target
    session_life: tuple[int, int | None]


@dataclass(frozen=True)
class Started:
    """An admitted invocation on its way to the provider."""

    invocation_id: UUID
    target: Target
    request: rules.InvokeRequest
    session_id: str
    trace_id: str
    admission: Mapping[str, Any]
    remaining: Mapping[str, int | None]
    body: bytes
    began: float
    session_record: UUID | None = None
    uses_tools: bool = False

    @property
    def milliseconds(self) -> int:
        """How long it has been running, by our clock."""
        return int((time.monotonic() - self.began) * 1000)

    def headers(self) -> dict[str, str]:
        """Return what is left of the budgets, as response header fields."""
        now = datetime.now(UTC)
        seconds = int((ends_at(period_of(now)) - now).total_seconds())
        return rules.rate_limit_headers(self.admission, self.remaining, seconds)


def resolve(account_id: UUID, agent: str) -> Resolved:
    """Find the deployment that serves an agent of this account, by its id or name; one query.

    Raises NotFoundError for nobody's and somebody else's alike, ConflictError when it is disabled, has
    nothing deployed, or its runtime is switched off by the operator.
    """
    if agent.startswith(f"{Prefix.AGENT}_"):
        rows = db.run(_BY_ID, {"account": account_id, "agent": parse_id(Prefix.AGENT, agent)})
    else:
        rows = db.run(_BY_NAME, {"account": account_id, "agent": agent})
    if not rows:
        raise NotFoundError
    row = rows[0]
    if row["disabled_at"] is not None:
        raise ConflictError("This agent is disabled.")
    if row["deployment_id"] is None:
        raise ConflictError("This agent has no active deployment yet.")
    if row["switched_on"] is False:
        raise ConflictError(
            row["switch_message"] or "This runtime is switched off at the moment.", retryable=True, retry_after=60
        )
    target = Target(
        account_id=account_id,
        agent_id=row["agent_id"],
        deployment_id=row["deployment_id"],
        version=row["version"],
        runtime=row["runtime_provider"],
        root_key_id=row["root_key_id"],
        capabilities=frozenset(row["capabilities"]),
        timeout_seconds=row["timeout_seconds"],
        remote=row["remote"],
    )
    return Resolved(target, rules.session_life(target.runtime, row["lifecycle"] or {}))


def subject_of(
    target: Target, *, token_id: UUID | None = None, tools: frozenset[LimitType] = frozenset(), delegated_by: str = ""
) -> ledger.Subject:
    """Return what the ledger needs to judge a call of a deployment; `tools` are the quotas that speak."""
    return ledger.Subject(
        account_id=target.account_id,
        agent_id=target.agent_id,
        deployment_id=target.deployment_id,
        runtime=target.runtime,
        timeout_seconds=target.timeout_seconds,
        token_id=token_id,
        capabilities=target.capabilities,
        tools=tools,
        delegated_by=delegated_by,
    )


def need_of(
    target: Target,
    request: rules.InvokeRequest,
    tools: frozenset[LimitType],
    recent: ledger.Recent | None = None,
) -> ledger.Usage:
    """Return what to set aside for a call: nothing, but on runtimes that reserve (settings.RESERVING_RUNTIMES).

    `recent`, what its deployment used lately, is read where it is not given.
    """
    if target.runtime not in settings.RESERVING_RUNTIMES:
        return ledger.NOTHING
    if recent is None:
        recent = ledger.recent_use(target.deployment_id)
    need = rules.estimate_of(
        request,
        timeout_seconds=target.timeout_seconds,
        tools=tools,
        calls=recent.calls,
        recent=rules.Need(**recent.usage.measures()),
    )
    return ledger.Usage(**vars(need))


_WITHDRAWN_WITHIN: Final = 15


def retryable_while_withdrawn(refusal: LimitExceededError) -> LimitExceededError:
    """Return a refusal that says to try again where a capability is only waiting to be withdrawn (ADR 10)."""
    if not rules.only_waits_for_withdrawal(refusal.details["exceeded"]):
        return refusal
    message = f"{refusal.message} It is being withdrawn from this deployment, which then runs without it."
    return LimitExceededError(message, details=refusal.details, retryable=True, retry_after=_WITHDRAWN_WITHIN)


def start(
    account_id: UUID,
    agent: str,
    request: rules.InvokeRequest,
    *,
    token_id: UUID | None,
    trace_id: str,
    invocation_id: UUID | None = None,
    delegated_by: str = "",
) -> Started:
    """Resolve and admit: everything that may refuse, before a provider costs money.

    `delegated_by`, the trusted backend that calls for the account, is only written down: it changes no verdict.
    """
    resolved = resolve(account_id, agent)
    target = resolved.target
    allowed = rules.allowed_now(target.capabilities, request)
    tools = rules.quotas_of(allowed)
    admission_id = invocation_id or new_id()
    session_id = request.session_id or public_id(Prefix.SESSION, new_id())
    try:
        admission = admit(
            admission_id,
            subject_of(target, token_id=token_id, tools=tools, delegated_by=delegated_by),
            estimate=need_of(target, request, tools),
            trace_id=trace_id,
            session_id=session_id,
        )
    except LimitExceededError as refusal:
        raise retryable_while_withdrawn(refusal) from None
    remaining = rules.remaining_after(admission)
    body = rules.runtime_body(
        request, session_id=session_id, trace_id=trace_id, capabilities=allowed, remaining=remaining
    )
    return Started(
        admission_id,
        target,
        request,
        session_id,
        trace_id,
        admission,
        remaining,
        body,
        time.monotonic(),
        session_record=_session(resolved, request, session_id, admission_id),
        uses_tools=bool(tools),
    )


def _session(resolved: Resolved, request: rules.InvokeRequest, session_id: str, admission_id: UUID) -> UUID | None:
    """Record the session that a call uses; where that is refused, or impossible, the request is given back."""
    if not PROVIDERS[resolved.target.runtime].has_machines and request.session_id is None:
        return None  # nobody can name it, and it costs nothing while it idles
    try:
        return use_session(resolved.target, session_id, resolved.session_life)
    except WebhostError as error:
        _void(admission_id, "SessionEnded" if isinstance(error, SessionEndedError) else error.code.value)
        raise


def _settle(started: Started, outcome: Outcome, usage: ledger.Usage, error_class: str | None = None) -> ledger.Usage:
    """Close the admission and return what was used, tools as they were seen at the provider included.

    What cannot be settled now is closed as overdue, and the runtime's report corrects it.
    """
    unseen = False
    milliseconds = started.milliseconds
    if started.uses_tools:
        usage, unseen = measured(started.target, started.invocation_id, usage)
    try:
        ledger.settle(
            started.invocation_id,
            outcome,
            usage,
            error_class=error_class,
            latency_ms=milliseconds,
            tools_unseen=unseen,
        )
    except WebhostError:
        logger.warning("Invocation %s could not be settled and will be closed as overdue.", started.invocation_id)
    if started.session_record is not None and PROVIDERS[started.target.runtime].has_machines:
        used_session(started.session_record)
    return usage


def _void(invocation_id: UUID, error_class: str) -> None:
    try:
        ledger.void(invocation_id, error_class)
    except WebhostError:
        logger.warning("Invocation %s could not be voided and will be closed as overdue.", invocation_id)


def _keep_logs(started: Started, lines: tuple[str, ...]) -> None:
    if not lines:
        return
    text = "\n".join(lines).replace("\x00", "")[:_LONGEST_LOG]
    target = started.target
    try:
        db.run(
            _LOG,
            {
                "account": target.account_id,
                "agent": target.agent_id,
                "deployment": target.deployment_id,
                "invocation": started.invocation_id,
                "text": text,
            },
        )
    except WebhostError:
        logger.warning("The log of invocation %s could not be kept.", started.invocation_id)


def _usage(seen: Usage) -> ledger.Usage:
    return ledger.Usage(
        tokens=seen.tokens,
        compute_ms=seen.compute_ms,
        tool_calls=seen.tool_calls,
        code_ms=seen.code_ms,
        browser_sessions=seen.browser_sessions,
        tokens_estimated=seen.tokens_estimated,
    )


def _observed(started: Started, seen: Usage | None, text: str = "") -> ledger.Usage:
    """Return what counts when the runtime told us nothing: our clock, and the text that went in and out."""
    if seen is not None:
        return _usage(seen)
    return ledger.Usage(
        tokens=rules.estimate_tokens(started.request.text, text),
        compute_ms=started.milliseconds,
        tokens_estimated=True,
    )


def public_usage(usage: ledger.Usage) -> dict[str, Any]:
    """Return usage as an answer shows it."""
    shown: dict[str, Any] = {
        "tokens": usage.tokens,
        "computeMs": usage.compute_ms,
        "toolCalls": usage.tool_calls,
    }
    if usage.tokens_estimated:
        shown["tokensEstimated"] = True
    return shown


def finish(started: Started) -> dict[str, Any]:
    """Call the provider, once, settle, and return the answer's body.

    Whatever goes wrong is settled truthfully: given back only when the provider was certainly not
    reached, counted otherwise.
    """
    invocation = Invocation(started.invocation_id, started.trace_id, started.body, started.session_id)
    try:
        answer = PROVIDERS[started.target.runtime].invoke(started.target, invocation)
    except BaseException as error:
        _close_failed(started, error)
        raise
    usage = _settle(started, Outcome.SUCCEEDED, _usage(answer.usage))
    _keep_logs(started, answer.logs)
    return {
        "output": {"text": answer.text},
        "sessionId": started.session_id,
        "usage": public_usage(usage),
        "invocationId": public_id(Prefix.INVOCATION, started.invocation_id),
        "traceId": started.trace_id,
    }


def _close_failed(started: Started, error: BaseException) -> None:
    if isinstance(error, NotReachedError):
        _void(started.invocation_id, error.error_class)
    elif isinstance(error, RuntimeFailedError):
        _settle(started, Outcome.FAILED, _observed(started, error.usage), error.error_class)
        _keep_logs(started, error.logs)
    elif isinstance(error, WebhostError):
        # The adapter's own check refused: nothing was sent.
        _void(started.invocation_id, error.code.value)
    else:
        _settle(started, Outcome.FAILED, _observed(started, None), type(error).__name__)


Event = tuple[str, dict[str, Any]]


class StreamedAnswer:
    """The rest of a streamed invocation: events for the client, and one settlement however it ends.

    The first event is already there (`open_stream`), so that a failure before it is a plain HTTP error.
    `close()` settles: it is called when the answer ended, broke, or its reader hung up, also before the
    first chunk, where a generator's `finally` would never run.
    """

    def __init__(self, started: Started, stream: Stream, first: Delta | FinalEvent | None) -> None:
        self._started = started
        self._stream = stream
        self._text: list[str] = []
        self._settled = False
        self._events = self._tell(first)

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def _tell(self, first: Delta | FinalEvent | Failure | None) -> Iterator[Event]:
        started = self._started
        yield (
            "meta",
            {
                "traceId": started.trace_id,
                "invocationId": public_id(Prefix.INVOCATION, started.invocation_id),
                "sessionId": started.session_id,
            },
        )
        event = first
        try:
            while event is not None:
                if isinstance(event, Delta):
                    self._text.append(event.text)
                    yield "delta", {"text": event.text}
                elif isinstance(event, FinalEvent):
                    yield from self._done(event)
                    return
                else:
                    yield self._failed(event.error_class, event.message, event.usage, event.logs)
                    return
                event = next(self._stream, None)
        except RuntimeFailedError as error:
            yield self._failed(error.error_class, error.message, error.usage, error.logs)
            return
        yield self._failed("Truncated", "The agent's answer broke off.", None, ())

    def _done(self, event: FinalEvent) -> Iterator[Event]:
        usage = self._end(Outcome.SUCCEEDED, _usage(event.usage), None)
        _keep_logs(self._started, event.logs)
        yield "usage", public_usage(usage)
        yield "done", {}

    def _failed(self, error_class: str, message: str, seen: Usage | None, logs: tuple[str, ...]) -> Event:
        self._end(Outcome.FAILED, self._seen(seen), error_class)
        _keep_logs(self._started, logs)
        error = RuntimeFailedError(message, error_class=error_class)
        return "error", envelope_of(error, self._started.trace_id)

    def _seen(self, seen: Usage | None) -> ledger.Usage:
        return _observed(self._started, seen, "".join(self._text))

    def _end(self, outcome: Outcome, usage: ledger.Usage, error_class: str | None) -> ledger.Usage:
        if self._settled:
            return usage
        self._settled = True
        return _settle(self._started, outcome, usage, error_class)

    def close(self) -> None:
        """Stop the upstream, and charge what was used if nobody has yet: the reader hung up."""
        try:
            self._stream.close()
        finally:
            self._end(Outcome.FAILED, self._seen(None), "ClientClosed")


def _first_of(stream: Stream) -> Delta | FinalEvent | None:
    try:
        first = next(stream, None)
    except BaseException:
        stream.close()
        raise
    if isinstance(first, Failure):
        stream.close()
        raise RuntimeFailedError(first.message, error_class=first.error_class, usage=first.usage, logs=first.logs)
    return first


def open_stream(started: Started) -> StreamedAnswer:
    """Call the provider, once, and wait for its first event; a failure before it is raised, and settled."""
    invocation = Invocation(started.invocation_id, started.trace_id, started.body, started.session_id)
    try:
        stream = PROVIDERS[started.target.runtime].stream(started.target, invocation)
        first = _first_of(stream)
    except BaseException as error:
        _close_failed(started, error)
        raise
    return StreamedAnswer(started, stream, first)
