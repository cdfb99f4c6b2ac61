"""The floor: the same statements and the same call to the provider, and nothing else.

A bare WSGI application. It looks the token up, resolves, admits, calls and settles with the product's own
SQL, exactly. It parses no more than it needs, checks no shape, signs no settlement, keeps no trace, no
idempotency, no log, and explains no refusal.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

import django

django.setup()  # to import the statements below; no request passes through Django

import psycopg  # noqa: E402
from psycopg.rows import dict_row  # noqa: E402
from psycopg_pool import ConnectionPool  # noqa: E402

from bench.provider import Events, call, encode  # noqa: E402
from bench.statements import ADMIT, FIND_TOKEN, RESOLVE, SETTLE, numbered  # noqa: E402
from webhost.ids import new_id  # noqa: E402

Row = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]

_POOL: ConnectionPool[psycopg.Connection[Row]] = ConnectionPool(
    os.environ["DATABASE_URL"],
    kwargs={"autocommit": True, "row_factory": dict_row, "prepare_threshold": 1, "application_name": "bench-floor"},
    connection_class=psycopg.Connection[Row],
    min_size=1,
    max_size=8,
    open=True,
)
_NO_ESTIMATE = {"tokens": 0, "compute_ms": 0, "tool_calls": 0, "code_ms": 0, "browser_sessions": 0}
_JSON = [("Content-Type", "application/json")]
_EVENTS = [("Content-Type", "text/event-stream")]


def _run(query: str, parameters: Row) -> list[Row]:
    statement, names = numbered(query)
    connection = _POOL.getconn()
    try:
        return psycopg.RawCursor(connection).execute(statement, [parameters[name] for name in names]).fetchall()
    finally:
        _POOL.putconn(connection)


def _settle(invocation: UUID, outcome: str, usage: Row, began: float) -> None:
    _run(
        SETTLE,
        {
            "id": invocation,
            "outcome": outcome,
            "error_class": None,
            "latency_ms": int((time.monotonic() - began) * 1000),
            "tokens_estimated": usage["tokensEstimated"],
            "tools_unseen": False,
            "tokens": usage["tokens"],
            "compute_ms": usage["computeMs"],
            "tool_calls": usage["toolCalls"],
            "code_ms": usage["codeExecutionMs"],
            "browser_sessions": usage["browserSessions"],
            "settlement": f"v1|inv_{invocation.hex}|{outcome}",
            "settlement_mac": "",
        },
    )


class Stream:
    """The events of a streamed answer; settles when it is closed."""

    def __init__(self, invocation: UUID, deployment: str, trace: str, body: bytes) -> None:
        self._invocation, self._trace, self._began = invocation, trace, time.monotonic()
        self._events = Events(deployment, f"inv_{invocation.hex}", trace, body)
        self._usage: Row = {}

    def __iter__(self) -> Iterator[bytes]:
        yield encode("meta", {"traceId": self._trace, "invocationId": f"inv_{self._invocation.hex}"})
        for event, data in self._events:
            if event == "final":
                self._usage = data["usage"]
                yield encode("usage", self._usage)
            else:
                yield encode(event, data)
        yield encode("done", {})

    def close(self) -> None:
        """Settle, however it ended."""
        self._events.close()
        nothing = dict.fromkeys(["tokensEstimated"], False) | dict.fromkeys(
            ["tokens", "computeMs", "toolCalls", "codeExecutionMs", "browserSessions"], 0
        )
        _settle(self._invocation, "succeeded" if self._usage else "failed", self._usage or nothing, self._began)


def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """Serve POST /v1/invoke/{agent} and /stream."""
    agent, _, stream = environ["PATH_INFO"].removeprefix("/v1/invoke/").partition("/")
    body = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    digest = hashlib.sha512(environ["HTTP_AUTHORIZATION"].removeprefix("Bearer ").encode()).hexdigest()
    token = _run(FIND_TOKEN, {"digest": digest})[0]
    account = token["user_id"]
    target = _run(RESOLVE, {"account": account, "agent": UUID(agent.removeprefix("agt_"))})[0]
    invocation, trace = new_id(), f"trc_{new_id().hex}"
    admission = _run(
        ADMIT,
        {
            "id": invocation,
            "account": account,
            "agent": target["agent_id"],
            "deployment": target["deployment_id"],
            "token": token["id"],
            "delegated_by": "",
            "runtime": target["runtime_provider"],
            "capabilities": target["capabilities"],
            "tools": [],
            "lifetime": target["timeout_seconds"] + 30,
            "trace": trace,
            "session": f"ses_{invocation.hex}",
            "at": None,
            **_NO_ESTIMATE,
        },
    )[0]
    if not admission["admitted"]:
        start_response("402 Payment Required", _JSON)
        return [b'{"error":{"code":"LIMIT_EXCEEDED"}}']
    deployment = f"dep_{target['deployment_id'].hex}"
    sent = json.dumps({"input": body["input"], "metadata": {"traceId": trace}}).encode()
    if stream:
        answered = Stream(invocation, deployment, trace, sent)
        start_response("200 OK", _EVENTS)
        return answered
    began = time.monotonic()
    answer = call(deployment, f"inv_{invocation.hex}", trace, sent)
    _settle(invocation, "succeeded", answer["usage"], began)
    shown = {"output": {"text": answer["text"]}, "usage": answer["usage"], "invocationId": f"inv_{invocation.hex}"}
    start_response("200 OK", _JSON)
    return [json.dumps(shown).encode()]
