"""The engine that reads the lake: DuckDB in memory, with bounded memory, closed to everything but
the lake."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigurationError
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.extra import need
from fairlead.pipeline.schema import Column, Table

if TYPE_CHECKING:
    import duckdb

    from fairlead.pipeline.reading.object_files import ObjectFiles
    from fairlead.pipeline.reading.snapshots import TableAt
    from fairlead.pipeline.warehouse.warehouse import Warehouse

MEMORY = "1GB"
"""Memory of a connection unless given; a query that needs more is refused."""

_PARAMETER = re.compile(r"\$(\w+)")
_WILD = re.compile(r"[*?\[]")
_LOCAL = re.compile(r"^file:/*")
_MISSING = re.compile(r'"([^"]+\.parquet)/\*\*')

_CURE = "try again; `fairlead pipeline check` names a file that is damaged, and the cure"

_FUNCTIONS = """
CREATE MACRO tenant_of(key) AS
    CASE WHEN strpos(substr(key, 2), '/') = 0 THEN key
         ELSE substr(key, 1, strpos(substr(key, 2), '/')) END;
CREATE MACRO unix_micros(instant) AS epoch_us(instant);
CREATE MACRO xxhash64(a) AS hash(a), (a, b) AS hash(a, b), (a, b, c) AS hash(a, b, c),
    (a, b, c, d) AS hash(a, b, c, d), (a, b, c, d, e) AS hash(a, b, c, d, e),
    (a, b, c, d, e, f) AS hash(a, b, c, d, e, f);
"""
"""`fairlead.model.tenant_of` in SQL, and functions of Spark for statements that both engines run;
the hashes are others than in Spark."""


def start(memory: str = MEMORY, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Return a connection that spills nothing to disk, loads no extension and shows instants in
    UTC. Raise ConfigurationError when DuckDB is missing or the memory is no size."""
    need("duckdb")
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory,
        "temp_directory": "",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    if threads is not None:
        settings["threads"] = threads
    try:
        connection = duckdb.connect(":memory:", config=settings)
    except duckdb.Error as error:
        raise ConfigurationError(f"memory {memory!r}: {first_line(error)}") from None
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute(_FUNCTIONS)
    return connection


def opened(
    warehouse: Warehouse,
    tables: Mapping[Table, TableAt],
    memory: str = MEMORY,
    threads: int | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return a connection that reaches the files of these tables and nothing else. Raise
    ConfigurationError as `start` does."""
    connection = start(memory, threads)
    reach(connection, warehouse, tables)
    close_outside(connection, [name for at in tables.values() for name in file_names(at)])
    return connection


def reach(
    connection: duckdb.DuckDBPyConnection,
    warehouse: Warehouse,
    tables: Mapping[Table, TableAt] | None = None,
) -> ObjectFiles | None:
    """Let the connection open the files of these tables in an object store, and those that the
    returned object is given later; return None for a lake in a folder."""
    if warehouse.location.folder is not None:
        return None
    # The extension httpfs of DuckDB has settings and secrets of its own, and is not in its wheel.
    from fairlead.pipeline.reading.object_files import ObjectFiles

    files = ObjectFiles()
    for table, at in (tables or {}).items():
        files.replace(table.name, at)
    connection.register_filesystem(files)
    return files


def file_names(at: TableAt | None, parts: Collection[str] | None = None) -> list[str]:
    """Return the files of a table in these partitions, all by default, as DuckDB names them: paths
    in a folder, URLs elsewhere."""
    files, wanted = [] if at is None else at.files, None if parts is None else set(parts)
    return [file_name(file.path) for file in files if wanted is None or file.part in wanted]


def file_name(url: str) -> str:
    """Return the file of a URL as DuckDB names it."""
    return _LOCAL.sub("/", url)


def close_outside(
    connection: duckdb.DuckDBPyConnection, files: Iterable[str] = (), folder: str | None = None
) -> None:
    """Leave the connection these files and the files in this folder, and no other file, server or
    setting."""
    # DuckDB compares both the pattern of a file and the file that the pattern finds.
    paths = [] if folder is None else [folder]
    for setting, allowed in (("allowed_paths", list(files)), ("allowed_directories", paths)):
        texts = dict.fromkeys([*allowed, *patterns(allowed)])
        connection.execute(f"SET {setting} = {_literal(texts)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def reader_of(table: Table, files: str) -> str:
    """Return the table function that reads these files (an expression of SQL) as rows of the table.

    A column that is newer than a file is null there. No file is opened before a query needs it.
    """
    columns = ", ".join(
        f"'{column.name}': {{'name': '{column.name}', 'type': '{type_of(column)}',"
        " 'default_value': NULL}"
        for column in table.columns
    )
    return f"read_parquet({files}, schema = MAP {{{columns}}}, hive_partitioning = false)"


def type_of(column: Column) -> str:
    """Return the type of a column in DuckDB."""
    return "TIMESTAMPTZ" if column.type == "timestamp" else column.type


def rows_of(table: Table, files: Collection[str]) -> str:
    """Return the rows of these files as a table of SQL, with the columns of the table."""
    if files:
        return reader_of(table, list_of(files))
    columns = ", ".join(
        f"CAST(NULL AS {type_of(column)}) AS {quoted_name(column.name)}" for column in table.columns
    )
    return f"(SELECT {columns} WHERE false)"


def rows_between(table: Table, rows: str) -> str:
    """Return those of the rows of a table that lie between the parameters $since and $until, both
    in microseconds since the epoch."""
    return (
        f"(FROM {rows} WHERE {table.instant} >= make_timestamptz($since)"
        f" AND {table.instant} < make_timestamptz($until))"
    )


def patterns(files: Iterable[str]) -> list[str]:
    """Return the files as DuckDB takes them: as patterns, which match these files only."""
    return [_WILD.sub(lambda found: f"[{found[0]}]", file) for file in files]


def list_of(files: Iterable[str]) -> str:
    """Return a list of files as a literal of SQL."""
    return _literal(patterns(files))


def _literal(texts: Iterable[str]) -> str:
    quoted = ", ".join("'" + text.replace("'", "''") + "'" for text in texts)
    return f"[{quoted}]"


def quoted_name(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def as_our_errors(memory: str, of_person: bool = False) -> Iterator[None]:
    """Turn errors of DuckDB in a query into ConfigurationError, if it needs more memory, and
    BrokenLake otherwise. An error in the query of a person that names no file is a
    ConfigurationError, too."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException:
        raise ConfigurationError(
            f"the query needs more memory than {memory}: read a shorter time or fewer columns, or"
            " give it more memory"
        ) from None
    except duckdb.Error as error:
        if of_person and not _names_a_file(error):
            cause = str(error).partition("\n\nLINE ")[0]  # the line repeats the text
            wrong = duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException
            cure = "" if isinstance(error, wrong) else f"; if the query is right, {_CURE}"
            raise ConfigurationError(f"the query failed: {cause}{cure}") from None
        # DuckDB takes a missing file for a folder, which it may not list.
        missing = _MISSING.search(str(error))
        cause = f"{missing[1]} is missing" if missing else first_line(error)
        raise BrokenLake(
            f"a file of the lake cannot be read, or was replaced meanwhile: {cause}; {_CURE}"
        ) from error


def _names_a_file(error: duckdb.Error) -> bool:
    import duckdb

    if isinstance(error, (duckdb.IOException, duckdb.SerializationException)):
        return True
    if isinstance(error, duckdb.PermissionException):
        return _MISSING.search(str(error)) is not None
    return ".parquet" in str(error)


def parameters_of(text: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the values that a statement names, as DuckDB needs them."""
    return {name: value for name, value in values.items() if name in _PARAMETER.findall(text)}


def first_line(error: Exception) -> str:
    """Return the first line of an error, or its class if it has no text."""
    return (str(error) or type(error).__name__).splitlines()[0]
