"""One module for each group of commands of `pylog`, such as `pylog topic …` in `topics.py`."""
