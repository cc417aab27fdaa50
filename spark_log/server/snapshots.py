"""Snapshots for clients that read the log through the coordinator: the whole state, in chunks.

A reply is a line with a `SnapshotChunk`, and the bytes of that chunk.  All chunks together are a checkpoint of the
state.

Encoding a large state takes seconds of CPU, so it is done in a thread, and clients share the result: they get the
changes after it from the records that the coordinator remembers.  A new snapshot is made when these are too many.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from crc32c import crc32c

from spark_log.metadata.formats.checkpoint_format import encode_checkpoint
from spark_log.metadata.state import State
from spark_log.rpc.messages import SnapshotChunk, SnapshotRequest, encode
from spark_log.runtime.daemon_threads import DaemonThreads
from spark_log.server.service import Service

CHUNK_BYTES = 1 << 20
CHANGES_BYTES_MAX = 1 << 20
"""Changes after a snapshot that a client gets in addition.  With more, the next client gets a new snapshot."""
KEPT_MAX = 4
"""A client whose snapshot was replaced meanwhile begins again."""
UNUSED_S = 60.0
"""A snapshot is forgotten when no chunk was asked for during this time."""


@dataclass(slots=True)
class _Kept:
    """A snapshot in memory."""

    name: str
    version: int
    head: str
    data: bytes
    used_s: float

    def chunk(self, at: int, size: int) -> bytes:
        data = self.data[at : at + size]
        head = SnapshotChunk(
            snapshot=self.name, version=self.version, head=self.head, size=len(self.data), at=at, crc=crc32c(data)
        )
        return encode(head) + b"\n" + data


class Snapshots:
    """The snapshots of one coordinator.  Runs on the event loop."""

    def __init__(
        self,
        service: Service,
        encoding: DaemonThreads,
        reading: DaemonThreads,
        now_s: Callable[[], float],
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """
        encoding, reading:  for work of the processor, and for reads of the log, which may hang.
        """
        self._service, self._now_s, self._chunk_bytes = service, now_s, chunk_bytes
        self._encoding, self._reading = encoding, reading
        self._kept: dict[str, _Kept] = {}
        """By name: those that clients are downloading."""
        self._newest: _Kept | None = None
        self._turn = asyncio.Lock()
        """Held by the request that makes a snapshot."""
        self._made = self._sent_bytes = 0

    async def reply(self, asked: SnapshotRequest) -> bytes:
        """The bytes of the reply to a request.  Raises NotCoordinator if a standby has not reached its version."""
        found = self._kept.get(asked.snapshot)
        at = 0 if found is None else asked.at
        if found is None:
            self._check_reached(max(asked.at_least, asked.version or 0))
            found = await (self._recent(asked.at_least) if asked.version is None else self._at(asked.version))
        if found is None:
            return encode(SnapshotChunk(snapshot="", version=asked.version or 0, head="", size=0, at=0, crc=0)) + b"\n"
        found.used_s = self._now_s()
        data = found.chunk(at, self._chunk_bytes)
        self._sent_bytes += len(data)
        return data

    def metrics_text(self) -> str:
        """May be called from any thread."""
        numbers = {
            "pylog_snapshots_total": ("Snapshots of the metadata that were made for clients.", self._made),
            "pylog_snapshot_bytes_total": ("Bytes of snapshots that were sent.", self._sent_bytes),
        }
        return "".join(
            f"# HELP {name} {text}\n# TYPE {name} counter\n{name} {number}\n"
            for name, (text, number) in numbers.items()
        )

    def forget_unused(self) -> None:
        """To be called now and then."""
        now = self._now_s()
        self._kept = {name: kept for name, kept in self._kept.items() if now - kept.used_s < UNUSED_S}
        if self._newest is not None and self._newest.name not in self._kept:
            self._newest = None

    def _check_reached(self, version: int) -> None:
        if not self._service.leading and self._service.published_with_head()[0].version < version:
            raise self._service.not_leading()

    async def _recent(self, at_least: int) -> _Kept:
        """The newest snapshot, if its changes since are known and few; otherwise a new one."""
        async with self._turn:
            if self._newest is None or self._newest.version < at_least or not self._is_good(self._newest):
                self._newest = await self._encoded(*self._service.published_with_head())
            return self._newest

    def _is_good(self, kept: _Kept) -> bool:
        """Whether clients can get a snapshot, and the changes after it."""
        if kept.name not in self._kept:
            return False
        newest, head = self._service.published_with_head()
        if newest.version == kept.version:
            return head == kept.head
        if newest.version < kept.version or kept.head != self._service.head(kept.version):
            return False
        return bool(self._service.after(kept.version, newest.version, CHANGES_BYTES_MAX))

    async def _at(self, version: int) -> _Kept | None:
        """The snapshot of a version, which a client needs that reads what others have read."""
        if (same := self._of(version)) is not None:
            return same
        state = await self._reading.submit(self._service.ask_log, lambda log: log.state_at(version))
        if state is None:
            return None
        async with self._turn:
            return self._of(version) or await self._encoded(state, self._service.head(version))

    def _of(self, version: int) -> _Kept | None:
        return next((kept for kept in self._kept.values() if kept.version == version), None)

    async def _encoded(self, state: State, head: str) -> _Kept:
        data = await self._encoding.submit(encode_checkpoint, state)
        self._made += 1
        kept = _Kept(uuid.uuid4().hex, state.version, head, data, self._now_s())
        while len(self._kept) >= KEPT_MAX:
            del self._kept[min(self._kept.values(), key=lambda one: one.used_s).name]
        self._kept[kept.name] = kept
        return kept
