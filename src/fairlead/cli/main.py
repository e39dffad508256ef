"""The command line."""
from __future__ import annotations
import asyncio, importlib, signal, sys
from typing import Annotated
import typer
from fairlead.cli import demo, replay
from fairlead.errors import FairleadError
app = typer.Typer(no_args_is_help=True)
replay.register(app); demo.register(app)

@app.command()
def migrate(url: Annotated[str | None, typer.Option()] = None) -> None:
    from fairlead.app import App
    for name in App(url).migrate(): print(name)

@app.command()
def worker(application: str, queues: str | None = None, concurrency: int = 500, threads: int = 16, drain: float = 20.0) -> None:
    sys.path.insert(0, "")
    module, _, attribute = application.partition(":")
    target = getattr(importlib.import_module(module), attribute or "app")
    async def run() -> None:
        node = target.node(queues=queues.split(",") if queues else None, concurrency=concurrency, threads=threads, drain=drain, application=application)
        for s in (signal.SIGTERM, signal.SIGINT): asyncio.get_running_loop().add_signal_handler(s, node.stop)
        await node.run()
    try: asyncio.run(run())
    except FairleadError as error:
        print(error, file=sys.stderr); raise SystemExit(2) from None

def main() -> None: app()
