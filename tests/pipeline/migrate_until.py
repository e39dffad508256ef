"""A process that moves an old lake and kills itself before or after its n-th commit:
`python migrate_until.py OLD NEW N before|after`."""

from __future__ import annotations

import sys
from pathlib import Path

from fairlead.pipeline.jobs.migrate_lake import migrate_lake
from tests.pipeline.commit_kill import die_at_commit
from tests.pipeline.warehouses import lake_in


def main(old: str, new: str, number: int, moment: str) -> None:
    die_at_commit(number, moment)
    migrate_lake(Path(old), lake_in(new), rows=1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
