"""A PostgreSQL server of our own: initdb and postgres as a user that is not root, on a free port of the loopback."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from services import MissingProgram

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "autovacuum_naptime": "10s",
    "log_min_messages": "warning",
}


class PostgresServer:
    """Started by `start()` or `with PostgresServer() as server:`. `url` is of the database `postgres`."""

    name = "postgres"

    def __init__(self) -> None:
        self._programs = _programs()
        self._user = _user()
        self._folder = Path(tempfile.mkdtemp(prefix="fairlead-postgres-"))
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        self._port = _free_port()
        self._password = secrets.token_urlsafe(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """The URL of one database of this server."""
        return f"postgresql://fairlead:{self._password}@127.0.0.1:{self._port}/{database}"

    def start(self) -> None:
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        self._folder.chmod(0o700)
        password_file = self._folder / "password"
        password_file.write_text(self._password)
        if self._user is not None:
            os.chown(password_file, self._user.pw_uid, self._user.pw_gid)
        made = self._run(
            "initdb", "-D", str(self._data), "-U", "fairlead", "--auth=scram-sha-256", "--pwfile", str(password_file),
            "-E", "UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        password_file.unlink()
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr.decode()[-2000:]}")
        self._launch()

    def stop(self, mode: str = "fast") -> None:
        self._end(mode)
        shutil.rmtree(self._folder, ignore_errors=True)

    def restart(self, mode: str = "immediate") -> None:
        self._end(mode)
        self._launch()

    def create_database(self) -> str:
        """A fresh, empty database; answers its URL."""
        import psycopg

        self._databases += 1
        name = f"test_{self._databases}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
        return self.url_of(name)

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self) -> None:
        settings = _SETTINGS | {"port": str(self._port), "unix_socket_directories": str(self._folder)}
        command = [self._programs / "postgres", "-D", str(self._data)]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=_end_with_parent, **self._as_user(),
            )  # fmt: skip
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            ready = self._run("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self._port))
            if ready.returncode == 0:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)
        raise RuntimeError(f"PostgreSQL did not start; the end of its log:\n{self._log.read_text()[-3000:]}")

    def _end(self, mode: str) -> None:
        if self._process is None:
            return
        self._process.send_signal({"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self._programs / program, *arguments], capture_output=True, cwd="/", check=False, **self._as_user()
        )

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def _programs() -> Path:
    """The folder with initdb. Raises MissingProgram."""
    found = [str(Path(initdb).parent) for initdb in glob.glob("/usr/lib/postgresql/*/bin/initdb")]
    if found:
        return Path(max(found, key=lambda folder: float(folder.split("/")[4])))
    in_path = shutil.which("initdb")
    if in_path:
        return Path(in_path).resolve().parent
    raise MissingProgram("PostgreSQL's server is missing: apt-get install postgresql")


def _user() -> pwd.struct_passwd | None:
    """Whom to run as: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise MissingProgram("PostgreSQL does not run as root, and there is no user `postgres` or `nobody`: useradd postgres")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """Linux: SIGINT (a fast shutdown) when our process dies, however it dies."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            ctypes.CDLL(None).prctl(1, signal.SIGINT, 0, 0, 0)
