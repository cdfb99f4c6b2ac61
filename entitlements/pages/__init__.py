"""The pages of this app, each in a module of its own."""

from __future__ import annotations

from entitlements.pages import security, sign_in

urlpatterns = [*sign_in.urlpatterns, *security.urlpatterns]
