"""A lake of Iceberg tables: its catalog, its tables, and its identity."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, RESTError
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from fairlead.data_folder import check_folder
from fairlead.errors import ConfigurationError
from fairlead.pipeline import durable
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.failures import catalog_errors, cause_of
from fairlead.pipeline.warehouse.location import CATALOG, NAMESPACE, Location
from fairlead.pipeline.warehouse.table import WarehouseTable

_IDENTITY = "fairlead.identity"


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
                raise missing
        found = cls(location)
        with catalog_errors(location):
            try:
                found.catalog.load_namespace_properties(NAMESPACE)
            except NoSuchNamespaceError:
                raise missing from None
        return found

    def table(self, table: Table) -> WarehouseTable:
        """Return a table of the lake."""
        return WarehouseTable(self.catalog, self.location, table, self._ensure)

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
            found = self.catalog.load_namespace_properties(NAMESPACE).get(_IDENTITY)
            if found is None:
                # Another engine has created the namespace.
                self.catalog.update_namespace_properties(
                    NAMESPACE, updates={_IDENTITY: uuid.uuid4().hex}
                )
                found = self.catalog.load_namespace_properties(NAMESPACE)[_IDENTITY]
        return str(found)

    @property
    def shown(self) -> str:
        """Lake for people."""
        return self.location.shown

    @property
    def reader(self) -> str:
        """Name of the lake as a reader of stores."""
        return f"lake {self.identity}"

    def _ensure(self) -> None:
        """Create the namespace with a new identity, by whichever process is first."""
        with catalog_errors(self.location):
            try:
                self.catalog.load_namespace_properties(NAMESPACE)
            except NoSuchNamespaceError:
                with suppress(NamespaceAlreadyExistsError, IntegrityError):
                    self.catalog.create_namespace(NAMESPACE, {_IDENTITY: uuid.uuid4().hex})

    def _prepare_folder(self) -> None:
        folder, file = self.location.folder, self.location.catalog_file
        with _folder_errors(self.location):
            if folder is not None:
                durable.folder(folder)
                check_folder("lake", folder / NAMESPACE)
            if file is not None:
                durable.folder(file.parent)
                check_folder("catalog", file)
                if not file.exists():
                    # SQLite itself gives a group no right to write.
                    file.touch()


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
