"""`restore`: registers the tables of a lake whose catalog or metadata was lost, or whose files were
moved or copied, and drops files that cannot be read."""

from __future__ import annotations

from contextlib import suppress

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError
from pyiceberg.io import load_file_io

from fairlead.clock import to_datetime
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.ledger import LEDGER
from fairlead.pipeline.models import TABLES
from fairlead.pipeline.reading.snapshots import MAKERS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import BUILDS
from fairlead.pipeline.warehouse.failures import catalog_errors
from fairlead.pipeline.warehouse.location import NAMESPACE, flat_name
from fairlead.pipeline.warehouse.moving import MovedMetadata
from fairlead.pipeline.warehouse.sweeping import files_in, is_same_folder, metadata_of, path_of
from fairlead.pipeline.warehouse.table import IDENTITY
from fairlead.pipeline.warehouse.warehouse import Warehouse


def restore(lake: Warehouse) -> dict[str, str]:
    """Register the newest metadata in the folder of each table that the catalog does not have, or
    has with lost, older or moved metadata. Return the instant of its newest commit by table. Prefer
    metadata of which no file is missing.

    No other process may write to the lake meanwhile. Raise BrokenLake, and register nothing, if no
    metadata of a table can be read.
    """
    with catalog_errors(lake.location):
        lost = {table: _lost(lake, table) for table in (*TABLES, BUILDS, LEDGER)}
        found = {table: newest for table, newest in lost.items() if newest is not None}
        identities = [each.metadata.properties.get(IDENTITY) for each in found.values()]
        is_copy = any(each.has_original() for each in found.values())
        if found:
            lake.restore(next(filter(None, identities), None), is_copy)
        for table, newest in found.items():
            name = NAMESPACE, flat_name(table)
            url = newest.write() if newest.is_moved else newest.url
            with suppress(NoSuchTableError):
                lake.catalog.drop_table(name)
            lake.catalog.register_table(name, url)
    return {
        table.name: to_datetime(newest.metadata.last_updated_ms * 1000).isoformat()
        for table, newest in found.items()
    }


def drop_damaged(lake: Warehouse) -> dict[str, int]:
    """Remove the files that are missing or damaged from the tables that no build makes again.
    Return the number of rows that were lost, by table. Raise BrokenLake, StoreUnavailable."""
    found = {table: lake.table(table).drop_damaged() for table in (*MAKERS, BUILDS, LEDGER)}
    return {table.name: rows for table, rows in found.items() if rows}


def _lost(lake: Warehouse, table: Table) -> MovedMetadata | None:
    """Return the metadata to register; None if the catalog is right, or there is no table."""
    root = lake.location.url_of(table)
    io = load_file_io(lake.catalog.properties, root)
    files = files_in(io, root)
    found = [MovedMetadata(io, root, *each) for each in metadata_of(io, files).items()]
    paths, is_whole = set(map(path_of, files)), dict[str, bool]()
    for each in found:
        with suppress(BrokenLake):  # a list of files that cannot be read
            is_whole[each.url] = each.files() <= paths
    if found and not is_whole:
        raise BrokenLake(
            f"{table.name}: no metadata in {root} can be read; restore the files of the lake from a"
            " copy"
        )
    known = _known(lake, table, root)
    left = [each for each in found if each.url in is_whole]
    if known in [path_of(url) for url in is_whole]:
        # Metadata that does not follow the catalog's was refused.
        left = [each for each in left if is_whole[each.url] and known in each.before()]
    newest = lambda each: (is_whole[each.url], each.metadata.last_updated_ms)  # noqa: E731
    return max(left, key=newest, default=None)


def _known(lake: Warehouse, table: Table, root: str) -> str | None:
    """Return the path of the metadata that the catalog names, if it is in this folder and can be
    read."""
    try:
        stored = lake.catalog.load_table((NAMESPACE, flat_name(table)))
    except (NoSuchTableError, NoSuchNamespaceError, FileNotFoundError, ValidationError, ValueError):
        return None  # the metadata is lost or damaged
    is_here = is_same_folder(stored.location(), root)
    return path_of(stored.metadata_location) if is_here else None
