"""Ports and connections: HTTP on one port with limits, TLS, addresses, and one connection of a client.

`http_port.py` is a port: it listens (`listener.py`), limits connections and requests (`connection_limits.py`), and
passes requests to a handler.  `head_first.py` parses nothing of a body before its handler wants it.  `failures.py` has
the errors of `spark_log.errors` as messages.  `client_connection.py` is the client's end: each wait has a limit.

Three ports are made of this: that of a coordinator (`server`), that of the nodes of a quorum (`quorum/node`), and the
one of this machine alone (`console`).  Requests and replies of pylog are in `rpc`.
"""
