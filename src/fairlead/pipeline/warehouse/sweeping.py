"""Snapshots to expire, and files that no snapshot lists.

The library removes snapshots from the metadata, and never their files.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

from pyarrow.fs import FileSelector, FileType
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.warehouse.data_files import entries_of, lists_of

_METADATA = ".metadata.json"


def expired(metadata: TableMetadata, before_ms: int, replaced_before_ms: int) -> list[int]:
    """Return the snapshots to expire: those that were made and followed by another one before the
    one instant, whose files were not replaced since the other, and that no branch and no tag
    has."""
    kept = {ref.snapshot_id for ref in metadata.refs.values()}
    for snapshot in metadata.snapshots:
        removed = snapshot.summary is not None and int(snapshot.summary["deleted-data-files"] or 0)
        followed_before_ms = min(before_ms, replaced_before_ms) if removed else before_ms
        if snapshot.timestamp_ms >= followed_before_ms and snapshot.parent_snapshot_id is not None:
            kept.add(snapshot.parent_snapshot_id)
    return [
        snapshot.snapshot_id
        for snapshot in metadata.snapshots
        if snapshot.timestamp_ms < before_ms and snapshot.snapshot_id not in kept
    ]


def reachable(stored: IcebergTable) -> set[str]:
    """Return the paths of the table's files that its metadata leads to, as `path_of` names
    them."""
    metadata = stored.metadata
    found = {stored.metadata_location}
    found |= {entry.metadata_file for entry in metadata.metadata_log}
    found |= {each.statistics_path for each in metadata.statistics}
    found |= {each.statistics_path for each in metadata.partition_statistics}
    manifests: dict[str, ManifestFile] = {}
    for snapshot in metadata.snapshots:
        found.add(snapshot.manifest_list)
        manifests |= {each.manifest_path: each for each in lists_of(snapshot, stored.io)}
    for path, manifest in manifests.items():
        found.add(path)
        for entry in entries_of(manifest, stored.io):
            found.add(entry.data_file.file_path)
    return set(map(path_of, found))


def superseded(stored: IcebergTable) -> list[str]:
    """Return earlier metadata of the table that its log has dropped: commits leave such a file if
    their process dies before it removes the file. The table still has the newest snapshot of
    each; without that snapshot, nobody can distinguish the file from a lost history."""
    known = {each.snapshot_id for each in stored.metadata.snapshots}
    listed = {path_of(entry.metadata_file) for entry in stored.metadata.metadata_log}
    version = _version(stored.metadata_location)
    earlier = [
        url
        for url in files_in(stored.io, f"{stored.location()}/metadata")
        if _version(url) < version and path_of(url) not in listed
    ]
    found = metadata_of(stored.io, earlier)
    return [url for url, metadata in found.items() if metadata.current_snapshot_id in known]


def _version(url: str) -> int:
    """Return the number in the name of a metadata file, which each commit increases by one; -1 for
    another file."""
    digits = url.rpartition("/")[2].partition("-")[0]
    return int(digits) if url.endswith(_METADATA) and digits.isdecimal() else -1


def path_of(url: str) -> str:
    """Return a file without its scheme: Spark writes file:/folder and s3a://bucket/file, where
    others write file:///folder and s3://bucket/file."""
    return PyArrowFileIO.parse_location(url)[2]


def is_same_folder(one: str, other: str) -> bool:
    """Return whether two URLs name the same folder, also by a link."""
    a, b = path_of(one), path_of(other)
    return a == b or (os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b))


def unreachable(stored: IcebergTable, before: int) -> set[str]:
    """Return the files in the table's folder that its metadata does not lead to, written before
    this instant (microseconds, by the clock of the files). Raise BrokenLake if the folder has
    metadata of a history that the catalog has lost, because all files of that history are such
    files."""
    found = files_in(stored.io, stored.location())
    if not any(written < before for written in found.values()):
        return set()
    # Read the metadata only now, so that files that were committed meanwhile are known.
    listed = reachable(stored.refresh())
    unknown = {url for url in found if path_of(url) not in listed}
    if lost := _lost_history(stored, unknown):
        raise BrokenLake(
            f"{lost}: the catalog of the lake does not know this history of the table, whose files"
            " stay; run `fairlead pipeline restore`, or move the file away to give its rows up"
        )
    return {url for url in unknown if found[url] < before}


def _lost_history(stored: IcebergTable, unknown: Collection[str]) -> str | None:
    """Return a file with metadata of another table, or with metadata that follows some other of
    these unknown files. A commit that was refused or cut off leaves neither."""
    paths = set(map(path_of, unknown))
    for url, metadata in sorted(metadata_of(stored.io, unknown).items()):
        is_other = metadata.table_uuid != stored.metadata.table_uuid
        before = [path_of(entry.metadata_file) for entry in metadata.metadata_log[-1:]]
        if metadata.snapshots and (is_other or not paths.isdisjoint(before)):
            return url
    return None


def files_in(io: FileIO, root: str) -> dict[str, int]:
    """Return the URLs of the files in a folder, which may be missing, with the instant at which
    each was written, in microseconds."""
    assert isinstance(io, PyArrowFileIO)
    scheme, netloc, folder = io.parse_location(root)
    listed = io.fs_by_scheme(scheme, netloc).get_file_info(
        FileSelector(folder, allow_not_found=True, recursive=True)
    )
    return {
        root + info.path.removeprefix(folder): info.mtime_ns // 1000
        for info in listed
        if info.type == FileType.File
    }


def metadata_of(io: FileIO, urls: Collection[str]) -> dict[str, TableMetadata]:
    """Return the readable metadata among these files, by URL."""
    found = {}
    for url in urls:
        if url.endswith(_METADATA):
            with suppress(ValidationError, ValueError, FileNotFoundError):
                found[url] = FromInputFile.table_metadata(io.new_input(url))
    return found


def has_history(io: FileIO, root: str) -> bool:
    """Return whether a folder has metadata of a table with a commit. A creation that was cut off
    leaves metadata without one."""
    return any(
        url.endswith(_METADATA) and not url.rpartition("/")[2].startswith("00000-")
        for url in files_in(io, root)
    )


def remove(io: FileIO, path: str) -> bool:
    """Remove a file; return False if it is gone already."""
    try:
        io.delete(path)
    except FileNotFoundError:
        return False
    return True
