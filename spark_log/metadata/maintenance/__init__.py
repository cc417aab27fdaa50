"""Maintenance in the log's state: swaps of slices, the fence, the cleaner point, a reset clock, and losses that were
accepted.
"""
