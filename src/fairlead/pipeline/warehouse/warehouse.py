"""A lake of Iceberg tables: its catalog, its tables, and its identity."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, RESTError
from pyiceberg.io import load_file_io
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from fairlead.data_folder import check_folder
from fairlead.errors import ConfigurationError
from fairlead.pipeline import durable
from fairlead.pipeline.errors import RESTORE, BrokenLake
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.failures import catalog_errors, cause_of
from fairlead.pipeline.warehouse.location import CATALOG, NAMESPACE, Location
from fairlead.pipeline.warehouse.sweeping import has_history
from fairlead.pipeline.warehouse.table import IDENTITY, WarehouseTable

_READER = "fairlead.reader"
"""Property of a copy of a lake: its name as a reader of stores, which is not its identity."""


class Warehouse:
    """A lake in a folder or on an object store, created if missing."""

    def __init__(self, location: Location) -> None:
        """Raise ConfigurationError for a folder or catalog that cannot be used."""
        self.location = location
        self._prepare_folder()

    @classmethod
    def existing(cls, location: Location) -> Warehouse:
        """Return the lake at this location, and create nothing. Raise ConfigurationError if there
        is none, StoreUnavailable."""
        missing = ConfigurationError(
            f"there is no lake at {location.shown}; `fairlead pipeline ingest` makes one, and"
            " --lake or FAIRLEAD_LAKE names another one"
        )
        file = location.catalog_file
        with _folder_errors(location):
            if file is not None and not file.exists():
                _refuse_lost_tables(location)
                raise missing
        found = cls(location)
        with catalog_errors(location):
            try:
                found.catalog.load_namespace_properties(NAMESPACE)
            except NoSuchNamespaceError:
                _refuse_lost_tables(location)
                raise missing from None
        return found

    def table(self, table: Table) -> WarehouseTable:
        """Return a table of the lake."""
        return WarehouseTable(self.catalog, self.location, table, lambda: self.identity)

    @cached_property
    def catalog(self) -> Catalog:
        """Catalog of the lake. Raises ConfigurationError if it cannot be opened."""
        properties = self.location.pyiceberg()
        try:
            try:
                found = load_catalog(CATALOG, **properties)
            except SQLAlchemyError:
                # Two processes that create a catalog at once: the second finds its tables now.
                found = load_catalog(CATALOG, **properties)
        except (SQLAlchemyError, RESTError, OSError) as error:
            # Chain no cause: its text may contain the password of the catalog.
            raise ConfigurationError(
                f"the catalog of lake {self.location.shown} cannot be opened: {cause_of(error)};"
                " set --catalog or FAIRLEAD_CATALOG to a catalog that this machine reaches"
            ) from None
        if isinstance(found, SqlCatalog) and found.engine.dialect.name == "postgresql":
            # A commit compares and sets one row. Where the database has a stricter default, a
            # commit that is second would fail like an outage, and not be refused.
            found.engine = found.engine.execution_options(isolation_level="READ COMMITTED")
        return found

    @cached_property
    def identity(self) -> str:
        """Identity of the lake, which survives a move of its files and of its catalog. Raises
        StoreUnavailable."""
        self._ensure()
        with catalog_errors(self.location):
            found = self.catalog.load_namespace_properties(NAMESPACE).get(IDENTITY)
            if found is None:
                # Another engine has created the namespace.
                self.catalog.update_namespace_properties(
                    NAMESPACE, updates={IDENTITY: uuid.uuid4().hex}
                )
                found = self.catalog.load_namespace_properties(NAMESPACE)[IDENTITY]
        return str(found)

    @property
    def shown(self) -> str:
        """Lake for people."""
        return self.location.shown

    @cached_property
    def reader(self) -> str:
        """Name of the lake as a reader of stores."""
        identity = self.identity
        with catalog_errors(self.location):
            properties = self.catalog.load_namespace_properties(NAMESPACE)
        return f"lake {properties.get(_READER, identity)}"

    def restore(self, identity: str | None, is_copy: bool) -> None:
        """Create the namespace of a lost catalog, with the identity of its tables (None: a new
        one). A copy becomes a reader of its own."""
        properties = {IDENTITY: identity or uuid.uuid4().hex}
        with catalog_errors(self.location):
            self.catalog.create_namespace_if_not_exists(NAMESPACE, properties)
            if is_copy:
                self.catalog.update_namespace_properties(
                    NAMESPACE, updates={_READER: uuid.uuid4().hex}
                )

    def _ensure(self) -> None:
        """Create the namespace with a new identity, by whichever process is first. Raise
        BrokenLake if the catalog has lost the tables of the lake."""
        with catalog_errors(self.location):
            try:
                self.catalog.load_namespace_properties(NAMESPACE)
            except NoSuchNamespaceError:
                _refuse_lost_tables(self.location, self.catalog)
                with suppress(NamespaceAlreadyExistsError, IntegrityError):
                    self.catalog.create_namespace(NAMESPACE, {IDENTITY: uuid.uuid4().hex})

    def _prepare_folder(self) -> None:
        folder, file = self.location.folder, self.location.catalog_file
        with _folder_errors(self.location):
            if folder is not None:
                durable.folder(folder)
                check_folder("lake", folder / NAMESPACE)
            if file is not None:
                durable.folder(file.parent)
                check_folder("catalog", file, [f"{file.name}-lease"])
                if not file.exists():
                    # SQLite itself gives a group no right to write.
                    file.touch()


def _refuse_lost_tables(location: Location, catalog: Catalog | None = None) -> None:
    """Raise BrokenLake if there are tables at the location; not if another process has made them
    in the catalog meanwhile."""
    if has_history(load_file_io(location.pyiceberg(), location.tables), location.tables) and (
        catalog is None or not catalog.namespace_exists(NAMESPACE)
    ):
        raise BrokenLake(f"the catalog of lake {location.shown} has lost its tables; {RESTORE}")


@contextmanager
def _folder_errors(location: Location) -> Iterator[None]:
    """Turn an error of a disk into ConfigurationError."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"lake {location.shown}: {error.filename}: {error.strerror}; give a folder that can be"
            " written"
        ) from error
