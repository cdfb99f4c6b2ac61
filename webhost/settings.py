"""Every setting on one page, read from the environment through django-environ, loud when wrong.

A setting without a default must be given; `make up` and `make test` make all of them on the spot
(webhost/local/environment.py), production gives them as environment variables (docs/deploy.md).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import environ
from celery.schedules import crontab
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()


def _root_keys(text: str) -> dict[str, bytes]:
    """Read `id:hex,id:hex`; the first is used for new deployments, all are accepted."""
    keys: dict[str, bytes] = {}
    for item in text.split(","):
        match = re.fullmatch(r"\s*([a-z0-9]{1,16}):([0-9a-f]{64,})\s*", item)
        if not match:
            raise ImproperlyConfigured("ROOT_KEYS must read id:hex,id:hex with at least 64 hex digits each.")
        keys[match[1]] = bytes.fromhex(match[2])
    return keys


def _delegated_sources(text: str) -> dict[str, tuple[bytes, ...]]:
    """Read `name:hex,name:hex`; a source is listed twice while its key rotates, and no two share a key."""
    keys: dict[str, tuple[bytes, ...]] = {}
    for item in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*([a-z0-9-]{1,32}):((?:[0-9a-f]{2}){32,})\s*", item)
        if not match:
            raise ImproperlyConfigured(
                "DELEGATED_SOURCES must read name:hex,name:hex with at least 64 hex digits each."
            )
        key = bytes.fromhex(match[2])
        if any(key in others for others in keys.values()):
            raise ImproperlyConfigured(f"DELEGATED_SOURCES lists the key of {match[1]} twice.")
        keys[match[1]] = (*keys.get(match[1], ()), key)
    return keys


# --- Where we are ---------------------------------------------------------------------------------
ENVIRONMENT = env("ENVIRONMENT", default="production")
if ENVIRONMENT not in {"local", "production"}:
    raise ImproperlyConfigured("ENVIRONMENT must be local or production.")
LOCAL = ENVIRONMENT == "local"
DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env("SECRET_KEY")
# What SECRET_KEY was before; sessions and the secrets of second factors made with it are still read.
SECRET_KEY_FALLBACKS: list[str] = env.list("SECRET_KEY_FALLBACKS", default=[])
ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost"] if LOCAL else [])
CSRF_TRUSTED_ORIGINS: list[str] = env.list("CSRF_TRUSTED_ORIGINS", default=[])
PUBLIC_URL = env("PUBLIC_URL").rstrip("/")
TRUSTED_PROXY_COUNT = env.int("TRUSTED_PROXY_COUNT", default=0)
SUPPORT_EMAIL = env("SUPPORT_EMAIL", default="support@webhost.systems")

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "rest_framework",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "entitlements.sign_in.apps.BrowserSessionsConfig",
    "knox",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "pgtrigger",
    "pghistory",
    "entitlements",
    "runtimes",
    "telemetry",
    "billing",
]

MIDDLEWARE = [
    "webhost.middleware.TraceMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "webhost.middleware.PagesMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    # Here, and not below, because it answers what views raise; it touches neither session nor database by itself.
    "allauth.account.middleware.AccountMiddleware",
]
# What pages need and the API's hot path does not: PagesMiddleware runs these for everything but
# API calls that carry a token.
PAGES_MIDDLEWARE = [
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "webhost.middleware.HistoryMiddleware",
    "entitlements.sign_in.sessions.SeenMiddleware",
    "entitlements.sign_in.door.SecondFactorMiddleware",
]

# They look for the pages' middleware in MIDDLEWARE; it is in PAGES_MIDDLEWARE.
SILENCED_SYSTEM_CHECKS = ["admin.E408", "admin.E409", "admin.E410", "security.W003"]

ROOT_URLCONF = "webhost.urls"
WSGI_APPLICATION = "webhost.wsgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "webhost.navigation.navigation",
                "entitlements.pages.frame.unconfirmed_address",
            ],
        },
    },
]

# --- Database: PostgreSQL is the truth ------------------------------------------------------------
POOL_SIZE = env.int("POOL_SIZE", default=8)
DATABASES: dict[str, Any] = {"default": env.db("DATABASE_URL")}
if DATABASES["default"]["ENGINE"] != "django.db.backends.postgresql":
    raise ImproperlyConfigured("DATABASE_URL must name a PostgreSQL database.")
DATABASES["default"].setdefault("OPTIONS", {}).update(
    # timeout: how long a request waits for a connection; then 503, never a served but uncounted call.
    pool={"min_size": 0, "max_size": POOL_SIZE, "timeout": 5, "max_idle": 60},
    connect_timeout=3,
)
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DATABASES["default"]["ATOMIC_REQUESTS"] = False
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Redis: wake-ups and rate windows, never truth ------------------------------------------------
REDIS_URL = env("REDIS_URL")
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "OPTIONS": {"socket_connect_timeout": 0.5, "socket_timeout": 0.5},
    },
}
CELERY_BROKER_URL = env("CELERY_BROKER_URL", default=REDIS_URL)
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_connect_timeout": 1, "socket_timeout": 5, "retry_on_timeout": False}
CELERY_TASK_TIME_LIMIT = 15 * 60
CELERY_TIMEZONE = "UTC"
CELERY_ENABLE_UTC = True
CELERY_BEAT_SCHEDULE = {
    "sweep notices": {"task": "entitlements.send_notices", "schedule": 60.0},
    "close overdue admissions": {"task": "entitlements.close_overdue", "schedule": 10.0},
    "verify touched counters": {"task": "entitlements.verify_recent", "schedule": 300.0},
    "report unsigned changes": {"task": "entitlements.report_unsigned", "schedule": 60.0},
    "forget ended sessions": {"task": "entitlements.forget_sessions", "schedule": crontab(hour=3, minute=50)},
    "sweep idempotency records": {"task": "entitlements.forget_answers", "schedule": 3600.0},
    "sweep deployments": {"task": "runtimes.sweep_deployments", "schedule": 15.0},
    "sweep removals": {"task": "runtimes.sweep_removals", "schedule": 30.0},
    "sweep grants": {"task": "runtimes.sweep_grants", "schedule": 10.0},
    "sweep tools": {"task": "runtimes.sweep_tools", "schedule": 20.0},
    "sweep reports": {"task": "telemetry.process_reports", "schedule": 15.0},
    "roll up": {"task": "telemetry.roll_up", "schedule": 2.0},
    "watch budgets": {"task": "telemetry.watch_budgets", "schedule": 10.0},
    "watch all budgets": {"task": "telemetry.watch_all_budgets", "schedule": 300.0},
    "sweep alerts": {"task": "telemetry.deliver_alerts", "schedule": 15.0},
    "ask addresses": {"task": "telemetry.ask_addresses", "schedule": 300.0},
    "daily cost": {"task": "telemetry.daily_cost", "schedule": 600.0},
    "retention": {"task": "telemetry.apply_retention", "schedule": crontab(hour=3, minute=20)},
    "sweep Stripe events": {"task": "billing.sweep", "schedule": 15.0},
    "forget old Stripe events": {"task": "billing.forget_old", "schedule": crontab(hour=3, minute=40)},
    "reconcile with Stripe": {"task": "billing.reconcile", "schedule": crontab(hour=4, minute=10)},
    "close periods": {"task": "telemetry.close_periods", "schedule": crontab(minute=7)},
}

# --- People, sessions, tokens ---------------------------------------------------------------------
AUTH_USER_MODEL = "entitlements.Account"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "/sign-in/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/sign-in/"
# Staff prove a second factor before any page of the admin opens.
STAFF_TOTP = env.bool("STAFF_TOTP", default=not LOCAL)
ACCOUNT_ADAPTER = "entitlements.sign_in.adapters.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_EMAIL_VERIFICATION = "none"  # nobody is kept from signing in: an unconfirmed address is kept from deploying
ACCOUNT_EMAIL_CONFIRMATION_EXPIRE_DAYS = 3
PASSWORD_RESET_TIMEOUT = 60 * 60  # a link that lets whoever has it in
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_LOGIN_TIMEOUT = 300  # from the password to the code
ACCOUNT_REAUTHENTICATION_TIMEOUT = 300
ACCOUNT_REAUTHENTICATION_METHODS = ["password"]
ACCOUNT_RATE_LIMITS = False  # it fails with Redis; entitlements/sign_in/attempts.py does not
MFA_ADAPTER = "entitlements.sign_in.adapters.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "webhost.systems (local)" if LOCAL else "webhost.systems"
MFA_TOTP_TOLERANCE = 1  # a phone's clock may be off by half a minute (RFC 6238, 5.2)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "webhost.api.csrf_failure"
KNOX_TOKEN_MODEL = "entitlements.ApiToken"
REST_KNOX = {"TOKEN_PREFIX": "whs_", "TOKEN_TTL": None, "TOKEN_MODEL": "entitlements.ApiToken"}

# --- Stripe ---------------------------------------------------------------------------------------
# It decides the tier that is paid for. Without a secret the webhook takes nothing: an empty one can be forged.
STRIPE_SECRET_KEY = env("STRIPE_SECRET_KEY", default="")
STRIPE_WEBHOOK_SECRETS: list[str] = env.list("STRIPE_WEBHOOK_SECRETS", default=[])  # several while one is replaced
STRIPE_API_URL = env("STRIPE_API_URL", default="").rstrip("/")  # only for a local Stripe
STRIPE_LIVEMODE = env.bool("STRIPE_LIVEMODE", default=STRIPE_SECRET_KEY.partition("_")[2].startswith("live_"))
# Where its checkout and portal pages are: a form of ours may lead there.
STRIPE_PAGES: list[str] = env.list(
    "STRIPE_PAGES", default=[STRIPE_API_URL or "https://checkout.stripe.com", "https://billing.stripe.com"]
)
BILLING_GRACE_DAYS = env.int("BILLING_GRACE_DAYS", default=7)

# --- The wire -------------------------------------------------------------------------------------
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
if not LOCAL:
    SECURE_SSL_REDIRECT = env.bool("SECURE_SSL_REDIRECT", default=True)
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if TRUSTED_PROXY_COUNT else None
    SECURE_HSTS_SECONDS = env.int("SECURE_HSTS_SECONDS", default=31_536_000)
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    # The probes of an orchestrator speak plain HTTP to the container itself.
    SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$"]
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
CONTENT_SECURITY_POLICY = {
    "EXCLUDE_URL_PREFIXES": ["/admin", "/v1/docs"],  # unfold and Swagger UI carry inline script
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
        "form-action": ["'self'", *STRIPE_PAGES],
    },
}
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
FILE_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024
STATIC_URL = "/static/"
STATIC_ROOT = None if LOCAL else BASE_DIR / "staticfiles"  # a laptop serves them from where they are
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": env("ARTIFACTS_DIR", default=str(BASE_DIR / ".local" / "artifacts"))},
    },
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if LOCAL
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
DOCS_DIR = Path(env("DOCS_DIR", default=str(BASE_DIR / ".local" / "site")))  # what `make docs` built; may be absent
WHITENOISE_USE_FINDERS = LOCAL
WHITENOISE_AUTOREFRESH = False

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"  # periods are calendar months in UTC for everybody (ledger.md)
USE_TZ = True
USE_I18N = False
USE_THOUSAND_SEPARATOR = True
FORMAT_MODULE_PATH = "webhost.formats"  # over Django's own locale, which wins over DATE_FORMAT and its like
vars().update(env.email("EMAIL_URL", default="consolemail://"))
EMAIL_TIMEOUT = 10  # a mail server that hangs must not keep a worker from the books
DEFAULT_FROM_EMAIL = env("DEFAULT_FROM_EMAIL", default=SUPPORT_EMAIL)

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "entitlements.authentication.BearerAuthentication",
        "entitlements.authentication.PageSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["entitlements.authentication.HasScope"],
    "DEFAULT_THROTTLE_CLASSES": ["entitlements.throttles.AccountThrottle"],
    "DEFAULT_PARSER_CLASSES": ["webhost.parsing.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "webhost.api.exception_handler",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "webhost.systems",
    "DESCRIPTION": "Deploy AI agents, invoke them within exact limits, and see usage that is proven.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/v1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
}
API_REQUESTS_PER_MINUTE = env.int("API_REQUESTS_PER_MINUTE", default=600)

# --- Audit ----------------------------------------------------------------------------------------
PGHISTORY_APPEND_ONLY = True

# --- The admin, by task ----------------------------------------------------------------------------
UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "webhost.systems",
    "SITE_HEADER": "webhost.systems",
    "STYLES": ["webhost.desk.navigation.stylesheet"],
    "SCRIPTS": ["webhost.desk.navigation.script"],
    "SIDEBAR": {"show_search": True, "navigation": "webhost.desk.navigation.sidebar"},
}

# --- Keys and runtimes ----------------------------------------------------------------------------
ROOT_KEYS = _root_keys(env("ROOT_KEYS"))
# Backends that may invoke on behalf of any account (docs/delegated.md); empty: none may.
DELEGATED_SOURCES = _delegated_sources(env("DELEGATED_SOURCES", default=""))
CLOUDFLARE_API_URL = env("CLOUDFLARE_API_URL", default="https://api.cloudflare.com/client/v4").rstrip("/")
CLOUDFLARE_ACCOUNT_ID = env("CLOUDFLARE_ACCOUNT_ID")
CLOUDFLARE_API_TOKEN = env("CLOUDFLARE_API_TOKEN")
CLOUDFLARE_NAMESPACE = env("CLOUDFLARE_NAMESPACE", default="whs")
CLOUDFLARE_DISPATCH_URL = env("CLOUDFLARE_DISPATCH_URL").rstrip("/")
# AgentCore. boto3 finds its credentials, and another address than AWS's own, in its usual variables.
AWS_REGION = env("AWS_REGION", default="us-east-1")
AGENTCORE_BUCKET = env("AGENTCORE_BUCKET", default="")  # versioned; empty: this runtime takes nothing
AGENTCORE_BOUNDARY_ARN = env("AGENTCORE_BOUNDARY_ARN", default="")
AGENTCORE_PREFIX = env("AGENTCORE_PREFIX", default="whs")
# Runtimes whose calls set an estimate aside before they start (ledger.md, admit).
RESERVING_RUNTIMES = env.list("RESERVING_RUNTIMES", default=["agentcore"])
# Added to a deployment's timeout before an open admission counts as overdue.
OVERDUE_GRACE_SECONDS = env.int("OVERDUE_GRACE_SECONDS", default=30)
DEPLOY_DEADLINE_SECONDS = env.int("DEPLOY_DEADLINE_SECONDS", default=180)
# How long a worker has a deployment for itself; then it counts as killed, and another resumes it.
DEPLOY_LEASE_SECONDS = env.int("DEPLOY_LEASE_SECONDS", default=40)
INVOKE_BODY_LIMIT = 1024 * 1024
REPORT_BODY_LIMIT = 1024 * 1024
BUNDLE_LIMIT = 10 * 1024 * 1024
NODE_MODULES_DIR = env("NODE_MODULES_DIR", default=str(BASE_DIR / ".local" / "node" / "node_modules"))
NODE_BINARY = env("NODE_BINARY", default="")

# --- Logs: one line of JSON in production, readable on a laptop, never a body ----------------------
LOG_LEVEL = env("LOG_LEVEL", default="INFO")
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"trace": {"()": "webhost.tracing.TraceFilter"}},
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s [%(trace_id)s] %(message)s"},
        "json": {"()": "webhost.tracing.JsonFormatter"},
    },
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "filters": ["trace"],
            "formatter": "line" if LOCAL else "json",
        },
    },
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
    "loggers": {
        "django.server": {"level": "WARNING"},
        "django.request": {"level": "ERROR"},
        "botocore": {"level": "WARNING"},
        "stripe": {"level": "WARNING"},
    },
}
