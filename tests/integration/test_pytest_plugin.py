"""The plugin of pytest, in projects of users: `fairlead.pytest_plugin`."""

from __future__ import annotations

import subprocess
import sys

import pytest

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

        test_second = test_third = test_fourth = test_first
        """
    )
    url = f"sqlite:///{project.path}/shop_test.db"
    refused = project.runpytest_subprocess(*PLUGIN, "-n2", "--fairlead-url", url)
    refused.assert_outcomes(errors=4)
    refused.stdout.fnmatch_lines(["*need a database each: put {worker} into*"])
    url = f"sqlite:///{project.path}/shop_test_{{worker}}.db"
    project.runpytest_subprocess(*PLUGIN, "-n2", "--fairlead-url", url).assert_outcomes(passed=4)
    project.runpytest_subprocess(*PLUGIN, "--fairlead-url", url).assert_outcomes(passed=4)
    names = {each.name for each in project.path.glob("*.db")}
    assert names == {f"shop_test_{worker}.db" for worker in ("gw0", "gw1", "main")}


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


def test_the_plugin_imports_no_node_and_no_kit_before_its_use():
    code = (
        "import sys, fairlead.pytest_plugin;"
        " assert not {'fairlead.testing', 'fairlead.engine.node', 'sqlalchemy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fairlead_does_not_import_pytest():
    code = "import sys, fairlead, fairlead.testing; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
