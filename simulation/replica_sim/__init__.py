"""The simulation of replicas: writers, readers and maintenance, and brokers whose roots fail, as drawn from a seed."""
