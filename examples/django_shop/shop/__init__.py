"""A shop whose orders are handled by tasks."""
