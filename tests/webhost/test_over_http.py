"""The API as the running product serves it: what only a real server shows."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.factories import example, make_account, make_agent, make_token
from webhost.local.product import Product

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def alice(product: Product) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {make_token(make_account('alice'))}"
        yield session


def raw(product: Product, head: str, body: bytes = b"", *, patience: float = 5) -> tuple[int, dict[str, Any]]:
    """Send bytes as they are, and read one answer."""
    address = urlsplit(product.url)
    assert address.hostname
    assert address.port
    with socket.create_connection((address.hostname, address.port), timeout=patience) as wire:
        wire.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        answer = b""
        while b"\r\n\r\n" not in answer or not _is_whole(answer):
            more = wire.recv(65536)
            if not more:
                break
            answer += more
    top, _, rest = answer.partition(b"\r\n\r\n")
    return int(top.split(b" ")[1]), json.loads(rest)


def _is_whole(answer: bytes) -> bool:
    top, _, rest = answer.partition(b"\r\n\r\n")
    length = next((line for line in top.lower().split(b"\r\n") if line.startswith(b"content-length:")), None)
    return length is not None and len(rest) >= int(length.split(b":")[1])


def head(path: str, *fields: str) -> str:
    return "\n".join([f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *fields])


def test_an_upload_that_says_it_is_too_large_is_refused_before_a_byte_of_it_is_sent(product: Product) -> None:
    status, body = raw(product, head("/v1/agents", "Content-Type: application/json", "Content-Length: 500000000"))
    assert (status, body["error"]["code"]) == (413, "INVALID_REQUEST")


@pytest.mark.parametrize("path", ["/v1/telemetry/report", "/v1/invoke/x", "/v1/agents", "/v1/tokens"])
def test_a_body_that_would_inflate_is_refused_unread(product: Product, path: str) -> None:
    bomb = gzip.compress(b"\0" * 128 * 1024 * 1024)
    began = time.monotonic()
    answer = requests.post(
        product.url + path,
        data=bomb,
        headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
        timeout=10,
    )
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "INVALID_REQUEST"
    assert time.monotonic() - began < 5


def test_a_body_without_a_length_is_read_whole_or_refused_but_never_taken_for_empty(
    product: Product, alice: requests.Session
) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"name": '
        yield b'"in-pieces"}'

    answer = alice.post(
        f"{product.url}/v1/agents", data=pieces(), headers={"Content-Type": "application/json"}, timeout=10
    )
    assert answer.status_code in {201, 400}
    if answer.status_code == 400:
        assert answer.json()["error"]["details"]["issues"][0]["path"] == "Content-Length"


def test_every_answer_carries_the_trace_id_and_no_answer_is_kept_by_a_cache(
    product: Product, alice: requests.Session
) -> None:
    trace = "trc_" + "c" * 32
    for path, status in (("/v1/me", 200), ("/v1/nothing", 404), ("/v1/agents/x", 404), ("/healthz", 200)):
        answer = alice.get(product.url + path, headers={"X-Trace-Id": trace}, timeout=10)
        assert (answer.status_code, answer.headers["X-Trace-Id"]) == (status, trace)
        if path.startswith("/v1/"):
            assert answer.headers["Cache-Control"] == "no-store"


def test_both_workers_are_ready(product: Product) -> None:
    for _ in range(10):
        answer = requests.get(f"{product.url}/readyz", timeout=10)
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")


def test_a_bundle_goes_from_upload_to_an_answer_and_its_logs(product: Product, alice: requests.Session) -> None:
    agent = alice.post(f"{product.url}/v1/agents", json={"name": "echo"}, timeout=10).json()["id"]
    files = {"bundle": ("echo.zip", example("echo"), "application/zip")}
    accepted = alice.post(f"{product.url}/v1/agents/{agent}/deployments", files=files, timeout=30)
    assert accepted.status_code == 202
    deployment, deadline = accepted.json(), time.monotonic() + 60
    while deployment["status"] == "deploying" and time.monotonic() < deadline:
        time.sleep(0.1)
        deployment = alice.get(f"{product.url}/v1/deployments/{deployment['id']}", timeout=10).json()
    assert deployment["status"] == "active", deployment
    secrets = alice.put(f"{product.url}/v1/agents/{agent}/secrets", json={"secrets": {"A": "b"}}, timeout=30)
    assert secrets.status_code == 200, secrets.text
    answer = alice.post(f"{product.url}/v1/invoke/{agent}", json={"input": {"prompt": "hi"}}, timeout=30)
    assert answer.status_code == 200, answer.text
    receipt = alice.get(f"{product.url}/v1/invocations/{answer.json()['invocationId']}", timeout=10).json()
    assert receipt["outcome"] == "succeeded"
    log = alice.get(f"{product.url}/v1/deployments/{deployment['id']}/logs", timeout=10).json()["items"]
    assert log[0]["text"] == "Version 1 is active."


def test_agents_survive_a_client_that_asks_for_something_else(product: Product, alice: requests.Session) -> None:
    make_agent(make_account("charlie"))
    answer = alice.get(
        f"{product.url}/v1/agents", headers={"Accept": "text/html", "Accept-Encoding": "gzip"}, timeout=10
    )
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json()["items"] == []
