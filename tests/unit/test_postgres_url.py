"""The URL of a PostgreSQL database: parameters reach each driver that knows them, errors name the
cause and the cure."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from fairlead.backends.postgres.url import read_url
from fairlead.errors import ConfigurationError

BASE = "postgresql://user:secret@host/db"
OF_ASYNCPG = "postgresql://?user=user&password=secret&dbname=db"


@pytest.mark.parametrize(
    "parameter",
    [
        "application_name=shop",
        "channel_binding=prefer",
        "client_encoding=latin1",
        "connect_timeout=3",
        "fallback_application_name=shop",
        "gssencmode=disable",
        "keepalives_idle=30",
        "sslcompression=0",
        "sslsni=1",
    ],
)
def test_a_parameter_of_psycopg_alone_is_not_sent_to_the_server_as_a_setting(
    parameter: str,
) -> None:
    read = read_url(f"{BASE}?{parameter}&sslmode=require")
    assert parameter in read.psycopg
    assert read.asyncpg == f"{OF_ASYNCPG}&sslmode=require"


def test_ssl_true_means_the_same_for_both_drivers() -> None:
    read = read_url(f"{BASE}?ssl=true")
    assert read.psycopg == f"{BASE}?sslmode=require"
    assert read.asyncpg == f"{OF_ASYNCPG}&sslmode=require"


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ("channel_binding=require&sslmode=disable", "channel_binding=require needs TLS"),
        ("channel_binding=require&host=/run/postgresql", "channel_binding=require needs TLS"),
        ("channel_binding=always", "channel_binding=always: write disable, prefer, require"),
        ("gssencmode=require", "gssencmode: asyncpg, .* leave it out .*PGGSSENCMODE"),
        ("hostaddr=127.0.0.1", "hostaddr: asyncpg, .* leave it out"),
        ("sslrootcert=system&sslmode=require", "sslrootcert=system needs sslmode=verify-full"),
        ("response_timeout=inf", "response_timeout=inf: write a number of seconds, or 0 for"),
        ("pool_Size=3", r"unknown parameter pool_Size; did you mean pool_size\?"),
        ("conect_timeout=3", r"unknown parameter conect_timeout; did you mean connect_timeout\?"),
        ("search_path=shop", "unknown parameter search_path; write options=-csearch_path%3DNAME"),
        ("work_mem=4MB", "unknown parameter work_mem; settings .* options=-cNAME%3DVALUE"),
        ("pgbouncer=true", "unknown parameter pgbouncer; write pooler=transaction"),
        ("schema=shop", "unknown parameter schema; write options=-csearch_path"),
        ("ssl=no-verify", "unknown value of ssl; write sslmode=require"),
        ("sslmode=maybe", "sslmode=maybe: write disable, .*, verify-full$"),
        ("target_session_attrs=master", "target_session_attrs=master: write any, .*primary"),
        ("connect_timeout=soon", "connect_timeout=soon: write a number of seconds"),
        ("service=shop", "unknown parameter service; set PGSERVICE"),
        ("sslmode=", "sslmode=: write disable"),
        ("pooler=yes", "pooler=yes: write none, session, transaction"),
    ],
)
def test_a_parameter_that_is_wrong_or_that_one_driver_ignores_is_refused_with_its_cure(
    parameter: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        read_url(f"{BASE}?{parameter}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:p@secret@host/db",
        "postgresql://user:1/secret@host/db",
        "postgresql://user:1?secret=2@host/db",
        "postgresql://user:p#secret@host/db",
        "postgresql://user:secret%ZZ@host/db",
        "postgresql://user:secret@host:port/db",
        "postgresql://user:secret@host:99999/db",
        "postgresql://user:secret@host:0/db",
        "postgresql://user:secret@[::1/db",
        "postgresql://user%3Asecret%40host/db",
        "postgresql://user:secret/db",
        "postgresql://host/db?password=1&secret=2",
        "postgresql://host/db?host=user:secret@host",
    ],
)
def test_a_password_with_special_characters_is_refused_and_never_shown(url: str) -> None:
    with pytest.raises(
        ConfigurationError, match="special characters of .* as percent codes"
    ) as caught:
        read_url(url)
    assert "secret" not in str(caught.value)


def test_a_plus_sign_in_a_parameter_is_a_plus_sign_for_both_drivers() -> None:
    url = read_url("postgresql://app@db/shop?password=a+b&options=-cx.y%3D1+2&direct=pg:5433")
    for each in (url, url.direct):
        assert each is not None
        for of_driver in (each.psycopg, each.asyncpg):
            assert "password=a%2Bb&" in of_driver
            assert "options=-cx.y%3D1%2B2" in of_driver


def test_a_space_in_a_parameter_stays_one_on_the_way_around_a_pooler() -> None:
    url = read_url("postgresql://app@db/shop?options=-cx.y%3D1%20-cx.z%3D2&direct=pg:5433")
    assert url.direct is not None
    assert "options=-cx.y%3D1%20-cx.z%3D2" in url.direct.psycopg


@pytest.mark.parametrize(
    "url", ["postgresql://app:pw@/shop?host=/run/pooler", "postgresql://app:pw@a,b:7/shop"]
)
def test_the_way_around_a_pooler_replaces_every_host_and_port_of_the_url(url: str) -> None:
    found = read_url(f"{url}{'&' if '?' in url else '?'}direct=[::1]:5433").direct
    assert found is not None
    assert found.servers == (("::1", 5433),)
    assert conninfo_to_dict(found.psycopg) == {
        "user": "app",
        "password": "pw",
        "dbname": "shop",
        "host": "::1",
        "port": "5433",
    }


def test_load_balance_hosts_gives_each_connection_of_asyncpg_another_order() -> None:
    hosts = ",".join(f"h{n}" for n in range(20))
    url = read_url(f"postgresql://{hosts}/db?load_balance_hosts=random")
    orders = [tuple(each["host"] for each in url.tries()) for _ in range(5)]
    assert len(set(orders)) > 1
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(hosts.split(",")))}
    in_order = read_url(f"postgresql://{hosts}/db").tries()
    assert [each["host"] for each in in_order] == hosts.split(",")


def test_a_standby_that_is_only_preferred_is_tried_before_all_servers_are() -> None:
    url = read_url("postgresql://a,b:7/db?target_session_attrs=prefer-standby")
    assert [(each["host"], each["target_session_attrs"]) for each in url.tries()] == [
        ("a", "standby"),
        ("b", "standby"),
        ("a", "any"),
        ("b", "any"),
    ]


def test_without_a_file_of_certificates_the_error_says_what_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.backends.postgres.url._BUNDLES", ())
    monkeypatch.setattr("os.path.isfile", lambda path: False)
    for parameter in ("channel_binding=require", "sslrootcert=system"):
        with pytest.raises(ConfigurationError, match=r"as sslrootcert, or set SSL_CERT_FILE"):
            read_url(f"{BASE}?{parameter}")


def test_a_demand_of_the_environment_is_refused_with_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    with pytest.raises(ConfigurationError, match=r"hostaddr: asyncpg.*PGHOSTADDR"):
        read_url(BASE)
