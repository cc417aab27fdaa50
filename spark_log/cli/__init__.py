"""The `pylog` command.

`main.py` has the tree of commands; each is imported when it is used, so the shell's completion is fast.  `commands` has
one module for each group of commands, and `common` their options, errors, output and session.
`docs/cli_reference.py` makes docs/cli.md from their help.

A command parses, calls a method of `log.admin` or a duty, and prints.  Rows that the console shows too are in
`display`.  To add a command, write it in a module of `commands`, and run `make docs`.
"""
