"""The simulation of Kafka's idempotent producers: gateways on one log, in an order that a seed decides."""
