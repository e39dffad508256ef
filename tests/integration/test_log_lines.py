"""Log lines of a worker about the runs of its tasks."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli.logs import configure
from fairlead.testing import drain

SHOP = """
import logging.config
import fairlead

async def lifespan(app):
    logging.config.dictConfig({{"version": 1}})  # Python's default disables the loggers there are
    yield

app = fairlead.App(lifespan=lifespan)
app.queue("work", kind={kind!r})

@app.task(queue="work", executor={executor!r}, retry=fairlead.Fixed(0.01, max_attempts=2))
{prefix}def pay(amount: int) -> None:
    if amount < 0:
        raise ValueError("no luck")
"""


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Enable all loggers again after a test whose application has disabled them."""
    yield
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.disabled = False


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "executor", "prefix"),
    [
        ("tasks", None, "async "),
        ("ordered", None, "async "),
        ("tasks", "thread", ""),
        ("tasks", "process", ""),
    ],
)
async def test_each_run_is_one_line_with_what_follows_and_the_last_failed_one_has_a_traceback(
    sqlite_url: str,
    tmp_path: Path,
    kind: str,
    executor: str | None,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("FAIRLEAD_URL", sqlite_url)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "lines_app", raising=False)
    (tmp_path / "lines_app.py").write_text(SHOP.format(kind=kind, executor=executor, prefix=prefix))
    module = importlib.import_module("lines_app")
    module.app.migrate()
    bad, good = (module.pay.options(ordering_key=f"{n}").submit(n).id for n in (-1, 1))
    with caplog.at_level(logging.DEBUG, "fairlead"):
        await drain(module.app, application="lines_app:app", log_runs=kind == "ordered")
    found = [vars(record) for record in caplog.records if record.name == "fairlead.runs"]
    first, last = (each for each in found if each["task_id"] == bad)
    (done,) = (each for each in found if each["task_id"] == good)
    for each, attempt in (first, 1), (last, 2):
        assert (each["task_id"], each["task_name"], each["queue"]) == (bad, "pay", "work")
        assert (each["error_type"], each["error"]) == ("ValueError", "no luck")
        assert each["attempt"] == attempt
    assert (first["levelname"], first["message"]) == ("INFO", "run failed; the task runs again")
    assert first["retry_in"] == 0.01 and not first["exc_text"]
    assert (last["levelname"], last["message"]) == ("ERROR", "task needs a person")
    error, began, frame, *_, end = last["exc_text"].splitlines()
    assert error == end == "ValueError: no luck" and began.startswith("Traceback")
    assert "lines_app.py" in frame  # none of our frames
    assert (done["message"], done["outcome"]) == ("run ended", "done")
    assert done["levelname"] == ("INFO" if kind == "ordered" else "DEBUG")
    module.app.close()


@pytest.mark.parametrize(("level", "shown"), [("info", ["ours"]), ("debug", ["request", "ours"])])
def test_lines_of_libraries_for_each_request_or_task_are_left_out(
    level: str, shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    for each in ("httpx", "django.tasks", "django_tasks"):
        monkeypatch.setattr(logging.getLogger(each), "level", logging.NOTSET)
    before = root.level
    try:
        configure(level, "text")
        logging.getLogger("httpx").info("request")
        logging.getLogger("django_tasks").info("Task id=7 path=shop.pay state=RUNNING")
        logging.getLogger("django.tasks").error("Task id=7 path=shop.pay state=FAILED")
        logging.getLogger("fairlead.runs").info("ours")
    finally:
        root.setLevel(before)
    assert [line.split()[3] for line in capsys.readouterr().err.splitlines()] == shown
