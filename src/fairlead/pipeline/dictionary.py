"""The data dictionary: all tables of the lake, and their description for people."""

from __future__ import annotations

import json

from fairlead.pipeline.models import TABLES
from fairlead.pipeline.warehouse.location import NAMESPACE, flat_name


def as_markdown() -> str:
    """Return the data dictionary, a page of the documentation."""
    lines = [
        "# Tables of the pipeline",
        "",
        (
            "`fairlead pipeline tables` prints this page. Instants are in UTC with microseconds."
            " The names of durations end in `_us`; durations are whole microseconds. A column"
            " marked with ? may be null."
        ),
    ]
    for table in TABLES:
        doc = table.doc[0].upper() + table.doc[1:]
        lines += [
            "",
            f"## {table.name}",
            "",
            (
                f"{doc}. Key: {', '.join(table.key)}. One partition for each {table.by} of "
                f"`{table.instant}`."
            ),
            "",
            "| column | type | meaning |",
            "|---|---|---|",
        ]
        lines += [
            f"| `{c.name}`{'?' if c.nullable else ''} | {c.type} | {c.doc.replace('|', '/')} |"
            for c in table.columns
        ]
    return "\n".join(lines)


def as_dbt_sources() -> str:
    """Return a file `sources.yml` of dbt with all tables, by their names in the catalog."""
    lines = [
        "version: 2",
        "sources:",
        f"  - name: {NAMESPACE}",
        f"    schema: {NAMESPACE}",
        '    description: "Tables of the pipeline of Fairlead"',
        "    tables:",
    ]
    for table in TABLES:
        lines += [
            f"      - name: {flat_name(table)}",
            f"        description: {json.dumps(table.doc)}",
            f"        loaded_at_field: {table.instant}",
            "        columns:",
        ]
        for column in table.columns:
            lines += [
                f"          - name: {column.name}",
                f"            description: {json.dumps(column.doc)}",
                f"            data_type: {json.dumps(column.type)}",
                *(["            data_tests: [not_null]"] if column.name in table.key else []),
            ]
    return "\n".join(lines)
