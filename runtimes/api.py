"""Agents, deployments, secrets, sessions, receipts, and asking beforehand: the API of what runs."""

from __future__ import annotations

from django.urls import path

from runtimes import delegated
from runtimes.endpoints.agents import AgentsView, AgentSwitchView, AgentView
from runtimes.endpoints.deployments import (
    ActivateView,
    DeploymentLogsView,
    DeploymentsView,
    DeploymentView,
)
from runtimes.endpoints.invocations import InvocationsView, InvocationView, LimitsCheckView
from runtimes.endpoints.secrets import SecretsView, SecretView
from runtimes.endpoints.sessions import SessionsView, SessionView

urlpatterns = [
    *delegated.urlpatterns,
    path("agents", AgentsView.as_view(), name="agents"),
    path("agents/<str:agent>", AgentView.as_view(), name="agent"),
    path("agents/<str:agent>/disable", AgentSwitchView.as_view(disabled=True), name="agent-disable"),
    path("agents/<str:agent>/enable", AgentSwitchView.as_view(disabled=False), name="agent-enable"),
    path("agents/<str:agent>/deployments", DeploymentsView.as_view(), name="deployments"),
    path("agents/<str:agent>/deployments/<str:deployment>/activate", ActivateView.as_view(), name="activate"),
    path("agents/<str:agent>/secrets", SecretsView.as_view(), name="secrets"),
    path("agents/<str:agent>/secrets/<str:name>", SecretView.as_view(), name="secret"),
    path("agents/<str:agent>/sessions", SessionsView.as_view(), name="sessions"),
    # A session is named by its caller, slashes and all.
    path("agents/<str:agent>/sessions/<path:session>", SessionView.as_view(), name="session"),
    path("deployments/<str:deployment>", DeploymentView.as_view(), name="deployment"),
    path("deployments/<str:deployment>/logs", DeploymentLogsView.as_view(), name="deployment-logs"),
    path("invocations", InvocationsView.as_view(), name="invocations"),
    path("invocations/<str:invocation>", InvocationView.as_view(), name="invocation"),
    path("limits/check", LimitsCheckView.as_view(), name="limits-check"),
]
