"""PgBouncer for tests, in front of a PostgreSQL server, as a user that is not root."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

from services import MissingProgram
from services.postgres import PostgresServer, as_user, make_folder
from services.server import Server


class PgBouncerServer(Server):
    """A pooler in front of `postgres`, which runs. `mode`: `transaction` or `session`.

    `settings` are lines of the section [pgbouncer], by name.
    """

    name = "pgbouncer"
    title = "PgBouncer"
    # From 1.23 on, SIGTERM waits for all clients; a pooler has nothing to save.
    parent_end_signal = signal.SIGKILL
    stop_signals: ClassVar = dict.fromkeys(("smart", "fast", "immediate"), signal.SIGKILL)

    def __init__(
        self, postgres: PostgresServer, mode: str = "transaction", **settings: str | int
    ) -> None:
        """Start nothing yet. Raise MissingProgram."""
        super().__init__()
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            raise MissingProgram("PgBouncer is missing: apt-get install pgbouncer")
        self._program = program
        self._postgres = postgres
        self._settings = {"pool_mode": mode, "default_pool_size": 5, "max_client_conn": 500}
        self._settings |= settings

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version. From 1.21 on, it has `max_prepared_statements`."""
        shown = subprocess.run([self._program, "--version"], capture_output=True, text=True)
        major, minor = shown.stdout.split()[1].split(".")[:2]
        return int(major), int(minor)

    @property
    def url(self) -> str:
        return self.url_of(self._postgres.url)

    def url_of(self, url: str) -> str:
        """Return the URL that leads through the pooler to the same database as `url`."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{self._port}"))

    def _make_folder(self) -> Path:
        return make_folder(self.name, self._postgres.user)

    def _prepare(self) -> None:
        parts = urlsplit(self._postgres.url)
        users = self._write("users.txt", f'"{parts.username}" "{parts.password}"\n')
        settings = self._settings | {
            "listen_addr": "127.0.0.1",
            "listen_port": self._port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": users,
        }
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        server = f"* = host=127.0.0.1 port={parts.port}\n"
        self._write("pgbouncer.ini", f"[databases]\n{server}[pgbouncer]\n{lines}")

    def _write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(content)
        if (user := self._postgres.user) is not None:
            os.chown(path, user.pw_uid, user.pw_gid)
        return path

    def _command(self) -> list[str]:
        return [self._program, str(self.folder / "pgbouncer.ini")]

    def _is_ready(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(2)
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _as_user(self) -> dict[str, Any]:
        return as_user(self._postgres.user)
