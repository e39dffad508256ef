"""Alerts: present problems, found from the heartbeats of queues that a relay sends every few
seconds. See docs/how-to/alerts.md."""
