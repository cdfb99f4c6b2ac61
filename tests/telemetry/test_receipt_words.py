"""Why an invocation was charged what it was, in words; each case without a database."""

from __future__ import annotations

from typing import Any

import pytest

from entitlements.enums import Outcome, Source
from telemetry.receipt_words import (
    MEASURES,
    Charge,
    is_estimated,
    largest,
    read_facts,
    read_settlement,
    said_of_report,
    why_charged,
)
from telemetry.rules import Reason

HELD = {"tokens": 4000, "compute_ms": 1000}


def why(outcome: Outcome, **facts: Any) -> str:
    return " ".join(why_charged(Charge(outcome=outcome, **facts)))


class TestWhyItIsCharged:
    def test_an_answered_call_counts_the_largest_that_gateway_and_reports_saw(self) -> None:
        said = why(Outcome.SUCCEEDED, signed_outcome="succeeded", reports=2)
        assert said.startswith("It was answered: the request counts, and what it used.")
        assert "the largest counts that anybody observed: the gateway and 2 signed reports." in said
        assert "estimate" not in said

    def test_tools_that_we_saw_are_an_observer_of_their_own(self) -> None:
        said = why(Outcome.SUCCEEDED, signed_outcome="succeeded", reports=1, tools_seen={"tool_calls": 1})
        assert "the gateway, 1 signed report and our own look at its tools." in said

    def test_a_failed_call_counts_because_the_agent_was_reached(self) -> None:
        assert "The agent was reached and failed: the request counts" in why(Outcome.FAILED, signed_outcome="failed")

    def test_a_call_that_was_given_back_and_ran_after_all_says_so(self) -> None:
        said = why(Outcome.FAILED, signed_outcome="voided", reports=1)
        assert "The gateway had given the request back" in said
        assert "observed: 1 signed report." in said  # the gateway saw nothing

    def test_a_voided_call_counts_nothing(self) -> None:
        said = why(Outcome.VOIDED, held=HELD, signed_outcome="voided")
        assert said.startswith("Nothing is charged: the runtime was certainly not reached")
        assert "largest" not in said

    def test_a_running_call_has_its_request_counted_and_its_hold_set_aside(self) -> None:
        assert why(Outcome.OPEN) == "It still runs. The request counts already."
        said = why(Outcome.OPEN, held=HELD, reports=1)
        assert "What is held is set aside for it" in said
        assert "1 signed report came in already" in said

    def test_an_expired_call_is_charged_at_its_hold_until_somebody_trusted_looks(self) -> None:
        said = why(Outcome.EXPIRED, held=HELD, estimate_stands=True)
        assert "Nobody trusted has looked yet, so what was held is charged, as an estimate." in said
        assert "down as well as up" in said
        assert "largest" not in said

    def test_an_expired_call_that_was_looked_at_since_no_longer_counts_its_hold(self) -> None:
        said = why(Outcome.EXPIRED, held=HELD, is_observed=True, reports=1)
        assert "the hold no longer counts. Of each measure the largest counts that anybody observed: 1 signed" in said

    def test_an_expired_call_without_a_hold_counts_its_request(self) -> None:
        assert "Nothing was held for it" in why(Outcome.EXPIRED)

    def test_guessed_tokens_wait_for_a_trusted_report(self) -> None:
        assert "The first trusted report that counts them replaces the guess" in why(
            Outcome.FAILED, tokens_estimated=True, signed_outcome="failed"
        )
        assert "The runtime does not count tokens" in why(Outcome.SUCCEEDED, tokens_estimated=True, is_observed=True)

    def test_tools_that_nobody_could_look_at_are_charged_at_the_hold(self) -> None:
        said = why(Outcome.SUCCEEDED, runtime="agentcore", tools_estimated=True, signed_outcome="succeeded")
        assert "they are charged at what was held. We look again" in said

    def test_claims_from_beside_user_code_only_raise(self) -> None:
        beside = "they may raise what is charged, not lower an estimate"
        assert beside in why(Outcome.SUCCEEDED, runtime="agentcore", reports=1)
        assert beside not in why(Outcome.SUCCEEDED, runtime="cloudflare", reports=1)

    def test_a_call_that_only_a_report_told_of_was_judged_by_no_limit(self) -> None:
        said = why(Outcome.SUCCEEDED, source=Source.REPORT, reports=1, is_observed=True)
        assert said.startswith("A signed report told of this call; the gateway never saw it.")

    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_every_outcome_has_words(self, outcome: Outcome) -> None:
        assert all(sentence.endswith(".") for sentence in why_charged(Charge(outcome=outcome)))


class TestWhatIsEstimated:
    def test_while_an_estimate_stands_what_was_held_is(self) -> None:
        charge = Charge(Outcome.EXPIRED, estimate_stands=True, held=HELD)
        assert [m for m in MEASURES if is_estimated(charge, m)] == ["tokens", "compute_ms"]

    def test_otherwise_tokens_and_tools_each_for_themselves(self) -> None:
        guessed = Charge(Outcome.SUCCEEDED, tokens_estimated=True, held=HELD)
        assert [m for m in MEASURES if is_estimated(guessed, m)] == ["tokens"]
        unseen = Charge(Outcome.SUCCEEDED, tools_estimated=True)
        assert [m for m in MEASURES if is_estimated(unseen, m)] == ["tool_calls", "code_ms", "browser_sessions"]


class TestWhatWasKept:
    def test_a_settlement_is_read_with_its_guess_or_without(self) -> None:
        outcome, figures = read_settlement("v1|inv_0|succeeded|7|20|1|300|2|estimated")
        assert (outcome, list(figures.values())) == ("succeeded", [7, 20, 1, 300, 2])
        assert read_settlement("") == ("", {})

    def test_the_largest_of_several_reports_is_taken_measure_by_measure(self) -> None:
        figures = [read_facts("inv_0|7|20|0|0|0|0"), read_facts("inv_0|3|90|1|0|0|1"), read_facts("")]
        assert list(largest(figures).values()) == [7, 90, 1, 0, 0]
        assert largest([read_facts("")]) == {}


class TestWhatBecameOfAReport:
    @pytest.mark.parametrize("status", ["accepted", "duplicate", "pending", "parked"])
    def test_a_status_says_what_it_means_and_no_fault_of_ours_is_named(self, status: str) -> None:
        said = said_of_report(status, "failed: UniqueViolation")
        assert said.why
        assert "UniqueViolation" not in said.why + said.what_to_do

    @pytest.mark.parametrize("reason", list(Reason))
    def test_every_reason_for_a_rejection_says_what_to_do(self, reason: Reason) -> None:
        said = said_of_report("rejected", reason.value)
        assert said.why[1:-1] == reason.value[1:]
        assert said.what_to_do.endswith(".")

    def test_a_malformed_event_names_its_field_and_an_unknown_reason_is_not_repeated(self) -> None:
        assert said_of_report("rejected", "malformed: tokens").why == "Malformed: tokens."
        assert "secret" not in said_of_report("rejected", "secret of somebody").why
