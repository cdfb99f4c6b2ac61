"""The pages of agents: the list, one of them, deploying to it, moving it, ending its sessions."""

from __future__ import annotations

from django.urls import path

from runtimes.pages.agent import deploy, end_session, show_agent, switch_runtime
from runtimes.pages.agents import show_agents

urlpatterns = [
    path("agents/", show_agents, name="agents"),
    path("agents/<str:agent>/", show_agent, name="agent_page"),
    path("agents/<str:agent>/deploy/", deploy, name="agent_deploy"),
    path("agents/<str:agent>/runtime/", switch_runtime, name="agent_runtime"),
    path("agents/<str:agent>/sessions/stop/", end_session, name="agent_session_stop"),
]
