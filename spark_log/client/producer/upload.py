"""Writing objects: the steps of a task, a producer or an append before the commit.

An upload turns rows into objects under an upload epoch, and returns exactly what it wrote.  Objects become visible
when a commit names them; objects that no commit names are garbage.
"""

from __future__ import annotations

import random
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa

from spark_log.client.producer.topic_partitions import TopicPartitioners
from spark_log.client.producer.topic_rules import (
    Int64s,
    TopicRows,
    TopicSpec,
    TopicTable,
    check_rules,
    checked_versions,
    keyless_topics,
)
from spark_log.errors import InvalidRecord
from spark_log.metadata.object_tags import tagged
from spark_log.metadata.replicas.replica_state import OWN_GROUP
from spark_log.metadata.set_backs import BEGINNING, Lineage
from spark_log.metadata.topics.schemas import BYTES
from spark_log.model import DataObject, Placed, Run
from spark_log.roots.broker_roots import check_is_mounted
from spark_log.roots.replica_puts import ReplicaPuts, ToPut
from spark_log.segment.compression import COMPRESSIONS, DEFAULT_COMPRESSION, Compression
from spark_log.segment.record_columns import Rows
from spark_log.segment.row_sorter import RowSorter, sorted_rows
from spark_log.segment.writer import BATCH_BYTES, BATCH_ROWS, EncodedRows, SegmentWriter, WrittenSegment
from spark_log.store.base import Chunks, ObjectStore
from spark_log.store.object_names import data_key

BUFFER_BYTES = 64 << 20
"""Memory of an upload for rows that wait to be sorted, for a sorted copy of them, and for encoded batches."""


class Uploaded(NamedTuple):
    """The result of an upload, in commit order."""

    objects: tuple[DataObject, ...]
    slices: tuple[tuple[int, Run], ...]
    """(index of the object, run)."""
    keyless: tuple[str, ...] = ()
    """Ids of the topics of which some records have no key, sorted."""
    placed: tuple[Placed, ...] = ()
    """Where each object is; empty: all are in the log's own root."""
    schemas: tuple[tuple[str, int], ...] = ()
    """(topic id, version of its schema) of the topics with typed rows, sorted."""
    stats: tuple[bytes, ...] = ()
    """Statistics of the data columns of each slice; empty: none have any."""
    lineage: Lineage = BEGINNING
    """The log when the upload began."""
    first_schemas: tuple[tuple[str, str], ...] = ()
    """(topic id, JSON) of the schemas that the commit gives to topics without one, sorted."""

    @property
    def rows(self) -> int:
        return sum(run.rows for _, run in self.slices)


def join_uploads(uploads: Iterable[Uploaded]) -> Uploaded:
    """Concatenate uploads that began in the same history of the log."""
    objects: list[DataObject] = []
    slices: list[tuple[int, Run]] = []
    keyless: set[str] = set()
    placed: list[Placed] = []
    schemas: dict[str, int] = {}
    stats: list[bytes] = []
    lineage = BEGINNING
    first: dict[str, str] = {}
    for upload in uploads:
        lineage = upload.lineage
        slices += [(number + len(objects), run) for number, run in upload.slices]
        objects += upload.objects
        keyless.update(upload.keyless)
        schemas.update(newest_schemas(schemas, versions_of(upload).items()))
        placed += upload.placed or [Placed(OWN_GROUP)] * len(upload.objects)
        stats += upload.stats or [b""] * len(upload.slices)
        first.update(upload.first_schemas)
    somewhere = placed if any(where.group != OWN_GROUP for where in placed) else ()
    return Uploaded(
        tuple(objects),
        tuple(slices),
        tuple(sorted(keyless)),
        tuple(somewhere),
        typed_only(schemas),
        tuple(stats) if any(stats) else (),
        lineage,
        tuple(sorted(first.items())),
    )


def newest_schemas(known: Mapping[str, int], more: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The newest version of each topic in `more` and in `known`; `BYTES` if one of them has bytes: then the commit is
    refused as soon as the topic has a schema.
    """
    both = ((topic_id, version, known.get(topic_id, version)) for topic_id, version in more)
    return {topic_id: max(one, other) if one and other else BYTES for topic_id, one, other in both}


def versions_of(upload: Uploaded) -> dict[str, int]:
    """The version of each topic in an upload; `BYTES` if its values are bytes."""
    return {**dict.fromkeys((run.topic_id for _, run in upload.slices), BYTES), **dict(upload.schemas)}


def typed_only(versions: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """(topic id, version of its schema) of the topics with typed rows, sorted."""
    return tuple(sorted((topic_id, version) for topic_id, version in versions.items() if version != BYTES))


class Uploader:
    """Writes rows to objects.  Each combination of placement group, codec and compression level has an object.

    store:        the log's own root.
    epoch:        the upload epoch: a version of the state that the writer had read before the upload.
    partitioner:  a name for `make_partitioner`; each topic gets a separate instance.
    compression:  the codec of topics whose `compression.type` is `producer`.
    replicas:     writes the objects of placement groups that are on brokers; None: the log has no such groups.
    sort:         sort the rows of topics that have `sort.columns`; otherwise rows keep their order.
    lineage:      that of the state at the upload epoch.
    tag:          in the names of the objects, as in `Context`.
    """

    def __init__(
        self,
        store: ObjectStore,
        epoch: int,
        rng: random.Random,
        *,
        partitioner: str = "default",
        compression: str = DEFAULT_COMPRESSION,
        replicas: ReplicaPuts | None = None,
        sort: bool = False,
        lineage: Lineage = BEGINNING,
        tag: str = "",
    ) -> None:
        if compression not in COMPRESSIONS:
            raise InvalidRecord(f"compression {compression!r} is not one of {', '.join(COMPRESSIONS)}")
        self._store = store
        self._epoch, self._lineage = epoch, lineage
        self._rng = rng
        self._partitioner = partitioner
        self._compression = compression
        self._partitioners = TopicPartitioners(partitioner, rng)
        self._destinations = _Destinations()
        self._sorter = RowSorter(BATCH_ROWS, BATCH_BYTES)
        self._replicas = replicas
        self._sort = sort
        self._tag = tag
        self._writers: dict[tuple[Compression, int], SegmentWriter] = {}
        """By compression and placement group."""
        self._groups: dict[tuple[str, int], int] = {}
        """The placement group of each partition, from its first row on: its rows stay in order if it is moved."""
        self._least: dict[int, int] = {}
        """By group, the highest `min.insync.replicas` of the topics."""
        self._keyless: set[str] = set()
        """Ids of topics with records without a key."""
        self._schemas: dict[str, int] = {}
        """By topic id, the newest version of the schema that rows were converted by; `BYTES` if some were not."""
        self._first: dict[str, str] = {}
        """By topic id, the schema that the commit sets."""

    def append(self, spec: TopicSpec, rows: Rows, now_ms: int, first: int) -> None:
        """Add rows of one topic.

        If it raises InvalidRecord, MessageTooLarge or InvalidTimestamp, the caller must not commit anything.

        first:  the number of the first row in the caller's data, for messages.
        """
        batch = TopicRows.of(spec, rows)
        check_rules(batch, now_ms, first)
        self.add(batch)

    def add(self, batch: TopicRows) -> None:
        """Add rows that are already validated."""
        if batch.num_rows == 0:
            return
        self._keyless |= keyless_topics(batch)
        self._schemas |= newest_schemas(self._schemas, checked_versions(batch))
        self._first |= {
            spec.topic_id: spec.schema.text for spec in batch.topics.specs if spec.sets_schema and spec.schema
        }
        if self._destinations.change(batch.topics) or not self._sorter.fits(batch.rows.records):
            self._encode(self._sorter.take_all)
        destinations = self._partitioners.assign(batch) + batch.each(self._destinations.starts(batch.topics))
        self._sorter.add(batch.rows.records, destinations, self._destinations.count)
        sorted_topic = self._sort and any(spec.sort_columns for spec in batch.topics.specs)
        if self._sorter.is_full if sorted_topic else self._sorter.is_due:
            self._encode(self._sorter.take_batches)

    def add_encoded(self, spec: TopicSpec, partition: int, rows: EncodedRows) -> None:
        """Add validated rows of bytes, before any others."""
        if rows.keyless:
            self._keyless.add(spec.topic_id)
        self._schemas |= newest_schemas(self._schemas, [(spec.topic_id, BYTES)])
        group = self._groups.setdefault((spec.topic_id, partition), spec.group(partition))
        self._writer(spec, group).append_encoded(spec.topic_id, partition, rows)

    def _encode(self, take: Callable[[], Iterator[tuple[int, pa.RecordBatch]]]) -> None:
        """Sort the rows that are held, and encode those that `take` gives."""
        for writer in self._writers.values():
            writer.reserve(self._sorter.bytes * 3 // 2)
        for destination, rows in take():
            spec, partition = self._destinations[destination]
            group = self._groups.setdefault((spec.topic_id, partition), spec.group(partition))
            if self._sort and spec.sort_columns:
                rows = sorted_rows(rows, spec.sort_columns)
            self._writer(spec, group).append(
                spec.topic_id, partition, rows, close_batch=True, stats_columns=spec.stats_columns
            )
        for writer in self._writers.values():
            writer.reserve(self._sorter.bytes)

    def _writer(self, spec: TopicSpec, group: int) -> SegmentWriter:
        self._least[group] = max(spec.min_insync, self._least.get(group, 1))
        compression = spec.compression.of_writer(self._compression)
        if (compression, group) not in self._writers:
            self._writers[compression, group] = SegmentWriter(
                compression=compression,
                buffer_bytes=BUFFER_BYTES,
                open_spool=_open_spool,
            )
        return self._writers[compression, group]

    def finish(self) -> Uploaded:
        """Write the objects durably, and return their contents."""
        try:
            self._encode(self._sorter.take_all)
            written = [(group, writer.finish()) for (_, group), writer in sorted(self._writers.items())]
            named = [
                (group, data_key(self._epoch, tagged(f"{self._rng.getrandbits(64):016x}", "seg", self._tag)), segment)
                for group, segment in written
                if segment.runs
            ]
            placed = self._put(named)
            uploaded = join_uploads(_uploaded(*one, placed[one[1]]) for one in named)
            return uploaded._replace(
                keyless=tuple(sorted(self._keyless)),
                schemas=typed_only(self._schemas),
                lineage=self._lineage,
                first_schemas=tuple(sorted(self._first.items())),
            )
        finally:
            self.close()

    def _put(self, named: Sequence[tuple[int, str, WrittenSegment]]) -> dict[str, Placed]:
        """Put objects: those of all placement groups together."""
        own = {name: segment for group, name, segment in named if group == OWN_GROUP}
        others = [
            ToPut(group, self._least[group], name, segment.chunks) for group, name, segment in named if name not in own
        ]
        if others and self._replicas is None:
            raise AssertionError(f"objects of the groups {sorted({one.group for one in others})} have no brokers")
        if own:
            check_is_mounted(self._store, "" if self._replicas is None else self._replicas.roots.cluster_id)
        begun = self._replicas.begin(others) if self._replicas is not None else {}
        for name, segment in own.items():
            self._store.put(name, Chunks(segment.chunks))
        placed = self._replicas.placed(begun) if self._replicas is not None else {}
        return placed | dict.fromkeys(own, Placed(OWN_GROUP))

    def close(self) -> None:
        """Discard data that was not written."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}
        self._sorter = RowSorter(BATCH_ROWS, BATCH_BYTES)


def _uploaded(group: int, name: str, segment: WrittenSegment, placed: Placed) -> Uploaded:
    made = DataObject(name, segment.size, segment.index_position)
    return Uploaded((made,), tuple((0, run) for run in segment.runs), placed=(placed,), stats=segment.stats)


class _Destinations:
    """Numbers the partitions of all topics of an upload; those of one topic follow one another."""

    def __init__(self) -> None:
        self.count = 0
        self._specs: list[TopicSpec] = []
        self._firsts: list[int] = []
        """The numbers of their partitions 0, ascending."""
        self._known: dict[str, tuple[TopicSpec, int]] = {}
        self._topics = TopicTable(())
        self._starts: Int64s = np.zeros(0, np.int64)

    def change(self, topics: TopicTable) -> bool:
        """Whether a topic has changed since rows were added, so that `starts` gives it new numbers."""
        if topics is self._topics:
            return False
        return any(self._known.get(spec.topic_id, (spec,))[0] != spec for spec in topics.specs)

    def starts(self, topics: TopicTable) -> Int64s:
        """The number of partition 0 of each topic."""
        if topics is not self._topics:
            self._topics, self._starts = topics, np.array([self._start(spec) for spec in topics.specs])
        return self._starts

    def _start(self, spec: TopicSpec) -> int:
        known, start = self._known.get(spec.topic_id, (None, 0))
        if known != spec:
            start, self.count = self.count, self.count + spec.partitions
            self._known[spec.topic_id] = spec, start
            self._specs.append(spec)
            self._firsts.append(start)
        return start

    def __getitem__(self, destination: int) -> tuple[TopicSpec, int]:
        """The topic and partition of a number."""
        at = bisect_right(self._firsts, destination) - 1
        return self._specs[at], destination - self._firsts[at]


def _open_spool() -> BinaryIO:
    return cast(BinaryIO, tempfile.TemporaryFile(prefix="pylog-"))
