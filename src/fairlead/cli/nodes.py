"""`fairlead nodes`: show the workers."""

from __future__ import annotations

from fairlead.cli.options import OutputOptions
from fairlead.cli.output import as_json, as_table, one_line_errors, readable, time_of
from fairlead.cli.parameters import with_options
from fairlead.cli.stores import app_on, wait_and_close
from fairlead.operate.nodes import NodeView, nodes


@with_options
def list_nodes(options: OutputOptions) -> None:
    """Print every worker with its slots, its versions, and the queues that it serves.

    Example: fairlead nodes --json
    """
    with one_line_errors():
        app = app_on(options.url)
        found = wait_and_close(app, nodes(app.operate_context))
        if options.json:
            as_json([readable(node) for node in found])
            return
        as_table(
            (
                "node",
                "state",
                "started",
                "last heartbeat",
                "partitions",
                "slots",
                "version",
                "python",
                "queues",
            ),
            [
                (
                    node.node,
                    _state(node),
                    time_of(node.started_at)[:19],
                    time_of(node.heartbeat_at)[:19],
                    node.partitions,
                    node.slots,
                    node.version,
                    node.python,
                    ", ".join(node.queues),
                )
                for node in found
            ],
        )


def _state(node: NodeView) -> str:
    if not node.is_alive:
        return "silent"
    return "loop blocked" if node.blocked_loop is not None else "runs"
