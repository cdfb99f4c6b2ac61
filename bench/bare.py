"""A bare Django view: no middleware, no account, no limit, no database. It only passes the call on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import uuid4

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.http import require_POST

from bench.provider import Events, call, encode

settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY=uuid4().hex, MIDDLEWARE=[], USE_I18N=False
)


def _sent(request: HttpRequest, trace: str) -> bytes:
    return json.dumps({"input": json.loads(request.body)["input"], "metadata": {"traceId": trace}}).encode()


@require_POST
def invoke(request: HttpRequest, agent: str) -> HttpResponseBase:
    """Call the upstream and answer."""
    invocation, trace = f"inv_{uuid4().hex}", f"trc_{uuid4().hex}"
    answer = call(agent, invocation, trace, _sent(request, trace))
    return JsonResponse(
        {"output": {"text": answer["text"]}, "usage": answer["usage"], "invocationId": invocation, "traceId": trace}
    )


class _Passed:
    def __init__(self, events: Events) -> None:
        self._events = events

    def __iter__(self) -> Iterator[bytes]:
        for event, data in self._events:
            yield encode(event, data)
        yield encode("done", {})

    def close(self) -> None:
        self._events.close()


@require_POST
def stream(request: HttpRequest, agent: str) -> HttpResponseBase:
    """Call the upstream and pass its events on."""
    invocation, trace = f"inv_{uuid4().hex}", f"trc_{uuid4().hex}"
    events = Events(agent, invocation, trace, _sent(request, trace))
    return StreamingHttpResponse(_Passed(events), content_type="text/event-stream")


urlpatterns = [path("v1/invoke/<str:agent>", invoke), path("v1/invoke/<str:agent>/stream", stream)]
application = get_wsgi_application()
