"""The lease of a lake: one process at a time builds, erases, restores, or removes what is old.

The machine locks a file beside a catalog that is a file; PostgreSQL locks a catalog that it has. So
the lease of a process ends with the process, however that dies. Other catalogs have no lease. No
data depends on it: a publication compares and sets, also after the loss of a connection.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from fairlead.backends.sql.sql_file import load
from fairlead.backends.sqlite.file_modes import open_beside
from fairlead.clock import Clock, to_datetime
from fairlead.pipeline.errors import LakeInUse
from fairlead.pipeline.warehouse.failures import catalog_errors
from fairlead.pipeline.warehouse.warehouse import Warehouse

try:
    import fcntl
except ImportError:  # a system without such locks, and so without leases of lakes in a folder
    fcntl = None  # type: ignore[assignment]

_STATEMENTS = {name: text(sql) for name, sql in load("lease.sql", __package__).items()}


@contextmanager
def lease(lake: Warehouse, clock: Clock, job: str, wait: bool = False) -> Iterator[None]:
    """Hold the lease of a lake during the block. Raise LakeInUse, or `wait`, while another process
    holds it. Raise StoreUnavailable.

    job: command that other processes name while they are refused.
    """
    now = to_datetime(clock.now())
    holder = f"{job} since {now:%Y-%m-%d %H:%M} UTC, pid {os.getpid()} on {socket.gethostname()}"
    file, catalog = lake.location.catalog_file, lake.catalog
    if file is not None and fcntl is not None:
        with catalog_errors(lake.location):
            descriptor = _lock(lake, file, holder, wait)
        try:
            yield
        finally:
            os.close(descriptor)
    elif isinstance(catalog, SqlCatalog) and catalog.engine.dialect.name == "postgresql":
        with catalog_errors(lake.location):
            connection = catalog.engine.connect()
            connection.execute(_STATEMENTS["begin"], {"holder": holder})
            if wait:
                connection.execute(_STATEMENTS["wait"])
            elif not connection.scalar(_STATEMENTS["take"]):
                found = connection.scalar(_STATEMENTS["holder"])
                connection.close()
                raise _in_use(lake, found)
        try:
            yield
        finally:
            with suppress(SQLAlchemyError):  # the connection was cut
                connection.close()
    else:
        yield


def _lock(lake: Warehouse, catalog: Path, holder: str, wait: bool) -> int:
    """Lock the file beside a catalog that names the holder, and return its descriptor."""
    descriptor = open_beside(catalog, f"{catalog}-lease")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        found = os.pread(descriptor, 200, 0).decode(errors="replace")
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise _in_use(lake, found) from None
        raise
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, holder.encode(), 0)
    return descriptor


def _in_use(lake: Warehouse, holder: str | None) -> LakeInUse:
    # The holder may have ended meanwhile.
    return LakeInUse(
        f"another process uses lake {lake.shown}: {holder or 'it has just ended'}; run the command"
        " again when it has ended"
    )
