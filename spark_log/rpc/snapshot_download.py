"""A client's download of a snapshot: its chunks, each with a checksum."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from crc32c import crc32c

from spark_log.errors import CoordinatorNotAvailable, CorruptObject
from spark_log.journal.store_operations import Snapshot
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint
from spark_log.rpc.messages import SnapshotChunk, SnapshotRequest, decode

BEGINNINGS_MAX = 5
"""How often a download begins again.  A coordinator keeps the snapshots that are being downloaded; one that was
restarted, or another one, has different ones."""
TRIES = 3
"""For a chunk that arrives damaged."""


def download(ask: Callable[[SnapshotRequest], bytes], wanted: SnapshotRequest) -> Snapshot | None:
    """The state that coordinators send; None if the version cannot be rebuilt any more.

    ask:     gets the reply of any coordinator.
    wanted:  the request for the first chunk.
    Raises CoordinatorNotAvailable, CorruptObject, UnsupportedVersion.
    """
    for _ in range(BEGINNINGS_MAX):
        found, data = _chunk(ask, wanted)
        if not found.size:
            return None
        parts, at = [data], len(data)
        while at < found.size:
            asked = msgspec.structs.replace(wanted, snapshot=found.snapshot, at=at)
            chunk, data = _chunk(ask, asked)
            if chunk.snapshot != found.snapshot or not data:
                break
            parts.append(data)
            at += len(data)
        else:
            state = decode_checkpoint(b"".join(parts), f"the coordinator's snapshot of version {found.version}")
            return Snapshot(state, found.head.encode())
    raise CoordinatorNotAvailable(f"a snapshot was replaced {BEGINNINGS_MAX} times while it was downloaded")


def _chunk(ask: Callable[[SnapshotRequest], bytes], asked: SnapshotRequest) -> tuple[SnapshotChunk, bytes]:
    for _ in range(TRIES):
        line, _, data = ask(asked).partition(b"\n")
        found: SnapshotChunk = decode(line, SnapshotChunk, "the coordinator's reply")
        if crc32c(data) == found.crc:
            return found, data
    raise CorruptObject(f"a chunk of the coordinator's snapshot arrived damaged {TRIES} times, at byte {asked.at}")
