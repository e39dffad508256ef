"""The libraries of the extra `pipeline`, and the error when one is missing."""

from __future__ import annotations

import importlib.util

from fairlead.errors import ConfigurationError


def need(*modules: str) -> None:
    """Raise ConfigurationError when one of the libraries is not installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigurationError(f"{', '.join(missing)} missing: pip install 'fairlead[pipeline]'")
