"""Agents, bundles, deployments, the invocation gateway and the provider adapters."""
