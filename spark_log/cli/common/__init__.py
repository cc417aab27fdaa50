"""Shared by all commands: options, one-sentence errors, the session with its log, and output as tables, JSON, YAML or
CSV.

`base.py` has the classes of commands, `session.py` the settings of one command, and `output.py` its output.
"""
