"""The dashboard: every app's pages, and those that compose all apps."""

from __future__ import annotations

from django.urls import path

import billing.pages
import entitlements.pages
import runtimes.pages
import telemetry.pages
from webhost.pages.landing import show_home

urlpatterns = [
    path("", show_home, name="overview"),
    *runtimes.pages.urlpatterns,
    *billing.pages.urlpatterns,
    *entitlements.pages.urlpatterns,
    *telemetry.pages.urlpatterns,
]
