"""What the OpenAPI document says about every operation: how callers are known, and how refusals look."""

from __future__ import annotations

from typing import Any, Literal

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerFieldExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from webhost.errors import ErrorCode
from webhost.tracing import TRACE_HEADER

Direction = Literal["request", "response"]


class ErrorDetail(serializers.Serializer[Any]):
    """What went wrong, for programs and for people."""

    code = serializers.ChoiceField(choices=[code.value for code in ErrorCode])
    message = serializers.CharField()
    details = serializers.DictField(
        help_text="What belongs to the code: issues, or the limit and the way out; `docs` is where it is explained."
    )
    retryable = serializers.BooleanField()


class ErrorOutput(serializers.Serializer[Any]):
    """The envelope of every answer that is not a success."""

    error = ErrorDetail()
    traceId = serializers.CharField()


class ApiSchema(AutoSchema):
    """Adds to every operation the envelope as its default answer, and the trace id that it accepts."""

    def get_override_parameters(
        self,
    ) -> list[OpenApiParameter | serializers.Serializer[Any] | type[serializers.Serializer[Any]]]:
        """Return what every operation accepts."""
        return [
            OpenApiParameter(
                TRACE_HEADER,
                str,
                OpenApiParameter.HEADER,
                description="`trc_` and 32 hex digits; made where it is missing, returned on every answer.",
            )
        ]

    def get_operation(
        self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any
    ) -> dict[str, Any] | None:
        """Say which scope a token needs, by the rule of entitlements.authentication.HasScope."""
        operation: dict[str, Any] | None = super().get_operation(path, path_regex, path_prefix, method, registry)
        if operation is not None and {"token": []} in operation.get("security", []):
            named = getattr(self.view, "required_scope", None)
            operation["x-required-scope"] = named.value if named else "read" if method == "GET" else "deploy"
        return operation

    def _get_response_bodies(self, direction: Direction = "response") -> dict[str, Any]:
        bodies = super()._get_response_bodies(direction)
        refusal: dict[str, Any] = self._get_response_for_code(ErrorOutput, "default", direction=direction)  # type: ignore[no-untyped-call]  # partly typed library
        bodies["default"] = refusal
        bodies["default"]["description"] = "A refusal, in the envelope."
        return bodies


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # partly typed library
    """A token of the account, sent as a bearer."""

    target_class = "entitlements.authentication.BearerAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:  # noqa: ARG002 - the library's signature
        """Describe the header."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "whs_..."}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # partly typed library
    """The session of a signed-in person; every change needs the CSRF token."""

    target_class = "entitlements.authentication.PageSessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:  # noqa: ARG002 - the library's signature
        """Describe the cookie."""
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}


class DelegatedScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # partly typed library
    """A trusted backend's signature over the raw bytes, beside its name and the time."""

    target_class = "runtimes.delegated.DelegatedAuthentication"
    name = "delegated"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:  # noqa: ARG002 - the library's signature
        """Describe what is signed."""
        return {
            "type": "apiKey",
            "in": "header",
            "name": "X-Whs-Signature",
            "description": "`v1=` and the hex HMAC-SHA256, with the source's key, of timestamp, source and agent as in "
            "X-Whs-Timestamp, X-Whs-Source and the path, each followed by a dot, and the raw body.",
        }


class PublicIdField(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]  # partly typed library
    """A prefixed id."""

    target_class = "webhost.api.PublicId"

    def map_serializer_field(self, auto_schema: AutoSchema, direction: str) -> dict[str, Any]:  # noqa: ARG002 - the library's signature
        """Describe prefix and digits."""
        return {"type": "string", "pattern": f"^{self.target.prefix.value}_[0-9a-f]{{32}}$"}
