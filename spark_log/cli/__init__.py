"""The `pylog` command, one module for each group of its commands."""
