"""`fairlead pipeline incidents`: past problems, and the keys they delayed."""

from __future__ import annotations

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.commands.access import existing_lake
from fairlead.pipeline.commands.options import LakeOptions, PeriodOptions, SettingsFile
from fairlead.pipeline.commands.output import failures, watching


class IncidentsOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline incidents`."""

    period: PeriodOptions
    settings: SettingsFile = None
    tables: LakeOptions
    json: Json = False


@with_options
def incidents(options: IncidentsOptions) -> None:
    """List past problems, their length and the keys they delayed: stalls, floods, bursts of errors,
    starved keys, lost nodes.

    The command reads whole days, by default the last seven, and stores its findings in
    gold.incidents. Example: fairlead pipeline incidents --since 2026-11-01 --until 2026-11-07
    """
    with failures():
        from fairlead.pipeline.in_memory import SmallTables
        from fairlead.pipeline.jobs.incidents import as_rows
        from fairlead.pipeline.jobs.incidents import incidents as run_incidents
        from fairlead.pipeline.settings import load

        rules = load(options.settings).alerts
        since, until = options.period.instants()
        lake = existing_lake(options.tables.lake, options.tables.catalog)
        tables = SmallTables(lake)
        with watching("searching") as on_rows:
            found = run_incidents(lake, tables, SYSTEM_CLOCK, rules, since, until, on_rows)
        if options.json:
            as_json(found)
            return
        columns = (
            "kind",
            "queue",
            "subject",
            "from (UTC)",
            "to",
            "keys hit",
            "tasks delayed",
            "extra hours waited",
        )
        as_table(columns, as_rows(found))
        say(f"{len(found):,} incidents")
