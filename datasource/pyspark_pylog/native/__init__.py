"""Java source that the running Spark compiles, so that it plans `format("pylog")` by a query's columns and filters."""
