import pytest

pytest.register_assert_rewrite("fairlead.testing.contract")
