"""`fairlead mcp`: serve the reads of the console to an assistant."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Annotated, BinaryIO

import typer

from fairlead.cli.application import load, load_function
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.cli.web import Mask, need_libraries
from fairlead.operate.caller import Caller


class McpOptions(CommandOptions, frozen=True, kw_only=True):
    """Bounds of what an assistant may see."""

    tenant: Annotated[
        list[str] | None,
        typer.Option(help="Show this tenant only; may be repeated. Default: all."),
    ] = None
    mask: Mask = None


@with_options
def mcp(
    application: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The application.")],
    *,
    options: McpOptions,
) -> None:
    """Serve an assistant by the Model Context Protocol: it can read, and change nothing.

    It speaks over standard input and output, so an assistant starts it by itself. Without --mask it
    shows no arguments of tasks.

    Examples: fairlead mcp shop:app; fairlead mcp shop:app --tenant acme --mask shop:hide_secrets
    """
    with own_output() as out:
        need_libraries()
        from fairlead.web.mcp import McpServer, serve
        from fairlead.web.waiting import ReadLoop

        app = load(application)
        tenants = None if options.tenant is None else frozenset(options.tenant)
        mask = None if options.mask is None else load_function(options.mask)
        loop = ReadLoop(app)
        caller = Caller(
            context=app.operate_context,
            wait=loop.wait_for,
            rights=frozenset(),
            tenants=tenants,
            mask=mask,
            shows_arguments=mask is not None,
        )
        try:
            with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
                serve(McpServer(caller, is_operator=tenants is None), sys.stdin.buffer, out)
        finally:
            loop.close()
            app.close()


@contextlib.contextmanager
def own_output() -> Iterator[BinaryIO]:
    """Keep standard output for the protocol alone: what the application prints goes to standard
    error."""
    sys.stdout.flush()
    with open(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        yield out
