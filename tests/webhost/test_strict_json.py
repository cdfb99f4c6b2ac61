"""JSON is read as RFC 8259 has it: what Python lets through is refused, in bounded time."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhost.strict_json import DEEPEST, StrictJsonError, parse_strict

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_VALUES)
def test_whatever_is_proper_json_reads_as_it_was_written(value: object) -> None:
    assert parse_strict(json.dumps(value).encode()) == value
    assert parse_strict(json.dumps(value, ensure_ascii=False, indent=2).encode()) == value


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"{'a': 1}", b'{"a": 1,}', b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b'{"a": 1e400}',
        b'{"a": -1e400}', b'{"a": 1, "a": 2}', b'{"b": {"a": 1, "a": 1}}', b'{"a": "\\ud800"}', b'{"\\udfff": 1}',
        b'["\\uD83D"]', b'\xef\xbb\xbf{"a": 1}', b"\xff", b'{"a": "\xe9"}', b'{"a": 01}', b'{"a": "\n"}', b'{"a": 1} x',
        b'{"a": ' + b"9" * 5000 + b"}", b'{"a": 0.' + b"1" * 5000 + b"}", b"/* */ {}",
    ],
)  # fmt: skip
def test_what_is_not_is_refused(raw: bytes) -> None:
    with pytest.raises(StrictJsonError):
        parse_strict(raw)


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert parse_strict(b'["\\ud83d\\ude00"]') == ["\U0001f600"]


def test_a_repeated_key_is_named() -> None:
    with pytest.raises(StrictJsonError, match='"tokens"'):
        parse_strict(b'{"tokens": 1, "tokens": 999999}')


@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded(brackets: tuple[str, str]) -> None:
    opening, closing = brackets
    parse_strict((opening * DEEPEST + "1" + closing * DEEPEST).encode())
    for depth in (DEEPEST + 1, 1000, 100_000):
        with pytest.raises(StrictJsonError, match="deeper"):
            parse_strict((opening * depth + "1" + closing * depth).encode())


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert len(parse_strict(("[" + "[],{}," * 1000 + "[]]").encode())) == 2001


def test_the_largest_body_is_judged_in_a_moment() -> None:
    for body in (b"[" * 1_000_000, b'["' + b"\\ud800" * 160_000 + b'"]', b"[" + b"[]," * 300_000 + b"[]]"):
        began = time.process_time()
        try:
            parse_strict(body)
        except StrictJsonError:
            pass
        assert time.process_time() - began < 2
