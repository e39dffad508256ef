"""The jars of a session, which the user's caches may already have."""

from pathlib import Path

import pytest

from fairlead.pipeline.session import jar_of

PACKAGE = "org.xerial:sqlite-jdbc:3.54.1.0"


@pytest.mark.parametrize(
    "place",
    [
        ".ivy2.5.2/jars/org.xerial_sqlite-jdbc-3.54.1.0.jar",
        ".ivy2/jars/org.xerial_sqlite-jdbc-3.54.1.0.jar",
        ".m2/repository/org/xerial/sqlite-jdbc/3.54.1.0/sqlite-jdbc-3.54.1.0.jar",
    ],
)
def test_a_jar_in_a_cache_is_used_as_it_is(tmp_path: Path, place: str) -> None:
    assert jar_of(PACKAGE, tmp_path) is None
    jar = tmp_path / place
    jar.parent.mkdir(parents=True)
    jar.touch()
    assert jar_of(PACKAGE, tmp_path) == jar


def test_a_jar_of_another_version_or_group_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / ".ivy2/jars"
    folder.mkdir(parents=True)
    (folder / "org.xerial_sqlite-jdbc-3.53.0.0.jar").touch()
    (folder / "com.xerial_sqlite-jdbc-3.54.1.0.jar").touch()
    assert jar_of(PACKAGE, tmp_path) is None
