"""A Spark cluster for tests: a standalone master, and workers that share no folder with it. The
jars are those of PySpark."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from services import MissingProgram
from services.java import java_program
from services.server import Server


class _Daemon(Server):
    """A process of the cluster."""

    def __init__(self) -> None:
        """Start nothing yet. Raise MissingProgram."""
        super().__init__()
        self._java = java_program(self.title)
        found = importlib.util.find_spec("pyspark")
        if found is None or found.origin is None:
            raise MissingProgram(f"PySpark, which has the {self.title}, is missing")
        self._home = Path(found.origin).parent

    def _prepare(self) -> None:
        pass

    def _run(self, program: str, *arguments: str) -> list[str]:
        java = [self._java, "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{self._home}/jars/*"]
        return [*java, f"org.apache.spark.deploy.{program}", "--host", "127.0.0.1", *arguments]

    def _as_user(self) -> dict[str, Any]:
        # The name of a jar tells the version of Scala, which an executor's command needs.
        core = next((self._home / "jars").glob("spark-core_*.jar")).name
        spark = {
            "SPARK_HOME": str(self._home),
            "SPARK_SCALA_VERSION": core.removeprefix("spark-core_").partition("-")[0],
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        return {"env": {**os.environ, **spark}}


class SparkMaster(_Daemon):
    """A standalone master."""

    name = "spark-master"
    title = "master of Spark"

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def _command(self) -> list[str]:
        return self._run("master.Master", "--port", str(self._port), "--webui-port", "0")

    def _is_ready(self) -> bool:
        return "I have been elected leader" in self.log


class SparkWorker(_Daemon):
    """A worker of a master, with one core; its executors have its variables, such as those of
    AWS."""

    name = "spark-worker"
    title = "worker of Spark"

    def __init__(self, master: SparkMaster) -> None:
        """Start nothing yet. Raise MissingProgram."""
        super().__init__()
        self._master = master

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def _command(self) -> list[str]:
        options = ["--port", str(self._port), "--webui-port", "0", "--cores", "1"]
        options += ["--memory", "2g", "--work-dir", str(self.folder / "work")]
        return self._run("worker.Worker", *options, self._master.url)

    def _is_ready(self) -> bool:
        return "Successfully registered with master" in self.log
