"""AWS without its SDK: the role's credentials from the instance metadata (IMDSv2 only), and Signature Version 4.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import reduce
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

_METADATA = "http://169.254.169.254"
_METADATA_SECONDS = 5
_TOKEN_SECONDS = 21_600
# Credentials are taken anew this long before they end.
_MARGIN = timedelta(minutes=5)
_UTC = timezone.utc


class AwsError(Exception):
    """What a service answered instead of doing it."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.status = status


def signed(
    method: str, url: str, body: bytes, *, region: str, service: str, credentials: Mapping[str, Any], now: datetime
) -> dict[str, str]:
    """Return the headers that sign a request; its path is escaped twice, as every service but S3 has it. Pure."""
    parts = urlsplit(url)
    time = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{time[:8]}/{region}/{service}/aws4_request"
    headers = {"host": parts.netloc, "x-amz-date": time}
    if credentials.get("Token"):
        headers["x-amz-security-token"] = credentials["Token"]
    names = ";".join(sorted(headers))
    query = sorted((_escaped(name), _escaped(value)) for name, value in parse_qsl(parts.query, keep_blank_values=True))
    request = [
        method,
        quote(parts.path or "/", safe="/-_.~"),
        "&".join(f"{name}={value}" for name, value in query),
        *(f"{name}:{headers[name]}" for name in sorted(headers)),
        "",
        names,
        hashlib.sha256(body).hexdigest(),
    ]
    text = "\n".join(["AWS4-HMAC-SHA256", time, scope, hashlib.sha256("\n".join(request).encode()).hexdigest()])
    key = reduce(_hmac, scope.split("/"), f"AWS4{credentials['SecretAccessKey']}".encode())
    del headers["host"]
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials['AccessKeyId']}/{scope}, "
        f"SignedHeaders={names}, Signature={_hmac(key, text).hex()}"
    )
    return headers


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _escaped(text: str) -> str:
    return quote(text, safe="-_.~")


class Aws:
    """The services of one region, called as the runtime's role."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        self._metadata = (env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _METADATA).rstrip("/")
        self._endpoints = {
            "secretsmanager": env.get("AWS_ENDPOINT_URL_SECRETS_MANAGER"),
            "bedrock-agentcore": env.get("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE"),
        }
        self._credentials: dict[str, Any] | None = None
        # Calls at the same time wait for one and the same answer.
        self._lock = threading.Lock()

    def call(
        self,
        service: str,
        method: str,
        path: str,
        value: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float = 30,
    ) -> bytes:
        """Call a service with JSON and return the body of its answer; raises AwsError, or OSError and the like."""
        base = self._endpoints.get(service) or f"https://{service}.{self.region}.amazonaws.com"
        url = base.rstrip("/") + path
        body = b"" if value is None else json.dumps(value).encode()
        sent = {"content-type": "application/json", **(headers or {}), **self.sign(service, method, url, body)}
        status, told, answer = _sent(method, url, body, sent, seconds)
        if not 200 <= status < 300:
            raise _error_of(status, told, answer)
        return answer

    def sign(self, service: str, method: str, url: str, body: bytes = b"") -> dict[str, str]:
        """Return the headers that sign a request to a service, with the role's credentials of now."""
        credentials = self._role()
        return signed(
            method, url, body, region=self.region, service=service, credentials=credentials, now=datetime.now(_UTC)
        )

    def _role(self) -> dict[str, Any]:
        with self._lock:
            if self._credentials is None or _ends_at(self._credentials) - datetime.now(_UTC) <= _MARGIN:
                ttl = {"x-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
                headers = {"x-aws-ec2-metadata-token": self._ask("PUT", "/latest/api/token", ttl)}
                folder = "/latest/meta-data/iam/security-credentials/"
                role = self._ask("GET", folder, headers).split("\n")[0].strip()
                self._credentials = json.loads(self._ask("GET", folder + role, headers))
            return self._credentials

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        status, _, answer = _sent(method, self._metadata + path, b"", headers, _METADATA_SECONDS)
        if status != 200:
            raise AwsError("NoCredentials", "The role's credentials are not to be had.", status)
        return answer.decode()


def _ends_at(credentials: Mapping[str, Any]) -> datetime:
    # What FURB162 does not know: fromisoformat reads no Z before Python 3.11.
    return datetime.fromisoformat(str(credentials["Expiration"]).replace("Z", "+00:00"))


def _sent(
    method: str, url: str, body: bytes, headers: Mapping[str, str], seconds: float
) -> tuple[int, Mapping[str, str], bytes]:
    """Send one request, without proxy or redirects, and read the whole answer."""
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(parts.netloc, timeout=seconds, context=context)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=seconds)
    try:
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        connection.request(method, target, body=body or None, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def _error_of(status: int, headers: Mapping[str, str], body: bytes) -> AwsError:
    try:
        told = json.loads(body)
    except ValueError:
        told = None  # a proxy's page, or nothing
    told = told if isinstance(told, dict) else {}
    # Some services give the code in a header, some in the body; some with a namespace, some with a link.
    code = headers.get("x-amzn-errortype") or told.get("__type") or told.get("code") or f"Status{status}"
    message = told.get("message") or told.get("Message") or "The service gave no reason."
    return AwsError(str(code).split(":")[0].split("#")[-1], str(message), status)
