"""Amounts as one says them on the phone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entitlements.amounts import about, duration, in_words, time_left
from entitlements.enums import LimitType


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, ""), (9_999, ""), (10_000, "10 thousand"), (12_345, "12.3 thousand"), (999_999, "999 thousand"),
        (1_000_000, "1 million"), (1_234_567, "1.2 million"), (-1_500_000, "-1.5 million"), (10**12, "1 trillion"),
    ],
)  # fmt: skip
def test_a_long_number_is_said_in_words(number: int, words: str) -> None:
    assert about(number) == words


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (0, "0.0 s"), (1_250, "1.2 s"), (60_000, "1 min 0 s"), (7_500_000, "2 h 5 min"), (360_000_000, "100 h"),
        (3_600_000_000, "1,000 h"),
    ],
)  # fmt: skip
def test_a_time_is_said_in_its_largest_units(milliseconds: int, words: str) -> None:
    assert duration(milliseconds) == words


def test_what_the_number_says_as_well_is_not_said_twice() -> None:
    assert [in_words(m, 59) for m in (LimitType.COMPUTE_MS, LimitType.CODE_EXECUTION_SECONDS, LimitType.TOKENS)] == [
        ""
    ] * 3
    assert in_words(LimitType.CODE_EXECUTION_SECONDS, 90) == "1 min 30 s"
    assert in_words(LimitType.TOKENS, None) == ""


@given(st.integers(min_value=10_000, max_value=10**15))
def test_words_never_claim_more_than_there_is(number: int) -> None:
    amount, name = about(number).split()
    size = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}[name]
    assert float(amount.replace(",", "")) * size <= number


@pytest.mark.parametrize(
    ("seconds", "words"), [(-5, "0 min"), (59, "0 min"), (3_700, "1 h 1 min"), (90_000, "1 d 1 h")]
)
def test_what_is_left_is_said_in_two_units(seconds: int, words: str) -> None:
    assert time_left(seconds) == words
