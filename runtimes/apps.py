"""The runtimes app."""

from django.apps import AppConfig


class RuntimesConfig(AppConfig):
    """Agents, bundles, deployments, the invocation gateway and the provider adapters."""

    name = "runtimes"

    def ready(self) -> None:
        """Tell the preview of a tier's change what this app knows of."""
        from entitlements.impact import LOOKS  # noqa: PLC0415 - models are there only now
        from runtimes.actions.impact import look_at_agents  # noqa: PLC0415 - as above

        if look_at_agents not in LOOKS:
            LOOKS.append(look_at_agents)
