"""Accounts, agents and bundles for tests; each test makes its own, so that no two ever meet."""

from __future__ import annotations

import io
import secrets
import zipfile
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db.models import Max
from django.utils import timezone

from entitlements.actions.addresses import vouch_for_address
from entitlements.enums import Runtime, Scope
from entitlements.models import Account, ApiToken, Override, Tier
from entitlements.rules import KEY_OF_FIELD
from runtimes.enums import DeploymentStatus
from runtimes.models import Agent, Artifact, Deployment, Grant
from webhost.signing import current_root_key_id

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def make_tier(**values: Any) -> Tier:
    """Make a tier that nobody else uses: hidden, and unlimited in all that `values` does not say."""
    slug = values.pop("slug", f"t-{secrets.token_hex(6)}")
    last = Tier.objects.aggregate(last=Max("rank"))["last"] or 0
    defaults: dict[str, Any] = {
        "name": slug, "rank": last + 1, "is_public": False,
        "max_tool_calls_per_period": 0, "max_code_execution_seconds_per_period": 0, "max_browser_sessions_per_period": 0,
    }  # fmt: skip
    return Tier.objects.create(slug=slug, **defaults | values)


def make_account(
    who: str = "alice",
    tier: str | Tier | None = None,
    *,
    password: str | None = None,
    staff: bool = False,
    confirmed: bool = True,
    **limits: Any,
) -> Account:
    """Make an account that is alice's (or charlie's, or stella's) for this test alone.

    `tier` is a slug or a tier, by default the default one. Its address is confirmed, as where staff open one. Other names are fields of a tier, such as
    `max_requests_per_period=1`, and become overrides.
    """
    if isinstance(tier, str):
        tier = Tier.objects.get(slug=tier)
    email = f"{who}-{secrets.token_hex(6)}@example.com"
    account = Account.objects.create_user(
        email, password, billing_tier=tier, is_staff=staff, is_superuser=staff, name=who.title()
    )
    if confirmed:
        vouch_for_address(account)
    for field, value in limits.items():
        override(account, field, value)
    return account


def override(account: Account, field: str, value: int | None, *, reason: str = "For a test") -> Override:
    """Set one value of an account over its tier; the newest wins."""
    return Override.objects.create(account=account, key=KEY_OF_FIELD[field], value=value, reason=reason)


def make_token(account: Account, *, scopes: Iterable[Scope] = Scope, name: str = "test") -> str:
    """Make an API token and return it in clear."""
    _, token = ApiToken.objects.create(
        account, expiry=None, prefix="whs_", name=name, scopes=[scope.value for scope in scopes]
    )
    return str(token)


def make_agent(account: Account, name: str | None = None, *, runtime: Runtime = Runtime.CLOUDFLARE) -> Agent:
    """Make an agent that has no deployment yet."""
    return Agent.objects.create(account=account, name=name or f"agent-{secrets.token_hex(6)}", runtime_provider=runtime)


def make_deployment(
    agent: Agent, *, status: DeploymentStatus = DeploymentStatus.ACTIVE, activate: bool = True, **fields: Any
) -> Deployment:
    """Make a deployment as the database knows one, without a provider; the agent's pointer moves to it."""
    digest = secrets.token_hex(32)
    newest = Deployment.objects.filter(agent=agent).aggregate(newest=Max("version"))["newest"] or 0
    values: dict[str, Any] = {
        "account_id": agent.account_id, "version": newest + 1, "runtime_provider": agent.runtime_provider,
        "config": {}, "root_key_id": current_root_key_id(), "deadline_at": timezone.now() + timedelta(minutes=3),
    }  # fmt: skip
    deployment = Deployment.objects.create(
        agent=agent, artifact=Artifact.objects.create(sha256=digest, size=1), status=status, **values | fields
    )
    for capability in deployment.capabilities:
        Grant.objects.create(
            deployment=deployment, account_id=agent.account_id, capability=capability, given_at=timezone.now()
        )
    if activate and status == DeploymentStatus.ACTIVE:
        agent.active_deployment = deployment
        agent.save(update_fields=["active_deployment"])
    return deployment


def zip_of(files: Mapping[str, str | bytes]) -> bytes:
    """Zip files as a developer would before uploading them."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def example(name: str) -> bytes:
    """Zip one of the folders below examples/."""
    folder = EXAMPLES / name
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md")
    return zip_of({path.relative_to(folder).as_posix(): path.read_bytes() for path in files})
