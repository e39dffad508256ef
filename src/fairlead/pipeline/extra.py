"""The libraries of the extra `pipeline`: found, or one line says how to get them."""

from __future__ import annotations

import importlib.util

from fairlead.errors import ConfigurationError


def need(*modules: str) -> None:
    """Raises ConfigurationError when one of them is not installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigurationError(f"{', '.join(missing)} missing: pip install 'fairlead[pipeline]'")
