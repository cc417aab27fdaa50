"""The simulation: many actors on one log, in an order that a seed decides, checked by an oracle."""
