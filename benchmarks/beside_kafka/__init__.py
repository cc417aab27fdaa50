"""Compares pylog with Spark's Kafka connector at the same work: `make bench-kafka`."""
