"""Tags in the names of uploaded objects: which token they were uploaded with.

Everybody who may list `data/` sees the objects that others have uploaded and not committed yet.  A coordinator lets a
token for some topics commit only objects with its own tag, and an index of slices names only objects with the tag that
the index has.
"""

from __future__ import annotations

import hashlib
import re

_TAGGED = re.compile(r"-([0-9a-f]{8})\.(?:seg|idx)")


def tag_of_token(token: str | None) -> str:
    """The tag of a client's token; empty without a token."""
    return tag_of_hash(hashlib.sha256(token.strip().encode()).digest()) if token else ""


def tag_of_hash(digest: bytes) -> str:
    """The tag of a token by its hash, which is all that a coordinator may know of it.  Too short to find the token."""
    return hashlib.sha256(b"object tag " + digest).hexdigest()[:8]


def tagged(unique: str, kind: str, tag: str) -> str:
    """The last part of an object's name.

    kind:  `seg` or `idx`.
    tag:   empty: without one.
    """
    return f"{unique}-{tag}.{kind}" if tag else f"{unique}.{kind}"


def tag_in(name: str) -> str:
    """The tag in an object's name; empty if there is none."""
    found = _TAGGED.search(name)
    return "" if found is None or found.end() != len(name) else found[1]
