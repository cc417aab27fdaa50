"""The simulation of replicas: writers, readers and upkeep, and brokers whose roots fail, as drawn from a seed."""
