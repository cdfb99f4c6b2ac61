"""POST /invocations: one run of the agent for each request id, as its text and how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from .agent import Agent, Loop, pieces, trace_of
from .aws import Aws
from .context import context_of
from .failure import FailureError, StoppedError
from .printing import Log, current
from .secrets import Secrets
from .session import Store
from .tools import Tools, allowed_in

_LONGEST_TEXT = 4_000_000
_MOST_TOKENS = 1_000_000_000
_MOST_CALLS = 1_000_000
_MOST_SEEN = 100_000
_MOST_SECONDS = 900
_PROBE_SECONDS = 20
_PATIENCE_SECONDS = 1
# How often it is looked whether the caller is still there.
_LOOK_SECONDS = 0.25


def parsed(body: bytes) -> dict[str, Any] | None:
    """Return what the control plane sent, or None when it cannot have been sent by it. Pure."""
    try:
        call = json.loads(body)
    except ValueError:
        return None
    if not isinstance(call, dict):
        return None
    if call.get("probe") is True:
        return call
    seconds = call.get("timeoutSeconds")
    is_whole = (
        re.fullmatch("inv_[0-9a-f]{32}", str(call.get("requestId")))
        and type(seconds) in {int, float}
        and 0 < seconds <= _MOST_SECONDS  # type: ignore[operator]  # a number, as the line above says
        and isinstance(call.get("request"), dict)
    )
    return call if is_whole else None


def memory_session_of(session: str | None, request: Mapping[str, Any]) -> str:
    """Return the name of a session's memories: its own id, if the service would take it. Pure."""
    if session and re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]{0,99}", session):
        return session
    return f"s{hashlib.sha256(str(request.get('sessionId')).encode()).hexdigest()}"


class Pipe:
    """Hands one thing at a time from the agent to its caller, so a slow reader slows the agent down."""

    def __init__(self) -> None:
        self._item: Any = None
        self.is_stopped = False
        self._changed = threading.Condition()

    def put(self, item: Any) -> None:
        """Wait until there is room, and put; raises StoppedError when nobody reads any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._item is None or self.is_stopped)
            if self.is_stopped:
                raise StoppedError
            self._item = item
            self._changed.notify_all()

    def get(self, seconds: float) -> Any:
        """Wait for what comes next, and return it; None when nothing came."""
        with self._changed:
            self._changed.wait_for(lambda: self._item is not None, seconds)
            item, self._item = self._item, None
            self._changed.notify_all()
            return item

    def stop(self) -> None:
        """Read no more."""
        with self._changed:
            self.is_stopped = True
            self._changed.notify_all()


class Run:
    """One run of the agent, in a thread of its own: its text, then what it used and how it failed, if it did."""

    def __init__(self, call: dict[str, Any], agent: Agent, secrets: Secrets, store: Store, tools: Tools) -> None:
        self.failure: FailureError | None = None
        self.ends_at = time.monotonic() + call["timeoutSeconds"]
        self._call = call
        self._agent = agent
        self._secrets = secrets
        self._store = store
        self._tools = tools
        self._log = Log()
        self._pipe = Pipe()
        self._loop = Loop()
        self._claim: Any = None
        self._ended = False
        self._thread = threading.Thread(target=self._perform, daemon=True)

    def text(self, is_gone: Callable[[], bool]) -> Generator[str, None, None]:
        """Yield the text; always ends with the tools stopped, and the agent told to stop."""
        self._thread.start()
        size = 0
        try:
            while (item := self._next(is_gone)) is not None:
                size += len(item)
                if size > _LONGEST_TEXT:
                    raise FailureError("AnswerTooLarge", "The agent's answer is too large.")  # noqa: TRY301 - as the others
                if item:
                    yield item
        except FailureError as failure:
            self.failure = failure
            for line in failure.logs:
                self._log.add(line)
        finally:
            if not self._ended:
                self._stop()
            self._tools.close()

    def ending(self) -> dict[str, Any]:
        """Return what the run used, by its own claim and by what was started for it, and what it printed."""
        ran = self.failure is None or self.failure.ran
        claim = self._claim if isinstance(self._claim, dict) else {}
        calls = max(self._tools.usage["toolCalls"], _claimed(claim.get("toolCalls"), _MOST_CALLS) or 0)
        tokens = _claimed(claim.get("tokens"), _MOST_TOKENS) if ran else 0
        return {"usage": {**self._tools.usage, "tokens": tokens, "toolCalls": calls}, "logs": self._log.close()}

    def _next(self, is_gone: Callable[[], bool]) -> str | None:
        """Wait for the next piece of text; None is the end. Raises FailureError."""
        while True:
            left = self.ends_at - time.monotonic()
            item = self._pipe.get(max(0, min(left, _LOOK_SECONDS)))
            if item is not None:
                break
            if left <= 0:
                seconds = self._call["timeoutSeconds"]
                raise FailureError("Timeout", f"The agent did not finish within {seconds} seconds.")
            if is_gone():
                raise FailureError("ClientClosed", "The caller hung up.")
        kind, value = item
        if kind == "delta":
            return str(value)
        self._ended = True
        if kind == "failure":
            raise value
        self._claim = value
        return None

    def _perform(self) -> None:
        """Run the agent, and put what comes of it into the pipe."""
        current.set(self._log)
        # One that was told to stop is not listened to any more.
        with contextlib.suppress(StoppedError):
            try:
                self._pipe.put(("end", self._performed()))
            except FailureError as failure:
                self._pipe.put(("failure", failure))
            except StoppedError:
                raise
            except BaseException as error:  # noqa: BLE001 - whatever the agent raises
                if self._pipe.is_stopped:  # it was cancelled
                    raise StoppedError from None
                self._log.add(trace_of(error))
                self._pipe.put(("failure", FailureError("AgentError", "The agent failed.")))
            finally:
                self._loop.close()

    def _performed(self) -> Any:
        env = self._secrets.values()
        agent = self._agent.load()
        request = self._call["request"]
        context = context_of(request, self._call.get("traceId"), env, self._store, self._tools)
        text = pieces(agent, request, context, self._loop)
        try:
            while True:
                try:
                    piece = next(text)
                except StopIteration as end:
                    return end.value
                self._pipe.put(("delta", piece))
        finally:
            text.close()

    def _stop(self) -> None:
        """End the agent's thread, as far as Python can: at its next step, or when what it waits for returns."""
        self._pipe.stop()
        if self._loop.cancel():
            # A loop that never waits never hears of it.
            timer = threading.Timer(_PATIENCE_SECONDS, self._interrupt)
            timer.daemon = True
            timer.start()
        else:
            self._interrupt()

    def _interrupt(self) -> None:
        if self._thread.is_alive() and self._thread.ident is not None:
            thread = ctypes.c_ulong(self._thread.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(StoppedError))


def _claimed(value: Any, most: int) -> int | None:
    return value if type(value) is int and 0 <= value <= most else None


class Invocations:
    """Takes the invocations of one machine."""

    def __init__(self, agent: Agent, aws: Aws, env: Mapping[str, str]) -> None:
        self._agent = agent
        self._aws = aws
        self._secrets = Secrets(aws, env)
        self._store = Store()
        self._ids = {
            "codeInterpreter": env.get("WHS_CODE_INTERPRETER_ID"),
            "browser": env.get("WHS_BROWSER_ID"),
            "memory": env.get("WHS_MEMORY_ID"),
        }
        self._seen: dict[str, None] = {}
        self._running = 0
        self._lock = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether any call is running."""
        return self._running > 0

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count as running."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def take(self, call: dict[str, Any], session: str | None) -> Run:
        """Return the run of a call that is made for the first time; raises FailureError for a repeat."""
        with self._lock:
            if call["requestId"] in self._seen:
                raise FailureError("Repeated", "This call was made before.", ran=False)
            self._seen[call["requestId"]] = None
            if len(self._seen) > _MOST_SEEN:
                del self._seen[next(iter(self._seen))]
        request = call["request"]
        tools = Tools(
            self._aws,
            ids=self._ids,
            allowed=allowed_in(request, self._ids),
            name=call["requestId"],
            seconds=call["timeoutSeconds"],
            memory_session=memory_session_of(session, request),
        )
        return Run(call, self._agent, self._secrets, self._store, tools)

    def probe(self) -> None:
        """See that the agent loads; raises FailureError."""
        pipe = Pipe()

        def load() -> None:
            try:
                self._agent.load()
                pipe.put("loaded")
            except FailureError as failure:
                pipe.put(failure)

        threading.Thread(target=load, daemon=True).start()
        loaded = pipe.get(_PROBE_SECONDS)
        if loaded is None:
            line = f"The agent did not load within {_PROBE_SECONDS} seconds."
            raise FailureError("LoadError", "The agent does not load.", logs=[line], ran=False)
        if isinstance(loaded, FailureError):
            raise loaded
