"""`fairlead pipeline incidents`: past problems, and the keys they delayed."""

from __future__ import annotations

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import MICROS, SYSTEM_CLOCK
from fairlead.pipeline.commands.access import existing_lake
from fairlead.pipeline.commands.options import LakeOptions, PeriodOptions, SettingsFile
from fairlead.pipeline.commands.output import failures, show_rows, watching


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
        from fairlead.pipeline.jobs import incidents as job
        from fairlead.pipeline.reading.frames import Frames
        from fairlead.pipeline.reading.snapshots import Snapshots
        from fairlead.pipeline.settings import load

        rules = load(options.settings).incidents
        since, until = options.period.instants()
        lake = existing_lake(options.tables.lake, options.tables.catalog)
        seen = Snapshots(lake).read()
        with Frames(lake, seen) as tables, watching("searching"):
            found = job.incidents(lake, tables, SYSTEM_CLOCK, rules, since, until)
        if options.json:
            as_json(found)
            return
        show_rows(
            found,
            {
                "kind": lambda row: row.kind,
                "queue": lambda row: row.queue,
                "subject": lambda row: row.subject,
                "from (UTC)": lambda row: f"{row.start_at:%Y-%m-%d %H:%M}",
                "to": lambda row: f"{row.end_at:%H:%M}" if row.is_over else "continues",
                "keys hit": lambda row: row.keys_hit,
                "tasks delayed": lambda row: f"{row.tasks_delayed:,}",
                "extra hours waited": lambda row: f"{row.extra_wait_us / MICROS / 3600:,.1f}",
            },
        )
        say(f"{len(found):,} incidents")
