"""Open the store, lake and Spark session that a command's options name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fairlead.backends.sql.history import SqlHistory
from fairlead.cli.stores import check_file
from fairlead.clock import SYSTEM_CLOCK
from fairlead.config import Settings, catalog_of, lake_of
from fairlead.connect import cluster_at, task_store
from fairlead.errors import ConfigurationError
from fairlead.pipeline.commands.options import SparkOptions, TableOptions
from fairlead.pipeline.errors import BrokenLake, java_cause
from fairlead.urls import hide_urls

if TYPE_CHECKING:
    from fairlead.pipeline.export import Exporter
    from fairlead.pipeline.export_runs import RunExporter
    from fairlead.pipeline.jobs.build import JobContext
    from fairlead.pipeline.warehouse.warehouse import Warehouse

log = logging.getLogger("fairlead.pipeline")


def url_of(url: str | None) -> str:
    """Return the URL of the store. Raise ConfigurationError when none is configured, or for a
    SQLite file that does not exist."""
    found = Settings.load(url=url).url
    check_file(found)
    return found


def lake_of_options(lake: str | None, catalog: str | None, create: bool = True) -> Warehouse:
    """Return the lake of the options, else the configured one, else that in ./lake; create it if
    missing. Raise ConfigurationError."""
    from fairlead.pipeline.warehouse.location import Location
    from fairlead.pipeline.warehouse.warehouse import Warehouse

    location = Location.of(lake_of(lake) or "lake", catalog_of(catalog))
    return Warehouse(location) if create else Warehouse.existing(location)


def existing_lake(lake: str | None, catalog: str | None) -> Warehouse:
    """Return the lake as `lake_of_options`, but create nothing. Raise ConfigurationError if there
    is no lake."""
    return lake_of_options(lake, catalog, create=False)


def history_of(url: str | None) -> Any:
    """Return the history of the store at this URL."""
    return SqlHistory(task_store(url_of(url)).database)


def exporter_of(
    url: str | None, lake: str | None, catalog: str | None
) -> tuple[Exporter | RunExporter, Warehouse]:
    """Return an exporter from the store at this URL into the lake of the options, and the lake,
    which is created if missing. Raise NotSupported for a store without a history, and
    ConfigurationError."""
    from fairlead.pipeline import export_runs

    store, warehouse = cluster_at(url_of(url)), lake_of_options(lake, catalog)
    return export_runs.exporter_of(store, warehouse, SYSTEM_CLOCK), warehouse


@contextmanager
def session_of(options: SparkOptions, warehouse: Warehouse | None = None) -> Iterator[Any]:
    """Start a Spark session, with the catalog of the lake if one is given, and stop it at the end.
    Raise ConfigurationError for a wrong setting."""
    from fairlead.pipeline.session import session

    spark = session(options.master, settings=_settings(options), warehouse=warehouse)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def job_on(options: TableOptions) -> Iterator[JobContext]:
    """Take the lease of an existing lake, and start the Spark session of a build. Raise
    ConfigurationError, LakeInUse, and BrokenLake with the cause of an error of Spark."""
    _settings(options.spark)  # complain about them first
    warehouse = existing_lake(options.lake, options.catalog)
    from fairlead.pipeline.warehouse.lease import lease

    with (
        lease(warehouse, SYSTEM_CLOCK, "build"),
        session_of(options.spark, warehouse) as spark,
        job_in(spark, warehouse) as job,
    ):
        yield job


@contextmanager
def job_in(spark: Any, warehouse: Warehouse) -> Iterator[JobContext]:
    """Return a job of this session, whose lake this process has leased. Raise BrokenLake with the
    cause of an error of Spark."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from fairlead.pipeline.jobs.build import JobContext

    try:
        yield JobContext(spark, warehouse, SYSTEM_CLOCK)
    except (PySparkException, Py4JError) as error:
        log.debug("Spark failed", exc_info=error)
        raise BrokenLake(
            f"Spark failed: {java_cause(error)}; run the command again if another job wrote to"
            " the lake meanwhile, and otherwise `fairlead pipeline check`, which names damage"
        ) from error


def _settings(options: SparkOptions) -> dict[str, str]:
    """Return the settings of Spark that the options name. Raise ConfigurationError."""
    conf = options.conf or []
    wrong = [setting for setting in conf if not all(setting.partition("="))]
    if wrong:
        raise ConfigurationError(
            f"--conf {hide_urls(wrong[0])!r}: use KEY=VALUE, as in spark.driver.memory=4g"
        )
    return dict(setting.split("=", 1) for setting in conf)
