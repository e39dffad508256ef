"""Metadata whose files were moved or copied to another folder: metadata and lists of files name the
first folder, and are written again with the present one."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, write_manifest, write_manifest_list
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from fairlead.pipeline.warehouse.data_files import entries_of, lists_of
from fairlead.pipeline.warehouse.sweeping import is_same_folder, path_of

_PATH, _LENGTH, _FILE_PATH = 0, 1, 1
"""Positions of the path and length of a list of files, and of the path of a file in it."""


class MovedMetadata(NamedTuple):
    """Metadata of a table in a folder, whose files may name another folder."""

    io: FileIO
    root: str
    """URL of the folder."""
    url: str
    """URL of the metadata."""
    metadata: TableMetadata

    @property
    def is_moved(self) -> bool:
        """Whether the files name another folder."""
        return not is_same_folder(self.metadata.location, self.root)

    def has_original(self) -> bool:
        """Return whether the other folder still has this metadata."""
        original = f"{self.metadata.location}/metadata/{self.url.rpartition('/')[2]}"
        return self.is_moved and self.io.new_input(original).exists()

    def before(self) -> list[str]:
        """Return the paths of the metadata that this follows."""
        return [path_of(entry.metadata_file) for entry in self.metadata.metadata_log]

    def files(self) -> set[str]:
        """Return the paths of the listed data files in this folder. Raise BrokenLake if a list is
        missing or damaged."""
        lists = {each[_PATH]: each for s in self.metadata.snapshots for each in self._lists(s)}
        entries = [entry for each in lists.values() for entry in entries_of(each, self.io)]
        return {path_of(self._here(entry.data_file.file_path)) for entry in entries}

    def write(self) -> str:
        """Write lists of files and metadata that name this folder; return the URL of the
        metadata."""
        folder, made = f"{self.root}/metadata", dict[str, ManifestFile]()
        snapshots = []
        for snapshot in self.metadata.snapshots:
            lists = self._lists(snapshot)
            made |= {
                each[_PATH]: self._write_list(each) for each in lists if each[_PATH] not in made
            }
            url = f"{folder}/snap-{snapshot.snapshot_id}-{uuid.uuid4()}.avro"
            with write_manifest_list(
                self.metadata.format_version,
                self.io.new_output(url),
                snapshot.snapshot_id,
                snapshot.parent_snapshot_id,
                snapshot.sequence_number,
                "deflate",
            ) as writer:
                writer.add_manifests([made[each[_PATH]] for each in lists])
            snapshots.append(snapshot.model_copy(update={"manifest_list": url}))
        news = {"location": self.root, "snapshots": snapshots, "metadata_log": []}
        news |= {"statistics": [], "partition_statistics": []}
        number = int(self.url.rpartition("/")[2].partition("-")[0]) + 1
        url = f"{folder}/{number:05d}-{uuid.uuid4()}.metadata.json"
        metadata = self.metadata.model_copy(update=news)
        ToOutputFile.table_metadata(metadata, self.io.new_output(url))
        return url

    def _here(self, url: str) -> str:
        """Return the URL of a file in this folder."""
        return self.root + path_of(url).removeprefix(path_of(self.metadata.location))

    def _lists(self, snapshot: Snapshot) -> list[ManifestFile]:
        """Return the lists of files of a snapshot, with their paths in this folder."""
        here = snapshot.model_copy(update={"manifest_list": self._here(snapshot.manifest_list)})
        return [
            _with(each, self._here(each[_PATH]), each[_LENGTH]) for each in lists_of(here, self.io)
        ]

    def _write_list(self, manifest: ManifestFile) -> ManifestFile:
        url = f"{self.root}/metadata/{uuid.uuid4()}-m0.avro"
        with write_manifest(
            self.metadata.format_version,
            self.metadata.specs()[manifest.partition_spec_id],
            self.metadata.schema(),
            self.io.new_output(url),
            manifest.added_snapshot_id or 0,
            "deflate",
        ) as writer:
            for entry in entries_of(manifest, self.io, discard_deleted=False):
                entry.data_file[_FILE_PATH] = self._here(entry.data_file.file_path)
                writer.add_entry(entry)
        return _with(manifest, url, writer.to_manifest_file().manifest_length)


def _with(manifest: ManifestFile, path: str, length: int) -> ManifestFile:
    """Return a list of files with another path and length. The library keeps and shares the lists
    that it has read."""
    rest = [manifest[position] for position in range(2, len(manifest))]
    return ManifestFile(path, length, *rest)
