"""`fairlead pipeline ingest`: export history into the lake, from the store or through Kafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.logs import configure
from fairlead.cli.options import Json
from fairlead.cli.output import duration
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.data_folder import check_folder
from fairlead.errors import ConfigurationError
from fairlead.pipeline.commands.access import (
    exporter_of,
    history_of,
    kafka_at,
    lake_of_options,
    session_of,
)
from fairlead.pipeline.commands.options import DryRun, LakeOptions, SparkOptions, Url
from fairlead.pipeline.commands.output import failures, print_result, stop_by_signals, watching

if TYPE_CHECKING:
    from fairlead.pipeline.export import Exported, Exporter
    from fairlead.pipeline.export_runs import RunExporter
    from fairlead.pipeline.stream.intake import Counted
    from fairlead.pipeline.warehouse.warehouse import Warehouse


class IngestOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline ingest`."""

    url: Url = None
    at: LakeOptions
    every: Annotated[
        str | None,
        typer.Option(
            help="Repeat at this interval until interrupted, for example 60s; default with"
            " --stream: 30s."
        ),
    ] = None
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Read attempts from Kafka, sent by `relay`, with Spark."),
    ] = False
    kafka: Annotated[
        str | None,
        typer.Option(help="With --stream: the URL of `relay`, kafka://host:9092/?prefix=shop."),
    ] = None
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="With --stream: folder for Spark's progress, not shared with other jobs."
        ),
    ] = None
    once: Annotated[
        bool, typer.Option("--once", help="With --stream: end after the present messages.")
    ] = False
    max_rows: Annotated[
        int, typer.Option(min=1, help="With --stream: maximum number of messages in a batch.")
    ] = 1_000_000
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Resume exports from the store after a stream; stop the stream first.",
        ),
    ] = False
    spark: SparkOptions
    dry_run: DryRun = False
    json: Json = False


@with_options
def ingest(options: IngestOptions) -> None:
    """Export finished attempts and events of tasks from the store into the lake, each exactly once.

    Workers of an App with lake= do this themselves. Example: fairlead pipeline ingest --url
    sqlite:///tasks.db --lake lake

    Example: fairlead pipeline ingest --stream --kafka kafka://broker:9092/?prefix=shop.
    --checkpoint lake-checkpoint
    """
    with failures():
        given = options.kafka is not None, options.checkpoint is not None
        if options.stream and (not all(given) or options.take_over or options.dry_run):
            raise ConfigurationError(
                "--stream needs --kafka and --checkpoint, and excludes --take-over and --dry-run"
            )
        if not options.stream and (any(given) or options.once):
            raise ConfigurationError("--kafka, --checkpoint and --once need --stream")
        if options.checkpoint is not None:
            check_folder("--checkpoint", options.checkpoint / "offsets")
        pause = duration(options.every)
        lake = lake_of_options(options.at.lake, options.at.catalog)
        if options.stream:
            _stream(options, lake, 30.0 if pause is None else pause.total_seconds())
            return
        exporter = exporter_of(
            options.url, lake, "take over" if options.take_over else "unless streamed"
        )
        if options.dry_run:
            behind = exporter.behind()
            text = f"{behind:,} attempts are not exported yet"
            print_result(options.json, {"unexported": behind}, text)
            return
        while True:
            with watching("exporting") as on_rows:
                done = _exported(exporter, lake, partial(on_rows, "attempts"))
            text = f"{done.attempts:,} attempts and {done.events:,} events in {done.seconds:,.1f} s"
            if done.streamed is not None:
                text += f"; attempts arrive through topic {done.streamed}"
            print_result(options.json, done, text)
            if pause is None:
                return
            time.sleep(pause.total_seconds())


def _exported(
    exporter: Exporter | RunExporter, lake: Warehouse, on_rows: Callable[[int], None]
) -> Exported:
    """Do one round of the exporter, recorded as a run if it moved rows or failed."""
    from fairlead.pipeline.runs import NOTHING_TO_DO, recorded

    with recorded(lake, SYSTEM_CLOCK, "ingest", {}, keep_idle=False) as run:
        done = exporter.round(on_rows)
        run.rows_in = run.rows_out = done.attempts + done.events
        if not run.rows_out:
            run.state = NOTHING_TO_DO
    return done


def _stream(options: IngestOptions, lake: Warehouse, every: float) -> None:
    assert options.kafka is not None and options.checkpoint is not None
    endpoint = kafka_at(options.kafka)
    from fairlead.pipeline.stream.topic import AttemptsTopic

    AttemptsTopic(endpoint).partitions()  # report problems with Kafka before Spark starts
    beside = _beside(options.url, lake)

    def on_batch(counted: Counted) -> None:
        took = f"{counted.attempts:,} attempts in {counted.seconds:,.1f} s"
        if counted.messages:
            print_result(options.json, counted, f"{took}; {counted.doubles:,} were duplicates")

    configure("info" if not options.once else "warning", "text")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    with session_of(options.spark) as spark:
        from fairlead.pipeline.jobs.ingest_stream import IngestStream

        streaming = IngestStream(
            spark,
            lake,
            options.kafka,
            options.checkpoint,
            SYSTEM_CLOCK,
            every,
            options.max_rows,
            on_rows=on_batch,
            on_interval=beside,
        )
        stop_by_signals(streaming.stops.set)
        streaming.once() if options.once else streaming.run()


def _beside(url: str | None, lake: Warehouse) -> Callable[[], None]:
    """Return the work to do beside the stream: export events, and record in the store how far its
    history was read."""
    from fairlead.pipeline.export import Exporter

    try:
        history = history_of(url)
    except ConfigurationError:
        if url is not None:
            raise
        typer.echo(
            "no --url: this job exports no events and does not record which history the store may"
            " delete; run `fairlead pipeline ingest` with --url for both",
            err=True,
        )
        return lambda: None
    exporter = Exporter(history, lake, SYSTEM_CLOCK, attempts="never")

    def beside() -> None:
        exporter.round()

    return beside
