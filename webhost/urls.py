"""Every route. Each app lists its own under /v1/ and its pages; this is the one place that joins them."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

import billing.api
import entitlements.api
import entitlements.pages.sign_in
import runtimes.api
import runtimes.gateway
import telemetry.api
import webhost.desk.views
from webhost import health, pages

v1 = [
    *runtimes.gateway.urlpatterns,
    *entitlements.api.urlpatterns,
    *runtimes.api.urlpatterns,
    *telemetry.api.urlpatterns,
    *billing.api.urlpatterns,
    path("schema", SpectacularAPIView.as_view(), name="schema"),
    path("docs", SpectacularSwaggerView.as_view(url_name="schema"), name="docs"),
]

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("v1/", include(v1)),
    path("admin/login/", entitlements.pages.sign_in.admin_sign_in),  # before the admin's own, which asks for no code
    *webhost.desk.views.urlpatterns,
    path("admin/", admin.site.urls),
    *pages.urlpatterns,
]

handler400 = "webhost.api.bad_request"
handler403 = "webhost.api.permission_denied"
handler404 = "webhost.api.not_found"
handler500 = "webhost.api.server_error"
