"""Commits of records: the decision, the identities that make retries idempotent, and commits that readers do not see
yet.

`decide_commits.py` decides, `last_commit.py` recognises a retry, `identities.py` names the producers of a token's
clients, and `pending_commits.py` has the high watermark: commits wait there for copies.
"""
