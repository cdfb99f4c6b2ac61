"""The runtimes app."""

from django.apps import AppConfig


class RuntimesConfig(AppConfig):
    """Agents, bundles, deployments, the invocation gateway and the provider adapters."""

    name = "runtimes"
