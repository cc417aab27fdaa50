"""The simulation of flows with state: their tasks on one log, in an order that a seed decides, checked by an oracle."""
