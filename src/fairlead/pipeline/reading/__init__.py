"""Reading of the lake without Spark: DuckDB over the files of the snapshots that readers see."""
