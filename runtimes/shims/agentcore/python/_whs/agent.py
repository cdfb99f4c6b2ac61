"""The agent's module, and one run of it: whatever kind of function it is, it becomes pieces of text."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

from .failure import FailureError

BUNDLE = Path(__file__).resolve().parent.parent / "bundle"
_OURS = str(Path(__file__).resolve().parent)


class MisuseError(Exception):
    """An agent that does not keep to the contract, in words for its author."""


class Agent:
    """The function of the entry module, loaded when it is first needed."""

    def __init__(self, entrypoint: str) -> None:
        self._entrypoint = entrypoint
        self._function: Callable[..., Any] | None = None
        self._lock = threading.Lock()
        # As for a script: its own folder first.
        sys.path[:0] = dict.fromkeys([str((BUNDLE / entrypoint).parent), str(BUNDLE)])

    def load(self) -> Callable[..., Any]:
        """Load the agent, unless it is; raises FailureError with the agent's own trace when that fails."""
        with self._lock:
            if self._function is None:
                try:
                    self._function = self._loaded()
                except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the agent raises
                    raise FailureError(
                        "LoadError", "The agent does not load.", logs=[trace_of(error)], ran=False
                    ) from None
            return self._function

    def _loaded(self) -> Callable[..., Any]:
        path = BUNDLE / self._entrypoint
        # A module called like one of the standard library would take its place.
        name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "whs_agent"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise MisuseError(f"{self._entrypoint} is no module.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        function: Callable[..., Any] | None = getattr(module, "agent", None)
        if not callable(function):
            raise MisuseError(f"{self._entrypoint} must define a function called `agent`.")
        return function


class Loop:
    """An event loop for one run, made when the agent turns out to need it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Future[Any] | None = None

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Run until this is done, and return its result."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)

        async def awaited() -> Any:
            return await awaitable

        self._task = self._loop.create_task(awaited())
        return self._loop.run_until_complete(self._task)

    def cancel(self) -> bool:
        """Cancel what is waited for, from another thread; say whether there is anything to cancel."""
        loop, task = self._loop, self._task
        if loop is None or task is None or loop.is_closed():
            return False
        loop.call_soon_threadsafe(task.cancel)
        return True

    def close(self) -> None:
        """Cancel what the agent left running."""
        if self._loop is None:
            return
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def pieces(agent: Callable[..., Any], request: Any, context: Any, loop: Loop) -> Generator[str, None, Any]:
    """Run the agent; yield its text, return its usage."""
    result = agent(request, context)
    if inspect.isawaitable(result):
        result = loop.wait(result)
    if isinstance(result, str):
        yield result
        return None
    if hasattr(result, "__anext__"):
        result = _awaited(result, loop)
    if not hasattr(result, "__next__"):
        if not isinstance(result, dict) or not isinstance(result.get("text"), str):
            raise MisuseError("An agent returns text, a dict with `text`, or yields text.")
        yield result["text"]
        return result.get("usage")
    try:
        while True:
            try:
                piece = next(result)
            except StopIteration as end:
                return end.value.get("usage") if isinstance(end.value, dict) else None
            if not isinstance(piece, str):
                raise MisuseError(f"An agent yields text, and this one yielded {type(piece).__name__}.")
            yield piece
    finally:
        # The caller hung up or time is up: let the agent clean up.
        if hasattr(result, "close"):
            result.close()


def _awaited(source: Any, loop: Loop) -> Generator[Any, None, None]:
    try:
        while True:
            try:
                piece = loop.wait(source.__anext__())
            except StopAsyncIteration:
                return
            yield piece
    finally:
        if hasattr(source, "aclose"):
            loop.wait(source.aclose())


def trace_of(error: BaseException) -> str:
    """Return an error's trace without our own frames, under the names that its author knows."""
    if isinstance(error, MisuseError):
        return str(error)
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith((_OURS, "<frozen importlib")):
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames)
    return "".join(lines).rstrip("\n").replace(f"{BUNDLE}/", "")
