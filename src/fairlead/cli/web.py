"""`fairlead web`: serve the console of an application."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import socket
import sys
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.app import App
from fairlead.cli.application import load, load_function, load_value
from fairlead.cli.output import say, say_error
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.errors import ConfigurationError

if TYPE_CHECKING:
    from fairlead.web.application import Console

TOKEN_VARIABLE = "FAIRLEAD_WEB_TOKEN"  # noqa: S105
DEFAULT_PORT = 8350
_LIBRARIES = ("starlette", "jinja2", "uvicorn")


Mask = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="Show arguments of tasks as FUNCTION(task_name, arguments) returns them.",
    ),
]


class ServeOptions(CommandOptions, frozen=True, kw_only=True):
    """Where the console serves, and for whom."""

    host: Annotated[str, typer.Option(help="Address on which it serves.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = (
        DEFAULT_PORT
    )
    token: Annotated[
        str | None,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            help="Token of the login, at least 16 characters; default: a new one.",
        ),
    ] = None
    authorize: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Function that returns the Access of a request, in place of a token.",
        ),
    ] = None
    mask: Mask = None
    read_only: Annotated[bool, typer.Option("--read-only", help="Allow no action.")] = False
    title: Annotated[str, typer.Option(help="Title of the pages.")] = "Fairlead"
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Further name under which browsers open it, as behind a proxy."),
    ] = None
    sharded: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:QUEUE",
            help="SyncShardedQueue to show beside the tasks; may be repeated.",
        ),
    ] = None
    prefix: Annotated[
        str, typer.Option(help="Path that a proxy puts before it and takes away, as /fairlead.")
    ] = ""


@with_options
def web(
    application: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The application.")],
    *,
    options: ServeOptions,
) -> None:
    """Serve the web console: queues, tasks and tenants in the browser.

    It serves this machine only, and prints an address with a token. For others, give a token
    (FAIRLEAD_WEB_TOKEN) and put a proxy with TLS before it, or mount it in your application with
    authorize=.

    Examples: fairlead web shop:app; fairlead web shop:app --port 0 --read-only;
    FAIRLEAD_WEB_TOKEN=... fairlead web shop:app --host 0.0.0.0
    """
    need_libraries()
    console = made(load(application), options)
    with listening(options.host, options.port) as port:
        serve(console, options, port)


def made(app: App, options: ServeOptions) -> Console:
    """Return the console that the options describe. Raise ConfigurationError for other machines
    without a token."""
    from fairlead.web.application import console
    from fairlead.web.guard import LOOPBACK_HOSTS, is_loopback

    is_local = options.host == "localhost" or is_loopback(options.host)
    if not is_local and not options.token and not options.authorize:
        raise ConfigurationError(
            f"--host {options.host} serves other machines: give a token of at least 16 characters"
            f" in {TOKEN_VARIABLE}, or --authorize MODULE:FUNCTION, or mount the console in your"
            " application with authorize="
        )
    hosts = None
    if is_local:
        hosts = LOOPBACK_HOSTS | {options.host, *(options.allow_host or ())}
    return console(
        app,
        authorize=load_function(options.authorize) if options.authorize else None,
        token=options.token or None,
        title=options.title,
        mask=load_function(options.mask) if options.mask else None,
        read_only=options.read_only,
        hosts=hosts,
        sharded=[load_value(each) for each in options.sharded or ()],
    )


def serve(console: Console, options: ServeOptions, port: socket.socket) -> None:
    """Serve on an open port until Ctrl-C or SIGTERM; print the address first."""
    import uvicorn

    from fairlead.web.live import MOST_VIEWERS
    from fairlead.web.server import config_of, most_connections

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            console.parts.live.end()  # no stream of events may hold up the end
            super().handle_exit(sig, frame)

    name = f"[{options.host}]" if ":" in options.host else options.host
    number = port.getsockname()[1]
    address = f"http://{name}:{number}{options.prefix}/"
    if console.parts.settings.authorize is not None:
        say(address)
        why = "--authorize decides who may open it"
    else:
        # A token that a person chose is in no log of what commands print.
        say(f"{address}login" + ("" if options.token else f"?token={console.token}"))
        why = f"{'your token' if options.token else 'the token'} is its password"
    sys.stdout.flush()
    say_error(f"the console is at this address until Ctrl-C; {why}")
    if options.token and options.token != os.environ.get(TOKEN_VARIABLE):
        say_error(
            "--token shows in the list of processes of this machine: give the token in"
            f" {TOKEN_VARIABLE}"
        )
    config = config_of(console, options.prefix)
    console.parts.live.most_viewers = min(MOST_VIEWERS, most_connections() // 2)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            Server(config).run(sockets=[port])
    finally:
        console.parts.read_loop.close()


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raise ConfigurationError if that is impossible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(128)
    except OSError as error:
        found.close()
        cure = (
            "another program listens there; choose another --port, or --port 0 for a free one"
            if error.errno == errno.EADDRINUSE
            else os.strerror(error.errno or 0)
        )
        raise ConfigurationError(f"cannot serve on {host} port {port}: {cure}") from error
    return found


def need_libraries() -> None:
    """Raise ConfigurationError if a library of the extra `web` is missing."""
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"{', '.join(missing)} missing: pip install 'fairlead[web]'")
