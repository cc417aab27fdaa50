"""What is compiled for the running Spark: how `format("pylog")` is planned."""
