"""Names of the objects of a log: metadata records, checkpoints and data."""

from __future__ import annotations

META = "meta/"
FORMAT_KEY = "meta/format"
"""Of the root of a log or a mirror (`log_format.py`)."""


LOG = "meta/log/"


CHECKPOINTS = "meta/ckpt/"


SNAPSHOTS = "meta/quorum/"
"""Copies of the metadata that a quorum keeps on its nodes (`node/root_snapshots.py`)."""


DATA = "data/"


PINS = "meta/pin/"
"""Pins of Spark queries (`pyspark_pylog/source/query_pins.py`), and objects of clock checks."""


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


def data_key(epoch: int, name: str) -> str:
    return f"{DATA}{epoch:016x}/{name}"


def upload_epoch(key: str) -> int:
    """Upload epoch in the name of a data object."""
    return int(key.removeprefix(DATA)[:16], 16)


def epoch_prefixes(first: int, last: int) -> list[str]:
    """At most 17 prefixes of data objects, of all uploads from `first` to `last` and of few others."""
    digits = 0
    while (last - first) >> 4 * (digits + 1):
        digits += 1
    blocks = range(first >> 4 * digits, (last >> 4 * digits) + 1)
    return [f"{DATA}{block:0{16 - digits}x}" for block in blocks]
