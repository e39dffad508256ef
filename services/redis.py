"""A Redis server of our own, on a free port of the loopback."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket

from services import MissingProgram
from services.server import Server


class RedisServer(Server):
    """See `Server`. It keeps nothing on disk unless `appendonly` is asked for: then what it
    answered survives a crash."""

    name = "redis"
    title = "Redis"

    def __init__(self, appendonly: bool = False) -> None:
        """Starts nothing. Raises MissingProgram."""
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
        # In a file that only we can read: a command line can be read by everybody.
        settings = self.folder / "redis.conf"
        settings.touch(mode=0o600)
        keeping = "appendonly yes\nappendfsync always\n" if self._appendonly else ""
        settings.write_text(
            f"bind 127.0.0.1\nport {self._port}\ndir {self.folder}\nrequirepass"
            f' {self._password}\nsave ""\n{keeping}'
        )

    def _command(self) -> list[str]:
        return [self._program, str(self.folder / "redis.conf")]

    def _is_ready(self) -> bool:
        """It answers, be it that it wants to know who we are."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), 2) as connection,
        ):
            connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
            return connection.recv(64).startswith(b"+OK")
        return False
