"""Permissions of a SQLite file and of the files beside it: the umask decides who may write."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import App
from fairlead.testing import running

GROUP, FIRST, SECOND, OTHER = 54321, 54322, 54323, 54324

SUBMIT = """
import os, sys
from pathlib import Path
from fairlead import App

def submit(url):
    app = App(url)
    app.migrate()
    app.task(name="pay")(lambda: None).submit()
    app.close()

submit(f"sqlite:///{sys.argv[1]}/warm.db")  # imports all modules, which another user may not read
os.umask(0o002)
os.setgroups([])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[4]))
submit(f"sqlite:///{sys.argv[2]}/tasks.db")
"""


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("mask", "of_database", "of_pipes"),
    [(0o077, 0o600, 0o600), (0o022, 0o644, 0o600), (0o002, 0o664, 0o660), (0o000, 0o666, 0o666)],
)
async def test_files_have_the_mode_of_the_umask_and_those_beside_them_are_for_writers(
    tmp_path: Path, umask: None, mask: int, of_database: int, of_pipes: int
) -> None:
    os.umask(mask)
    app = App(f"sqlite:///{tmp_path / 'tasks.db'}")
    app.migrate()
    task = app.task(name="pay")(lambda: None)
    async with running(app):
        task.submit()
        database, folder = tmp_path / "tasks.db", tmp_path / "tasks.db-notifiers"
        assert mode(database) == mode(tmp_path / "tasks.db-wal") == of_database
        assert mode(tmp_path / "tasks.db-writer") == of_pipes
        for folder in (folder, tmp_path / "tasks.db-nodes"):
            assert mode(folder) == of_pipes | (of_pipes & 0o444) >> 2
            assert {mode(file) for file in folder.iterdir()} == {of_pipes}
    app.close()


def submit_as(user: int, group: int, folder: Path, warm: Path, here: Path) -> str:
    """Submit a task as this user of this group, from the folder `here`; return what stderr says."""
    warm.mkdir()
    arguments = [str(warm), str(folder), str(group), str(user)]
    done = subprocess.run(
        [sys.executable, "-c", SUBMIT, *arguments], capture_output=True, text=True, cwd=here
    )
    assert (done.returncode == 0) == (not done.stderr), done.stderr
    return done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become two other users")
def test_users_of_a_group_share_a_file_and_others_may_not_write_it(tmp_path: Path) -> None:
    # Not below tmp_path, into whose parents only their owner may look.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chown(folder, -1, GROUP)
        folder.chmod(0o2775)
        (below := tmp_path / "below").mkdir(mode=0o755)
        # Other users may not look for settings in `tmp_path`, or into its parents.
        for user, here in ((FIRST, tmp_path), (SECOND, below)):
            assert submit_as(user, GROUP, folder, tmp_path / str(user), here) == ""
        assert "readonly database" in submit_as(OTHER, OTHER, folder, tmp_path / "other", folder)
        app = App(f"sqlite:///{folder / 'tasks.db'}")
        assert len(app.management.find()) == 2
        app.close()
