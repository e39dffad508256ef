"""`fairlead pipeline ingest` and `relay`: history into the lake, from the store or through
Kafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.logs import configure
from fairlead.cli.output import as_json, duration
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import task_store
from fairlead.errors import ConfigurationError
from fairlead.pipeline.commands.shared import (
    Conf,
    DryRun,
    Json,
    LakeFolder,
    Master,
    Url,
    failures,
    history_of,
    kafka_at,
    lake_in,
    say,
    session_of,
    stop_by_signals,
    url_of,
    watching,
)

if TYPE_CHECKING:
    from fairlead.backends.kafka.endpoint import Place
    from fairlead.pipeline.lake.lake import Lake
    from fairlead.pipeline.stream.intake_batch import Counted
    from fairlead.pipeline.stream.relay import Also, Relayed
    from fairlead.ports.history import HistoryStore


def register(app: typer.Typer) -> None:
    """Add the commands to `fairlead pipeline`."""
    for command in (ingest, relay):
        app.command()(command)


def ingest(
    url: Url = None,
    lake: LakeFolder = None,
    every: Annotated[
        str | None,
        typer.Option(
            help="Go on until Ctrl-C, with a round so often: 60s. With --stream: 30s, if not said."
        ),
    ] = None,
    hash_keys: Annotated[
        bool,
        typer.Option(
            "--hash-keys",
            help=(
                "No clear key lands in this lake, from its first row on; the secret:"
                " FAIRLEAD_HASH_SECRET_FILE."
            ),
        ),
    ] = False,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream", help="Attempts come from Kafka, where `relay` sends them, by Spark."
        ),
    ] = False,
    kafka: Annotated[
        str | None,
        typer.Option(help="With --stream: kafka://host:9092/?prefix=shop., as `relay` has it."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="With --stream: a folder of its own, where Spark keeps how far it has read."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="With --stream: end when all that is there now is in.")
    ] = False,
    max_rows: Annotated[
        int, typer.Option(min=1, help="With --stream: messages of a batch.")
    ] = 1_000_000,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take attempts from the store that a stream brought until now; stop it first.",
        ),
    ] = False,
    master: Master = None,
    conf: Conf = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Move finished attempts, and what else happened to tasks, from the store into the lake, each
    exactly once.

    Workers of an App with lake= do this by themselves. Example: fairlead pipeline ingest --url
    sqlite:///tasks.db --lake lake

    Example: fairlead pipeline ingest --stream --kafka kafka://broker:9092/?prefix=shop.
    --checkpoint lake-checkpoint
    """
    with failures():
        if stream and (kafka is None or checkpoint is None or take_over or dry_run):
            raise ConfigurationError(
                "--stream needs --kafka and --checkpoint, and goes without --take-over and"
                " --dry-run"
            )
        if not stream and (kafka is not None or checkpoint is not None or once):
            raise ConfigurationError("--kafka, --checkpoint and --once go with --stream")
        pause = duration(every)
        place = lake_in(lake)
        if hash_keys:
            from fairlead.pipeline.hashing import start_hashing

            start_hashing(place)
        if stream:
            assert kafka is not None and checkpoint is not None
            seconds = 30.0 if pause is None else pause.total_seconds()
            _stream(url, place, kafka, checkpoint, seconds, once, max_rows, master, conf, json)
            return
        from fairlead.pipeline.export import Exporter
        from fairlead.pipeline.jobs.ingest import ingest as run_ingest

        exporter = Exporter(
            history_of(url),
            place,
            SYSTEM_CLOCK,
            attempts="take over" if take_over else "unless streamed",
        )
        if dry_run:
            behind = exporter.behind()
            say(json, {"unexported": behind}, f"{behind:,} attempts are not exported yet")
            return
        while True:
            with watching("exporting") as tell:
                done = run_ingest(exporter, place, SYSTEM_CLOCK, tell)
            left = "" if done.streamed is None else f"; attempts come by topic {done.streamed}"
            say(
                json,
                done,
                f"{done.attempts:,} attempts and {done.events:,} events in {done.seconds:,.1f}"
                f" s{left}",
            )
            if pause is None:
                return
            time.sleep(pause.total_seconds())


def relay(
    kafka: Annotated[str, typer.Option(help="Where to: kafka://host:9092/?prefix=shop.")],
    url: Url = None,
    every: Annotated[float, typer.Option(min=0.01, help="Seconds between two rounds.")] = 1.0,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="Of the topic, for good; 4 when it is made and this is not said."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when all that is settled now is sent.")
    ] = False,
    signs: Annotated[
        bool,
        typer.Option(
            "--signs/--no-signs",
            help="Look at the queues every 2 s, for `fairlead pipeline alerts`.",
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Send finished attempts from the store to Kafka, in the order of their commits, each at least
    once.

    Until Ctrl-C or SIGTERM; a store or a broker that is away is waited for. The topic is
    PREFIXtask.attempts, one JSON object a message. Nothing is cleaned from the store that is not in
    Kafka.

    Example: fairlead pipeline relay --url postgresql://app@db/shop --kafka
    kafka://broker:9092/?prefix=shop.

    Example: fairlead pipeline relay --kafka
    'kafka://user:password@broker:9092/?prefix=shop.&replication=3' --partitions 8
    """
    with failures():
        place = kafka_at(kafka)
        from fairlead.pipeline.stream.relay import Relay

        history = history_of(url)
        also = _signs_of(url, history, place) if signs else None
        relaying = Relay(history, place, SYSTEM_CLOCK, partitions=partitions, also=also)

        def tell(relayed: Relayed) -> None:
            if json and relayed.rows:
                as_json(relayed)

        try:
            if once:
                relayed = relaying.round()
                text = (
                    f"{relayed.rows:,} attempts relayed in {relayed.seconds:,.1f} s, up to"
                    f" {relayed.place}"
                )
                say(json, relayed, text)
                return
            configure("info", "text")
            stop_by_signals(relaying.stop)
            relaying.run(every, tell)
        finally:
            relaying.close()


def _signs_of(url: str | None, history: HistoryStore, place: Place) -> Also:
    from fairlead.pipeline.alerts.pulse import Pulse
    from fairlead.pipeline.alerts.topic import SignsTo

    return SignsTo(Pulse(task_store(url_of(url)), history, SYSTEM_CLOCK), place)


def _stream(
    url: str | None,
    lake: Lake,
    kafka: str,
    checkpoint: Path,
    every: float,
    once: bool,
    max_rows: int,
    master: str | None,
    conf: list[str] | None,
    json: bool,
) -> None:
    place = kafka_at(kafka)
    from fairlead.pipeline.stream.topic import AttemptsTopic

    AttemptsTopic(place).partitions()  # what is wrong with it is told before Spark is started
    beside = _beside(url, lake)

    def tell(counted: Counted) -> None:
        text = (
            f"{counted.attempts:,} attempts in {counted.seconds:,.1f} s; {counted.doubles:,} had"
            " come before"
        )
        if counted.messages:
            say(json, counted, text)

    configure("info" if not once else "warning", "text")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    with session_of(master, conf) as spark:
        from fairlead.pipeline.jobs.ingest_stream import IngestStream

        streaming = IngestStream(
            spark, lake, kafka, checkpoint, SYSTEM_CLOCK, every, max_rows, tell=tell, beside=beside
        )
        stop_by_signals(streaming.stops.set)
        streaming.once() if once else streaming.run()


def _beside(url: str | None, lake: Lake) -> Callable[[], None]:
    """What the stream leaves: events, and to tell the store how far it was read, if we know one."""
    from fairlead.pipeline.export import Exporter

    try:
        history = history_of(url)
    except ConfigurationError:
        if url is not None:
            raise
        typer.echo(
            "no --url: events, and what the store may clean, are left to whoever exports from it",
            err=True,
        )
        return lambda: None
    exporter = Exporter(history, lake, SYSTEM_CLOCK, attempts="never")

    def beside() -> None:
        exporter.round()

    return beside
