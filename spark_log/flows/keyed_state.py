"""State by key of a flow: a compacted topic, whose latest records a task holds by partition.

The state of a source partition's keys is in the partition of the same number.  A batch reads it from memory, and its
changes are records of the batch's commit.  So the topic, the positions and the outputs agree in every version of the
log, and a task that takes a partition over only has to read its latest records.

Each committed position names the topic by its id, and how many partitions it has (`position_text`).  So a flow does not
continue with a state that does not belong to its positions: one that was deleted since, or one that was kept while the
positions were deleted or moved back.  Positions behind the first record have to name a state, so a flow does not begin
in the middle without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.client.producer.topic_rules import TopicRows, TopicSpec, check_rules, topic_spec
from spark_log.client.producer.typed_writes import rows_of
from spark_log.client.reader.latest import scan_latest
from spark_log.client.reader.scan_batches import scan_schema
from spark_log.client.reader.typed import value_read
from spark_log.client.topic_creation import auto_creates, create_topic, no_such_topic
from spark_log.configs.settings import has_cleanup_policy
from spark_log.errors import (
    ConcurrentChange,
    InvalidRecord,
    InvalidRequest,
    NotEnoughReplicas,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_log.flows.keyed_rows import KeyedRows
from spark_log.journal.journal import Journal
from spark_log.metadata.commits.decide_commits import Committed, ReadBasis
from spark_log.metadata.commits.pending_commits import lost_ranges
from spark_log.metadata.erasures import erased_at
from spark_log.metadata.groups.named_state import named_state, position_text
from spark_log.metadata.renewed_ids import later_ids
from spark_log.metadata.set_backs import Lineage, lineage_of
from spark_log.metadata.state import GroupState, State, TopicKey
from spark_log.metadata.topics.schemas import schema_of
from spark_log.model import NewTopic
from spark_log.schema.names import RECORD_NAMES
from spark_log.schema.topic_schema import as_schema
from spark_log.segment.record_columns import Rows
from spark_log.segment.schema import TOMBSTONE, data_names
from spark_log.text import counted, shown

RECORD_COLUMNS = ("topic", "partition", "offset", "key", "timestamp", "headers")
"""Columns of a table of a topic that are not of its values."""
_OF_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""Polars has views, which Arrow does not filter."""
ANOTHER_FLOW = "Start a flow with another name and another state topic, which reads the source from its first record"

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Keyed:
    """State by key, as `spark_log.keyed` returns it."""

    topic: str
    schema: pa.Schema | None = None


class _Stand(NamedTuple):
    """The partition of which rows in memory are, when they were read; its end is compared apart."""

    topic_id: str
    lineage: Lineage
    erased: int
    """The version of the last erasure from the topic."""
    schema: int
    """The version of the topic's schema."""


class _Part(NamedTuple):
    stand: _Stand
    end: int
    """The end of the partition, behind the records that the rows have."""
    rows: KeyedRows


class KeyedState:
    """The state of the partitions of one task.  Used by one thread."""

    def __init__(self, journal: Journal, flow: str, source: str, keyed: Keyed) -> None:
        self._journal = journal
        self._flow = flow
        self._source = source
        self._keyed = keyed
        self._topic_id = ""
        self._partitions = 0
        self._parts: dict[int, _Part] = {}
        self._batch: dict[int, _Part] = {}
        """By partition, the rows as the batch has changed them, under the stand and the end of those it began with."""

    def __len__(self) -> int:
        """The keys in memory that have a state."""
        return sum(len(part.rows) for part in self._parts.values())

    # ------------------------------------------------------------------------------------------------------- positions

    @property
    def position_text(self) -> str:
        """The metadata of positions that are committed with the state; empty before its topic exists."""
        return position_text(self._topic_id, self._partitions) if self._topic_id else ""

    def begin(self) -> None:
        """Begin with partitions at the group's positions, and create the state's topic if it does not exist.

        Raises UnknownTopicOrPartition if the state of a position was deleted, and InvalidRequest if a state belongs to
        other positions.
        """
        self._check_positions(self._journal.require([self._source, self._keyed.topic], [self._flow]))
        if ensure_state(self._journal, self._flow, self._source, self._keyed):
            state = self._journal.require([self._keyed.topic])
            self._topic_id = state.names[self._keyed.topic]
            self._partitions = state.topics[self._topic_id].partitions

    def _check_positions(self, state: State) -> None:
        """Checks all partitions, also those of other tasks: each task comes to the same result."""
        source_id, topic_id = state.names.get(self._source, ""), state.names.get(self._keyed.topic, "")
        offsets, others = state.groups.get(self._flow, GroupState()).offsets, list[int]()
        for number in range(state.topics[source_id].partitions if source_id else 0):
            at, part = offsets.get((source_id, number)), state.partitions.get((topic_id, number))
            named, partitions = named_state("" if at is None else at.metadata)
            if not named:
                if part is not None and part.start < part.end:
                    others.append(number)
                elif at is not None and at.offset > state.partitions[source_id, number].start:
                    raise self._none(number, at.offset)
            elif topic_id not in later_ids(named, state.version):
                raise self._gone("was deleted, or the positions belong to another one")
            elif topic_id != named:
                raise InvalidRequest(
                    f"flow {self._flow!r}: `pylog repair --accept-loss` has set the flow's positions back, or removed state "
                    f"that belongs to them: records would be counted twice, or not at all. {self._again}"
                )
            else:
                self._check_count(state, partitions)
            if part is not None:
                self._check_whole(state, (topic_id, number))
        if others:
            again = (
                self._again if offsets else self._again.partition("; pylog group seek")[0]
            )  # which has nothing to move
            raise InvalidRequest(
                f"flow {self._flow!r}: topic {self._keyed.topic!r} has state in {counted(len(others), 'partition')} "
                f"({', '.join(map(str, others))}) in which group {self._flow!r} has no position that belongs to it: its "
                "positions were deleted, have expired or were moved back, the source was created again, or another flow "
                f"has written the state. Records would be counted twice. {again}. For another flow, choose another "
                "state topic"
            )

    def _none(self, number: int, offset: int) -> InvalidRequest:
        return InvalidRequest(
            f"flow {self._flow!r}: its position is offset {offset} of {self._source}-{number}, and topic "
            f"{self._keyed.topic!r} has no state of the records before it: they were processed without state, the position "
            f"was set manually, or it was copied without that topic. {self._again}. To start at later records without state, "
            f"run pylog group delete {self._flow}, and set the parameter start"
        )

    def _check_whole(self, state: State, key: TopicKey) -> None:
        """Raises InvalidRequest if records of a partition of the state were removed, or given up."""
        start, lost = state.partitions[key].start, lost_ranges(state, key)
        if start or lost:
            what = f"before offset {start} were removed" if start else f"{lost[0].start} to {lost[0].end - 1} were lost"
            raise InvalidRequest(
                f"flow {self._flow!r}: the records of {self._keyed.topic}-{key[1]} {what}, and with them the state of some "
                f"keys. {self._again}"
            )

    @property
    def _again(self) -> str:
        return (
            f"To compute the state again, stop the flow, and then: pylog topic delete {self._keyed.topic}; pylog group seek "
            f"{self._flow} --to earliest"
        )

    def _check_count(self, state: State, partitions: int) -> None:
        """Raises InvalidRequest unless the topic has as many partitions as when the positions were committed."""
        now = state.topics[state.names[self._keyed.topic]].partitions
        if now != partitions:
            raise InvalidRequest(
                f"flow {self._flow!r}: topic {self._keyed.topic!r} with its state had {partitions} partitions, and now has "
                f"{now}: keys and their state are in different ones. {ANOTHER_FLOW}"
            )

    def keep(self, partitions: Iterable[int]) -> None:
        """Forget all other partitions."""
        kept = set(partitions)
        self._parts = {number: part for number, part in self._parts.items() if number in kept}

    def _gone(self, how: str) -> UnknownTopicOrPartition:
        return UnknownTopicOrPartition(
            f"flow {self._flow!r}: topic {self._keyed.topic!r} {how}, and with it the state that belongs to the flow's "
            f"positions. To compute it again, stop the flow, and then: pylog group seek {self._flow} --to earliest"
        )

    # ----------------------------------------------------------------------------------------------------------- reads

    def of(self, partition: int, keys: pa.ChunkedArray) -> pa.Table:
        """The state of the keys of a batch, with the changes of its earlier parts: a row for each key that has one."""
        distinct = pc.unique(keys.drop_null())
        return self._rows(partition).find(distinct)

    def _rows(self, partition: int) -> KeyedRows:
        """Raises ConcurrentChange if others have changed the topic since the batch has read it."""
        part = self._current(partition)
        if part[:2] != self._batch.setdefault(partition, part)[:2]:
            raise self._changed(partition)
        return self._batch[partition].rows

    def _changed(self, partition: int) -> ConcurrentChange:
        return ConcurrentChange(
            f"flow {self._flow!r}: the state in {self._keyed.topic}-{partition} was changed by others during a batch, "
            "which is processed again"
        )

    def _current(self, partition: int) -> _Part:
        """The rows of a partition, restored unless the topic has nothing that they lack."""
        state, part = self._journal.require([self._keyed.topic, self._source]), self._parts.get(partition)
        stand, end = self._stand(state, partition)
        # A state may be older than the last commit of this task; then its end is lower.
        if part is None or part.stand != stand or part.end < end:
            self._parts.pop(partition, None)
            part = self._parts[partition] = self._restored(partition)
        return part

    def _stand(self, state: State, partition: int) -> tuple[_Stand, int]:
        topic_id = state.names.get(self._keyed.topic)
        if topic_id is None or topic_id not in later_ids(self._topic_id, state.version):
            raise self._gone("was deleted while the flow was running")
        _check_policy(state, self._flow, self._keyed)
        check_partitions(state, self._flow, self._source, self._keyed)
        self._check_count(state, self._partitions)
        part, schema = state.partitions[topic_id, partition], schema_of(state, topic_id)
        self._check_whole(state, (topic_id, partition))
        version = 0 if schema is None else schema.version
        return _Stand(topic_id, lineage_of(state), erased_at(state, topic_id), version), part.end

    def _restored(self, partition: int) -> _Part:
        """Read the latest records of a partition, in the newest state.

        Raises NotEnoughReplicas as long as readers do not see all of them: positions may be behind those.
        """
        journal, topic = self._journal, self._keyed.topic
        state = journal.refresh()
        stand, end = self._stand(state, partition)
        if state.partitions[stand.topic_id, partition].readable_end < end:
            raise NotEnoughReplicas(
                f"flow {self._flow!r}: the state in {topic}-{partition} is not on all in-sync replicas yet: waiting",
                lacking={},
            )
        names = scan_schema(None, value_read(state, topic, None, None)).names
        columns = ["key", *(name for name in names if name not in RECORD_COLUMNS)]
        rows = scan_latest(journal, topic, [partition], "latest", columns, None).read_all()
        return _Part(stand, end, KeyedRows.of(rows, journal.context.random()))

    # ---------------------------------------------------------------------------------------------------------- writes

    def stage(self, partition: int, keys: pa.ChunkedArray, new: pa.Table, now_ms: int) -> list[TopicRows]:
        """New state of some keys of a batch, as records; later parts of the batch see it.  Returns the records.

        keys:  of the batch; `of` has found their state.
        Raises InvalidRecord, and ConcurrentChange if the topic has another schema by now.
        """
        stand, rows = self._batch[partition].stand, self._batch[partition].rows
        spec = topic_spec(self._journal.require([self._keyed.topic]), self._keyed.topic)
        if (spec.topic_id, 0 if spec.schema is None else spec.schema.version) != (stand.topic_id, stand.schema):
            raise self._changed(partition)
        if "key" in new.column_names and new.column("key").null_count:
            raise InvalidRecord(
                "the function returned state without a key: leave records without a key out, because they have no state"
            )
        found, count = [], 0
        for records in _records(spec, new, now_ms):
            batch = TopicRows.of(spec, Rows(records, pa.array(np.full(records.num_rows, partition, np.int64))))
            check_rules(batch, now_ms, count)
            rows = rows.changed(*_as_rows(records, rows.schema))
            count += batch.num_rows
            found.append(batch)
        self._check_keys(found, keys)
        self._batch[partition] = self._batch[partition]._replace(rows=rows)
        return found

    def _check_keys(self, found: list[TopicRows], keys: pa.ChunkedArray) -> None:
        """Raises InvalidRecord for two rows of a key, and for a key that may belong to another task."""
        if not found:
            return
        given = pa.chunked_array([batch.rows.records.column("key") for batch in found])
        others = given.filter(pc.invert(pc.is_in(given, keys)))
        if len(others):
            raise InvalidRecord(
                f"the function returned state of key {shown(others[0].as_py())}, which is not a key of its batch: write "
                "the records to a topic by this key first, and have a flow with that source keep the state"
            )
        if pc.count_distinct(given).as_py() < len(given):
            raise InvalidRecord("the function returned two rows of state with one key: expected one at most for a key")

    def discard(self) -> None:
        """The changes of the last batch were not committed."""
        self._batch = {}

    def basis(self) -> ReadBasis:
        """The state that the batch has read: its commit is refused if others change it before."""
        erased = {part.stand.topic_id: part.stand.erased for part in self._batch.values()}
        spans = ((part.stand.topic_id, number, 0, part.end) for number, part in self._batch.items())
        return ReadBasis(erased, tuple(spans))

    def applied(self, committed: Committed) -> None:
        """The changes of the batch were committed."""
        for partition, part in self._batch.items():
            span = committed.ranges.get((part.stand.topic_id, partition), range(part.end))
            self._parts[partition] = part._replace(end=span.stop)
        self._batch = {}


def ensure_state(journal: Journal, flow: str, source: str, keyed: Keyed) -> bool:
    """Create the topic of a state as soon as there is the source, with as many partitions.  False: there is none.

    Raises InvalidRequest if the topic exists and cannot hold the state.
    """
    state = journal.require([source, keyed.topic])
    if source not in state.names or keyed.topic not in state.names:
        state = journal.refresh()
    if source not in state.names:
        return False
    if keyed.topic not in state.names:
        if not auto_creates(state):
            raise no_such_topic(keyed.topic)
        partitions = state.topics[state.names[source]].partitions
        new = NewTopic(keyed.topic, partitions, {"cleanup.policy": "compact"}, schema=keyed.schema)
        try:
            create_topic(journal, new)
        except TopicAlreadyExists:  # by another task
            journal.refresh()
        state = journal.require([source, keyed.topic])
    _check_policy(state, flow, keyed)
    _check_schema(state, flow, keyed)
    check_partitions(state, flow, source, keyed)
    return True


def _check_policy(state: State, flow: str, keyed: Keyed) -> None:
    configs = state.topics[state.names[keyed.topic]].configs
    if not has_cleanup_policy(configs, "compact") or has_cleanup_policy(configs, "delete"):
        raise InvalidRequest(
            f"flow {flow!r}: state: topic {keyed.topic!r} must only be compacted, or state gets lost or is kept for ever: "
            f"pylog topic alter {keyed.topic} -c cleanup.policy=compact"
        )


def _check_schema(state: State, flow: str, keyed: Keyed) -> None:
    known = schema_of(state, state.names[keyed.topic])
    if keyed.schema is not None and (known is None or not as_schema(keyed.schema).equals(known.columns)):
        has = "no schema" if known is None else f"the schema {_columns(known.columns)}"
        raise InvalidRequest(
            f"flow {flow!r}: state: topic {keyed.topic!r} exists and has {has}; given: {_columns(keyed.schema)}. Give its "
            "schema or none, or choose another topic"
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def check_partitions(state: State, flow: str, source: str, keyed: Keyed) -> None:
    """Raises InvalidRequest unless the source and the topic of its state have as many partitions."""
    topics = [state.topics[state.names[name]] for name in (source, keyed.topic) if name in state.names]
    if len({topic.partitions for topic in topics}) > 1:
        raise InvalidRequest(
            f"flow {flow!r}: source topic {source!r} has {topics[0].partitions} partitions, and topic {keyed.topic!r} with "
            f"its state has {topics[1].partitions}: keys and their state are in different ones. {ANOTHER_FLOW}"
        )


def _records(spec: TopicSpec, new: pa.Table, now_ms: int) -> Iterator[pa.RecordBatch]:
    """New state in the form of records; a row of nulls is a tombstone."""
    for frame in _without_values(new, spec):
        for rows in rows_of(spec, frame, now_ms * 1000):
            yield rows.records


def _without_values(new: pa.Table, spec: TopicSpec) -> Iterator[pa.Table]:
    """The rows with a value, and the others, which a typed topic takes apart."""
    names = [name for name in new.column_names if name not in RECORD_NAMES]
    if spec.schema is None or "key" not in new.column_names or "value" in new.column_names:
        yield new
        return
    deleted = np.logical_and.reduce([np.ones(new.num_rows, bool), *(_is_null(new.column(name)) for name in names)])
    if not deleted.any():
        yield new
        return
    new = new.cast(pa.schema([field.with_type(_OF_VIEWS.get(field.type, field.type)) for field in new.schema]))
    if not deleted.all():
        yield new.filter(pa.array(~deleted))
    keys = new.column("key").filter(pa.array(deleted))
    yield pa.table({"key": keys, "value": pa.nulls(len(keys))})


def _as_rows(records: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.Table, Mask]:
    """Records as rows of the state, and which are deletions."""
    names = data_names(records.schema.names)
    deleted = (
        records.column(TOMBSTONE.name).to_numpy(zero_copy_only=False)
        if TOMBSTONE.name in records.schema.names
        else (_is_null(records.column("value")))
    )
    columns = [records.column(name) for name in ("key", *(names or ["value"]))]
    table = pa.table([column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)
    return table, deleted


def _is_null(column: pa.Array | pa.ChunkedArray) -> Mask:
    found: Mask = np.asarray(column.is_null())
    return found


def by_partition(table: pa.Table) -> Mapping[int, pa.Table]:
    """A polled table, each batch of which is of one partition, by partition, in the order of its records."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for batch in table.to_batches():
        if batch.num_rows:
            found.setdefault(batch.column("partition")[0].as_py(), []).append(batch)
    return {number: pa.Table.from_batches(batches) for number, batches in found.items()}
