"""The settings of a local stack: secrets and ports made on the spot, kept in one private file."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from webhost.local import node
from webhost.local.processes import claim, free_port, is_free

REPOSITORY = Path(__file__).resolve().parents[2]
STATE = REPOSITORY / ".local"

# What makes one stack differ from another. A stack of its own must not inherit these from its caller.
SETTINGS = frozenset({
    "ENVIRONMENT", "DEBUG", "SECRET_KEY", "SECRET_KEY_FALLBACKS", "STAFF_TOTP", "ROOT_KEYS", "ALLOWED_HOSTS",
    "CSRF_TRUSTED_ORIGINS", "PUBLIC_URL",
    "DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "EMAIL_URL", "ARTIFACTS_DIR", "NODE_MODULES_DIR", "NODE_BINARY",
    "CLOUDFLARE_API_URL", "CLOUDFLARE_ACCOUNT_ID", "CLOUDFLARE_API_TOKEN", "CLOUDFLARE_NAMESPACE",
    "CLOUDFLARE_DISPATCH_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "AWS_PROFILE", "AWS_ENDPOINT_URL", "AGENTCORE_BUCKET", "AGENTCORE_BOUNDARY_ARN", "AGENTCORE_PREFIX",
    "STRIPE_API_URL", "STRIPE_SECRET_KEY", "STRIPE_WEBHOOK_SECRETS", "STRIPE_LIVEMODE", "STRIPE_PAGES",
    "BILLING_GRACE_DAYS", "DELEGATED_SOURCES",
    "LOCAL_WEB_PORT", "LOCAL_CLOUDFLARE_PORT", "LOCAL_AGENTCORE_PORT", "LOCAL_STRIPE_PORT",
})  # fmt: skip

# The account of the local AWS, as in AWS's own examples.
AWS_ACCOUNT = "123456789012"


def _port() -> str:
    return str(free_port())


def _password() -> str:
    return secrets.token_urlsafe(24)


def _root_keys() -> str:
    return ",".join(f"{name}:{secrets.token_hex(32)}" for name in ["k1", "k2"])


_MAKERS: dict[str, Callable[[], str]] = {
    "SECRET_KEY": lambda: secrets.token_urlsafe(50),
    "ROOT_KEYS": _root_keys,
    "DELEGATED_SOURCES": lambda: f"local:{secrets.token_hex(32)}",
    "CLOUDFLARE_ACCOUNT_ID": lambda: secrets.token_hex(16),
    "CLOUDFLARE_API_TOKEN": lambda: secrets.token_urlsafe(40),
    "AWS_ACCESS_KEY_ID": lambda: f"AKIA{secrets.token_hex(8).upper()}",
    "AWS_SECRET_ACCESS_KEY": lambda: secrets.token_urlsafe(30),
    "STRIPE_SECRET_KEY": lambda: f"sk_test_{secrets.token_hex(24)}",
    "STRIPE_WEBHOOK_SECRETS": lambda: f"whsec_{secrets.token_hex(24)}",
    "LOCAL_POSTGRES_PASSWORD": _password,
    "LOCAL_REDIS_PASSWORD": _password,
    "LOCAL_SIGN_IN_PASSWORD": lambda: secrets.token_urlsafe(12),
    "LOCAL_POSTGRES_PORT": _port,
    "LOCAL_REDIS_PORT": _port,
    "LOCAL_CLOUDFLARE_PORT": _port,
    "LOCAL_AGENTCORE_PORT": _port,
    "LOCAL_STRIPE_PORT": _port,
    "LOCAL_WEB_PORT": _port,
}


@dataclass(frozen=True)
class Kept:
    """What a stack keeps from one start to the next."""

    values: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def port(self, name: str) -> int:
        """Return a kept port as a number."""
        return int(self.values[name])


def keep(directory: Path) -> Kept:
    """Return the values kept in `directory`/env, making what is missing and ports that others took.

    The file is readable by its owner only.
    """
    path = directory / "env"
    directory.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    for name, make in _MAKERS.items():
        if name not in values or (name.endswith("_PORT") and not _is_ours(int(values[name]))):
            values[name] = make()
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return Kept(values)


def _is_ours(port: int) -> bool:
    return claim(port) and is_free(port)


def settings_for(directory: Path, kept: Kept, given: Mapping[str, str]) -> dict[str, str]:
    """Return the product's settings, without database and Redis; what is given from outside wins."""
    web_port = given.get("LOCAL_WEB_PORT", kept["LOCAL_WEB_PORT"])
    settings = {
        "ENVIRONMENT": "local",
        "SECRET_KEY": kept["SECRET_KEY"],
        "ROOT_KEYS": kept["ROOT_KEYS"],
        "DELEGATED_SOURCES": kept["DELEGATED_SOURCES"],
        "PUBLIC_URL": f"http://127.0.0.1:{web_port}",
        "LOCAL_WEB_PORT": web_port,
        "ARTIFACTS_DIR": str(directory / "artifacts"),
        "NODE_MODULES_DIR": str(STATE / "node" / "node_modules"),
        "NODE_BINARY": str(node.node_binary()),
        "EMAIL_URL": f"filemail:///{directory / 'mail'}",
        "CLOUDFLARE_ACCOUNT_ID": kept["CLOUDFLARE_ACCOUNT_ID"],
        "CLOUDFLARE_API_TOKEN": kept["CLOUDFLARE_API_TOKEN"],
        "CLOUDFLARE_NAMESPACE": "whs",
    }
    if "CLOUDFLARE_API_URL" not in given:
        port = given.get("LOCAL_CLOUDFLARE_PORT", kept["LOCAL_CLOUDFLARE_PORT"])
        settings |= {
            "LOCAL_CLOUDFLARE_PORT": port,  # its presence says: the Cloudflare in use is the local one
            "CLOUDFLARE_API_URL": f"http://127.0.0.1:{port}/client/v4",
            "CLOUDFLARE_DISPATCH_URL": f"http://127.0.0.1:{port}/invoke",
        }
    found = settings | dict(given)
    if "STRIPE_API_URL" not in given:
        found = _with_local_stripe(found, kept)
    return found if "AWS_ENDPOINT_URL" in given else _with_local_aws(found, kept)


def _with_local_stripe(settings: Mapping[str, str], kept: Kept) -> dict[str, str]:
    """Return settings that name the local Stripe. A laptop's own key, perhaps a live one, has no place there."""
    port = settings.get("LOCAL_STRIPE_PORT", kept["LOCAL_STRIPE_PORT"])
    others = {name: value for name, value in settings.items() if name not in {"STRIPE_LIVEMODE", "STRIPE_PAGES"}}
    return others | {
        "LOCAL_STRIPE_PORT": port,
        "STRIPE_API_URL": f"http://127.0.0.1:{port}",
        "STRIPE_SECRET_KEY": kept["STRIPE_SECRET_KEY"],
        "STRIPE_WEBHOOK_SECRETS": kept["STRIPE_WEBHOOK_SECRETS"],
    }


def _with_local_aws(settings: Mapping[str, str], kept: Kept) -> dict[str, str]:
    """Return settings that name the local AWS. A laptop's own keys and profile have no place there."""
    port = settings.get("LOCAL_AGENTCORE_PORT", kept["LOCAL_AGENTCORE_PORT"])
    others = {name: value for name, value in settings.items() if name not in {"AWS_SESSION_TOKEN", "AWS_PROFILE"}}
    return others | {
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": kept["AWS_ACCESS_KEY_ID"],
        "AWS_SECRET_ACCESS_KEY": kept["AWS_SECRET_ACCESS_KEY"],
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "LOCAL_AGENTCORE_PORT": port,  # as with Cloudflare, its presence says: the AWS in use is the local one
        "AGENTCORE_BUCKET": "whs-bundles",
        "AGENTCORE_BOUNDARY_ARN": f"arn:aws:iam::{AWS_ACCOUNT}:policy/whs-boundary",
        "AGENTCORE_PREFIX": "whs",
    }
