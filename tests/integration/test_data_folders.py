"""Data in a folder where other users could replace it is refused, with the cure; the cure works."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead import App, ConfigurationError
from fairlead.data_folder import ALLOW, check_folder
from fairlead.testing import drain
from tests.end_to_end.test_command_line import fairlead

STRANGER = 54321
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other users")


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


def submit(folder: Path) -> None:
    app = App(f"sqlite:///{folder / 'tasks.db'}")
    try:
        app.migrate()
        app.task(name="pay")(lambda: None).submit()
    finally:
        app.close()


def open_lake(folder: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra pipeline")
    from tests.pipeline.warehouses import lake_in

    assert lake_in(folder / "lake").identity


def write_page(folder: Path) -> None:
    check_folder("--out", folder / "report.html")


def read_rows(folder: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra pipeline")
    from fairlead.pipeline.source.options import ReadOptions
    from fairlead.pipeline.source.sqlite import SqliteScan

    options = ReadOptions.parse({"url": f"sqlite:///{folder / 'tasks.db'}", "table": "attempts"})
    SqliteScan(options).plan()


USES: list[Callable[[Path], None]] = [
    submit,
    open_lake,
    write_page,
    read_rows,
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("mode", [0o777, 0o707, 0o2777])
def test_a_folder_that_every_user_may_write_is_refused_and_the_cure_works(
    folder: Path, use: Callable[[Path], None], mode: int
) -> None:
    submit(folder)
    before = sorted(folder.iterdir())
    folder.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"every user may .*: chmod o-w {folder}"):
        use(folder)
    assert sorted(folder.iterdir()) in (before, sorted([*before, folder / "lake"]))
    folder.chmod(mode & ~0o002)  # as the error says
    use(folder)


def test_a_folder_above_that_every_user_may_write_is_refused(folder: Path) -> None:
    inner = folder / "app" / "data"
    inner.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(ConfigurationError, match=f"every user may replace files in {folder}:"):
        submit(inner)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775, 0o2770, 0o1777])
def test_folders_of_the_user_of_a_group_and_with_the_sticky_bit_are_taken(
    folder: Path, mode: int
) -> None:
    folder.chmod(mode)
    for use in USES:
        use(folder)


@needs_root
@pytest.mark.parametrize(
    "ending", ["", "-wal", "-shm", "-journal", "-writer", "-notifiers", "-nodes"]
)
@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_that_a_stranger_made_first_beside_the_database_is_refused(
    folder: Path, ending: str, kind: str
) -> None:
    folder.chmod(0o1777)
    planted = folder / f"tasks.db{ending}"
    if kind == "file":
        planted.touch()
    else:
        planted.symlink_to(folder.parent / "elsewhere")
    os.chown(planted, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(ConfigurationError, match=rf"{planted} is of another user \({STRANGER}\)"):
        submit(folder)
    assert list(folder.iterdir()) == [planted]
    planted.unlink()
    submit(folder)


@needs_root
def test_a_folder_or_lake_of_a_stranger_is_refused_where_everybody_may_make_some(
    folder: Path,
) -> None:
    folder.chmod(0o1777)
    for name in ("app", "lake"):
        (folder / name).mkdir()
        os.chown(folder / name, STRANGER, STRANGER)
    with pytest.raises(ConfigurationError, match=r"app is of another user"):
        submit(folder / "app")
    with pytest.raises(ConfigurationError, match=r"lake is of another user"):
        open_lake(folder)
    os.chown(folder, STRANGER, -1)
    with pytest.raises(ConfigurationError, match=rf"the owner of {folder} \(user {STRANGER}\)"):
        submit(folder)


async def test_the_setting_turns_the_refusal_into_one_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder.chmod(0o777)
    monkeypatch.setenv(ALLOW, "1")
    app = App(f"sqlite:///{folder / 'tasks.db'}")
    app.migrate()
    ran = []

    @app.task
    async def pay() -> None:
        ran.append(1)

    with caplog.at_level(logging.WARNING, "fairlead.data_folder"):
        app.migrate()
        pay.submit_many([{}] * 3)
        await drain(app)
    assert len(ran) == 3
    found = [each for each in caplog.records if each.name == "fairlead.data_folder"]
    assert len({each.problem for each in found}) == len(found) <= 1
    app.close()


@pytest.mark.parametrize("value", ["", "0", "no"])
def test_other_values_of_the_setting_change_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    folder.chmod(0o777)
    monkeypatch.setenv(ALLOW, value)
    with pytest.raises(ConfigurationError, match=f"set {ALLOW}=1"):
        submit(folder)


def test_a_command_says_it_in_one_line(folder: Path) -> None:
    submit(folder)
    folder.chmod(0o777)
    output = fairlead(folder, "queues", "--url", f"sqlite:///{folder / 'tasks.db'}", exits=2)
    assert len(output.strip().splitlines()) == 1
    assert f"chmod o-w {folder}" in output


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o022, 0o002])
def test_files_of_a_lake_have_the_mode_of_the_umask(folder: Path, umask: None, mask: int) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra pipeline")
    from fairlead.pipeline import durable
    from fairlead.pipeline.models import ATTEMPTS
    from tests.pipeline.warehouses import lake_in

    os.umask(mask)
    table = lake_in(folder / "lake").table(ATTEMPTS)
    table.write(ATTEMPTS.arrow().empty_table(), "none")
    assert table.append([], {"store": "1"}, table.state())
    durable.write(folder / "report.html", lambda path: path.write_text("page"))
    for path in folder.rglob("*"):
        whole = 0o777 if path.is_dir() else 0o666
        assert stat.S_IMODE(path.stat().st_mode) == whole & ~mask, path
