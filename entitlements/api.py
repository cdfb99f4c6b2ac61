"""Who I am, what I may do, which tiers there are, and my API tokens."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Prefetch
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements import rules
from entitlements.actions.standing import AccountStanding, read_standing
from entitlements.actions.tokens import create_token, revoke_token
from entitlements.authentication import account_of, caller_of
from entitlements.enums import Interval, Scope
from entitlements.idempotency import IDEMPOTENCY_PARAMETER, Fate, Found, Replay, remembered
from entitlements.models import ApiToken, Tier, TierPrice
from webhost.api import ApiView, PublicId, StrictSerializer, validated
from webhost.errors import ConflictError
from webhost.ids import Prefix, new_id, parse_id, public_id
from webhost.paging import PageQuery, page_of, page_response, paginate

# --- Who I am -------------------------------------------------------------------------------------


class LimitsOutput(serializers.Serializer[Any]):
    """Every limit; null is unlimited, 0 is none."""

    maxRequestsPerPeriod = serializers.IntegerField(allow_null=True)
    maxTokensPerPeriod = serializers.IntegerField(allow_null=True)
    maxComputeMsPerPeriod = serializers.IntegerField(allow_null=True)
    maxToolCallsPerPeriod = serializers.IntegerField(allow_null=True)
    maxCodeExecutionSecondsPerPeriod = serializers.IntegerField(allow_null=True)
    maxBrowserSessionsPerPeriod = serializers.IntegerField(allow_null=True)
    maxAgents = serializers.IntegerField(allow_null=True)
    maxDeploymentsPerAgent = serializers.IntegerField(allow_null=True)
    maxConcurrentInvocations = serializers.IntegerField(allow_null=True)
    requestsPerMinute = serializers.IntegerField(allow_null=True)


class RuntimeAccessOutput(serializers.Serializer[Any]):
    """Which runtime and which of its capabilities are switched on."""

    agentcoreEnabled = serializers.BooleanField()
    memoryEnabled = serializers.BooleanField()
    codeInterpreterEnabled = serializers.BooleanField()
    browserEnabled = serializers.BooleanField()


class RetentionOutput(serializers.Serializer[Any]):
    """How long what is kept, in days."""

    telemetryRetentionDays = serializers.IntegerField()
    logsRetentionDays = serializers.IntegerField()


class EntitlementsOutput(serializers.Serializer[Any]):
    """What an account may do."""

    limits = LimitsOutput()
    runtimeAccess = RuntimeAccessOutput()
    retention = RetentionOutput()


class EffectiveEntitlementsOutput(EntitlementsOutput):
    """What an account may do, and where each value comes from."""

    sources = serializers.DictField(child=serializers.CharField(), help_text="`tier:...` or `override:...` per name.")


class OwnTierOutput(serializers.Serializer[Any]):
    """The tier in force, who set it, and until when."""

    slug = serializers.CharField()
    name = serializers.CharField()
    version = serializers.IntegerField()
    setBy = serializers.ChoiceField(choices=["support", "billing", "default"])
    until = serializers.DateTimeField(allow_null=True)


class MeOutput(serializers.Serializer[Any]):
    """The caller's account."""

    id = PublicId(Prefix.ACCOUNT)
    email = serializers.EmailField()
    name = serializers.CharField(allow_blank=True)
    tier = OwnTierOutput()
    entitlements = EffectiveEntitlementsOutput()


def _shown(found: rules.Entitlements) -> dict[str, Any]:
    return {
        "limits": {key.value: value for key, value in found.limits.items()},
        "runtimeAccess": {key.value: value for key, value in found.runtime_access.items()},
        "retention": {key.value: value for key, value in found.retention.items()},
    }


def _own_tier(look: AccountStanding) -> dict[str, Any]:
    tier = look.tier
    return {
        "slug": tier.slug,
        "name": tier.name,
        "version": tier.version,
        "setBy": look.tier_source,
        "until": look.tier_until,
    }


class MeView(ApiView):
    """The caller's account, tier and effective entitlements."""

    required_scope = Scope.READ

    @extend_schema(operation_id="getMe", tags=["account"], responses={200: MeOutput})
    def get(self, request: Request) -> Response:
        """Return account, tier, and what may be done with the source of each value."""
        account = account_of(request)
        look = read_standing(account.pk)
        sources = {key.value: source for key, source in look.entitlements.sources.items()}
        me = {
            "id": account.pk,
            "email": account.email,
            "name": account.name,
            "tier": _own_tier(look),
            "entitlements": _shown(look.entitlements) | {"sources": sources},
        }
        return Response(MeOutput(me).data)


# --- Tiers ----------------------------------------------------------------------------------------


class PriceOutput(serializers.Serializer[Any]):
    """What a tier costs."""

    interval = serializers.ChoiceField(choices=[i.value for i in Interval])
    amountCents = serializers.IntegerField(source="amount_cents")
    currency = serializers.CharField()


class TierOutput(serializers.Serializer[Any]):
    """A tier on the price list."""

    slug = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    isDefault = serializers.BooleanField(source="is_default")
    entitlements = EntitlementsOutput(source="shown")
    prices = PriceOutput(many=True, help_text="None: it cannot be bought, or costs nothing.")


class TiersOutput(serializers.Serializer[Any]):
    """The price list, cheapest first."""

    items = TierOutput(many=True)


class TiersView(ApiView):
    """The public tiers, for a pricing page; for everybody."""

    permission_classes = ()

    @extend_schema(operation_id="listTiers", tags=["account"], auth=[], responses={200: TiersOutput})
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """Return the tiers that are sold."""
        sold = Prefetch("prices", TierPrice.objects.filter(is_sold=True, amount_cents__isnull=False), to_attr="sold")
        tiers = Tier.objects.filter(is_public=True, retired_at__isnull=True).order_by("rank").prefetch_related(sold)
        items = [
            {
                "slug": tier.slug,
                "name": tier.name,
                "description": tier.description,
                "is_default": tier.is_default,
                "shown": _shown(rules.get_entitlements_for_tier(tier.values())),
                "prices": tier.sold,
            }
            for tier in tiers
        ]
        return Response(TiersOutput({"items": items}).data)


# --- Tokens ---------------------------------------------------------------------------------------

_SCOPES = [scope.value for scope in Scope]


class TokenInput(StrictSerializer):
    """A token to make."""

    name = serializers.CharField(max_length=80)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=_SCOPES), min_length=1, max_length=len(_SCOPES)
    )
    expiresAt = serializers.DateTimeField(required=False, allow_null=True, default=None)


class TokenOutput(serializers.Serializer[Any]):
    """A token, without what it says."""

    id = PublicId(Prefix.TOKEN)
    name = serializers.CharField()
    startsWith = serializers.CharField(source="token_key", help_text="Its first characters, to tell it from others.")
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=_SCOPES))
    createdAt = serializers.DateTimeField(source="created")
    expiresAt = serializers.DateTimeField(source="expiry", allow_null=True)
    lastUsedAt = serializers.DateTimeField(source="last_used_at", allow_null=True)


class NewTokenOutput(TokenOutput):
    """A token that was just made, with what it says."""

    token = serializers.CharField(help_text="Shown this once.")


def _token_made(token_id: UUID) -> Found:
    if not ApiToken.objects.filter(id=token_id).exists():
        return Found(Fate.NOTHING_YET)
    shown = public_id(Prefix.TOKEN, token_id)
    return Found(
        Fate.OVER,
        ConflictError(
            f"This key made the token {shown}, but what it says was not kept. Revoke it and make another.",
            details={"tokenId": shown},
        ),
    )


class TokensView(ApiView):
    """One's API tokens."""

    @extend_schema(
        operation_id="listTokens", tags=["tokens"], parameters=[PageQuery], responses={200: page_of(TokenOutput)}
    )
    def get(self, request: Request) -> Response:
        """List one's tokens, newest first; never what they say."""
        query = validated(PageQuery, request.query_params.dict())
        tokens = ApiToken.objects.filter(user_id=caller_of(request).account_id)
        return page_response(paginate(tokens, query, by="id"), TokenOutput)

    @extend_schema(
        operation_id="createToken",
        tags=["tokens"],
        request=TokenInput,
        responses={201: NewTokenOutput},
        parameters=[IDEMPOTENCY_PARAMETER],
    )
    def post(self, request: Request) -> Response:
        """Make a token. What it says is in this answer and nowhere else."""
        given = validated(TokenInput, request.data)
        with remembered(request, "tokens.create", new_id(), outcome_of=_token_made) as memory:
            if isinstance(memory, Replay):
                return memory.response()
            token, text = create_token(
                caller_of(request),
                account_of(request),
                token_id=memory.effect_id,
                name=given["name"],
                scopes=frozenset(map(Scope, given["scopes"])),
                expires_at=given["expiresAt"],
            )
            return memory.keep(Response(TokenOutput(token).data | {"token": text}, status=201))


class TokenView(ApiView):
    """One API token."""

    @extend_schema(operation_id="revokeToken", tags=["tokens"], responses={204: None})
    def delete(self, request: Request, token: str) -> Response:
        """Revoke a token: its next call is refused."""
        revoke_token(caller_of(request).account_id, parse_id(Prefix.TOKEN, token))
        return Response(status=204)


urlpatterns = [
    path("me", MeView.as_view(), name="me"),
    path("tiers", TiersView.as_view(), name="tiers"),
    path("tokens", TokensView.as_view(), name="tokens"),
    path("tokens/<str:token>", TokenView.as_view(), name="token"),
]
