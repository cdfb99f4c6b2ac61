"""A page before a change of tiers is saved: what would be different, whom it would stop, what it would have refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest, QueryDict
from django.urls import NoReverseMatch, reverse

from entitlements.actions.drafts import Difference, Preview
from entitlements.display import LABELS, label_of, shown
from entitlements.impact import Example, Impact, LimitImpact, Loss
from entitlements.models import Tier
from entitlements.rules import KEY_OF_FIELD

LOOKED: Final = "_looked"  # carries the digest of the draft that was looked at
EDIT: Final = "_edit"  # asks for the form again, filled in with the draft
_SET_BY: Final[Mapping[str, str]] = {"support": "set by support", "billing": "paid for", "default": "by default"}


class PreviewNeededError(Exception):
    """A change of tiers was sent that nobody has looked at yet; nothing was saved."""

    def __init__(self, tier: Tier | None, values: Mapping[str, Any], digest: str, reason: str) -> None:
        super().__init__("Look at what it would do first.")
        self.tier, self.values, self.digest, self.reason = tier, values, digest, reason


@dataclass(frozen=True)
class DifferenceLine:
    """A field in words, before and after."""

    label: str
    before: str
    after: str


@dataclass(frozen=True)
class LimitLine:
    """A limit: whom it stops and what it would have refused, as the draft has it and as it is."""

    label: str
    impact: LimitImpact

    @property
    def worse(self) -> bool:
        """Say whether the draft is harder on anybody."""
        return self.impact.full_then > self.impact.full_now or self.impact.refused_then > self.impact.refused_now


@dataclass(frozen=True)
class LossLine:
    """A loss, with links to what it is about."""

    loss: Loss
    examples: list[tuple[str, str, str]]


def preview_context(preview: Preview) -> dict[str, Any]:
    """Return what the template shows of a preview."""
    impact = preview.impact
    return {
        "preview": preview,
        "impact": impact,
        "differences": [difference_line(d) for d in preview.differences],
        "shortened": [f"{_label(d.field)}: {shown(d.after)}" for d in preview.shortened],
        "set_by": ", ".join(f"{shown(impact.set_by[s])} {said}" for s, said in _SET_BY.items() if s in impact.set_by),
        "limits": [LimitLine(LABELS[x.limit_type], x) for x in impact.limits if _says_something(x)],
        "stopped": [(s, ", ".join(LABELS[limit].lower() for limit in s.limits)) for s in impact.stopped],
        "unnamed": impact.newly_stopped - len(impact.stopped),
        "losses": [LossLine(loss, list(_links(loss.examples))) for loss in preview.losses],
        "share": _share(impact),
        "harmless": _is_harmless(preview),
        "at_most": any(
            x.refused_then and LABELS[x.limit_type] not in {LABELS[k] for k in _EXACT} for x in impact.limits
        ),
    }  # fmt: skip


# What is counted when a call is admitted, and only grows (entitlements/impact.py).
_EXACT: Final = frozenset({limit for limit in LABELS if limit.value in {"requests", "requestsPerMinute"}})


def _says_something(limit: LimitImpact) -> bool:
    return any((limit.full_then, limit.full_now, limit.refused_then, limit.refused_now))


def _is_harmless(preview: Preview) -> bool:
    impact = preview.impact
    refused = impact.replay is not None and impact.replay.refused_then > impact.replay.refused_now
    worse = any(loss.then > loss.now for loss in preview.losses)
    return not (impact.newly_stopped or refused or worse or preview.shortened or impact.replay is None)


def _share(impact: Impact) -> str:
    replay = impact.replay
    if replay is None or not replay.calls or not replay.refused_then:
        return ""
    percent = 100 * replay.refused_then / replay.calls
    return f"{percent:.1f} %" if percent >= 0.1 else "less than 0.1 %"


def _links(examples: Iterable[Example]) -> Iterator[tuple[str, str, str]]:
    for example in examples:
        try:
            yield example.name, example.email, reverse(example.page, args=[example.pk])
        except NoReverseMatch:
            yield example.name, example.email, ""


def difference_line(difference: Difference) -> DifferenceLine:
    """Return a changed field as people read it."""
    return DifferenceLine(
        _label(difference.field),
        _value(difference.field, difference.before),
        _value(difference.field, difference.after),
    )


def _label(field: str) -> str:
    key = KEY_OF_FIELD.get(field)
    return label_of(key) if key else _named(field)


def _named(field: str) -> str:
    return str(getattr(Tier._meta.get_field(field), "verbose_name", field)).capitalize()  # noqa: SLF001 - documented


def _value(field: str, value: Any) -> str:
    if hasattr(value, "strftime"):
        return f"{value:%Y-%m-%d %H:%M}"
    if value is None:
        return shown(None) if field.startswith("max_") or field == "requests_per_minute" else "no"
    return shown(value) if value != "" else "empty"


def sent_again(request: HttpRequest) -> list[tuple[str, str]]:
    """Return the fields of a form as they were sent, to be sent again from the preview."""
    sent: QueryDict = request.POST
    return [
        (name, value)
        for name, values in sent.lists()
        if name not in {"csrfmiddlewaretoken", LOOKED, EDIT}
        for value in values
        if isinstance(value, str)
    ]
