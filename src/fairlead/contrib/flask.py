"""Flask: handlers run inside the application context of the site."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from flask import Flask

from fairlead.app import App
from fairlead.contrib.sqlalchemy import Submitter
from fairlead.declare.handler import RunInterceptor
from fairlead.errors import ConfigurationError


class FlaskTasks(RunInterceptor):
    """Flask extension: `FlaskTasks(app).init_app(site)`. Each run of a handler of `app` has an
    application context of its own, so that `current_app`, `g` and what `teardown_appcontext`
    registered work as in a request; `site.extensions["fairlead"]` is the extension."""

    def __init__(self, app: App, site: Flask | None = None) -> None:
        self.app = app
        self._site: Flask | None = None
        app.interceptors = [self, *app.interceptors]
        if site is not None:
            self.init_app(site)

    def init_app(self, site: Flask) -> None:
        """Run handlers inside the application context of this site from now on."""
        site.extensions["fairlead"] = self
        self._site = site

    def running(self, task: Any) -> AbstractContextManager[object]:
        return self._context()

    def in_child(self, task: Any) -> AbstractContextManager[object]:
        return self._context()

    def _context(self) -> AbstractContextManager[object]:
        if self._site is None:
            raise ConfigurationError(
                "no Flask site has the tasks of this worker: call init_app(site) in the module"
                " that the worker imports"
            )
        return self._site.app_context()


__all__ = ["FlaskTasks", "Submitter"]
