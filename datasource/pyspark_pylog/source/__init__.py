"""The source: batch and streaming reads."""
