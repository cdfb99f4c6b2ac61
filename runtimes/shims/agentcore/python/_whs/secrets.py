"""The secrets that the deployment declares, read through the role with the first call and kept in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping

from .aws import Aws, AwsError
from .failure import FailureError


class Secrets:
    """The declared secrets of one deployment."""

    def __init__(self, aws: Aws, env: Mapping[str, str]) -> None:
        self._aws = aws
        self._arn = env.get("WHS_SECRET_ARN", "")
        self._required = _names_in(env.get("WHS_REQUIRED_KEYS", ""))
        self._declared = self._required + _names_in(env.get("WHS_OPTIONAL_KEYS", ""))
        self._values: dict[str, str] | None = None
        self._lock = threading.Lock()

    def values(self) -> dict[str, str]:
        """Return what the agent's context.env holds.

        Raises FailureError when it cannot be read, or a required one is not set; the next call reads again.
        """
        if not self._declared:
            return {}
        with self._lock:
            if self._values is None:
                self._values = self._read()
            return self._values

    def _read(self) -> dict[str, str]:
        kept = self._kept()
        values = {name: kept[name] for name in self._declared if isinstance(kept.get(name), str)}
        if missing := [name for name in self._required if name not in values]:
            line = f"These secrets are required and not set: {', '.join(missing)}."
            raise FailureError("MissingSecrets", "The agent's secrets are not set.", logs=[line], ran=False)
        return values

    def _kept(self) -> dict[str, str]:
        if not self._arn:
            return {}
        headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": "secretsmanager.GetSecretValue"}
        try:
            answer = self._aws.call("secretsmanager", "POST", "/", {"SecretId": self._arn}, headers=headers)
            return dict(json.loads(json.loads(answer)["SecretString"]).get("values") or {})
        except Exception as error:  # noqa: BLE001 - the network, the service, or what it answered
            if isinstance(error, AwsError) and error.code == "ResourceNotFoundException":
                return {}
            why = error.code if isinstance(error, AwsError) else type(error).__name__
            raise FailureError(
                "SecretsUnavailable",
                "The agent's secrets could not be read.",
                logs=[f"The secrets could not be read: {why}."],
                ran=False,
            ) from None


def _names_in(text: str) -> list[str]:
    return [name for name in text.split(",") if name]
