"""The jobs: the only place that touches sessions, paths and options. Each is idempotent: run it
again after any crash."""
