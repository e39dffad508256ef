"""The relay sends and marks every attempt in Kafka before the store counts it as read, also after
crashes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

from confluent_kafka.admin import NewPartitions

from fairlead.backends.kafka.endpoint import KafkaEndpoint
from fairlead.backends.sql.history import SqlHistory
from fairlead.cli.main import app
from fairlead.core.ids import id_text
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.history_rows import attempts_table
from fairlead.pipeline.stream.messages import (
    Attempt,
    HighWater,
    Mark,
    Message,
    recorded_of,
    topic_partition,
)
from fairlead.ports.history import START, Position
from services.kafka import KafkaServer
from tests.pipeline.filling import add_attempts, connected, migrated
from tests.pipeline.relay_until import KILLED, STEPS
from tests.pipeline.topics import ROWS, numbers, relay, sent, topic_of
from tests.tiers import FULL

ROOT = Path(__file__).parents[2]


@pytest.fixture
def history(sqlite_url: str) -> Iterator[SqlHistory]:
    store = migrated(sqlite_url)
    yield SqlHistory(store.database)
    store.database.close()


def add(url: str, numbers: range) -> None:
    with connected(url) as connection:
        add_attempts(connection, numbers)


def taken(messages: dict[int, list[Message]]) -> list[int]:
    """Return the attempts that a reader takes as new. Raise CheckFailed for a gap."""
    new: dict[int, list[Message]] = {}
    for n, each in messages.items():
        water = HighWater({})
        new[n] = []
        for message in each:
            if isinstance(message, Mark):
                water.passes(message.store_id, message.position, Position.of(message.after))
            elif water.takes(message.store_id, message.position, Position.of(message.after)):
                new[n].append(message)
    return sorted(numbers(new))


# messages -------------------------------------------------------------------------------------


def test_every_attempt_is_sent_to_the_partition_of_its_task_and_then_marked(
    store_url: str, kafka_url: str
) -> None:
    history = SqlHistory(migrated(store_url).database)
    one = relay(history, kafka_url)
    assert one.round().rows == 0
    add(store_url, range(20))
    done = one.round()
    assert (done.rows, done.batches) == (20, 3)
    store_id = history.database.read_now(history.store_id())
    rows = history.database.read_now(history.attempts(START, Position(2**62, 2**62), 100))
    messages = sent(kafka_url)
    assert sorted(numbers(messages)) == list(range(20))
    expected = attempts_table(store_id, rows, 0)
    for n, each in messages.items():
        attempts = [message for message in each if isinstance(message, Attempt)]
        assert len(attempts) > 3 and {topic_partition(a.task_id, 2) for a in attempts} == {n}
        for name, values in recorded_of(attempts).items():
            mine = [
                row
                for row, task_id in enumerate(expected["task_id"].to_pylist())
                if topic_partition(task_id, 2) == n
            ]
            column = expected[name].take(mine)
            expected_column = (
                column.cast("int64") if str(column.type).startswith("timestamp") else column
            )
            assert list(values) == expected_column.to_pylist(), name
        marks = [message.through for message in each if isinstance(message, Mark)]
        assert marks == [str(Position(*rows[k][:2])) for k in (6, 13, 19)] and isinstance(
            each[-1], Mark
        )
    reader = history.database.read_now(
        history.reader(f"kafka/{KafkaEndpoint.of(kafka_url).prefix}")
    )
    assert reader is not None and (reader.kind, str(reader.position)) == ("stream", done.position)
    assert one.round().rows == 0
    assert sent(kafka_url) == messages, "a round without new attempts sends nothing"
    one.close()
    history.database.close()


def test_attempts_that_a_registered_relay_has_not_sent_are_not_cleaned(
    sqlite_url: str, history: SqlHistory, kafka_url: str
) -> None:
    one = relay(history, kafka_url)
    one.round()
    reader = history.database.read_now(
        history.reader(f"kafka/{KafkaEndpoint.of(kafka_url).prefix}")
    )
    assert reader is not None and reader.position == START
    one.close()


def test_extra_messages_are_sent_with_each_batch_before_its_confirmation(
    sqlite_url: str, history: SqlHistory, kafka_url: str
) -> None:
    add(sqlite_url, range(9))
    relayed_ids: list[list[object]] = []
    topic = f"{KafkaEndpoint.of(kafka_url).prefix}heartbeats"
    KafkaEndpoint.of(kafka_url).create_topic(topic, 1, {})

    def also(sender: object, rows: object) -> None:
        relayed_ids.append([row[2] for row in rows])  # type: ignore[attr-defined]
        sender.send(topic, 0, "key", b"heartbeat")  # type: ignore[attr-defined]

    one = relay(history, kafka_url, also=also)
    one.round()
    one.round()
    assert relayed_ids == [[id_text(n) for n in range(7)], [id_text(7), id_text(8)], []]
    one.close()


# crashes ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "times"),
    [(step, 1) for step in STEPS]
    + [
        pytest.param(*later, marks=FULL("a long run"))
        for later in [
            ("one sent", 12),
            ("one sent", 9),
            ("confirmed", 2),
            ("confirmed", 3),
            ("position reported", 2),
        ]
    ],
)
def test_a_relay_killed_after_any_step_sends_every_attempt_and_doubles_are_recognizable(
    sqlite_url: str, history: SqlHistory, kafka_url: str, step: str, times: int
) -> None:
    add(sqlite_url, range(18))
    killed = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.pipeline.relay_until",
            sqlite_url,
            kafka_url,
            step,
            str(times),
        ],
        cwd=ROOT,
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == KILLED, killed.stderr
    reader = history.database.read_now(
        history.reader(f"kafka/{KafkaEndpoint.of(kafka_url).prefix}")
    )
    confirmed = START if reader is None else reader.position
    assert confirmed in (START, Position(0, ROWS))
    there = set(numbers(sent(kafka_url))) if step != "topic made" else set()
    assert set(range(confirmed.seq)) <= there, (
        "every attempt up to the confirmed position is in Kafka"
    )
    add(sqlite_url, range(18, 20))
    one = relay(history, kafka_url)
    one.round()
    assert taken(sent(kafka_url)) == list(range(20))
    one.close()


@pytest.mark.slow
def test_two_simultaneous_relays_that_are_killed_lose_no_attempt(
    sqlite_url: str, history: SqlHistory, kafka_url: str
) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.pipeline.relay_until",
        sqlite_url,
        kafka_url,
        "never",
        "0",
    ]
    relays = []
    try:
        for pass_ in range(3):
            for _ in range(2 if pass_ == 0 else 1):
                relays.append(
                    subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
                )
                assert (
                    relays[-1].stdout is not None and relays[-1].stdout.readline() == "relaying\n"
                )
            for n in range(pass_ * 100, pass_ * 100 + 100, 5):
                add(sqlite_url, range(n, n + 5))
                time.sleep(0.02)  # rows arrive while both relays work
            relays[-2].kill()
    finally:
        for process in relays:
            process.kill()
            process.communicate()
    one = relay(history, kafka_url)
    one.round()
    assert taken(sent(kafka_url)) == list(range(300))
    one.close()


# Kafka away, and topics that cannot be used -------------------------------------------------------


@pytest.mark.full("an outage")
def test_the_relay_waits_while_a_broker_is_away(
    sqlite_url: str,
    history: SqlHistory,
    kafka_url: str,
    own_kafka_server: KafkaServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add(sqlite_url, range(10))
    one = relay(history, kafka_url, seconds=3.0)
    one.round()
    own_kafka_server.crash()
    add(sqlite_url, range(10, 20))
    with pytest.raises(StoreUnavailable, match="Kafka at"):
        one.round()
    moved = threading.Event()

    def on_rows(relayed: Any) -> None:
        if relayed.position == "0.20":
            moved.set()

    running = threading.Thread(target=one.run, args=(0.1, on_rows))
    running.start()
    try:
        own_kafka_server.start()
        assert moved.wait(120), caplog.text
    finally:
        one.stops.set()
        running.join()
    assert taken(sent(kafka_url)) == list(range(20))
    one.close()


def test_a_topic_keeps_its_number_of_partitions(
    sqlite_url: str, history: SqlHistory, kafka_url: str
) -> None:
    add(sqlite_url, range(3))
    one = relay(history, kafka_url)
    one.round()
    with pytest.raises(ConfigurationError, match="has 2 partitions, not 3"):
        relay(history, kafka_url, partitions=3).round()
    again = relay(history, kafka_url, partitions=None)
    assert again.round().rows == 0
    endpoint = KafkaEndpoint.of(kafka_url)
    admin = endpoint.admin()  # kept in a variable, because the future never completes without it
    admin.create_partitions([NewPartitions(endpoint.attempts, 3)])[endpoint.attempts].result()
    until = time.monotonic() + 30
    while topic_of(kafka_url).partitions() < 3 and time.monotonic() < until:
        time.sleep(0.05)  # the broker publishes the change after a moment
    with pytest.raises(ConfigurationError, match="had 2 partitions and now has 3"):
        relay(history, kafka_url, partitions=None).round()
    one.close()


def test_a_relay_of_a_store_restored_from_a_backup_is_refused(
    sqlite_url: str, history: SqlHistory, kafka_url: str
) -> None:
    add(sqlite_url, range(5))
    one = relay(history, kafka_url)
    one.round()
    with connected(sqlite_url) as connection:
        connection.execute("DELETE FROM fairlead_attempts WHERE seq > 3")
        connection.execute("UPDATE sqlite_sequence SET seq = 3 WHERE name = 'fairlead_attempts'")
        connection.execute("DELETE FROM fairlead_readers")
    for each in (one, relay(history, kafka_url)):
        with pytest.raises(
            CheckFailed,
            match=r"has attempts up to 0\.5, but this store has attempts only up to 0\.4",
        ):
            each.round()
    one.close()


@given(st.text())
def test_the_topic_of_attempts_belongs_to_no_queue(queue: str) -> None:
    endpoint = KafkaEndpoint.of("kafka://127.0.0.1:1")
    with suppress(UnicodeEncodeError, ConfigurationError):  # these names cannot be queues
        assert endpoint.topic(queue) != endpoint.attempts
    assert endpoint.topic(endpoint.queue(endpoint.attempts)) != endpoint.attempts
    assert not endpoint.log.topic("x").startswith(endpoint.attempts)


# the commands -------------------------------------------------------------------------------------


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", *words])


def test_the_command_relays_settled_attempts(
    sqlite_url: str, history: SqlHistory, kafka_url: str
) -> None:
    add(sqlite_url, range(5))
    ran = command("relay", "--kafka", kafka_url, "--url", sqlite_url, "--once", "--json")
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["rows"] == 5
    assert set(sent(kafka_url)) == {0, 1, 2, 3}
    ran = command("relay", "--kafka", kafka_url, "--url", sqlite_url, "--once")
    assert ran.stdout.startswith("0 attempts relayed")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["relay", "--kafka", "redis://here"], "use kafka://host:9092"),
        (["ingest", "--stream"], "--stream needs --kafka and --checkpoint"),
        (["ingest", "--once"], "--once need --stream"),
        (
            ["ingest", "--stream", "--kafka", "kafka://x:1", "--checkpoint", "c", "--take-over"],
            "excludes --take-over",
        ),
    ],
)
def test_the_error_about_wrong_use_is_one_line(
    sqlite_url: str, history: SqlHistory, tmp_path: Path, words: list[str], expected: str
) -> None:
    where = (
        ["--url", sqlite_url]
        if words[0] == "relay"
        else ["--url", sqlite_url, "--lake", str(tmp_path / "lake")]
    )
    ran = command(*words, *where)
    assert ran.exit_code == 2 and expected in ran.stderr, ran.output
    assert ran.stderr.count("\n") == 1


def test_a_stream_of_a_missing_topic_is_refused_before_spark_starts(
    sqlite_url: str, history: SqlHistory, kafka_url: str, tmp_path: Path
) -> None:
    where = [
        "--url",
        sqlite_url,
        "--lake",
        str(tmp_path / "lake"),
        "--checkpoint",
        str(tmp_path / "checkpoint"),
    ]
    ran = command("ingest", "--stream", "--kafka", kafka_url, *where)
    assert (
        ran.exit_code == 2
        and "the topic does not exist; `fairlead pipeline relay` creates it" in ran.stderr
    ), ran.output
