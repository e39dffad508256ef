"""Errors of a catalog and of an object store as ours, without secrets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.exceptions import RESTError
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from fairlead.errors import StoreUnavailable
from fairlead.pipeline.warehouse.location import Location
from fairlead.urls import hide_urls


@contextmanager
def catalog_errors(location: Location) -> Iterator[None]:
    """Turn errors of a catalog or an object store into StoreUnavailable, without its password."""
    try:
        yield
    except (SQLAlchemyError, RESTError) as error:
        if isinstance(error, IntegrityError):
            raise
        raise StoreUnavailable(
            f"the catalog of lake {location.shown} failed: {cause_of(error)}"
        ) from None


def cause_of(error: Exception) -> str:
    """Return the first line of an error, with URLs as for people."""
    origin = getattr(error, "orig", None) or error
    return hide_urls((str(origin) or type(origin).__name__).splitlines()[0])
