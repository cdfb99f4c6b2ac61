"""The pages of one agent, a module per tab; frame.py is what they share. The list is webhost/pages/agents.py."""

from __future__ import annotations

from django.urls import path

from runtimes.pages import deployments, playground, secrets, sessions, settings

urlpatterns = [
    path("agents/<str:agent>/", deployments.show_agent, name="agent_page"),
    path("agents/<str:agent>/deploy/", deployments.deploy, name="agent_deploy"),
    path("agents/<str:agent>/deployments/<str:deployment>/", deployments.show_deployment, name="agent_version"),
    path("agents/<str:agent>/deployments/<str:deployment>/follow/", deployments.follow, name="agent_follow"),
    path("agents/<str:agent>/deployments/<str:deployment>/activate/", deployments.activate, name="agent_activate"),
    path("agents/<str:agent>/runtime/", deployments.switch_runtime, name="agent_runtime"),
    path("agents/<str:agent>/playground/", playground.show_playground, name="agent_playground"),
    path("agents/<str:agent>/secrets/", secrets.show_secrets, name="agent_secrets"),
    path("agents/<str:agent>/secrets/delete/", secrets.remove_secret, name="agent_secret_delete"),
    path("agents/<str:agent>/sessions/", sessions.show_sessions, name="agent_sessions"),
    path("agents/<str:agent>/sessions/stop/", sessions.end_session, name="agent_session_stop"),
    path("agents/<str:agent>/settings/", settings.show_settings, name="agent_settings"),
    path("agents/<str:agent>/disable/", settings.switch_agent, {"disabled": True}, name="agent_off"),
    path("agents/<str:agent>/enable/", settings.switch_agent, {"disabled": False}, name="agent_on"),
    path("agents/<str:agent>/delete/", settings.remove_agent, name="agent_delete"),
]
