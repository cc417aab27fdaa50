"""The sink: batch and streaming writes, each applied exactly once."""
