"""The lake as Iceberg tables in a catalog: read and written by PyIceberg, without Spark and without
a JVM."""

from fairlead.pipeline.extra import need

need("pyiceberg", "pyarrow", "sqlalchemy")
