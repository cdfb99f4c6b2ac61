"""The small forms of the account's page: a reason to disable or end something, and an adjustment of usage."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final
from uuid import UUID, uuid4

from django import forms
from unfold.widgets import (
    UnfoldAdminDecimalFieldWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminRadioSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanWidget,
)

from entitlements.actions.adjustments import Closing, problems_of_adjustment
from entitlements.amounts import about, duration
from entitlements.models.ledger import MEASURES
from entitlements.models.tiers import MOST
from webhost.period import key_of

_TIMES: Final = frozenset({"compute_ms", "code_ms"})  # kept in milliseconds, given and shown in seconds
_LABELS: Final[Mapping[str, str]] = {
    "requests": "Requests", "tokens": "Tokens", "compute_ms": "Compute, in seconds", "tool_calls": "Tool calls",
    "code_ms": "Code execution, in seconds", "browser_sessions": "Browser sessions",
}  # fmt: skip


class WhyForm(forms.Form):
    """A reason, for the audit log."""

    why = forms.CharField(
        label="Reason",
        max_length=500,
        widget=UnfoldAdminTextInputWidget(),
        help_text="A ticket, a name, a sentence. It is kept in the audit log.",
    )

    @property
    def reason(self) -> str:
        """The reason as it was given."""
        return str(self.cleaned_data["why"])


def amount_text(measure: str, amount: int) -> str:
    """Return an amount as the form takes it: times in seconds, everything else as it is."""
    if measure not in _TIMES:
        return f"{amount:,}"
    seconds = Decimal(amount) / 1000
    return f"{seconds.normalize():,f}" if amount else "0"


def amount_in_words(measure: str, amount: int) -> str:
    """Return an amount in words; empty where the number says it as well."""
    return (duration(amount) if amount >= 60_000 else "") if measure in _TIMES else about(amount)


@dataclass(frozen=True)
class Moved:
    """One measure before and after an adjustment, as it is shown."""

    label: str
    before: str
    after: str
    after_in_words: str


class AdjustForm(WhyForm):
    """Give usage back, or add it. First it shows what would become of it; what was shown is then confirmed."""

    way = forms.ChoiceField(
        label="What",
        choices=[("back", "Give back"), ("add", "Add")],
        initial="back",
        widget=UnfoldAdminRadioSelectWidget(),
    )
    requests = forms.IntegerField(required=False, min_value=0, max_value=MOST)
    tokens = forms.IntegerField(required=False, min_value=0, max_value=MOST)
    compute_ms = forms.DecimalField(required=False, min_value=0, max_value=MOST // 1000, decimal_places=3)
    tool_calls = forms.IntegerField(required=False, min_value=0, max_value=MOST)
    code_ms = forms.DecimalField(required=False, min_value=0, max_value=MOST // 1000, decimal_places=3)
    browser_sessions = forms.IntegerField(required=False, min_value=0, max_value=MOST)
    restate = forms.BooleanField(required=False, label="Restate this month", widget=UnfoldBooleanWidget())
    once = forms.CharField(widget=forms.HiddenInput(), max_length=64)
    field_order = ("way", *MEASURES, "restate", "why", "once")

    def __init__(
        self,
        *args: Any,
        account_id: UUID,
        period: date,
        used: Mapping[str, int],
        closing: Closing | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.account_id, self.period, self.used, self.closing = account_id, period, used, closing
        self.initial.setdefault("once", uuid4().hex)
        for measure in MEASURES:
            field, amount = self.fields[measure], used[measure]
            field.label = _LABELS[measure]
            field.widget = (UnfoldAdminDecimalFieldWidget if measure in _TIMES else UnfoldAdminIntegerFieldWidget)(
                attrs={"inputmode": "decimal", "autocomplete": "off"}
            )
            words = amount_in_words(measure, amount)
            field.help_text = f"{amount_text(measure, amount)} used{f' ({words})' if words else ''}"
        if closing is None:
            del self.fields["restate"]
        else:
            self.fields["restate"].help_text = closing.said

    def clean(self) -> dict[str, Any]:
        """Refuse in words what the ledger would refuse."""
        cleaned = super().clean() or self.cleaned_data
        if not self.errors:
            for problem in problems_of_adjustment(self.used, self.change):
                self.add_error(None, problem)
        if self.closing is not None and not (self.closing.may_restate and cleaned.get("restate")):
            self.add_error("restate", self.closing.said)
        return cleaned

    @property
    def change(self) -> dict[str, int]:
        """What moves, by the ledger's measures: below 0 is given back."""
        sign = -1 if self.cleaned_data["way"] == "back" else 1
        given = {m: self.cleaned_data.get(m) or 0 for m in MEASURES}
        return {m: sign * int(n * 1000 if m in _TIMES else n) for m, n in given.items() if n}

    @property
    def shown(self) -> str:
        """Name what is confirmed: after a change of mind the preview is shown again."""
        said = repr((str(self.account_id), key_of(self.period), sorted(self.change.items())))
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    def preview(self) -> Sequence[Moved]:
        """Return what would become of each measure that moves."""
        return moved_lines(self.used, {m: self.used[m] + n for m, n in self.change.items()})


def moved_lines(before: Mapping[str, int], after: Mapping[str, int]) -> Sequence[Moved]:
    """Return each measure that moved, before and after."""
    return [
        Moved(_LABELS[m], amount_text(m, before[m]), amount_text(m, n), amount_in_words(m, n)) for m, n in after.items()
    ]
