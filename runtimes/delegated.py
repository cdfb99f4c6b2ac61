"""POST /v1/delegated/invoke/{agent}: trusted backends at the same gate, each call for an account that it names."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.conf import settings
from django.urls import path
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements.authentication import Caller, account_named
from entitlements.enums import Scope
from entitlements.idempotency import remembered
from entitlements.models import Account
from entitlements.throttles import StrangerThrottle
from runtimes.delegation import Distrust, Envelope, distrust_of, parse_envelope, signed_bytes
from runtimes.gateway import InvokeInput, InvokeOutput, answered
from webhost.api import ApiView
from webhost.errors import UnauthenticatedError
from webhost.ids import Prefix, new_id, parse_id
from webhost.notes import printable, worth_noting
from webhost.signing import verify

logger = logging.getLogger(__name__)

SOURCE_HEADER: Final = "X-Whs-Source"
TIMESTAMP_HEADER: Final = "X-Whs-Timestamp"
SIGNATURE_HEADER: Final = "X-Whs-Signature"
_SCOPES: Final = frozenset({Scope.INVOKE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegate(Caller):
    """A trusted backend, as the account that it calls for: with that account's rights to invoke, and no more."""

    envelope: Envelope
    key: bytes = field(repr=False)


def delegate_of(request: Request) -> Delegate:
    """Return the trusted backend that calls; raises UnauthenticatedError for anybody else."""
    if isinstance(request.auth, Delegate):
        return request.auth
    raise UnauthenticatedError


class DelegatedAuthentication(BaseAuthentication):
    """Knows a trusted backend by its signature over time, source, agent and raw body, checked before anything is read.

    Whatever is wrong with that, the answer is one and the same; the reason is in our log.
    """

    def authenticate(self, request: Request) -> tuple[Account, Delegate]:
        """Return the account that is named (lazily loaded), and who calls for it.

        Raises UnauthenticatedError, InvalidRequestError for a bad envelope, NotFoundError for an unknown account,
        ForbiddenError for a disabled one.
        """
        source, key = _signer_of(request)
        envelope = parse_envelope(request.data)
        account_id = parse_id(Prefix.ACCOUNT, envelope.account_id)
        delegate = Delegate(account_id, None, _SCOPES, delegated_by=source, envelope=envelope, key=key)
        return account_named(account_id), delegate

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002 - DRF's signature
        """Return what a 401 asks for."""
        return SIGNATURE_HEADER


def _signer_of(request: Request) -> tuple[str, bytes]:
    """Return the source that signed, and with which of its keys."""
    known: Mapping[str, tuple[bytes, ...]] = settings.DELEGATED_SOURCES
    source, timestamp = request.META.get("HTTP_X_WHS_SOURCE"), request.META.get("HTTP_X_WHS_TIMESTAMP")
    distrust = distrust_of(source, timestamp, known=known, now=time.time())
    if distrust is None:
        agent = request.parser_context["kwargs"]["agent"]
        said = signed_bytes(str(timestamp), str(source), agent, request._request.body)  # noqa: SLF001 - the raw bytes
        for key in known[str(source)]:
            if verify(key, said, request.META.get("HTTP_X_WHS_SIGNATURE")):
                return str(source), key
        distrust = Distrust.SIGNATURE
    if count := worth_noting(f"delegated {distrust}"):
        logger.warning("Refused %d delegated calls (%s), the last of %r.", count, distrust.value, printable(source))
    raise UnauthenticatedError("This is not signed by a source that we know, or not lately.")


class DelegatedInput(serializers.Serializer[Any]):
    """The envelope. Documents it; runtimes/delegation.py reads it, and refuses every other field."""

    accountId = serializers.CharField(help_text="acc_..., for whom this is: judged and counted as its own call.")
    idempotencyKey = serializers.CharField(max_length=255, help_text="1 to 255 visible ASCII characters.")
    request = InvokeInput(help_text="What /v1/invoke takes.")


def _header(name: str, description: str) -> OpenApiParameter:
    return OpenApiParameter(name, str, OpenApiParameter.HEADER, required=True, description=description)


class DelegatedInvokeView(ApiView):
    """Invoke an agent for an account that a trusted backend names, and wait for the answer."""

    authentication_classes = (DelegatedAuthentication,)
    required_scope = Scope.INVOKE
    # The rate of invocations is exact and part of the admission; only who is not known is paced here.
    throttle_classes = (StrangerThrottle,)
    is_audited = False

    @extend_schema(
        operation_id="delegatedInvoke",
        tags=["invoke"],
        request=DelegatedInput,
        responses={200: InvokeOutput},
        parameters=[
            _header(SOURCE_HEADER, "The name that this backend was given."),
            _header(TIMESTAMP_HEADER, "Unix seconds; at most 300 s old and 60 s ahead."),
            _header(SIGNATURE_HEADER, "`v1=` and the hex signature; several may be listed, by commas."),
        ],
    )
    def post(self, request: Request, agent: str) -> Response:
        """Do what /v1/invoke does, once per idempotency key, as the account that the envelope names."""
        delegate = delegate_of(request)
        envelope = delegate.envelope
        operation = f"delegated {delegate.delegated_by} {agent}"
        with remembered(request, operation, new_id(), key=envelope.idempotency_key, secret=delegate.key) as memory:
            return answered(request, agent, envelope.request, memory)


urlpatterns = [
    path("delegated/invoke/<str:agent>", DelegatedInvokeView.as_view(), name="delegated-invoke"),
]
