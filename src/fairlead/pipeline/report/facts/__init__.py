"""Facts of the report, aggregated by DuckDB: small pandas frames with a stated bound of rows."""
