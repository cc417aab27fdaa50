"""The same work with pylog and with Spark's Kafka connector, beside each other: `make bench-kafka`."""
