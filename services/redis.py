"""A Redis server for tests, on a free port of the loopback address."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket

from services import MissingProgram
from services.server import Server


class RedisServer(Server):
    """A Redis server that stores nothing on disk. With `appendonly`, confirmed writes survive a
    crash."""

    name = "redis"
    title = "Redis"

    def __init__(self, appendonly: bool = False) -> None:
        """Start nothing yet. Raise MissingProgram."""
        super().__init__()
        program = shutil.which("redis-server")
        if program is None:
            raise MissingProgram("Redis' server is missing: apt-get install redis-server")
        self._program = program
        self._appendonly = appendonly
        self._password = secrets.token_urlsafe(16)

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def _prepare(self) -> None:
        # The password is in a file that only we can read, because every user can read a command
        # line.
        settings = self.folder / "redis.conf"
        settings.touch(mode=0o600)
        persistence = "appendonly yes\nappendfsync always\n" if self._appendonly else ""
        settings.write_text(
            f"bind 127.0.0.1\nport {self._port}\ndir {self.folder}\nrequirepass"
            f' {self._password}\nsave ""\n{persistence}'
        )

    def _command(self) -> list[str]:
        return [self._program, str(self.folder / "redis.conf")]

    def _is_ready(self) -> bool:
        """Return whether the server accepts our password and has loaded its data."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), 2) as connection,
            connection.makefile("rb") as responses,
        ):
            connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
            return [responses.readline(), responses.readline()] == [b"+OK\r\n", b"+PONG\r\n"]
        return False
