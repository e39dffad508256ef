"""`fairlead worker`: one node in one process, or several under a supervisor."""

from __future__ import annotations

import sys

import typer

from fairlead.cli.logs import configure
from fairlead.cli.parameters import with_options
from fairlead.cli.worker_options import WorkerOptions


@with_options
def worker(options: WorkerOptions) -> None:
    """Run tasks. After SIGTERM or Ctrl-C, the worker starts no more tasks, waits for running tasks,
    and leaves the others to other workers. After a second signal, the worker exits at once.

    With --workers, a supervisor runs several worker processes. It restarts each process that ends,
    and on SIGHUP replaces all of them, one by one.

    Example: fairlead worker shop:app --queues payouts,mail --concurrency 200

    Example: fairlead worker shop:app --workers auto --metrics-port 9100

    Example: fairlead worker shop:app --reload
    """
    configure(options.log_level, options.log_format)
    if options.reload:
        from fairlead.cli.reload import run_again

        again = [argument for argument in sys.argv[1:] if argument != "--reload"]
        raise typer.Exit(run_again(again, options.drain))
    # Import the engine only here, because no other command needs it.
    from fairlead.cli import serve

    raise typer.Exit(serve.serve(options))
