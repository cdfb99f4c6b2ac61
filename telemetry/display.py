"""How costs and forecasts are shown, the same on every page."""

from __future__ import annotations

from decimal import Decimal

from telemetry import rules
from telemetry.forecast import Answer, Forecast


def dollars(amount: Decimal) -> str:
    """Return an estimated cost in cents; what is less than one is not shown as nothing."""
    text = rules.shown(amount)
    return "under $0.01" if amount and text == "0.00" else f"${text}"


def forecast_text(forecast: Forecast) -> str:
    """Return a forecast in words: "3 December, 14:00 UTC", or why there is no date."""
    if forecast.answer is Answer.RUNS_OUT and forecast.at is not None:
        return f"{forecast.at:%-d %B, %H:%M} UTC"
    return "–" if forecast.answer is Answer.UNLIMITED else forecast.answer.value  # noqa: RUF001 - the dash of all tables
