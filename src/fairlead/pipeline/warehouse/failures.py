"""Errors of a catalog and of an object store as ours, without secrets."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.exceptions import RESTError
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from fairlead.errors import StoreUnavailable
from fairlead.pipeline.warehouse.location import Location
from fairlead.urls import hide_urls

_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)


@contextmanager
def catalog_errors(location: Location) -> Iterator[None]:
    """Turn errors of a catalog, an object store or a disk into StoreUnavailable, without its
    password."""
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_DISKS:
            raise
        raise StoreUnavailable(
            f"the folder of lake {location.shown} cannot be used: {os.strerror(error.errno)}; free"
            " space on its disk, or let this user write there"
        ) from error
    except IntegrityError:
        raise
    except (SQLAlchemyError, RESTError) as error:
        raise StoreUnavailable(
            f"the catalog of lake {location.shown} failed: {cause_of(error)}"
        ) from None


def cause_of(error: Exception) -> str:
    """Return the first line of an error, with URLs as for people."""
    origin = getattr(error, "orig", None) or error
    return hide_urls((str(origin) or type(origin).__name__).splitlines()[0])
