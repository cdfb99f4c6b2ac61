"""The pages of this app, each in a module of its own."""

from __future__ import annotations

from django.urls import path
from django.views.generic import RedirectView

from entitlements.pages import own, reset, security, sessions, sign_in, sign_up, tokens

urlpatterns = [
    path("settings/", RedirectView.as_view(pattern_name="token_page"), name="settings"),
    *sign_in.urlpatterns,
    *sign_up.urlpatterns,
    *reset.urlpatterns,
    *tokens.urlpatterns,
    *security.urlpatterns,
    *own.urlpatterns,
    *sessions.urlpatterns,
]
