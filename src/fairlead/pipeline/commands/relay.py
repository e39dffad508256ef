"""`fairlead pipeline relay`: send finished attempts from the store to Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.logs import configure
from fairlead.cli.options import Json
from fairlead.cli.output import as_json
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import task_store
from fairlead.pipeline.commands.access import history_of, kafka_at, url_of
from fairlead.pipeline.commands.options import Url
from fairlead.pipeline.commands.output import failures, print_result, stop_by_signals

if TYPE_CHECKING:
    from fairlead.pipeline.stream.relay import Relayed


class RelayOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline relay`."""

    kafka: Annotated[str, typer.Option(help="Target: kafka://host:9092/?prefix=shop.")]
    url: Url = None
    every: Annotated[float, typer.Option(min=0.01, help="Seconds between two rounds.")] = 1.0
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="Partitions of a new topic; default: 4."),
    ] = None
    once: Annotated[bool, typer.Option("--once", help="Send present attempts, then end.")] = False
    heartbeats: Annotated[
        bool,
        typer.Option(
            "--heartbeats/--no-heartbeats",
            help="Send the state of the queues every 2 s, for `fairlead pipeline alerts`.",
        ),
    ] = True
    json: Json = False


@with_options
def relay(options: RelayOptions) -> None:
    """Send finished attempts from the store to Kafka in the order of their commits, each at least
    once.

    Run until Ctrl-C or SIGTERM, and wait for a store or broker that is unavailable. The topic is
    PREFIXtask.attempts, with one JSON object per message. The store keeps all history that is not
    in Kafka.

    Example: fairlead pipeline relay --url postgresql://app@db/shop --kafka
    kafka://broker:9092/?prefix=shop.

    Example: fairlead pipeline relay --kafka
    'kafka://user:password@broker:9092/?prefix=shop.&replication=3' --partitions 8
    """
    with failures():
        endpoint = kafka_at(options.kafka)
        from fairlead.pipeline.stream.relay import Relay

        history = history_of(options.url)
        also = None
        if options.heartbeats:
            from fairlead.pipeline.alerts.topic import HeartbeatSender
            from fairlead.pipeline.incidents.heartbeats import StoreHeartbeats

            store = task_store(url_of(options.url))
            heartbeats = StoreHeartbeats(store, history, SYSTEM_CLOCK)
            also = HeartbeatSender(heartbeats, endpoint)
        relaying = Relay(history, endpoint, SYSTEM_CLOCK, partitions=options.partitions, also=also)

        def on_batch(relayed: Relayed) -> None:
            if options.json and relayed.rows:
                as_json(relayed)

        try:
            if options.once:
                relayed = relaying.round()
                text = (
                    f"{relayed.rows:,} attempts relayed in {relayed.seconds:,.1f} s, up to"
                    f" {relayed.position}"
                )
                print_result(options.json, relayed, text)
                return
            configure("info", "text")
            stop_by_signals(relaying.stops.set)
            relaying.run(options.every, on_batch)
        finally:
            relaying.close()
