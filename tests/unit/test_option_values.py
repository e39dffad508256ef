"""Every option and argument of every command takes a text or refuses it with a line and an exit code;
no text makes a traceback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from typer.testing import CliRunner

from fairlead import App
from fairlead.cli.main import app
from tests.tiers import NIGHTLY
from tests.unit.test_command_help import ALL, ROOT, command_at

LONG_RUNNING = ("worker", "demo", "simulate", "pipeline")
"""Commands that start workers, simulations or Spark: their options are read only."""

TEXTS = [
    "", " ", "-1", "0", "1", "1.5", "nan", "inf", "-inf", "1e308", "\u00b2", "\u0664", "9" * 400,
    "x" * 5000, "\u00e9", "\u202e", "\x1b[2J", "[/x]", "\udcff", "a\nb", "%", "{}", '{"a":', "null",
    "[" * 5000, "2026-13-45", "2026-02-30T25:00", "2h", "DONE", "acme=", "=1", "a/b", "../..",
    "sqlite:///", "postgresql://app:S@[::1/shop", "redis://h/zz", "http://h:99999/", "01938d2c",
]  # fmt: skip


def options_of(name: str) -> list[Any]:
    command, _ = command_at(name.split())
    return [] if hasattr(command, "commands") else list(command.params)


PLACES = [
    f"{name} {parameter.name}"
    for name in ALL
    for parameter in options_of(name)
    if parameter.name != "help" and not getattr(parameter, "is_flag", False)
]


def with_marks() -> Iterator[Any]:
    """Yield the places, with the mark `full` for an option whose name two earlier commands have, because
    commands share their options."""
    seen = Counter[str]()
    for place in PLACES:
        option = place.rpartition(" ")[2]
        seen[option] += 1
        yield pytest.param(place, marks=NIGHTLY("the matrix")) if seen[option] > 2 else place


each_place = pytest.mark.parametrize("place", list(with_marks()))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return good values of arguments and options that are required, by name."""
    url = f"sqlite:///{tmp_path_factory.mktemp('shop') / 'shop.db'}"
    shop = App(url)
    shop.migrate()
    shop.queue("letters", kind="ordered", partitions=2)
    task = shop.task(name="pay")(lambda: None).submit()
    shop.close()
    values = {"ids": task.id, "task_id": task.id, "id": task.id, "queue": "letters", "url": url}
    yield values


def words(name: str, drawn: str, value: str, good: dict[str, str]) -> list[str]:
    """Return the command line with this value of one option and good values of what it needs."""
    line: list[str] = name.split()
    after: list[str] = []
    for parameter in options_of(name):
        is_drawn = parameter.name == drawn
        if not (is_drawn or parameter.required or parameter.name == "url"):
            continue
        text = value if is_drawn else good.get(str(parameter.name), "1")
        if parameter.param_type_name == "argument":
            after.append(text)
        else:
            line.append(f"{parameter.opts[0]}={text}")
    return [*line, "--", *after] if after else line


def run(line: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    if line[0] in LONG_RUNNING:
        path = _path(line)
        try:
            command_at(path)[0].make_context("fairlead", line[len(path) :])
        except Exception as error:  # the parser's own, which it prints as one line
            assert hasattr(error, "exit_code"), (line, error)
        return
    monkeypatch.setattr(
        typer.testing, "_get_command", lambda _: ROOT
    )  # made once, not for each line
    result = CliRunner().invoke(app, line)
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        line,
        result.exception,
    )
    assert result.exit_code in (0, 1, 2), (line, result.output)
    assert "Traceback" not in result.output


def _path(line: list[str]) -> list[str]:
    found: list[str] = []
    for word in line:
        if " ".join([*found, word]) not in ALL:
            break
        found.append(word)
    return found


def test_every_option_is_drawn() -> None:
    assert len(PLACES) > 150
    read = {place.split()[0] for place in PLACES}
    assert set(LONG_RUNNING) < read and {"tasks", "queues", "doctor", "submit"} < read


@each_place
def test_each_odd_text_is_taken_or_refused(
    place: str, good: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, drawn = place.rpartition(" ")
    for text in TEXTS:
        run(words(name, drawn, text, good), tmp_path, monkeypatch)
