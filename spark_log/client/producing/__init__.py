"""Producing: appends, producers and transactions, from rows to commits."""
