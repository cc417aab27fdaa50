"""Progress of queries: their offsets as Spark stores them, published to groups, and as metrics."""
