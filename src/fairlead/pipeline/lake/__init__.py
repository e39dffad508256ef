"""The lake: Parquet files and the manifests that say which of them count. No Spark, only
pyarrow."""
