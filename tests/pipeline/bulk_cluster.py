"""A bulk submit on a standalone cluster of a master and two workers on loopback, with speculation.

The executor of the first task that has staged part 0 is killed before it reports. The first task of
part 1 reports only after Spark's speculative copy of it has staged too. Usage: bulk_cluster.py URL
FOLDER.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pyspark.cloudpickle
from pyspark import TaskContext
from pyspark.sql import functions as F

from fairlead.pipeline.session import session
from fairlead.pipeline.source import FairleadSource
from fairlead.pipeline.source.sink import BulkWriter


class Killed(BulkWriter):
    """Kill the executor of the first attempt that has staged part 0, and delay the first attempt of
    part 1 until Spark has started a speculative copy of it."""

    folder = ""

    def write(self, iterator: Any) -> Any:
        staged = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        (Path(self.folder) / f"staged-{context.partitionId()}-{context.attemptNumber()}").touch()
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            (Path(self.folder) / "killed").touch()
            daemon = int(
                Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
            )
            os.kill(daemon, signal.SIGKILL)  # the parent of Python's daemon: the executor
            time.sleep(60)
        until = time.monotonic() + 240
        while (
            context.partitionId() == 1 and context.attemptNumber() == 0 and time.monotonic() < until
        ):
            if len(list(Path(self.folder).glob("staged-1-*"))) > 1:
                break
            time.sleep(0.1)
        return staged


class KilledSource(FairleadSource):
    def writer(self, schema: Any, overwrite: bool) -> Any:
        writer = super().writer(schema, overwrite)
        writer.__class__ = Killed
        return writer


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Run a master and two workers of one core, each with its own address, because Spark starts no
    speculative copy on the host of the first attempt."""
    with ExitStack() as running:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = str(free.getsockname()[1])
        start(running, folder, "master.Master", "127.0.0.1", "--port", port)
        url = f"spark://127.0.0.1:{port}"
        for host in ("127.0.0.2", "127.0.0.3"):
            start(
                running,
                folder,
                "worker.Worker",
                host,
                "-c",
                "1",
                "-m",
                "1g",
                "-d",
                str(folder / host),
                url,
            )
        yield url


def start(running: ExitStack, folder: Path, what: str, host: str, *arguments: str) -> None:
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-class"),
        f"org.apache.spark.deploy.{what}",
    ]
    # The web pages of master and workers use this address too.
    environment = {**os.environ, "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m"}
    log = running.enter_context((folder / f"{what}-{host}.log").open("w"))
    process = subprocess.Popen(
        [*command, "--host", host, "--webui-port", "0", *arguments],
        env=environment,
        stdout=log,
        stderr=log,
    )
    running.callback(process.wait)
    running.callback(process.terminate)


def main(url: str, folder: str) -> None:
    with cluster(Path(folder)) as master:
        submit(url, folder, master)


def submit(url: str, folder: str, master: str) -> None:
    Killed.folder = folder
    pyspark.cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = session(
        master,
        "fairlead tests on a cluster",
        {
            "spark.speculation": "true",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "1s",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        },
    )
    spark.dataSource.register(KilledSource)
    df = spark.range(0, 1000, 1, 8).select(F.col("id").alias("n"))
    options = {
        "url": url,
        "queue": "orders",
        "task": "pay",
        "submission_id": "march",
    }
    df.write.format("fairlead").options(**options).mode("append").save()
    from tests.pipeline.bulk import publish

    print(publish(url, []))
    spark.stop()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main(*sys.argv[1:])
