"""OpenTelemetry spans for submits and runs. Needs the extra `opentelemetry`, which installs the
API."""

from fairlead.errors import ConfigurationError

try:
    from fairlead.contrib.opentelemetry.tracing import Tracing
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise ConfigurationError(
        f"{error.name} is missing: pip install 'fairlead[opentelemetry]'"
    ) from error

__all__ = ["Tracing"]
