"""The records that a coordinator remembers."""

from __future__ import annotations

from spark_log.server.recent_records import HEADS_MAX, RecordCache
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import log_key


def test_first_lines_are_remembered_longer_than_records() -> None:
    """A client that is behind gets what has changed, if its history is known."""
    cache = RecordCache(MemoryStore("record-cache"), limit=40)
    for version in range(1, 4):
        cache.put_new(log_key(version), b"head %d\n%s" % (version, b"x" * 20))
        cache.get(log_key(version))
    assert cache.records.after(0, 3, 1 << 20) == [] and len(cache.records.after(2, 3, 1 << 20)) == 1
    assert [cache.records.head(version) for version in range(5)] == [b"", b"head 1", b"head 2", b"head 3", b""]
    cache.records.forget()
    assert cache.records.head(3) == b"" and cache.records.after(2, 3, 1 << 20) == []
    cache.records.forget(3, b"head 3")
    assert cache.records.head(3) == b"head 3" and cache.records.after(2, 3, 1 << 20) == []


def test_the_oldest_first_lines_are_forgotten() -> None:
    """Their number is limited."""
    cache = RecordCache(MemoryStore("record-cache-heads"))
    for version in range(HEADS_MAX + 1):
        cache.put_new(log_key(version), b"%d\n" % version)
        cache.get(log_key(version))
    assert (
        cache.records.head(0) == b""
        and cache.records.head(1) == b"1"
        and cache.records.head(HEADS_MAX) == b"%d" % HEADS_MAX
    )
