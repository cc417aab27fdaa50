"""The same work with pylog and with Spark's Kafka connector, compared: `make bench-kafka`."""
