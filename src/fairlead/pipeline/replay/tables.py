"""Tables of a replay in the lake: a row for each run, and the waits of each key under the
finalists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from fairlead.clock import to_datetime
from fairlead.lab.policies.candidate import CandidateResult
from fairlead.lab.policies.measures import KeyWaits, Measures
from fairlead.lab.policies.study import Study
from fairlead.pipeline.schema import SCHEMA_VERSION


def replay_rows(replay_id: str, origin: int, study: Study) -> Iterator[dict[str, Any]]:
    """Yield the rows of REPLAYS for a study.

    origin: first arrival of the record, in microseconds since the epoch.
    """
    for found in study.found:
        number = found.candidate.policy_id
        yield {
            **_run_columns(replay_id, origin, found),
            "policy": msgspec.json.encode(found.candidate.policy).decode(),
            "is_best": number == study.best.policy_id,
            "is_baseline": number == study.baseline,
            "objective": study.objective,
            **{name: getattr(found.measures, name) for name in Measures.__struct_fields__},
            "seconds": found.seconds,
            "schema_version": SCHEMA_VERSION,
        }


def wait_rows(replay_id: str, origin: int, study: Study) -> Iterator[dict[str, Any]]:
    """Yield the rows of REPLAY_WAITS for a study.

    origin: first arrival of the record, in microseconds since the epoch.
    """
    for found in study.found:
        for key in found.keys:
            yield {
                **_run_columns(replay_id, origin, found),
                "fairness_key": key.key,
                **{
                    name: getattr(key, name) for name in KeyWaits.__struct_fields__ if name != "key"
                },
                "schema_version": SCHEMA_VERSION,
            }


def _run_columns(replay_id: str, origin: int, found: CandidateResult) -> dict[str, Any]:
    candidate = found.candidate
    return {
        "replay_id": replay_id,
        "recorded_from": to_datetime(origin),
        "policy_id": candidate.policy_id,
        "part": candidate.part,
        "sample": candidate.sample,
        "seed": candidate.seed,
    }
