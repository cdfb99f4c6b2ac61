"""Keys that are derived and never stored, and signatures that are compared in constant time.

A deployment keeps only the id of its root key; its keys are HKDF-SHA256 (RFC 5869) of that root key,
so root keys rotate by adding a new first one and keeping the old until nothing was made with it.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum
from functools import lru_cache

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

_KEY_BYTES = 32
_HEX_DIGITS = 64
# A rotation lists two signatures. More than a few, or a long header, is somebody trying us.
_MOST_SIGNATURES = 8
_LONGEST_HEADER = 2048
_PLATFORM = "platform"


class Purpose(StrEnum):
    """What a derived key is for; a key made for one purpose is worthless for another."""

    TELEMETRY = "telemetry"
    INVOKE = "invoke"
    SETTLEMENT = "settlement"
    ALERT = "alert"


@lru_cache(maxsize=4096)
def derive_key(root: bytes, purpose: Purpose, deployment_id: str) -> bytes:
    """Return the 32-byte key of one deployment for one purpose: HKDF-SHA256, no salt, info `purpose:dep_...`."""
    info = f"{purpose.value}:{deployment_id}".encode()
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info).derive(root)


def sign(key: bytes, data: bytes) -> str:
    """Return the lower-case hex HMAC-SHA256 of the data."""
    return hmac.digest(key, data, "sha256").hex()


def signature_header(key: bytes, data: bytes) -> str:
    """Return the header value that `verify` accepts: `v1=` and the signature."""
    return f"v1={sign(key, data)}"


def verify(key: bytes, data: bytes, header: str | None) -> bool:
    """Say whether any `v1=` signature in a header fits the data. Never raises, whatever the header.

    Several may be listed, separated by commas, while keys rotate; other schemes are passed over.
    The comparison is on bytes and in constant time: `compare_digest` raises on non-ASCII text.
    """
    if not header or len(header) > _LONGEST_HEADER:
        return False
    expected = sign(key, data).encode("ascii")
    fits = False
    for item in header.split(",")[:_MOST_SIGNATURES]:
        scheme, _, value = item.strip().partition("=")
        if scheme == "v1" and len(value) == _HEX_DIGITS:
            fits |= hmac.compare_digest(value.encode("utf-8", "replace"), expected)
    return fits


def root_keys() -> dict[str, bytes]:
    """Return all accepted root keys by id; the first is the current one."""
    keys: dict[str, bytes] = settings.ROOT_KEYS
    return keys


def current_root_key_id() -> str:
    """Return the id of the root key that new deployments are made with."""
    return next(iter(root_keys()))


def deployment_key(root_key_id: str, purpose: Purpose, deployment_id: str) -> bytes | None:
    """Return a deployment's key, or None when its root key is no longer (or never was) one of ours."""
    root = root_keys().get(root_key_id)
    return None if root is None else derive_key(root, purpose, deployment_id)


def sign_settlement(data: bytes) -> str:
    """Sign what a settlement says, as `root key id:hex`, with the platform's own key."""
    key_id = current_root_key_id()
    return f"{key_id}:{sign(derive_key(root_keys()[key_id], Purpose.SETTLEMENT, _PLATFORM), data)}"


def verify_settlement(data: bytes, signature: str) -> bool:
    """Say whether a settlement still says what was signed."""
    key_id, _, value = signature.partition(":")
    key = deployment_key(key_id, Purpose.SETTLEMENT, _PLATFORM)
    return key is not None and verify(key, data, f"v1={value}")


def digest(data: bytes) -> bytes:
    """Return the SHA-256 of the data, for what is compared but need not be read again."""
    return hashlib.sha256(data).digest()
