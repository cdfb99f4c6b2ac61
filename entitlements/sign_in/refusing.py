"""Too many wrong tries, told by a form to people and by a status to programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.forms import BaseForm
from django.http import HttpResponse

from entitlements.errors import RateLimitedError

_TOO_MANY: Final = "too_many_tries"


@contextmanager
def refused_as_invalid() -> Iterator[None]:
    """Tell a form what is refused for now, and for how long."""
    try:
        yield
    except RateLimitedError as error:
        raise ValidationError(error.message, code=_TOO_MANY, params={"wait": error.retry_after}) from error


class WaitingMixin:
    """A form's page that answers 429 with Retry-After where somebody has to wait."""

    def form_invalid(self, form: BaseForm) -> HttpResponse:
        """Show the form again, with the status that fits what is wrong."""
        answer: HttpResponse = super().form_invalid(form)  # type: ignore[misc]  # of the view that this is mixed into
        found: list[Any] = [error for errors in form.errors.as_data().values() for error in errors]
        for error in found:
            if error.code == _TOO_MANY:
                answer.status_code = HTTPStatus.TOO_MANY_REQUESTS
                answer.headers["Retry-After"] = str(error.params["wait"])
        return answer
