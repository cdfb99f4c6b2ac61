"""Whom alerts reach, and what was told: one's own."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Prefetch
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements.authentication import account_of, caller_of
from entitlements.enums import LimitType
from entitlements.idempotency import IDEMPOTENCY_PARAMETER, Fate, Found, Replay, remembered
from telemetry.actions.alert_targets import create_target, own_target, remove_target
from telemetry.alert_rules import LONGEST_ADDRESS, THRESHOLDS, all_thresholds
from telemetry.models import AlertDelivery, AlertEvent, AlertKind, AlertTarget, DeliveryStatus
from telemetry.webhook import INTERNET, Internet
from webhost.api import ApiView, PublicId, StrictSerializer, validated
from webhost.errors import ConflictError
from webhost.ids import Prefix, new_id, parse_id, public_id
from webhost.paging import PageQuery, page_of, page_response, paginate
from webhost.period import key_of

# --- Targets -----------------------------------------------------------------------------------------

_KINDS = [kind.value for kind in AlertKind]


class AlertTargetInput(StrictSerializer):
    """Whom to tell of what."""

    kind = serializers.ChoiceField(choices=_KINDS)
    address = serializers.CharField(
        max_length=LONGEST_ADDRESS, help_text="An e-mail address, or a public https URL on port 443."
    )
    thresholds = serializers.ListField(
        child=serializers.ChoiceField(choices=list(THRESHOLDS)),
        min_length=1,
        max_length=len(THRESHOLDS),
        required=False,
        default=all_thresholds,
        help_text="Percent of a budget.",
    )


class AlertTargetOutput(serializers.Serializer[Any]):
    """Whom alerts reach."""

    id = PublicId(Prefix.ALERT_TARGET)
    kind = serializers.ChoiceField(choices=_KINDS)
    address = serializers.CharField()
    thresholds = serializers.ListField(child=serializers.IntegerField())
    confirmed = serializers.SerializerMethodField(help_text="False: the address was asked and has not agreed yet.")
    createdAt = serializers.DateTimeField(source="created_at")

    def get_confirmed(self, target: AlertTarget) -> bool:
        """Say whether anything is sent there."""
        return target.confirmed_at is not None


class NewAlertTargetOutput(AlertTargetOutput):
    """A target that was just made."""

    secret = serializers.CharField(required=False, help_text="Webhooks only: signs its messages. Shown this once.")


def _target_made(target_id: UUID) -> Found:
    if not AlertTarget.objects.filter(id=target_id).exists():
        return Found(Fate.NOTHING_YET)
    shown = public_id(Prefix.ALERT_TARGET, target_id)
    return Found(
        Fate.OVER,
        ConflictError(
            f"This key made the target {shown}, but its secret was not kept. Remove it and make another.",
            details={"targetId": shown},
        ),
    )


class AlertTargetsView(ApiView):
    """Whom one's alerts reach."""

    internet: Internet = INTERNET

    @extend_schema(
        operation_id="listAlertTargets",
        tags=["alerts"],
        parameters=[PageQuery],
        responses={200: page_of(AlertTargetOutput)},
    )
    def get(self, request: Request) -> Response:
        """List targets, newest first; the account's own address, which needs no adding, is the last."""
        query = validated(PageQuery, request.query_params.dict())
        account = account_of(request)
        targets = AlertTarget.objects.filter(account_id=account.pk)
        own = targets.filter(pk=account.pk).first() or own_target(account)
        own.address = account.email
        last = own if own.enabled else None
        return page_response(paginate(targets.exclude(pk=account.pk), query, by="id", last=last), AlertTargetOutput)

    @extend_schema(
        operation_id="createAlertTarget",
        tags=["alerts"],
        request=AlertTargetInput,
        responses={201: NewAlertTargetOutput},
        parameters=[IDEMPOTENCY_PARAMETER],
    )
    def post(self, request: Request) -> Response:
        """Add a target. A webhook's secret is in this answer and nowhere else; another address is asked first."""
        given = validated(AlertTargetInput, request.data)
        with remembered(request, "alerts.create", new_id(), outcome_of=_target_made) as memory:
            if isinstance(memory, Replay):
                return memory.response()
            target, secret = create_target(
                account_of(request),
                AlertKind(given["kind"]),
                given["address"],
                given["thresholds"],
                target_id=memory.effect_id,
                internet=self.internet,
            )
            shown = AlertTargetOutput(target).data | ({"secret": secret} if secret else {})
            return memory.keep(Response(shown, status=201))


class AlertTargetView(ApiView):
    """One target."""

    @extend_schema(operation_id="deleteAlertTarget", tags=["alerts"], responses={204: None})
    def delete(self, request: Request, target: str) -> Response:
        """Remove a target, one's own address too; add it again to get alerts there again."""
        remove_target(account_of(request), parse_id(Prefix.ALERT_TARGET, target))
        return Response(status=204)


# --- The log -----------------------------------------------------------------------------------------


class AlertDeliveryOutput(serializers.Serializer[Any]):
    """A message, and what became of it."""

    targetId = PublicId(Prefix.ALERT_TARGET, source="target_id")
    kind = serializers.ChoiceField(choices=_KINDS)
    address = serializers.CharField(help_text="As it was when the threshold was reached.")
    status = serializers.ChoiceField(choices=DeliveryStatus.values)
    attempts = serializers.IntegerField()
    lastError = serializers.CharField(source="last_error", allow_blank=True)
    lastStatus = serializers.IntegerField(source="last_status", allow_null=True, help_text="HTTP status answered last.")
    nextTryAt = serializers.DateTimeField(source="next_try_at", allow_null=True)
    sentAt = serializers.DateTimeField(source="sent_at", allow_null=True)


class AlertOutput(serializers.Serializer[Any]):
    """A budget that reached a threshold. Figures are those of that moment."""

    id = PublicId(Prefix.EVENT)
    periodKey = serializers.SerializerMethodField()
    limitType = serializers.ChoiceField(choices=[t.value for t in LimitType], source="limit_type")
    threshold = serializers.IntegerField()
    used = serializers.IntegerField()
    limit = serializers.IntegerField()
    percent = serializers.IntegerField()
    occurredAt = serializers.DateTimeField(source="fired_at")
    recoveredAt = serializers.DateTimeField(
        source="recovered_at", allow_null=True, help_text="When it was no longer reached; then it may fire again."
    )
    deliveries = AlertDeliveryOutput(many=True, help_text="None where a higher threshold was reached at once.")

    def get_periodKey(self, event: AlertEvent) -> str:  # noqa: N802 - named after the field
        """Return the month."""
        return key_of(event.period)


class AlertLogView(ApiView):
    """What fired."""

    @extend_schema(
        operation_id="listAlerts", tags=["alerts"], parameters=[PageQuery], responses={200: page_of(AlertOutput)}
    )
    def get(self, request: Request) -> Response:
        """List what fired and what became of its messages, newest first."""
        query = validated(PageQuery, request.query_params.dict())
        deliveries = Prefetch("deliveries", AlertDelivery.objects.order_by("id"))
        events = AlertEvent.objects.filter(account_id=caller_of(request).account_id).prefetch_related(deliveries)
        return page_response(paginate(events, query, by="id"), AlertOutput)


urlpatterns = [
    path("alerts", AlertTargetsView.as_view(), name="alerts"),
    path("alerts/log", AlertLogView.as_view(), name="alert_log"),
    path("alerts/<str:target>", AlertTargetView.as_view(), name="alert"),
]
