"""Buying a tier, managing what was bought, and the door at which Stripe knocks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.urls import path
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.actions import checkout
from billing.actions.receive import receive_event
from entitlements.authentication import account_of
from entitlements.enums import Interval
from entitlements.idempotency import IDEMPOTENCY_PARAMETER, Fate, Found, Replay, remembered
from webhost.api import ApiView, StrictSerializer, validated
from webhost.ids import new_id
from webhost.wire import client_address

SIGNATURE_HEADER = "Stripe-Signature"


class CheckoutInput(StrictSerializer):
    """What to buy: a tier, by its slug. Price, amount and account are not the caller's to say."""

    tier = serializers.SlugField(max_length=40)
    interval = serializers.ChoiceField(choices=[i.value for i in Interval], default=Interval.MONTH.value)


class AddressOutput(serializers.Serializer[Any]):
    """Where to go on, in a browser."""

    url = serializers.URLField()


def _opened(_: UUID) -> Found:
    # Opening once more is harmless: it closes what was opened before.
    return Found(Fate.NOTHING_YET)


class CheckoutView(ApiView):
    """Buy a tier."""

    @extend_schema(
        operation_id="openCheckout",
        tags=["billing"],
        request=CheckoutInput,
        responses={200: AddressOutput},
        parameters=[IDEMPOTENCY_PARAMETER],
    )
    def post(self, request: Request) -> Response:
        """Return the page at which the tier is bought, or the change to it confirmed. Changes nothing by itself."""
        given = validated(CheckoutInput, request.data)
        with remembered(request, "billing.checkout", new_id(), outcome_of=_opened) as memory:
            if isinstance(memory, Replay):
                return memory.response()
            url = checkout.open_checkout(account_of(request), given["tier"], Interval(given["interval"]))
            return memory.keep(Response({"url": url}))


class PortalView(ApiView):
    """Manage what was bought."""

    @extend_schema(operation_id="openPortal", tags=["billing"], request=None, responses={200: AddressOutput})
    def post(self, request: Request) -> Response:
        """Return the page for card, invoices, change and end."""
        return Response({"url": checkout.open_portal(account_of(request))})


class ReceivedOutput(serializers.Serializer[Any]):
    """The event is kept."""

    received = serializers.BooleanField()


class WebhookView(ApiView):
    """Takes Stripe's events. No user is known here: the signature says that it is Stripe."""

    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()
    # Nothing parses the body before its bytes were verified, whatever its Content-Type claims.
    parser_classes = ()
    is_audited = False

    @extend_schema(
        operation_id="receiveStripeEvent",
        tags=["billing"],
        auth=[],
        parameters=[
            OpenApiParameter(
                SIGNATURE_HEADER,
                str,
                OpenApiParameter.HEADER,
                required=True,
                description="As Stripe signs: t=..., v1=...",
            )
        ],
        request={"application/json": {"type": "object", "description": "An event of Stripe, byte for byte."}},
        responses={200: ReceivedOutput},
    )
    def post(self, request: Request) -> Response:
        """Keep an event, and answer before it is applied."""
        receive_event(
            request._request.body,  # noqa: SLF001 - the raw bytes, which are what is signed
            request.headers.get(SIGNATURE_HEADER),
            client_address(request._request),  # noqa: SLF001
        )
        return Response({"received": True})


urlpatterns = [
    path("billing/checkout", CheckoutView.as_view(), name="checkout"),
    path("billing/portal", PortalView.as_view(), name="portal"),
    path("billing/webhook", WebhookView.as_view(), name="stripe_webhook"),
]
