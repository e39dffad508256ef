"""The location of a lake and its catalog, with the settings by which PyIceberg and Spark reach the
same tables. Pure.

Keys of an object store come from the usual environment variables of AWS, never from settings here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote

from fairlead.errors import ConfigurationError
from fairlead.pipeline.schema import Table
from fairlead.urls import hosts_of, parameters_of, shown_url, split_url

NAMESPACE = "fairlead"
"""Namespace of all tables."""

CATALOG = "fairlead"
"""Name of the catalog. A SQL catalog keeps this name in its rows, so PyIceberg and Spark must use
the same one."""

ICEBERG, SQLITE_JDBC, POSTGRES_JDBC = "1.12.0", "3.54.1.0", "42.7.14"
"""Versions of the jars for Spark."""

_RUNTIME = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}"
_AWS = f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}"
_DRIVERS = {
    "sqlite": f"org.xerial:sqlite-jdbc:{SQLITE_JDBC}",
    "postgresql": f"org.postgresql:postgresql:{POSTGRES_JDBC}",
}
_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_FILE_IO = "fairlead.pipeline.warehouse.durable_io.DurableFileIO"
_BUSY_SECONDS = 60
"""Seconds for which a commit waits for another writer of a SQLite catalog."""

_KINDS = ("sqlite", "postgresql", "rest+https", "rest+http", "glue")
_OBJECT_STORES = ("s3",)
_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REFUSED = frozenset("?#%*\n\r")
"""Signs that no folder of a lake may have: engines differ on them."""


@dataclass(frozen=True)
class Location:
    """Location of a lake."""

    lake: str
    """URL of the lake, without a slash at the end: file:///folder or s3://bucket/prefix."""
    catalog: str = field(repr=False)
    """URL of the catalog; it may hold a password."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables with the region and endpoint of the object store."""

    @classmethod
    def of(
        cls,
        lake: str | Path,
        catalog: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Location:
        """Return the location of a lake: a folder, or the URL of an object store. Default of the
        catalog: the file `catalog.db` in the folder.

        Raise ConfigurationError for a URL of another kind, and for an object store without a
        catalog.
        """
        url = _lake_url(str(lake))
        if catalog is None:
            if not url.startswith("file://"):
                raise ConfigurationError(
                    f"lake {shown_url(url)}: an object store needs a catalog: set --catalog or"
                    " FAIRLEAD_CATALOG, as in postgresql://host/database"
                )
            catalog = f"sqlite:///{url.removeprefix('file://')}/catalog.db"
        variables = os.environ if environment is None else environment
        found = cls(
            url, catalog, {name: variables[name] for name in _VARIABLES if name in variables}
        )
        found._check()
        return found

    @property
    def folder(self) -> Path | None:
        """Folder of the lake; None on an object store."""
        if not self.lake.startswith("file://"):
            return None
        return Path(self.lake.removeprefix("file://"))

    @property
    def catalog_file(self) -> Path | None:
        """File of a SQLite catalog; None for a catalog of another kind."""
        if self._kind != "sqlite":
            return None
        return Path(self._parts.path.removeprefix("/"))

    @property
    def shown(self) -> str:
        """Lake for people, without secrets."""
        return str(self.folder) if self.folder is not None else shown_url(self.lake)

    @property
    def tables(self) -> str:
        """URL of the files of all tables."""
        return f"{self.lake}/{NAMESPACE}"

    def url_of(self, table: Table) -> str:
        """Return the URL of the table's files."""
        return f"{self.tables}/{flat_name(table)}"

    def pyiceberg(self) -> dict[str, str]:
        """Return the properties of a PyIceberg catalog, which must have the name `CATALOG`."""
        found = {"warehouse": self.lake, "py-io-impl": _FILE_IO}
        parts = self._parts
        if self._kind == "sqlite":
            path = parts.path.removeprefix("/")
            found |= {"type": "sql", "uri": f"sqlite:///{path}?timeout={_BUSY_SECONDS}"}
        elif self._kind == "postgresql":
            uri = parts._replace(scheme="postgresql+psycopg").geturl()
            # A server may have closed a pooled connection since the last commit.
            found |= {"type": "sql", "uri": uri, "pool_pre_ping": "true"}
        else:
            found |= self._service
        if self._kind == "glue":
            found |= self._region("client.region")
        if self.folder is None:
            found |= self._region("s3.region") | self._endpoint()
        return found

    def spark(self) -> dict[str, str]:
        """Return the settings of a Spark session that has this catalog under the name `CATALOG`,
        and fetches the jars of Iceberg and of the database's driver from Maven."""
        at = f"spark.sql.catalog.{CATALOG}"
        found = {
            "spark.sql.extensions": _EXTENSIONS,
            at: "org.apache.iceberg.spark.SparkCatalog",
            f"{at}.warehouse": self.lake,
            # A cached table would hide the commits of other processes.
            f"{at}.cache-enabled": "false",
        }
        packages = [_RUNTIME]
        if self._kind in _DRIVERS:
            packages.append(_DRIVERS[self._kind])
        more = self._jdbc() if self._kind in _DRIVERS else self._service
        if self.folder is None:
            more |= {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
            more |= self._region("client.region") | self._endpoint()
            if "s3.endpoint" in more:
                more["s3.path-style-access"] = "true"
        if self.folder is None or self._kind == "glue":
            packages.append(_AWS)
        found |= {f"{at}.{name}": value for name, value in more.items()}
        return found | {"spark.jars.packages": ",".join(packages)}

    @property
    def _parts(self) -> SplitResult:
        return split_url(self.catalog)

    @property
    def _kind(self) -> str:
        return self._parts.scheme

    @property
    def _service(self) -> dict[str, str]:
        """Type and address of a catalog that is no SQL database, for both engines."""
        if self._kind == "glue":
            return {"type": "glue"}
        return {"type": "rest", "uri": self.catalog.removeprefix("rest+")}

    def _jdbc(self) -> dict[str, str]:
        """Return the settings of Spark for a SQL catalog, in the layout of PyIceberg (V1)."""
        parts, found = self._parts, {"type": "jdbc", "jdbc.schema-version": "V1"}
        if self._kind == "sqlite":
            return found | {
                "uri": f"jdbc:sqlite:{self.catalog_file}",
                "jdbc.busy_timeout": str(_BUSY_SECONDS * 1000),
            }
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        query = f"?{parts.query}" if parts.query else ""
        found["uri"] = f"jdbc:postgresql://{hosts}{parts.path}{query}"
        if user:
            found["jdbc.user"] = unquote(user)
        if password:
            found["jdbc.password"] = unquote(password)
        return found

    def _region(self, name: str) -> dict[str, str]:
        region = self.environment.get("AWS_REGION") or self.environment.get("AWS_DEFAULT_REGION")
        return {name: region} if region else {}

    def _endpoint(self) -> dict[str, str]:
        endpoint = self.environment.get("AWS_ENDPOINT_URL_S3") or self.environment.get(
            "AWS_ENDPOINT_URL"
        )
        return {"s3.endpoint": endpoint} if endpoint else {}

    def _check(self) -> None:
        """Raise ConfigurationError for a catalog that cannot be used."""
        where = f"catalog {shown_url(self.catalog)}"
        parts = self._parts
        if self._kind not in _KINDS or "://" not in self.catalog:
            raise ConfigurationError(
                f"{where}: give a URL that begins with {', '.join(f'{k}://' for k in _KINDS)}"
            )
        if self._kind == "sqlite":
            if parts.netloc or not parts.path.startswith("//") or parts.query:
                raise ConfigurationError(
                    f"{where}: give the absolute path of a file after three slashes, as in"
                    " sqlite:////folder/catalog.db"
                )
            if self.folder is None:
                raise ConfigurationError(
                    f"{where}: the lake {self.shown} is reached by other machines, and this"
                    " catalog is not: give a catalog on a server, as in postgresql://host/database"
                )
        elif self._kind == "postgresql":
            hosts_of(where, parts.netloc.rpartition("@")[2], 5432)
            if len(parts.path) < 2:
                raise ConfigurationError(f"{where}: name a database after the host")
            parameters_of(where, parts, _POSTGRES)
        elif self._kind != "glue" and not parts.netloc:
            raise ConfigurationError(f"{where}: name a host")


_POSTGRES = ("sslmode", "sslrootcert", "sslcert", "sslkey")
"""Parameters that both libpq and the driver of Java know."""


def flat_name(table: Table) -> str:
    """Return the name of the table in its namespace, flat because not every catalog nests
    namespaces."""
    return table.name.replace(".", "_")


def _lake_url(lake: str) -> str:
    """Return the URL of a lake. Raise ConfigurationError for a URL of another kind, and for a path
    that engines would read differently."""
    if "://" not in lake or lake.startswith("file://"):
        folder = Path(lake.removeprefix("file://")).absolute()
        if not _REFUSED.isdisjoint(str(folder)):
            raise ConfigurationError(
                f"lake {folder}: give a folder without ?, #, %, * and line breaks"
            )
        return f"file://{folder}".rstrip("/")
    parts = split_url(lake)
    if parts.scheme not in _OBJECT_STORES or not parts.netloc or parts.query:
        raise ConfigurationError(
            f"lake {shown_url(lake)}: give a folder, or the URL of an object store, as in"
            " s3://bucket/prefix"
        )
    return lake.rstrip("/")
