"""Producing: appends, producers and transactions, from rows to a commit."""
