"""URLs of PostgreSQL as providers hand them out: both drivers read them alike, and reach the same
server, database and settings."""

from __future__ import annotations

import asyncio
import os
import socket
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest

from fairlead import App
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.errors import ConfigurationError, StoreUnavailable
from services.postgres import PostgresServer
from services.process import free_port
from tests.certificates import make_certificates
from tests.conftest import skip_if_missing

pytestmark = pytest.mark.asyncio

SEEN = """
    SELECT current_database(), current_user::text, current_setting('search_path'),
           current_setting('application_name'), current_setting('server_encoding'),
           coalesce(host(inet_server_addr()), 'socket') AS address,
           (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid())
"""


class Place(NamedTuple):
    """Parts of the URLs of the table."""

    url: str
    login: str
    port: int
    database: str
    folder: str
    authority: Path
    """Certificate of the authority that has signed that of the server."""

    def fill(self, form: str) -> str:
        """Return the URL of a form."""
        return form.format(
            login=self.login,
            user=self.login.partition(":")[0],
            password=self.login.partition(":")[2],
            port=self.port,
            database=self.database,
            folder=self.folder,
            encoded_folder=quote(self.folder, safe=""),
            authority=self.authority,
            closed=free_port(),
        )


class ReachableServer(PostgresServer):
    """A server with TLS, on both loopback addresses and a socket."""

    def _prepare(self) -> None:
        super()._prepare()
        make_certificates(self.folder)
        if self.user is not None:
            os.chown(self.folder / "server.key", self.user.pw_uid, self.user.pw_gid)

    def _command(self) -> list[str]:
        more = {
            "listen_addresses": "127.0.0.1,::1" if has_ipv6() else "127.0.0.1",
            "ssl": "on",
            "ssl_cert_file": str(self.folder / "server.crt"),
            "ssl_key_file": str(self.folder / "server.key"),
        }
        return super()._command() + [
            part for name, value in more.items() for part in ("-c", f"{name}={value}")
        ]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def server() -> Iterator[ReachableServer]:
    with skip_if_missing("postgres"):
        server = ReachableServer()
    server.start()
    yield server
    server.stop("immediate")


@pytest.fixture(scope="module")
def migrated(server: ReachableServer) -> str:
    url = server.create_database()
    app = App(url)
    app.migrate()
    app.close()
    return url


@pytest.fixture
def place(
    server: ReachableServer, migrated: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Place:
    for key in [key for key in os.environ if key.startswith("PG")]:
        monkeypatch.delenv(key)
    # The authority counts as one that the system trusts.
    authority = server.folder / "ca.crt"
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    monkeypatch.setenv("HOME", str(tmp_path))
    parts = urlsplit(migrated)
    return Place(
        url=migrated,
        login=parts.netloc.partition("@")[0],
        port=parts.port or 0,
        database=parts.path[1:],
        folder=str(server.folder),
        authority=authority,
    )


async def ask_both(url: str) -> list[Any]:
    """Return what psycopg and asyncpg find at a URL; each in a connection of its own."""
    database = PostgresDatabase(url)

    def ask() -> Any:
        with database.connect() as connection:
            return connection.execute(SEEN).fetchone()

    by_psycopg = await asyncio.to_thread(ask)
    connection = await database.connect_async()
    try:
        by_asyncpg = tuple(await connection.fetchrow(SEEN))
    finally:
        await connection.close()
    await database.close_async()
    return [tuple(by_psycopg), by_asyncpg]


HOST = "127.0.0.1:{port}"
TABLE = [
    # Providers: Neon, Supabase, RDS, Cloud SQL, Aiven, Heroku, and pools and clusters of one's own.
    ("Neon", f"postgresql://{{login}}@{HOST}/{{database}}?sslmode=require&channel_binding=require"),
    ("Supabase", f"postgres://{{login}}@{HOST}/{{database}}?sslmode=require"),
    (
        "RDS",
        f"postgresql://{{login}}@{HOST}/{{database}}?sslmode=verify-full&sslrootcert={{authority}}",
    ),
    ("Cloud SQL", "postgresql://{login}@/{database}?host={folder}&port={port}"),
    ("Cloud SQL 2", "postgresql:///{database}?host={folder}&port={port}&user={user}&password={password}"),
    ("Aiven", f"postgres://{{login}}@{HOST}/{{database}}?sslmode=require"),
    ("PgBouncer", f"postgresql://{{login}}@{HOST}/{{database}}?pooler=session"),
    (
        "Patroni",
        "postgresql://{login}@127.0.0.1:{closed},127.0.0.1:{port}/{database}"
        "?target_session_attrs=read-write&connect_timeout=3",
    ),
    # Parameters of libpq, one by one.
    ("a socket in the host", "postgresql://{login}@{encoded_folder}:{port}/{database}"),
    ("a host that the query replaces", "postgresql://{login}@db.example:1/{database}?host={folder}&port={port}"),
    ("IPv6", "postgresql://{login}@[::1]:{port}/{database}"),
    ("IPv6 in the query", "postgresql://{login}@/{database}?host=::1&port={port}"),
    ("two kinds of hosts", "postgresql://{login}@/{database}?host={folder},127.0.0.1&port={closed},{port}"),
    ("hosts and one port", "postgresql://{login}@/{database}?host=127.0.0.1,127.0.0.1&port={port}"),
    ("load_balance_hosts", "postgresql://{login}@127.0.0.1:{closed},127.0.0.1:{port}/{database}?load_balance_hosts=random"),
    ("prefer-standby", f"postgresql://{{login}}@{HOST}/{{database}}?target_session_attrs=prefer-standby"),
    ("channel_binding=prefer", f"postgresql://{{login}}@{HOST}/{{database}}?channel_binding=prefer"),
    ("channel_binding=disable", f"postgresql://{{login}}@{HOST}/{{database}}?channel_binding=disable"),
    (
        "channel_binding with the file of the authority",
        "postgresql://{login}@localhost:{port}/{database}?channel_binding=require"
        "&sslmode=verify-ca&sslrootcert={authority}",
    ),
    ("gssencmode", f"postgresql://{{login}}@{HOST}/{{database}}?gssencmode=disable&sslcompression=0"),
    *(
        (f"sslmode={mode}", f"postgresql://{{login}}@{HOST}/{{database}}?sslmode={mode}")
        for mode in ("disable", "allow", "prefer", "require")
    ),
    ("ssl=true", f"postgresql://{{login}}@{HOST}/{{database}}?ssl=true"),
    ("certificates of the system", f"postgresql://{{login}}@{HOST}/{{database}}?sslrootcert=system"),
    (
        "sslmode=verify-ca",
        f"postgresql://{{login}}@{HOST}/{{database}}?sslmode=verify-ca&sslrootcert={{authority}}",
    ),
    ("application_name", f"postgresql://{{login}}@{HOST}/{{database}}?application_name=shop"),
    ("options", f"postgresql://{{login}}@{HOST}/{{database}}?options=-csearch_path%3Dshop,public"),
    ("keepalives", f"postgresql://{{login}}@{HOST}/{{database}}?keepalives_idle=30&tcp_user_timeout=9000&connect_timeout=5"),
    ("user and password in the query", f"postgresql://{HOST}/{{database}}?user={{user}}&password={{password}}"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "form"), TABLE, ids=[name for name, _ in TABLE])
async def test_both_drivers_reach_the_same_with_a_url(name: str, form: str, place: Place) -> None:
    if "::1" in form and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    by_psycopg, by_asyncpg = await ask_both(place.fill(form))
    assert by_psycopg == by_asyncpg
    database, user, search_path, application, _, address, is_encrypted = by_psycopg
    assert (database, user) == (place.database, "fairlead")
    assert application == "fairlead"
    assert search_path == ("shop,public" if name == "options" else '"$user", public')
    is_socket = "host={folder}&" in form or "encoded_folder" in form
    assert (address == "socket") is is_socket
    demands = ("=require", "verify-", "ssl=true", "=system")
    if any(demand in form for demand in demands):
        assert is_encrypted
    if "sslmode=disable" in form or is_socket:
        assert not is_encrypted


@pytest.mark.parametrize(
    "variables",
    [
        {"PGHOST": "{folder}", "PGPORT": "{port}"},
        {"PGHOST": "127.0.0.1", "PGPORT": "{port}", "PGSSLMODE": "require"},
        {"PGHOST": "127.0.0.1,127.0.0.1", "PGPORT": "{closed},{port}"},
        {"PGHOST": "127.0.0.1", "PGPORT": "{port}", "PGOPTIONS": "-csearch_path=shop"},
        {"PGHOST": "127.0.0.1", "PGPORT": "{port}", "PGCHANNELBINDING": "require"},
        {"PGSERVICEFILE": "{folder}/services", "PGSERVICE": "shop"},
    ],
    ids=lambda variables: " ".join(variables),
)
async def test_the_environment_means_the_same_for_both_drivers(
    variables: dict[str, str], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"PGUSER": "{user}", "PGPASSWORD": "{password}", "PGDATABASE": "{database}"}
    Path(place.folder, "services").write_text(
        f"[shop]\nhost=127.0.0.1\nport={place.port}\noptions=-csearch_path=shop\n"
    )
    for variable, form in (variables | login).items():
        monkeypatch.setenv(variable, place.fill(form))
    by_psycopg, by_asyncpg = await ask_both("postgresql://")
    assert by_psycopg == by_asyncpg
    assert by_psycopg[:2] == (place.database, "fairlead")
    if "PGSERVICE" in variables or "PGOPTIONS" in variables:
        assert by_psycopg[2] == "shop"


async def test_channel_binding_refuses_asyncpg_a_server_with_an_unknown_certificate(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    url = f"postgresql://{place.login}@127.0.0.1:{place.port}/{place.database}"
    database = PostgresDatabase(f"{url}?sslmode=require&channel_binding=require")
    database.connect().close()
    with pytest.raises(StoreUnavailable, match=r"not valid here .*; write sslrootcert=FILE"):
        await database.connect_async()


@pytest.mark.parametrize("form", [
    "postgresql://{user}:Gh7mark@127.0.0.1:{port}/{database}",
    "postgresql://{user}@127.0.0.1:{port}/{database}?password=Gh7mark&sslmode=disable",
    "postgresql://{user}:Gh7mark@127.0.0.1:{closed}/{database}",
    "postgresql://{user}:Gh7mark@127.0.0.1:{closed},127.0.0.1:{port}/{database}",
    "postgresql://{user}:Gh7mark@/{database}?host={folder}&port={port}",
])  # fmt: skip
async def test_an_error_of_a_connection_shows_host_and_port_and_no_password(
    form: str, place: Place
) -> None:
    database = PostgresDatabase(place.fill(form))
    shown = []
    with pytest.raises((StoreUnavailable, ConfigurationError)) as caught:
        await asyncio.to_thread(database.connect)
    shown += [str(caught.value), *traceback.format_exception(caught.value)]
    with pytest.raises((StoreUnavailable, ConfigurationError)) as caught:
        await database.connect_async()
    shown += [str(caught.value), *traceback.format_exception(caught.value)]
    assert "Gh7mark" not in "\n".join([*shown, repr(database._given)])
    assert database.location in shown[0]
