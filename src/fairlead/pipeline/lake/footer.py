"""The footer of a Parquet file, checked against its table."""

from __future__ import annotations

from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.schema import Table


def checked_rows(path: str, table: Table) -> int:
    """Return the number of rows of the file. Raise BrokenLake when the file is missing or
    truncated, or a column of the table is missing or of another type. A nullable column may be
    missing, because the column may be newer than the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(path)
        found = footer.schema.to_arrow_schema()
    except FileNotFoundError as error:
        raise BrokenLake(
            f"{path} is listed in the manifest but is not there; restore it"
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BrokenLake(f"{path} is no whole Parquet file: {reason}; restore it") from error
    for field in table.arrow():
        position = found.get_field_index(field.name)
        if position < 0 and not field.nullable:
            raise BrokenLake(f"{path}: column {field.name!r} of {table.name} is missing")
        if position >= 0 and found.field(position).type != field.type:
            raise BrokenLake(
                f"{path}: column {field.name!r} of {table.name} is {found.field(position).type},"
                f" not {field.type}"
            )
    return int(footer.num_rows)
