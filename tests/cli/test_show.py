"""What people see, and which exit code says it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.cli.stub import envelope
from webhost.errors import ErrorCode
from whs.errors import Exit, exit_of
from whs.show import clean, error_lines, resets, table

NOW = datetime(2026, 11, 30, 9, 41, tzinfo=UTC)
CODES = {
    "UNAUTHENTICATED": Exit.NOT_SIGNED_IN, "UNAUTHORIZED": Exit.NOT_SIGNED_IN, "NOT_FOUND": Exit.FAILED,
    "INVALID_REQUEST": Exit.FAILED, "CONFLICT": Exit.FAILED, "LIMIT_EXCEEDED": Exit.LIMIT, "RATE_LIMITED": Exit.BUSY,
    "DEPLOYMENT_FAILED": Exit.FAILED, "RUNTIME_ERROR": Exit.FAILED, "INTERNAL": Exit.FAILED,
}  # fmt: skip


def lines(body) -> list[str]:
    return error_lines(body, "https://webhost.example", NOW)


def test_every_code_of_the_api_has_an_exit_code():
    assert {code.value: exit_of({"code": code.value, "retryable": False}) for code in ErrorCode} == CODES


@pytest.mark.parametrize("code", ["INTERNAL", "CONFLICT", "RATE_LIMITED"])
def test_what_passes_by_itself_is_busy(code):
    assert exit_of({"code": code, "retryable": True}) == Exit.BUSY


def test_a_withdrawal_that_is_under_way_is_still_a_limit():
    assert exit_of({"code": "LIMIT_EXCEEDED", "retryable": True}) == Exit.LIMIT


def test_the_exit_codes_are_what_they_always_were():
    assert {code.name: code.value for code in Exit} == {
        "OK": 0, "FAILED": 1, "USAGE": 2, "NOT_SIGNED_IN": 3, "LIMIT": 4, "BUSY": 5, "UNREACHABLE": 6, "INTERRUPTED": 130,
    }  # fmt: skip


def test_a_limit_says_how_much_until_when_and_what_to_do():
    refusal = envelope(
        "LIMIT_EXCEEDED", "You have used all 1,000 requests of the Free plan for November 2026.",
        limitType="requests", current=1000, limit=1000, resetsAt="2026-12-01T00:00:00Z",
        suggestedAction={"type": "upgrade_tier", "tier": "starter", "url": "/billing/?tier=starter"},
    )  # fmt: skip
    assert lines(refusal) == [
        "Error: You have used all 1,000 requests of the Free plan for November 2026.",
        "  requests: 1,000 of 1,000",
        "  Resets on 1 December 2026 at 00:00 UTC (in 14 hours).",
        "  What to do: upgrade to starter: https://webhost.example/billing/?tier=starter",
        "  Trace id: trc_00000000000000000000000000000000",
    ]


def test_every_issue_is_listed_where_there_are_several():
    issues = [{"path": "agent.ts:1", "message": "Wrong."}, {"path": "agent.ts:2", "message": "Wrong too."}]
    said = lines(envelope("INVALID_REQUEST", "agent.ts:1: Wrong.", issues=issues))
    assert said[1:3] == ["  agent.ts:1: Wrong.", "  agent.ts:2: Wrong too."]


def test_one_issue_is_not_said_twice():
    said = lines(
        envelope("INVALID_REQUEST", "agent.ts:1: Wrong.", issues=[{"path": "agent.ts:1", "message": "Wrong."}])
    )
    assert said == ["Error: agent.ts:1: Wrong.", "  Trace id: trc_00000000000000000000000000000000"]


def test_no_message_drives_the_terminal():
    said = "\n".join(lines(envelope("RUNTIME_ERROR", "Hello \x1b]0;owned\x07\x1b[2J\rthere\x9b1m")))
    assert not set(said) & set("\x1b\x07\r\x9b")
    assert clean("a\tb\nc\x08") == "a\tb\nc"


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("2026-12-01T00:00:00Z", "1 December 2026 at 00:00 UTC (in 14 hours)"),
        ("2026-12-02T09:41:00+00:00", "2 December 2026 at 09:41 UTC (in 2 days)"),
        ("2026-11-30T10:42:00+01:00", "30 November 2026 at 09:42 UTC (in 1 minute)"),
        ("2026-11-30T09:41:30Z", "30 November 2026 at 09:41 UTC (in less than a minute)"),
        ("2026-11-30T09:41:00Z", "30 November 2026 at 09:41 UTC (now)"),
    ],
)
def test_a_reset_is_said_in_words(at, words):
    assert resets(at, NOW) == words


def test_a_table_is_aligned_and_one_line_per_row():
    assert table(["name", "n"], [["a\nb", "1,000"], ["abc", "2"]], right=[1]).split("\n") == [
        "name      n", "a b   1,000", "abc       2",
    ]  # fmt: skip
