"""`fairlead nodes`: show the workers."""

from __future__ import annotations

from fairlead.cli.options import OutputOptions
from fairlead.cli.output import as_list, time_of
from fairlead.cli.parameters import with_options
from fairlead.cli.stores import app_on, wait_and_close
from fairlead.operate.nodes import NodeView, nodes


@with_options
def list_nodes(options: OutputOptions) -> None:
    """Print every worker with its slots, its versions, and the queues that it serves.

    Example: fairlead nodes --json
    """
    app = app_on(options.url)
    as_list(
        wait_and_close(app, nodes(app.operate_context)),
        options.json,
        {
            "node": "node",
            "state": _state,
            "started": lambda node: time_of(node.started_at)[:19],
            "last heartbeat": lambda node: time_of(node.heartbeat_at)[:19],
            "partitions": "partitions",
            "slots": "slots",
            "version": "version",
            "python": "python",
            "queues": lambda node: ", ".join(node.queues),
        },
    )


def _state(node: NodeView) -> str:
    if not node.is_alive:
        return "silent"
    return "loop blocked" if node.blocked_loop is not None else "runs"
