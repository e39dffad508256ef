"""Alerts: what goes wrong now, found from signs that a relay sends every few seconds; see
docs/how-to/alerts.md."""
