"""`manage.py fairlead worker|doctor|tasks|...`: the command line of Fairlead, for the tasks of this
project."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from fairlead.cli.main import main as fairlead
from fairlead.contrib.django.project import get_app
from fairlead.errors import FairleadError, StoreUnavailable

APPLICATION = "fairlead.contrib.django.application:app"

_TAKE_APPLICATION = frozenset({"worker", "submit", "web", "mcp"})
"""Commands whose first argument is MODULE:APP, which this command supplies."""

_TAKE_OPTION = frozenset({"doctor", "queues", "periodic", "ordered"})
"""Commands that know more with --app, which this command supplies."""

_OF_DJANGO = ("--settings", "--pythonpath")
"""Options that manage.py has obeyed already, wherever they stand."""

_NO_RELOAD = "--noreload"
_ONCE = ("--until-empty", "--reload", "--help")
"""Options of a worker that is not started again after changes of code."""


class Command(BaseCommand):
    """The command `fairlead` of manage.py."""

    help = (
        "Runs a command of Fairlead for the tasks of this project, for example `worker`, `doctor`"
        " or `tasks`. With DEBUG, a worker starts again when code changes, unless"
        f" {_NO_RELOAD} is given."
    )

    def add_arguments(self, parser: Any) -> None:
        """Take all arguments as they are."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="COMMAND ...")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command, and end with its exit code. Raise CommandError for `migrate`, and
        while the tables are missing."""
        arguments = [str(each) for each in options["arguments"]]
        if arguments[:1] == ["migrate"]:
            raise CommandError("Django's migrations make the tables: run `manage.py migrate`.")
        try:
            # For commands that take no application. The URL of a database can hold a password, so
            # it is no argument, which other users of this machine could see.
            if get_app().is_in_memory:
                raise CommandError("The database is in memory: no other process finds its tasks.")
            os.environ["FAIRLEAD_URL"] = get_app().url
            if arguments and "--help" not in arguments:
                with suppress(StoreUnavailable):  # the command says so itself
                    get_app().check_tables()
        except FairleadError as error:
            raise CommandError(str(error)) from error
        # A supervisor and a reloader start `python -m fairlead` with these arguments.
        sys.argv = ["fairlead", *complete(arguments, settings.DEBUG)]
        fairlead()


def complete(arguments: Sequence[str], is_debug: bool) -> list[str]:
    """Return the arguments with the application of the project, and with --reload for a worker of
    a project in DEBUG, if its library is installed."""
    found = [each for each in _without_django(arguments) if each != _NO_RELOAD]
    if {*found[:1]} & _TAKE_APPLICATION:
        found.insert(1, APPLICATION)
    elif {*found[:1]} & _TAKE_OPTION:
        found += ["--app", APPLICATION]
    reloads = is_debug and _NO_RELOAD not in arguments and found[:1] == ["worker"]
    if reloads and not set(_ONCE) & set(found) and importlib.util.find_spec("watchfiles"):
        found.append("--reload")
    return found


def _without_django(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without those of Django, and their values."""
    found: list[str] = []
    remaining = iter(arguments)
    for each in remaining:
        if each in _OF_DJANGO:
            next(remaining, None)
        elif each.partition("=")[0] not in _OF_DJANGO:
            found.append(each)
    return found
