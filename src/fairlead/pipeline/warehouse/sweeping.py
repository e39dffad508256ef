"""Snapshots to forget, and files that no snapshot lists.

The library removes snapshots from the metadata, and never their files.
"""

from __future__ import annotations

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata


def expired(metadata: TableMetadata, before_ms: int, replaced_before_ms: int) -> list[int]:
    """Return the snapshots to forget: those that were made and followed by another one before the
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
        manifests |= {each.manifest_path: each for each in snapshot.manifests(stored.io)}
    for path, manifest in manifests.items():
        found.add(path)
        for entry in manifest.fetch_manifest_entry(stored.io, discard_deleted=True):
            found.add(entry.data_file.file_path)
    return set(map(path_of, found))


def path_of(url: str) -> str:
    """Return a file without its scheme: Spark writes file:/folder and s3a://bucket/file, where
    others write file:///folder and s3://bucket/file."""
    return PyArrowFileIO.parse_location(url)[2]


def unreachable(stored: IcebergTable, before: int) -> set[str]:
    """Return the files in the table's folder that its metadata does not lead to, written before
    this instant (microseconds, by the clock of the files)."""
    io = stored.io
    assert isinstance(io, PyArrowFileIO)
    root = stored.location()
    scheme, netloc, folder = io.parse_location(root)
    listed = io.fs_by_scheme(scheme, netloc).get_file_info(
        FileSelector(folder, allow_not_found=True, recursive=True)
    )
    old = {
        root + info.path.removeprefix(folder)
        for info in listed
        if info.type == FileType.File and info.mtime_ns // 1000 < before
    }
    if not old:
        return set()
    # Read the metadata only now, so that files that were committed meanwhile are known.
    listed = reachable(stored)
    return {url for url in old if path_of(url) not in listed}


def remove(io: FileIO, path: str) -> bool:
    """Remove a file; return False if it is gone already."""
    try:
        io.delete(path)
    except FileNotFoundError:
        return False
    return True
