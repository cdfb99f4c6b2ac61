"""Secrets of second factors as they lie in the database: encrypted with a key that is derived from SECRET_KEY."""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import Final

from cryptography.fernet import Fernet, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

_INFO: Final = b"webhost second factor v1"


def encrypt(text: str) -> str:
    """Encrypt with the present SECRET_KEY."""
    return _box(settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS).encrypt(text.encode()).decode()


def decrypt(encrypted: str) -> str:
    """Decrypt what the present SECRET_KEY or a former one encrypted; raises cryptography's InvalidToken otherwise."""
    return _box(settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS).decrypt(encrypted).decode()


@lru_cache(maxsize=8)
def _box(*keys: str) -> MultiFernet:
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(key: str) -> bytes:
    raw = HKDF(algorithm=SHA256(), length=32, salt=None, info=_INFO).derive(key.encode())
    return base64.urlsafe_b64encode(raw)
