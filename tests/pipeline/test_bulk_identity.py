"""Each row of a bulk submit becomes one task, or an error says why not, in any order of crashes,
repeats, renamed files, new checkpoints and rival runs."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fairlead import App
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bulk import files
from fairlead.pipeline.bulk import rows as rows_module
from fairlead.pipeline.bulk.job import BulkJob
from fairlead.pipeline.bulk.jobs import ContentDiffers, JobRow, KeyTaken, RunSuperseded
from fairlead.pipeline.bulk.stage import DAY, sweep
from fairlead.pipeline.bulk.text_rows import batches, csv_rows, csv_schema
from fairlead.pipeline.jobs.submit import FileSubmission
from fairlead.pipeline.source import sink
from fairlead.ports.statements import Statement, Steps
from tests import tiers
from tests.pipeline.bulk import job_of, numbers, numbers_in, rows, staged, submit

SEEDS = 200 if tiers.has_new_seeds() else 4
STEPS = 12
CONTENTS = [[], [1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [11, 12], [11, 12, 12]]
"""Numbers of a submission: none, as many as another has, and two times the same."""


class CrashedError(Exception):
    """The process of a run dies."""


@dataclass
class Run:
    """Rows that a submitter wants to submit once, under a key."""

    key: str
    """The submission as people mean it: a file by its content, a micro-batch by its checkpoint and
    number, anything else by the submission id that is given."""
    numbers: list[int]
    job: BulkJob
    file: FileSubmission | None = None

    def parts(self, draws: random.Random) -> list[list[pa.RecordBatch]]:
        """Return the rows in two parts, in any order."""
        if self.file is not None:
            (file,) = self.file.files
            read = batches(csv_rows(file, ["who", "n"]), csv_schema(["who", "n"]))
            return [list(read), []]
        shuffled = draws.sample(self.numbers, len(self.numbers))
        half = draws.randrange(len(shuffled) + 1)
        return [
            [
                pa.record_batch(
                    {
                        "who": pa.array([self.key] * len(part), pa.string()),
                        "n": pa.array(part, pa.int64()),
                    }
                )
            ]
            for part in (shuffled[:half], shuffled[half:])
        ]


@dataclass
class World:
    """One store, its submitters, and what they have tried."""

    url: str
    folder: Path
    draws: random.Random
    tried: dict[str, list[list[int]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def drawn(self) -> Run:
        """Return a run of any kind of submitter."""
        draws = self.draws
        given = draws.choice(CONTENTS)
        match draws.choice(["file", "named file", "stream", "frame"]):
            case "file":
                queue = draws.choice(["orders", "refunds"])
                key = f"file {'.'.join(map(str, given))} in {queue}"
                return self.file(key, given, queue, None)
            case "named file":
                return self.file(key := draws.choice("xy"), given, "orders", key)
            case "stream":
                checkpoint, batch, name = (
                    draws.choice("abc"),
                    draws.choice("01"),
                    draws.choice("st"),
                )
                # A micro-batch of one checkpoint has the same rows whenever it runs again.
                given = random.Random(f"{checkpoint}{batch}").choice(CONTENTS[1:])
                id = sink.micro_batch_id(f"stream-{name}", checkpoint, batch)
                return Run(f"stream {name}{checkpoint}{batch}", given, self.job(submission_id=id))
            case _:
                key = draws.choice("xyz")
                return Run(key, given, self.job(submission_id=key))

    def file(self, key: str, given: list[int], queue: str, id: str | None) -> Run:
        """Return the run of a file that may have any name, and may be the only one of a folder."""
        folder = self.folder / str(self.draws.randrange(1 << 40))
        folder.mkdir()
        path = folder / self.draws.choice(["jobs.csv", "copy.csv"])
        who = key.partition(" in ")[0]  # the same bytes for each queue
        path.write_text("who,n\n" + "".join(f"{who},{n}\n" for n in given))
        (folder / "_SUCCESS").touch()
        if (way := self.draws.choice(["file", "link", "folder"])) == "folder":
            path = folder
        elif way == "link":
            (link := folder.with_suffix(".csv")).symlink_to(path)
            path = link
        found = FileSubmission(
            path, self.url, queue, task="pay", args="who,n", types="n=int", submission_id=id
        )
        job = self.job(
            submission_id=found.identity,
            queue=queue,
            content=found.content,
            types=",".join(f"{name}={type_}" for name, type_ in found.text_types.items()),
        )
        return Run(key, given, job, found)

    def job(self, **options: str) -> BulkJob:
        chunks = {"publish": "chunked", "rows_per_chunk": "2"} if self.draws.random() < 0.6 else {}
        return job_of(self.url, args_columns="who,n", **options, **chunks)

    def step(self, depth: int = 0) -> None:
        """Let a run begin; it may crash at any point, and others may run in the middle of it."""

        def between() -> None:
            if self.draws.random() < 0.12:
                raise CrashedError
            if depth < 2 and self.draws.random() < 0.12:
                self.step(depth + 1)

        self.attempt(self.drawn(), between)

    def attempt(self, run: Run, between: Callable[[], None]) -> bool:
        """Run to the end, and check what the submitter sees. Return whether all went well."""
        self.tried.setdefault(run.key, []).append(run.numbers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BulkJob, "_wait_for_room", lambda *_: between())
            try:
                parts = run.parts(self.draws)
                run.job.open(parts[0][0].schema)
                between()
                messages = []
                for number, part in enumerate(parts if run.job.reads_rows else []):
                    messages.append(run.job.stage(part, number))
                    between()
                run.job.publish(messages)
                between()
            except (CrashedError, RunSuperseded) as error:
                self.counts[type(error).__name__] += 1
                return False
            except ContentDiffers:
                self.counts["ContentDiffers"] += 1
                assert run.key in "xyz", f"{run.key}: only an id that a person gave may be refused"
                return False
        self.counts["done"] += 1
        found = self.stored()[run.key]
        assert found == Counter(run.numbers), f"{run.key}: {run.numbers} became {found}"
        return True

    def stored(self) -> dict[str, Counter[int]]:
        """Return the tasks by the key of their submission."""
        found: dict[str, Counter[int]] = {key: Counter() for key in self.tried}
        for row in rows(self.url, "SELECT queue, payload FROM fairlead_tasks"):
            task = json.loads(bytes(row["payload"]))
            who = task["who"]
            found[f"{who} in {row['queue']}" if who.startswith("file ") else who][task["n"]] += 1
        return found

    def settle(self) -> None:
        """Repeat every submission without a crash: exactly one content of each key is there."""
        for key, contents in list(self.tried.items()):
            wanted = [list(given) for given in {tuple(given) for given in contents if given}]
            done = 0
            for given in wanted:
                if key.startswith("file "):
                    run = self.file(key, given, key.rpartition(" ")[2], None)
                elif key.startswith("stream "):
                    name, checkpoint, batch = key.removeprefix("stream ")
                    id = sink.micro_batch_id(f"stream-{name}", checkpoint, batch)
                    run = Run(key, given, self.job(submission_id=id))
                else:
                    run = Run(key, given, self.job(submission_id=key))
                done += self.attempt(run, lambda: None)
            assert done == bool(wanted), f"{key}: {done} of {wanted} are submitted"


def simulate(seed: int, folder: Path) -> Counter[str]:
    """Run one seed from an empty store, and return what happened."""
    folder.mkdir()
    url = f"sqlite:///{folder / 'tasks.db'}?synchronous=OFF"
    app = App(url)
    app.migrate()
    app.close()
    world = World(url, folder, random.Random(seed))
    try:
        for _ in range(STEPS):
            world.step()
        world.settle()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return world.counts


def test_any_order_of_crash_repeat_rename_and_rivals_submits_each_row_once_or_says_why(
    tmp_path: Path,
) -> None:
    counts: Counter[str] = Counter()
    first = tiers.seed()
    for seed in range(first, first + SEEDS):
        counts += simulate(seed, tmp_path / str(seed))
    print(f"seeds {first} to {first + SEEDS - 1}: {dict(counts)}")
    assert min(counts[what] for what in ("done", "CrashedError", "ContentDiffers")) > 0, counts


def _by_path(found: Any, options: object) -> str:
    return str([file.path for file in found])


def _by_count(messages: Any) -> str:
    return str(sum(message.rows for message in messages))


def _commit(sql: Any, submission_id: str, epoch: str, now: int) -> Steps[None]:
    yield Statement(
        "UPDATE fairlead_bulk_jobs SET state = 'committed', content = 'none'"
        " WHERE submission_id = ?1",
        (submission_id,),
    )


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a micro-batch is named without its checkpoint": lambda patch: patch.setattr(
        sink, "micro_batch_id", lambda given, query, batch: f"{given}/{batch}"
    ),
    "a file is known by its path": lambda patch: patch.setattr(
        "fairlead.pipeline.jobs.submit.digest_of", _by_path
    ),
    "the options do not count": lambda patch: patch.setattr(
        "fairlead.pipeline.jobs.submit.digest_of",
        lambda found, options: files.digest_of(found, None),
    ),
    "contents are not compared": lambda patch: patch.setattr(
        JobRow, "check_content", lambda *_: None
    ),
    "only the number of rows is compared": lambda patch: patch.setattr(
        "fairlead.pipeline.bulk.job.joined_content", _by_count
    ),
    "the order of the rows counts": lambda patch: patch.setattr(
        rows_module, "digest_of", lambda given: hash(tuple(given)) % (1 << 64)
    ),
    "rows that differ only in their arguments are the same": lambda patch: patch.setattr(
        rows_module, "digest_of", lambda given: 0
    ),
    "an empty submission is committed": lambda patch: patch.setattr(
        "fairlead.pipeline.bulk.job.end_run", _commit
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_rule_is_found(mutation: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTATIONS[mutation](patch)
        with pytest.raises(AssertionError) as found:
            for seed in range(tiers.seed(), tiers.seed() + 40):
                simulate(seed, tmp_path / str(seed))
    print(f"{mutation}: {str(found.value).splitlines()[0]}")


# single rules -------------------------------------------------------------------------------------


def test_the_same_rows_in_another_order_and_in_other_parts_are_the_same_content(app: App) -> None:
    first = submit(app.url, [[numbers(0, 5)], [numbers(5, 9)]])
    again = job_of(app.url)
    assert (
        again.publish(compared(again, [[numbers(5, 9), numbers(0, 2)], [numbers(2, 5)]])) == first
    )
    other = job_of(app.url)
    with pytest.raises(ContentDiffers, match="'march' is committed with other content"):
        other.publish(compared(other, [[numbers(0, 8), numbers(10, 11)]]))
    skipping = job_of(app.url, on_repeat="skip")
    skipping.open(numbers(0, 1).schema)
    assert not skipping.reads_rows and skipping.publish([]) == first
    assert numbers_in(app.url) == list(range(9))


def test_the_order_of_the_entries_of_a_context_is_no_content(app: App) -> None:
    def submitted(entries: list[tuple[str, str]]) -> None:
        context = pa.array([entries], pa.map_(pa.string(), pa.string()))
        assert submit(app.url, [[numbers(0, 1, context=context)]]).inserted == 1

    submitted([("n", "1"), ("who", "a")])
    submitted([("who", "a"), ("n", "1")])
    with pytest.raises(ContentDiffers):
        submitted([("who", "b"), ("n", "1")])
    assert numbers_in(app.url) == [0]


def test_a_given_digest_is_compared_before_any_row_is_read(app: App) -> None:
    submit(app.url, [[numbers(0, 5)]], content="a")
    same = job_of(app.url, content="a")
    same.open(numbers(0, 1).schema)
    assert not same.reads_rows
    with pytest.raises(ContentDiffers, match=r"with other content \(a, not b\)"):
        job_of(app.url, content="b").open(numbers(0, 1).schema)
    unknown = job_of(app.url)
    unknown.open(numbers(0, 1).schema)
    assert unknown.reads_rows


def test_a_rival_with_other_rows_cannot_stop_a_submission_that_has_begun_to_publish(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(app.url, publish="chunked", rows_per_chunk="2", content="a")
    messages = staged(job, [[numbers(0, 5)]])
    monkeypatch.setattr(BulkJob, "_wait_for_room", _crash)
    with pytest.raises(CrashedError):
        job.publish(messages)
    monkeypatch.undo()
    with pytest.raises(ContentDiffers, match="has begun to publish"):
        job_of(app.url, content="b").open(numbers(0, 1).schema)
    assert job.publish(messages).inserted == 5


def test_a_taken_key_does_not_deny_the_chunks_of_an_earlier_run(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(app.url, [[numbers(9, 10, unique_key=pa.array(["k"]))]], submission_id="first")
    batch = numbers(0, 3, unique_key=pa.array([None, None, "k"], pa.string()))
    job = job_of(app.url, publish="chunked", rows_per_chunk="2")
    messages = staged(job, [[batch]])
    waits = iter([None, CrashedError()])

    def crash_before_the_second_chunk(*_: Any) -> None:
        if (error := next(waits)) is not None:
            raise error

    monkeypatch.setattr(BulkJob, "_wait_for_room", crash_before_the_second_chunk)
    with pytest.raises(CrashedError):
        job.publish(messages)
    monkeypatch.undo()
    strict = job_of(app.url, on_conflict="error")
    with pytest.raises(KeyTaken, match="are taken, and nothing more was published"):
        strict.publish(compared(strict, [[batch]]))
    assert numbers_in(app.url) == [9, 0, 1]
    again = job_of(app.url)
    assert again.publish(compared(again, [[batch]])).inserted == 2


def test_a_comparison_is_refused_when_the_published_job_is_deleted_meanwhile(app: App) -> None:
    submit(app.url, [[numbers(0, 5)]])
    late, other = job_of(app.url), job_of(app.url)
    messages = compared(late, [[numbers(0, 5)]])
    for days in (2, 40):
        app.store.database.run(sweep(app.store, SYSTEM_CLOCK.now() + days * DAY))
    other.open(numbers(0, 1).schema)
    with pytest.raises(RunSuperseded):
        late.publish(messages)


def test_a_stream_whose_checkpoint_spark_does_not_name_is_refused_with_the_cure() -> None:
    assert sink.micro_batch_id(None, "id", "0") == "id/0"
    for query, batch in ((None, "0"), ("id", None)):
        with pytest.raises(ConfigurationError, match="use writeStream.foreachBatch"):
            sink.micro_batch_id("march", query, batch)


def compared(job: BulkJob, parts: list[list[pa.RecordBatch]]) -> list[Any]:
    """Open a job that is published, and return the messages that say which rows it is given."""
    job.open(numbers(0, 1).schema)
    assert not job.opened.needs_rows and job.reads_rows
    return [job.stage(part, number) for number, part in enumerate(parts)]


def _crash(*_: Any) -> None:
    raise CrashedError
