"""Progress of queries: published to groups, and as metrics."""
