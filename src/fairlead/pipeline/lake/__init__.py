"""The lake: Parquet files, and the manifests that list the files of each table. Needs pyarrow, but
not Spark."""
