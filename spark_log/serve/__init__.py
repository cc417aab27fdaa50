"""The process `pylog serve`: a coordinator and its server, from the configuration to the end.

`serve_config.py` reads a file, options and the environment.  `serve.py` starts a coordinator on shared storage, and
`serve_quorum.py` one on a node of a quorum; both stop in order, and report a reason if they cannot start.
`reloadable_server.py` replaces tokens, quotas and certificates while the process runs.

The command line is `cli/commands/serve.py`.
"""
