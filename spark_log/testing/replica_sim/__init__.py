"""The simulation of replicas: writers, readers and upkeep on brokers whose roots fail, in an order drawn from a seed."""
