"""Names of the objects of a log: metadata records, checkpoints and data.

A folder may have other files: `.DS_Store`, `.nfs…` of a network mount, the empty object that a bucket has in place of a
directory, another log.  `listed` passes over them, so they are neither read nor deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from spark_log.metadata.commands import OBJECT
from spark_log.store.base import ObjectStore

META = "meta/"
FORMAT_KEY = "meta/format"
"""Describes the root of a log or a mirror (`log_format.py`)."""
MIRRORED = "meta/mirrored"
"""The version up to which a mirror has copied everything (`recovery/late_files.py`)."""


LOG = "meta/log/"


CHECKPOINTS = "meta/ckpt/"


SNAPSHOTS = "meta/quorum/"
"""Copies of the metadata that a quorum keeps on its nodes (`server/quorum/root_snapshots.py`)."""


DATA = "data/"
LOST_VERSIONS = "data/lost-versions"
"""Versions of the log that are lost, as far as maintenance has noticed (`journal/lost_versions.py`).  It is beside the
objects, because a client of a coordinator may have no access to the metadata.  No listing of objects has it."""
INDEX = ".idx"
"""Suffix of slice indexes."""


DAMAGED = "meta/damaged/"
"""Files that repairs and recoveries have put aside."""


PINS = "meta/pin/"
"""Pins of Spark queries (`pyspark_pylog/source/query_pins.py`), and objects of clock checks."""


_UNIQUE = "[0-9a-f]{16}"
_OF_A_LOG = re.compile(
    rf"{OBJECT}|data/[0-9a-f]{{16}}/(?:clock-{_UNIQUE}|{_UNIQUE}\.dropped)"
    r"|meta/(?:format|mirrored|log\.json|broker\.json|maintenance|reserve|(?:probe|check)-[A-Za-z0-9-]+)"
    rf"|meta/log/[0-9]{{20}}\.rec|meta/ckpt/[0-9]{{20}}(?:-{_UNIQUE})+"
    r"|meta/quorum/[0-9]{16}-[0-9]{20}-[0-9a-z]+\.checkpoint"
    rf"|meta/alive/(?:start-{_UNIQUE}|[A-Za-z0-9][A-Za-z0-9.-]*-(?:[0-9]+|health))"
    r"|meta/(?:pin|probe|damaged)(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)+"
)
FILES_NAMED = 5


def is_of_a_log(key: str) -> bool:
    """Whether a log, or one of its brokers, has files with such names."""
    return _OF_A_LOG.fullmatch(key) is not None


def listed(store: ObjectStore, prefix: str, root: str = "") -> list[str]:
    """The files of a log under a prefix, sorted.

    root:  what comes before their names in this store, as `<directory>/`.
    """
    return [key for key in store.list(prefix) if is_of_a_log(key.removeprefix(root))]


def foreign_text(store: ObjectStore, prefixes: Iterable[str]) -> str:
    """A sentence on what else is in folders of a log; empty if there is nothing else."""
    found: dict[str, int] = {}
    for key in (
        key for prefix in prefixes for key in store.list(prefix) if not is_of_a_log(key) and key != LOST_VERSIONS
    ):
        where = _foreign_part(key)
        found[where] = found.get(where, 0) + 1
    if not found:
        return ""
    named = [where if number == 1 else f"{where} ({number} files)" for where, number in sorted(found.items())]
    rest = f" and {len(named) - FILES_NAMED} others" if len(named) > FILES_NAMED else ""
    return f"{store.url} has files that are not of this log, and are left alone: {', '.join(named[:FILES_NAMED])}{rest}"


def _foreign_part(key: str) -> str:
    """The file, or the first of the folders around it that a log does not have, so that another log is named once."""
    known = re.match(r"(?:meta/(?:log|ckpt|quorum|pin|alive|probe|damaged)|data/[0-9a-f]{16}|meta|data)/", key)
    at = 0 if known is None else known.end()
    folder, slash, _ = key[at:].partition("/")
    return ascii(key[:at] + folder + slash)[1:-1]


def log_key(version: int) -> str:
    return f"{LOG}{version:020}.rec"


def log_version(key: str) -> int:
    return int(key.removeprefix(LOG)[:20])


def checkpoint_key(version: int, unique: str) -> str:
    return f"{CHECKPOINTS}{version:020}-{unique}"


def checkpoint_version(key: str) -> int:
    """Version in a checkpoint's key; 0 for the empty key of a log without checkpoints."""
    return int(key.removeprefix(CHECKPOINTS)[:20]) if key else 0


def snapshot_key(epoch: int, version: int, unique: str) -> str:
    """Later ones sort behind: a quorum that replaces another one has higher epochs, and may have lower versions."""
    return f"{SNAPSHOTS}{epoch:016}-{version:020}-{unique}.checkpoint"


def snapshot_epoch(key: str) -> int:
    return int(key.removeprefix(SNAPSHOTS)[:16])


def snapshot_version(key: str) -> int:
    return int(key.removeprefix(SNAPSHOTS)[17:37])


def data_key(epoch: int, name: str) -> str:
    return f"{DATA}{epoch:016x}/{name}"


def upload_epoch(key: str) -> int:
    """Upload epoch in the name of a data object."""
    return int(key.removeprefix(DATA)[:16], 16)


def prefixes_above(version: int) -> list[str]:
    """Two prefixes of data objects, of all uploads in the next 256 versions and of some others."""
    block = (version + 1) >> 8
    return [f"{DATA}{number:014x}" for number in (block, block + 1)]


def epoch_prefixes(first: int, last: int) -> list[str]:
    """At most 17 prefixes of data objects, of all uploads from `first` to `last` and of few others."""
    digits = 0
    while (last - first) >> 4 * (digits + 1):
        digits += 1
    blocks = range(first >> 4 * digits, (last >> 4 * digits) + 1)
    return [f"{DATA}{block:0{16 - digits}x}" for block in blocks]
