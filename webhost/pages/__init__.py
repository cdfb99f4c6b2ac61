"""The dashboard: every app's pages, and those that compose all apps."""

from __future__ import annotations

from django.urls import path

import billing.pages
import entitlements.pages
import runtimes.pages
import telemetry.pages
from webhost.pages.agents import show_agents
from webhost.pages.documentation import show_documentation
from webhost.pages.landing import show_home

urlpatterns = [
    path("", show_home, name="overview"),
    path("docs/", show_documentation, name="documentation"),
    path("docs/<path:path>", show_documentation, name="documentation-file"),
    path("agents/", show_agents, name="agents"),
    *runtimes.pages.urlpatterns,
    *billing.pages.urlpatterns,
    *entitlements.pages.urlpatterns,
    *telemetry.pages.urlpatterns,
]
