"""A PostgreSQL server for tests: initdb and postgres, as a user that is not root."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from services import MissingProgram
from services.server import Server

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "autovacuum_naptime": "10s",
    "log_min_messages": "warning",
    "max_prepared_transactions": "10",
}
"""Settings that differ from PostgreSQL's defaults. fsync stays on, because benchmarks are about
durability."""

_OLDEST = 14  # major version


class PostgresServer(Server):
    """A PostgreSQL server. `mode` is that of pg_ctl: `smart`, `fast` or `immediate`. `url` names
    the database `postgres`."""

    name = "postgres"
    title = "PostgreSQL"
    start_seconds = 300
    """Long, because PostgreSQL reads each file of each database after a crash, and tests make
    hundreds of databases."""
    more_settings: ClassVar[dict[str, str]] = {}
    """Further settings of all servers that this process starts."""
    parent_end_signal = signal.SIGINT
    stop_signals: ClassVar = {
        "smart": signal.SIGTERM,
        "fast": signal.SIGINT,
        "immediate": signal.SIGQUIT,
    }

    def __init__(self, connections: int = 100, primary: PostgresServer | None = None) -> None:
        """Start nothing yet. The server accepts this number of connections. With a running
        `primary`, it starts as a hot standby of that server. Raise MissingProgram."""
        super().__init__()
        self._connections = connections
        self._primary = primary
        self._programs = _programs()
        self.user = _user()
        """User that the server runs as; None for our own."""
        self._password = primary._password if primary else secrets.token_urlsafe(16)

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str, *others: PostgresServer) -> str:
        """Return the URL of a database. The URL also names the other servers."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (self, *others))
        return f"postgresql://fairlead:{self._password}@{hosts}/{database}"

    def create_database(self, template: str = "template1") -> str:
        """Create a database, empty or a copy of `template`, and return its URL.

        No connection to `template` may be open.
        """
        import psycopg
        from psycopg import sql

        name = self.fresh_name()
        with psycopg.connect(self.url, autocommit=True) as connection:
            command = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            connection.execute(command.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url_of(name)

    def disconnect(self, url: str) -> None:
        """End all connections to a database. Do not drop it, because a drop needs a checkpoint."""
        import psycopg

        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )

    def execute(self, command: str) -> None:
        """Run one SQL command in the database `postgres`, outside of a transaction."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(command)

    def change_setting(self, name: str, value: str) -> None:
        """Change a setting; return when all connections will use it for their next statement."""
        import psycopg

        self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")
        # The server tells the old connections before it lets in one with the new value.
        is_set = False
        while not is_set:
            with psycopg.connect(self.url) as connection:
                is_set = connection.execute(f"SHOW {name}").fetchone() == (value,)

    def commit_on_standby(self, is_synchronous: bool) -> None:
        """Begin or end to acknowledge commits only after a standby has flushed them."""
        self.change_setting("synchronous_standby_names", "*" if is_synchronous else "")

    def promote(self) -> None:
        """Make the primary of this standby; return when it accepts writes."""
        # Not by SQL: the statement that waits can conflict with the last changes of the primary.
        self._run("pg_ctl", "promote")

    def stop_receiving(self) -> None:
        """Let this standby receive nothing more from its primary."""
        self.change_setting("primary_conninfo", "")

    def follow(self, primary: PostgresServer) -> None:
        """Start again after `crash()`, as a standby of `primary` with a copy of its data."""
        shutil.rmtree(self.folder / "data")
        self._copy(primary)
        self.start()

    def _make_folder(self) -> Path:
        return make_folder(self.name, self.user)

    def _prepare(self) -> None:
        if self._primary is not None:
            self._copy(self._primary)
            return
        password_file = self.folder / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(self._password)
        if self.user is not None:
            os.chown(password_file, self.user.pw_uid, self.user.pw_gid)
        try:
            self._run(
                "initdb",
                "--auth=scram-sha-256",
                f"--pwfile={password_file}",
                "--username=fairlead",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            )
        finally:
            password_file.unlink()

    def _copy(self, primary: PostgresServer) -> None:
        """Copy the data of the primary, with the settings of its standby."""
        self._run(
            "pg_basebackup",
            f"--dbname={primary.url}",
            "--checkpoint=fast",
            "--write-recovery-conf",
            "--no-sync",
        )

    def _run(self, program: str, *options: str) -> None:
        """Run a program on the folder of the data. Raise RuntimeError with its output."""
        made = subprocess.run(
            [self._programs / program, "-D", self.folder / "data", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            check=False,
            **self._as_user(),
        )
        if made.returncode:
            raise RuntimeError(f"{program} failed:\n{made.stdout.decode(errors='replace')[-3000:]}")

    def _command(self) -> list[str]:
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data")]
        settings = (
            _SETTINGS
            | self.more_settings
            | {
                "max_connections": str(self._connections),
                "port": str(self._port),
                "unix_socket_directories": str(self.folder),
            }
        )
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        return command

    def _is_ready(self) -> bool:
        """Check as pg_ctl does: the first line of postmaster.pid is the pid, and the eighth is
        `ready`."""
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # Check the pid, because a crashed server leaves its file behind.
        return (
            len(lines) >= 8
            and lines[0].strip() == str(self._process.pid)
            and lines[7].strip() == "ready"
        )

    def _as_user(self) -> dict[str, Any]:
        return as_user(self.user)


def make_folder(name: str, user: pwd.struct_passwd | None) -> Path:
    """Make a folder for a server that runs as `user`."""
    folder = Path(tempfile.mkdtemp(prefix=f"fairlead-{name}-", dir=_parent_folder(user)))
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    return folder


def as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Return arguments for `subprocess` with the user to run as."""
    if user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _programs() -> Path:
    """Return the folder with initdb and postgres: from PATH, else Debian's newest.

    Raise MissingProgram if there is none, or if it is too old.
    """
    in_path = shutil.which("initdb")
    debian = [Path(initdb).parent for initdb in glob.glob("/usr/lib/postgresql/*/bin/initdb")]
    found = [Path(in_path).resolve().parent] if in_path else []
    found += sorted(debian, key=lambda folder: float(folder.parent.name), reverse=True)
    for folder in found:
        if (folder / "postgres").is_file():
            break
    else:
        raise MissingProgram("PostgreSQL's server is missing: apt-get install postgresql")
    version = subprocess.run(
        [folder / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout
    major = re.search(r"\d+", version)
    if major is None or int(major[0]) < _OLDEST:
        raise MissingProgram(
            f"PostgreSQL {_OLDEST} or later is needed; {folder} has {version.strip()}"
        )
    return folder


def _user() -> pwd.struct_passwd | None:
    """Return the user to run as if we are root, because PostgreSQL refuses to run as root.

    Return None if we are not root. Raise MissingProgram if there is no such user.
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise MissingProgram(
        "PostgreSQL does not run as root, and no user `postgres` or `nobody` exists: useradd"
        " postgres"
    )


def _parent_folder(user: pwd.struct_passwd | None) -> str:
    """Return the parent for our folder: the usual temporary folder, if `user` can reach it."""
    usual = tempfile.gettempdir()
    if user is None:
        return usual
    # In each of them, our folder gets a random name and the mode 0700.
    for candidate in (usual, "/tmp", "/var/tmp"):
        path = Path(candidate).resolve()
        if all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents)):
            return candidate
    raise RuntimeError(
        f"the user {user.pw_name} can reach no temporary folder: set TMPDIR to a folder that every"
        " user can reach"
    )
