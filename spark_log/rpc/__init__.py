"""Requests and replies between clients and coordinators.

`messages.py` has them all, typed, as JSON; its head lists the paths.  `client.py` is the client's side: it finds the
coordinator that leads, repeats what is safe to repeat, and says when a change may have been applied.
`client_timeouts.py` has its patience.  `health_check.py` asks without a token, and `snapshot_download.py` fetches a
state in chunks.

The server's side is `server/server.py`.  Commands and their replies are values of `metadata`, so a new command needs no
new message.
"""
