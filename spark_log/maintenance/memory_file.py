"""The memory of maintenance as an object, `meta/maintenance`, with which the next process continues
(docs/format/metadata.md).

    pylog-maintenance 1\\n
    frames (frames.py): the header, one row; `topics`, rows [topic id, topic]; `dropped`, rows [name, version];
    `aside`, rows [topic id, partition, [slice, again_ms, wait_ms]]; `passed`, rows [topic id, partition, offset];
    `known_columns`, a row for each partition; `slice_columns`, the live slices of these partitions, in order;
    `name_columns`, the names of their objects

It only saves work: a missing, damaged or outdated one is ignored, and the round looks at the whole log.  `truncated` is
left out, because each process checks the checkpoints.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from immutables import Map

from spark_log.errors import CorruptObject
from spark_log.journal.garbage_collection import Collected
from spark_log.journal.set_aside import AsideSlice, SetAside
from spark_log.journal.store_operations import Get, Put, Steps
from spark_log.log_lines import logger
from spark_log.metadata.maps.frames import Frame, encode_columns, encode_end, encode_frames, read_frames
from spark_log.metadata.state import State, Topic
from spark_log.rewriting.maintenance_memory import Known, MaintenanceMemory, NotDue, Seen
from spark_log.text import first_bytes

MEMORY = "meta/maintenance"
MAGIC = b"pylog-maintenance 1\n"
UNKNOWN = -1
"""In the columns `kept_ms` and `not_due_ms`."""
KNOWN = pa.schema(
    [
        ("topic", pa.int32()),
        ("partition", pa.int32()),
        *((name, pa.int64()) for name in ("start", "end", "slices", "bytes", "cleaned")),
        ("merged", pa.int8()),
        ("kept_ms", pa.int64()),
        ("not_due_ms", pa.int64()),
        ("dirty_ratio", pa.float64()),
        ("live", pa.int32()),
    ]
)
"""`topic` is the number of a row of `topics`, `live` the number of slices that are not below the start."""
SLICES = pa.schema([("object", pa.int32()), ("length", pa.int64())])
"""`object` is the number of a row of `name_columns`."""
OBJECTS = pa.schema([("name", pa.string())])
COLUMNS = {"known_columns": KNOWN, "slice_columns": SLICES, "name_columns": OBJECTS}


class MemoryHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The values of a memory that do not grow with the log."""

    began_ms: int
    log: str = ""
    finished: int | None = None
    expires_ms: int
    swept_ms: int | None = None
    collected: tuple[int, int] | None = None
    """Version and fence of the last collection."""
    dropped_lists: tuple[str, ...] = ()
    """The lists of dropped objects that it saw."""


def save_memory(memory: MaintenanceMemory, state: State) -> Steps[None]:
    """Write the memory of a round that ended with a state."""
    yield Put(MEMORY, (encode_memory(memory, state),))


def load_memory(state: State) -> Steps[MaintenanceMemory | None]:
    """The memory that the last process has saved, for a recent state of the log; None if there is none."""
    data: bytes | None = yield Get(MEMORY)
    try:
        return None if data is None else decode_memory(data, state)
    except CorruptObject as error:
        logger.warning("maintenance looks at the whole log: %s", error)
        return None


def encode_memory(memory: MaintenanceMemory, state: State) -> bytes:
    """The bytes of a memory, without facts that are outdated in this state."""
    known, collected = list(memory.known(state)), memory.collected
    memory.aside.keep(state)
    topics = {topic_id: number for number, topic_id in enumerate(state.topics)}
    names = list(chain.from_iterable(one.objects for one in known))
    objects = {name: number for number, name in enumerate(dict.fromkeys(names))}
    header = MemoryHeader(
        began_ms=memory.began_ms,
        log=memory.log,
        finished=memory.finished,
        expires_ms=memory.expires_ms,
        swept_ms=memory.swept_ms,
        collected=None if collected is None else (collected.version, collected.fence),
        dropped_lists=() if collected is None else tuple(sorted(collected.dropped_lists)),
    )
    columns: dict[str, list[Any]] = {
        "known_columns": [
            [topics[one.key[0]] for one in known],
            [one.key[1] for one in known],
            [one.seen.start for one in known],
            [one.seen.end for one in known],
            [one.seen.slices for one in known],
            [one.seen.bytes for one in known],
            [one.seen.cleaned for one in known],
            [int(one.merged) for one in known],
            [UNKNOWN if one.kept_ms is None else one.kept_ms for one in known],
            [UNKNOWN if one.not_due is None else one.not_due.until_ms for one in known],
            [0.0 if one.not_due is None else one.not_due.ratio for one in known],
            [len(one.lengths) for one in known],
        ],
        "slice_columns": [
            [objects[name] for name in names],
            np.concatenate([np.frombuffer(one.lengths, np.int64) for one in known] or [np.empty(0, np.int64)]),
        ],
        "name_columns": [list(objects)],
    }
    frames = [
        *encode_frames("header", [header], _encoder),
        *encode_frames("topics", [(topic_id, state.topics[topic_id]) for topic_id in topics], _encoder),
        *encode_frames("dropped", sorted(collected.dropped.items()) if collected else (), _encoder),
        *encode_frames("aside", [(*key, one) for key, one in memory.aside], _encoder),
        *encode_frames("passed", [(*key, end) for key, end in sorted(memory.aside.passed.items())], _encoder),
        *((len(values[0]), _encode_columns(kind, values)) for kind, values in columns.items()),
    ]
    return b"".join([MAGIC, *(data for _, data in frames), encode_end(sum(rows for rows, _ in frames))])


def _encode_columns(kind: str, values: Sequence[Any]) -> bytes:
    schema = COLUMNS[kind]
    arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
    return encode_columns(kind, pa.record_batch(arrays, schema=schema))


def decode_memory(data: bytes, state: State) -> MaintenanceMemory:
    """The memory, without facts that are outdated in a state.  Raises CorruptObject, also for another format."""
    if not data.startswith(MAGIC):
        raise CorruptObject(f"{MEMORY} has another format, or is damaged; {first_bytes(data)}")
    rows: dict[str, list[Any]] = {"topics": [], "dropped": [], "aside": [], "passed": []}
    columns: dict[str, pa.RecordBatch] = {}
    for frame in read_frames(data, len(MAGIC), MEMORY):
        if frame.kind in COLUMNS:
            columns[frame.kind] = _read_columns(frame)
        else:
            rows.setdefault(frame.kind, []).extend(_read_rows(frame))
    (header,) = rows["header"]
    memory = MaintenanceMemory(
        began_ms=header.began_ms,
        log=header.log,
        finished=header.finished,
        expires_ms=header.expires_ms,
        swept_ms=header.swept_ms,
        collected=_collected(header, rows["dropped"]),
        aside=_set_aside(rows["aside"], rows["passed"], state),
    )
    for one in _known(rows["topics"], columns, state):
        memory.learn(one)
    return memory


def _collected(header: MemoryHeader, dropped: Sequence[tuple[str, int]]) -> Collected | None:
    if header.collected is None:
        return None
    version, fence = header.collected
    return Collected(version, fence, dict(dropped), frozenset(header.dropped_lists))


def _set_aside(
    slices: Sequence[tuple[str, int, AsideSlice]], passed: Sequence[tuple[str, int, int]], state: State
) -> SetAside:
    found = SetAside({(topic_id, number): end for topic_id, number, end in passed})
    for topic_id, number, one in slices:
        found.add((topic_id, number), one)
    found.keep(state)
    return found


def _read_rows(frame: Frame) -> list[Any]:
    try:
        return _decoders[frame.kind].decode_lines(frame.lines(MEMORY))
    except (KeyError, msgspec.DecodeError) as error:
        raise CorruptObject(f"{MEMORY} has another format: {frame.where} ({error})") from error


def _read_columns(frame: Frame) -> pa.RecordBatch:
    batch = frame.columns(MEMORY)
    if batch.schema != COLUMNS[frame.kind]:
        raise CorruptObject(f"{MEMORY} has another format: {frame.where} has the columns {batch.schema.names}")
    return batch


def _known(topics: Sequence[tuple[str, Topic]], columns: dict[str, pa.RecordBatch], state: State) -> Iterator[Known]:
    """The rows of partitions whose topic is the same as in the state."""
    slices = columns["slice_columns"]
    names = columns["name_columns"]["name"].take(slices["object"]).to_pylist()
    lengths = slices["length"].to_numpy()
    *table, counts = (column.to_pylist() for column in columns["known_columns"].columns)
    # The state's own topics, because a comparison of the same object is short.
    current = {
        number: (topic_id, state.topics[topic_id])
        for number, (topic_id, topic) in enumerate(topics)
        if state.topics.get(topic_id) == topic
    }
    bounds = pairwise(accumulate(counts, initial=0))
    for row in zip(*table, bounds, strict=True):
        number, partition, start, end, count, size, cleaned, merged, kept_ms, not_due_ms, ratio, (low, high) = row
        if number in current:
            topic_id, topic = current[number]
            yield Known(
                (topic_id, partition),
                Seen(start, end, count, size, cleaned, topic),
                bool(merged),
                None if kept_ms == UNKNOWN else kept_ms,
                None if not_due_ms == UNKNOWN else NotDue(not_due_ms, ratio),
                names[low:high],
                array("q", lengths[low:high].tobytes()),
            )


_encoder = msgspec.json.Encoder(enc_hook=lambda configs: dict(sorted(configs.items())))
_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    "header": msgspec.json.Decoder(MemoryHeader),
    "topics": msgspec.json.Decoder(tuple[str, Topic], dec_hook=lambda _, configs: Map(configs)),
    "dropped": msgspec.json.Decoder(tuple[str, int]),
    "aside": msgspec.json.Decoder(tuple[str, int, AsideSlice]),
    "passed": msgspec.json.Decoder(tuple[str, int, int]),
}
