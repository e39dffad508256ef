"""The plugin of pytest, in projects of users: `fairlead.pytest_plugin`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import App

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "fairlead.pytest_plugin", "-p", "no:cacheprovider")

SHOP = """
    import fairlead

    app = fairlead.App("sqlite:////nowhere/shop.db")
    ran = []

    @app.task
    def confirm(order: int) -> None:
        ran.append(order)
        if order == 13:
            raise ValueError("unlucky")
"""

CONFTEST = """
    import pytest
    import shop

    @pytest.fixture
    def fairlead_app():
        return shop.app
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with a module of tasks, whose tests use its application."""
    # This test may itself run in a worker.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(shop=SHOP)
    pytester.makeconftest(CONFTEST)
    pytester.syspathinsert()
    return pytester


def test_each_test_has_the_application_of_the_project_on_a_database_of_its_own(
    project: pytest.Pytester,
):
    project.makepyfile(
        test_shop="""
        import asyncio
        import pytest
        import shop

        @pytest.mark.parametrize("order", [1, 2])
        def test_alone(fairlead_kit, order):
            fairlead_kit.assert_not_submitted(shop.confirm)
            shop.confirm.submit(order=order)
            fairlead_kit.drain()
            assert shop.ran[-1] == order

        def test_that_fails(fairlead_kit):
            shop.confirm.submit(order=13)
            fairlead_kit.drain()

        def test_after_it(fairlead_kit):
            fairlead_kit.assert_submitted(shop.confirm, order=4)

        def test_without_asyncio(fairlead_kit):
            async def main():
                await shop.confirm.submit_async(order=5)
                await fairlead_kit.drain_async()
            asyncio.run(main())
            assert shop.ran[-1] == 5
        """
    )
    result = project.runpytest_subprocess(*PLUGIN, "-p", "no:asyncio")
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            '*raise ValueError("unlucky")*',
            "E*ValueError: unlucky",
            "E*raised by task 'confirm', id *, attempt 1; it is tried again",
            "*no task confirm(order=4) submitted; submitted were:*",
            "*nothing*",
        ]
    )
    result.stdout.no_fnmatch_line("*engine*")
    assert not [*project.path.glob("*.db")]


def test_the_workers_of_xdist_and_of_an_option_have_a_database_each(project: pytest.Pytester):
    pytest.importorskip("xdist")
    project.makepyfile(
        test_shop="""
        import shop

        def test_first(fairlead_kit):
            shop.confirm.submit(order=1)
            fairlead_kit.drain()
            fairlead_kit.assert_submitted(shop.confirm, 1)

        test_second = test_first
        """
    )
    url = f"sqlite:///{project.path}/shop_test.db"
    refused = project.runpytest_subprocess(*PLUGIN, "-n1", "--fairlead-url", url)
    refused.assert_outcomes(errors=2)
    refused.stdout.fnmatch_lines(["*need a database each: put {worker} into*"])
    url = f"sqlite:///{project.path}/shop_test_{{worker}}.db"
    project.runpytest_subprocess(*PLUGIN, "-n2", "--fairlead-url", url).assert_outcomes(passed=2)
    project.runpytest_subprocess(*PLUGIN, "--fairlead-url", url).assert_outcomes(passed=2)
    names = {each.name for each in project.path.glob("*.db")}
    assert names == {f"shop_test_{worker}.db" for worker in ("gw0", "gw1", "main")}


ASYNC = """
    import anyio
    import pytest
    import shop

    {mark}
    async def test_on_the_loop_of_the_test(fairlead_kit):
        await shop.confirm.submit_async(order=1)
        await fairlead_kit.drain_async()
        fairlead_kit.drain()
        assert shop.ran == [1]
        with fairlead_kit.inline():
            await shop.confirm.submit_async(order=2)
            assert shop.ran == [1, 2]
        with pytest.raises(ValueError, match="unlucky"):
            await shop.confirm.submit_async(order=13)
            await fairlead_kit.drain_async()
        fairlead_kit.assert_submitted(shop.confirm, 3)
"""


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("@pytest.mark.anyio", ("-p", "no:asyncio")),
        ("@pytest.mark.asyncio(loop_scope='session')", ("--asyncio-mode=strict",)),
        ("", ("--asyncio-mode=auto",)),
    ],
    ids=["anyio", "session", "auto"],
)
def test_asynchronous_tests_use_the_kit_with_each_plugin(
    project: pytest.Pytester, mark: str, options: tuple[str, ...]
):
    pytest.importorskip("anyio")
    project.makeconftest(
        CONFTEST
        + """
    @pytest.fixture
    def anyio_backend():
        return "asyncio"
"""
    )
    project.makepyfile(test_shop=ASYNC.format(mark=mark))
    project.runpytest_subprocess(*PLUGIN, *options).assert_outcomes(passed=1)


def test_a_project_without_tasks_gets_an_empty_application_and_its_own_url(
    pytester: pytest.Pytester,
):
    pytester.makepyfile(
        test_own="""
        import pytest

        @pytest.fixture
        def own(fairlead_app, fairlead_kit):
            @fairlead_app.task
            def work() -> None: ...
            return work

        def test_work(own, fairlead_kit):
            own.submit()
            fairlead_kit.drain()
            fairlead_kit.assert_submitted(own)

        class TestOwnUrl:
            @pytest.fixture
            def fairlead_url(self):
                return None

            @pytest.fixture
            def fairlead_app(self, tmp_path):
                import fairlead
                return fairlead.App(f"sqlite:///{tmp_path}/own.db")

            def test_work(self, own, fairlead_kit, tmp_path):
                own.submit()
                fairlead_kit.drain()
                assert (tmp_path / "own.db").exists()
        """
    )
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=2)


# Outside of a kit --------------------------------------------------------------------------------


@pytest.fixture
def production(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The database of the project, outside of the folders of temporary files."""
    (project.path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(project.path / "tmp"))
    monkeypatch.delenv("PYTEST_DEBUG_TEMPROOT", raising=False)
    file = project.path / "shop.db"
    project.makepyfile(shop=SHOP.replace("/nowhere/shop.db", str(file)))
    App(f"sqlite:///{file}").migrate()
    return file


def count(file: Path) -> int:
    """Return the number of tasks in the file."""
    app = App(f"sqlite:///{file}")
    try:
        return len(app.management.find())
    finally:
        app.close()


def test_a_test_without_the_kit_never_submits_to_the_database_of_the_application(
    project: pytest.Pytester, production: Path
):
    project.makepyfile(
        test_shop="""
        import asyncio
        import threading

        import pytest
        import shop
        from fairlead import ConfigurationError

        def test_forgotten():
            shop.confirm.submit(order=1)

        async def in_a_loop():
            await shop.confirm.submit_async(order=1)

        def test_forgotten_in_a_loop():
            asyncio.run(in_a_loop())

        def test_forgotten_in_a_thread():
            errors = []
            def run():
                try:
                    shop.confirm.submit(order=1)
                except ConfigurationError as error:
                    errors.append(error)
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            assert len(errors) == 1

        def test_a_worker():
            with pytest.raises(ConfigurationError, match="fairlead_kit"):
                shop.app.node()
                _ = shop.app.store

        @pytest.fixture
        def order():
            shop.confirm.submit(order=1)

        def test_a_fixture_before_the_kit(order, fairlead_kit):
            pass

        def test_a_fixture_after_the_kit(fairlead_kit, order):
            fairlead_kit.assert_submitted(shop.confirm, 1)

        def test_after_the_kit():
            shop.confirm.submit(order=1)
        """
    )
    result = project.runpytest_subprocess(*PLUGIN, "-p", "no:asyncio")
    result.assert_outcomes(passed=3, failed=3, errors=1)
    result.stdout.fnmatch_lines(
        ["E*ConfigurationError: a test uses sqlite:///*/shop.db without `fairlead_kit`: give*"]
    )
    assert count(production) == 0


def test_a_mark_or_an_option_lets_tests_use_the_database_of_the_application(
    project: pytest.Pytester, production: Path
):
    project.makepyfile(
        test_shop="""
        import pytest
        import shop

        @pytest.fixture
        def order():
            shop.confirm.submit(order=1)

        @pytest.mark.fairlead_own_url
        def test_marked(order):
            shop.confirm.submit(order=2)

        def test_unmarked():
            shop.confirm.submit(order=3)
        """
    )
    args = (*PLUGIN, "--strict-markers")
    project.runpytest_subprocess(*args).assert_outcomes(passed=1, failed=1)
    assert count(production) == 2
    project.makeini("[pytest]\nfairlead_own_url = true\n")
    project.runpytest_subprocess(*args).assert_outcomes(passed=2)
    assert count(production) == 5


@pytest.mark.parametrize(
    ("name", "is_of_tests"),
    [
        ("shop_test.db", True),
        ("tmp/shop.db", True),
        ("tmp/../shop.db", False),
        ("latest.db", False),
        ("tests/shop.db", False),
    ],
)
def test_databases_of_tests_need_no_kit(
    project: pytest.Pytester, production: Path, name: str, is_of_tests: bool
):
    (project.path / "tests").mkdir()
    project.makepyfile(
        test_own=f"""
        import fairlead

        def test_own(tmp_path):
            for file in ({str(project.path / name)!r}, tmp_path / "shop.db"):
                app = fairlead.App(f"sqlite:///{{file}}")
                app.migrate()

                @app.task
                def work() -> None: ...

                work.submit()
        """
    )
    result = project.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=is_of_tests, failed=not is_of_tests)
    assert (project.path / name).exists() == (is_of_tests or name == "tmp/../shop.db")


def test_the_plugin_imports_no_node_and_no_kit_before_its_use():
    code = (
        "import sys, fairlead.pytest_plugin;"
        " assert not {'fairlead.testing', 'fairlead.engine.node', 'sqlalchemy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fairlead_does_not_import_pytest():
    code = "import sys, fairlead, fairlead.testing; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
