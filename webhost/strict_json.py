"""Read JSON as RFC 8259 has it, and not as Python would: everything odd is refused, in bounded time.

Python's reader takes NaN and Infinity, turns 1e400 into infinity, keeps the last of repeated keys, and
passes on half a surrogate pair that no database column takes.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

DEEPEST: Final = 32
_LONGEST_NUMBER: Final = 64


class StrictJsonError(ValueError):
    """What is not JSON, or is JSON that nobody sends in good faith; the message says which."""


def parse_strict(raw: bytes) -> Any:
    """Return the value of a JSON document in UTF-8; raises StrictJsonError on anything else.

    Refuses NaN and Infinity, numbers that overflow, repeated keys, lone surrogates, a byte order mark, and
    nesting deeper than DEEPEST.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictJsonError("The body is not valid UTF-8.") from error
    try:
        value = json.loads(
            text,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
            object_pairs_hook=_object,
        )
    except RecursionError as error:
        raise StrictJsonError(f"The body is nested deeper than {DEEPEST} levels.") from error
    except json.JSONDecodeError as error:
        message = f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        raise StrictJsonError(message) from error
    # Two counts are all that most bodies cost: brackets bound the depth, and only an escape makes a surrogate.
    if text.count("[") + text.count("{") > DEEPEST:
        _refuse_deep(value)
    if "\\ud" in text or "\\uD" in text:
        _refuse_surrogates(value)
    return value


def _constant(name: str) -> NoReturn:
    raise StrictJsonError(f"{name} is not a JSON number.")


def _float(text: str) -> float:
    number = float(text) if len(text) <= _LONGEST_NUMBER else math.inf
    if not math.isfinite(number):
        raise StrictJsonError("A number is out of range.")
    return number


def _integer(text: str) -> int:
    # Longer ones cost quadratic time to read.
    if len(text) > _LONGEST_NUMBER:
        raise StrictJsonError("A number is out of range.")
    return int(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise StrictJsonError(f"The key {json.dumps(twice[:80])} is repeated.")
    return value


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []


def _refuse_deep(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [child for parent in level for child in _children(parent) if isinstance(child, dict | list)]
        if not level:
            return
    raise StrictJsonError(f"The body is nested deeper than {DEEPEST} levels.")


def _refuse_surrogates(value: Any) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError as error:
                raise StrictJsonError("A string holds half a surrogate pair.") from error
        else:
            waiting.extend(_children(item))
