"""Reading of the lake without Spark: DuckDB over the files that the newest manifests list."""
