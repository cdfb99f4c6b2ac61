"""Somebody on support at work in the admin, for tests: opens forms, changes fields, sends them."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django.db.models import Model
from django.forms import ModelMultipleChoiceField
from django.test import Client
from django.urls import reverse

from entitlements.models import Account
from tests.factories import make_account


class Staff:
    """A member of staff with a browser. `stella` is a superuser."""

    def __init__(self, account: Account | None = None) -> None:
        self.account = account or make_account("stella", staff=True)
        self.client = Client()
        self.client.force_login(self.account)

    @staticmethod
    def url(model: type[Model] | Model, page: str = "change") -> str:
        """Return the address of a page about a row, or about a model for `add` and `changelist`."""
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}"
        return reverse(name, args=[model.pk] if isinstance(model, Model) else [])

    def open(self, url: str) -> dict[str, Any]:
        """Open a form; return what a browser would send back unchanged."""
        page = self.client.get(url)
        assert page.status_code == 200, page.status_code
        form = page.context["adminform"].form
        data: dict[str, Any] = {}
        for field in form:
            value = field.value()
            if hasattr(field.field.widget, "widgets"):
                parts = field.field.widget.decompress(value)
                data |= {f"{field.html_name}_{i}": "" if p is None else str(p) for i, p in enumerate(parts)}
            elif isinstance(field.field, ModelMultipleChoiceField):
                data[field.html_name] = [str(getattr(v, "pk", v)) for v in value or []]
            elif isinstance(value, bool):
                data |= {field.html_name: "on"} if value else {}
            else:
                data[field.html_name] = "" if value is None else str(value)
        return data

    def send(self, url: str, data: dict[str, Any]) -> Any:
        """Send a form."""
        return self.client.post(url, {k: v for k, v in data.items() if v is not None})

    def change(self, row: Model, **changes: Any) -> Any:
        """Open a row's form, change fields (None: switch off), send it; confirm what a preview shows."""
        url = self.url(row)
        return self.confirm(url, self.send(url, self.open(url) | {"why": "Ticket 7"} | changes))

    def confirm(self, url: str, page: Any) -> Any:
        """Press Save on a preview, and return the answer; any other page is returned as it is."""
        context = getattr(page, "context_data", None) or {}
        if "digest" not in context:
            return page
        sent: dict[str, list[str]] = {}
        for name, value in context["sent"]:
            sent.setdefault(name, []).append(value)
        return self.client.post(url, sent | {"_looked": context["digest"]})

    def add(self, model: type[Model], **values: Any) -> Any:
        """Open the empty form, fill it, send it."""
        url = self.url(model, "add")
        return self.send(url, self.open(url) | {"why": "Ticket 7"} | values)

    def run(self, action: str, *rows: Model, **fields: str) -> Any:
        """Run an action on selected rows of the list."""
        data = {"action": action, "index": "0", "_selected_action": [str(r.pk) for r in rows], **fields}
        return self.client.post(self.url(type(rows[0]), "changelist"), data, follow=True)


def history(row: Model | type[Model], pk: int | UUID | None = None) -> list[Any]:
    """Return what the database noted about a row, oldest first."""
    events = next(iter(row.pgh_event_models.values()))  # type: ignore[union-attr]  # set by pghistory
    return list(events.objects.filter(pgh_obj_id=pk or row.pk).order_by("pgh_id").select_related("pgh_context"))


def said(page: Any) -> str:
    """Return what a page says, without its tags and with single spaces."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", page.content.decode(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())
