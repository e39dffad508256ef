"""`fairlead submit`: submit one task."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from fairlead.cli.application import load
from fairlead.cli.options import Json
from fairlead.cli.output import print_result
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.declare.options import Options as TaskOptions
from fairlead.declare.task import Draft
from fairlead.errors import InvalidTask


class SubmitTaskOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `submit`."""

    fairness_key: str = ""
    weight: float = 1.0
    priority: int = 5
    ordering_key: str | None = None
    unique_key: str | None = None
    run_at: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%dT%H:%M:%S%z"])] = None
    json: Json = False

    def of_task(self) -> TaskOptions:
        """Return the options of the task. Raise InvalidTask."""
        given = msgspec.structs.asdict(self)
        del given["json"]
        return TaskOptions().changed(given)


@with_options
def submit(
    application: Annotated[str, typer.Argument(metavar="MODULE:APP")],
    task: Annotated[str, typer.Argument(help="The task's name.")],
    arguments: Annotated[
        str, typer.Argument(help="A JSON object of arguments; - reads it from standard input.")
    ] = "{}",
    *,
    options: SubmitTaskOptions,
) -> None:
    """Submit one task and print its id.

    Example: fairlead submit shop:app pay '{"partner": "acme", "amount": 3}' --fairness-key acme
    """
    app = load(application)
    if task not in app.handlers:
        raise InvalidTask(
            f"no task named {task!r} in {application}; it has {', '.join(sorted(app.handlers))}"
        )
    try:
        kwargs = msgspec.json.decode(
            sys.stdin.buffer.read() if arguments == "-" else arguments.encode(),
            type=dict[str, Any],
        )
    except msgspec.DecodeError as error:
        raise InvalidTask(
            f"arguments: {error}; give a JSON object, as in '{{\"amount\": 3}}'"
        ) from error
    handle = app.submit_many([Draft(app.handlers[task], (), kwargs, options.of_task())])[0]
    print_result(options.json, {"id": handle.id, "is_new": handle.is_new}, handle.id)
    app.close()
