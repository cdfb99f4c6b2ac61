"""Signature version 4, checked by computing it again with botocore's own signer."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<date>\d{8})/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request,"
    r" ?SignedHeaders=(?P<headers>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
_MOST_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True)
class Signature:
    """What an Authorization header says."""

    access_key: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    value: str


def read_signature(header: str | None) -> Signature | None:
    """Read an Authorization header; None where it is no signature of version 4."""
    match = _AUTHORIZATION.fullmatch(header or "")
    if match is None:
        return None
    return Signature(
        match["key"], match["region"], match["service"], tuple(match["headers"].split(";")), match["signature"]
    )


def fits(
    signature: Signature, secret: str, *, method: str, target: str, headers: Mapping[str, str], body: bytes
) -> bool:
    """Say whether a request was signed with this secret within the last minutes; `headers` have lower-case names."""
    stamp = headers.get("x-amz-date", "")
    try:
        signed_at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return False
    if abs(datetime.now(UTC) - signed_at) > _MOST_SKEW or not {"host", "x-amz-date"} <= set(signature.signed_headers):
        return False
    request = AWSRequest(
        method=method,
        url=f"http://{headers.get('host', '')}{target}",
        headers={name: headers[name] for name in signature.signed_headers if name in headers},
        data=body,
    )
    request.context["timestamp"] = stamp
    signer_of = S3SigV4Auth if signature.service == "s3" else SigV4Auth
    signer = signer_of(Credentials(signature.access_key, secret), signature.service, signature.region)
    expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    return hmac.compare_digest(expected, signature.value)
