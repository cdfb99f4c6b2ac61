"""`make cases`: each public failure of systems like ours, the tests that cover it here, and how they ended.

A test names its case with `@pytest.mark.case("LIM-01")`. A case that we claim and that has no passing
test is a gap, and the run fails; so it does when any of these tests fails.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import pytest

# What the issues have claimed so far; the words are ours, the reports are public.
CLAIMED = {
    "LIM-01": "A burst of parallel calls all see one slot left, and all are served.",
    "LIM-03": "A limit of 0 means unlimited somewhere, a negative one is accepted, N lets N+1 through.",
    "LIM-04": "A call that fails at the provider burns the allowance, or its slot is never given back.",
    "LIM-06": "The counter lives in a cache, the gate fails open, or another route skips it.",
    "ING-01": "The signature is checked over something else than the bytes that were sent.",
    "ING-02": "A strange byte in the signature header crashes the endpoint; a second signature is not looked at.",
    "ING-03": "A captured signed request can be replayed for ever.",
    "ING-04": "Correctly signed but absurd numbers enter the meter.",
    "ING-05": "Usage is accepted for something that the sender does not own.",
    "ROL-01": "The mark of a duplicate is kept although the event was lost.",
    "ROL-02": "Two customers use the same event id, and the second one's usage vanishes.",
    "ROL-03": "One known event makes a whole batch fail.",
    "PER-01": "A month has the wrong first or last day, depending on who looks.",
    "PER-03": "Lines do not add up to the total, and small prices are cut to zero.",
    "STR-01": "An older event that comes later takes a paid tier away.",
    "STR-03": "An event is marked done before it is applied, or two deliveries at once clash.",
    "STR-04": "A price that nobody mapped puts a customer on the free tier, or its event fails for ever.",
    "STR-05": "Cancelling, or one failed renewal, ends the plan at once; or never.",
    "AGC-01": "A session's id is too short for AgentCore, or two callers' ids become one.",
    "AGC-03": "boto3 gives up on a slow agent and silently sends the whole call again.",
    "AGC-04": "A deployment fails for ever over what an earlier one left, or its name is refused.",
    "CFW-01": "An upload that was refused, or answered with an error page, is taken for deployed.",
    "CFW-02": "Deploying code alone removes the secrets and settings that were set apart.",
    "UPL-01": "A tiny upload expands to gigabytes.",
    "API-01": "A task runs twice, before its commit, or never ends.",
    "API-02": "A stream that breaks looks like a normal end, is held back, or is billed nothing.",
}
_CASE = re.compile(r"[A-Z]{3}-[0-9]{2}")


class Result(StrEnum):
    """How the tests of a case ended, worst last."""

    PASSED = "passed"
    SKIPPED = "skipped"
    GAP = "GAP"
    FAILED = "FAILED"


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Cases:
    """A pytest plugin that keeps only tests with a case, and remembers how each ended."""

    of_test: dict[str, set[str]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Drop what has no case; refuse a mark that reads like none."""
        kept, dropped = [], []
        for item in items:
            named = {str(case) for mark in item.iter_markers("case") for case in mark.args}
            if wrong := [case for case in named if not _CASE.fullmatch(case)]:
                raise pytest.UsageError(f"{item.nodeid}: {wrong[0]} is not the id of a case.")
            (kept if named else dropped).append(item)
            if named:
                self.of_test[item.nodeid] = named
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of setup, call and teardown."""
        before = self.ended.get(report.nodeid)
        if report.failed or before is None or (report.skipped and before == "passed"):
            self.ended[report.nodeid] = report.outcome

    def tests_of(self, case: str) -> dict[str, Counter[str]]:
        """Return the functions that cover a case, with how often each of their variants passed, failed or was skipped."""
        found: dict[str, Counter[str]] = {}
        for test, cases in self.of_test.items():
            if case in cases:
                found.setdefault(test.partition("[")[0], Counter())[self.ended.get(test, "not run")] += 1
        return found

    def result_of(self, case: str) -> Result:
        """Say how a case ended: a failure of one is a failure, and skips alone prove nothing."""
        ended = sum(self.tests_of(case).values(), Counter())
        if ended["failed"] or ended["not run"]:
            return Result.FAILED
        if ended["passed"]:
            return Result.PASSED
        return Result.SKIPPED if ended["skipped"] else Result.GAP


def table(cases: Cases) -> list[str]:
    """Return the lines to print: every case, its tests, and how they ended."""
    known = [*CLAIMED, *sorted({c for named in cases.of_test.values() for c in named} - set(CLAIMED))]
    lines: list[str] = []
    for case in known:
        lines.append(f"{case}  {cases.result_of(case):8} {CLAIMED.get(case, '')}".rstrip())
        for test, ended in sorted(cases.tests_of(case).items()):
            said = ", ".join(f"{count} {how}" for how, count in sorted(ended.items()))
            lines.append(f"                 {test}: {said}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Run every test that has a case and print what covers what; 1 on a gap or a failure."""
    cases = Cases()
    pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", *(arguments or ["tests"])], plugins=[cases])
    results = {case: cases.result_of(case) for case in {*CLAIMED, *(c for n in cases.of_test.values() for c in n)}}
    bad = sorted(case for case, result in results.items() if result is not Result.PASSED)
    verdict = f"{len(results) - len(bad)} of {len(results)} cases hold." + (f" Not: {', '.join(bad)}." if bad else "")
    sys.stdout.write("\n".join(["", *table(cases), "", verdict, ""]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
