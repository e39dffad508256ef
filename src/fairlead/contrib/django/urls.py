"""Addresses of the console: `path("fairlead/", include("fairlead.contrib.django.urls"))`."""

from __future__ import annotations

from django.urls import path

from fairlead.contrib.django.console import serve_console

app_name = "fairlead"
urlpatterns = [
    path("", serve_console, name="console"),
    path("<path:path>", serve_console, name="console"),
]
