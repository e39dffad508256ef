"""Jobs of the pipeline: the only modules that use sessions, paths and options. Each job is
idempotent, so it can be run again after a crash."""
