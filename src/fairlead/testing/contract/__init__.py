"""Contract suites: what every adapter of a port promises, as tests that any package can run.

A test module imports a suite and defines its fixture:

    from fairlead.testing.contract.insertion import *
    from fairlead.testing.contract.lane_reads import *
    from fairlead.testing.contract.claims import *

    @pytest.fixture
    def store(): ...

Suites need pytest and pytest-asyncio. For readable failures, call
`pytest.register_assert_rewrite("fairlead.testing.contract")` in conftest.py before the first import
from here.
"""
