"""Plain rows that commands print and the console shows: topics, groups, producers, configs, and the health of a log.

A row is a dict of plain values under the names that `-o json` has.  Commands make tables of them
(`cli/common/output.py`), and the console makes pages (`console/site.py`).  `health.py` has the checks of `pylog cluster
health`, `units.py` numbers with units, and `metadata_tree.py` the state as a tree for `pylog metadata shell`.

These functions take an open log or a state.  They print nothing, and know no terminal.
"""
