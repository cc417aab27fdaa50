"""The ids of topics after lost versions were given up.  Pure.

Each topic gets a new id then (`maintenance/accepted_loss.py`).  Copies and readers of before have its former one.
"""

from __future__ import annotations

from hashlib import blake2b

VERSIONS = 1_000_000_000
"""After a loss a log continues at the next multiple of this: no log reaches it otherwise."""
LOSSES_MAX = 8
"""After more losses, a topic is not recognised by its former id."""


def version_after_loss(newest: int) -> int:
    """The version at which a log continues; `newest` is the last one in the storage."""
    return (newest // VERSIONS + 1) * VERSIONS


def has_accepted_loss(log: int, copy: int) -> bool:
    """Whether versions of a log were given up since a copy of it was made, which may have them; both by version."""
    return log // VERSIONS > copy // VERSIONS


def versions_since(copy: int, log: int) -> int:
    """How many versions a log has after that of a copy.  The versions that an accepted loss skips do not exist: after
    a loss, only the version at which the log continued counts, and those after it.
    """
    return log % VERSIONS + 1 if has_accepted_loss(log, copy) else log - copy


def renewed_id(topic_id: str, version: int) -> str:
    """The new id of a topic.  Every repair of a log that continues at this version gives it: two at the same time come
    to one state.
    """
    return blake2b(f"{topic_id} {version}".encode(), digest_size=16).hexdigest()


def later_ids(topic_id: str, version: int) -> set[str]:
    """The ids that a topic may have at a version, after losses were accepted, or not."""
    found = {topic_id}
    for number in range(1, min(version // VERSIONS, LOSSES_MAX) + 1):
        found |= {renewed_id(one, number * VERSIONS) for one in found}
    return found
