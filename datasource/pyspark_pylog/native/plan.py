"""Plans for `PylogReader.java`, in the driver's Python: which bytes of which objects its tasks read.

Java asks twice.  When Spark makes a physical plan, or starts a stream: whether a load can be read natively at all.
When it runs the query, or a micro-batch: the reads of each task.  Tasks of a batch get them at the version of the log
that the query pins, as Python's own tasks would agree on one; those of a micro-batch have them.  If anything fails
here, the answer is that Python reads the load: its tasks then meet the same error, and report it.
"""

from __future__ import annotations

import json
import pickle
import struct
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_pylog.log.open_log import kept_journal
from pyspark_pylog.options.parse import Location, ReadOptions, read_options
from pyspark_pylog.source.data_columns import DataColumns, names_of
from pyspark_pylog.source.native_task import PinnedTask
from pyspark_pylog.source.query_pins import names_of as names_of_pin
from pyspark_pylog.source.read_columns import STORED, arrow_schema
from pyspark_pylog.source.read_task import PinnedQuery, ReadTask
from pyspark_pylog.source.task_erasures import LOOK_MS
from spark_log.client.open_journal import storage_url
from spark_log.client.reader.plan import SliceRead
from spark_log.conditions import ALL, Window
from spark_log.log_lines import logger
from spark_log.model import APPEND_TIME
from spark_log.roots.broker_roots import OTHER_SOURCE_MS, sources_of
from spark_log.roots.read_failover import BoundedStore
from spark_log.store.base import ObjectStore
from spark_log.store.open import SCHEME

READS_MAX = 100_000
"""Parts of slices in a query: all of them are sent to the JVM, some 300 bytes each."""
LONGEST = 2**31 - 64
"""Bytes of a run, which is an array in Java."""
LOWEST, HIGHEST = -(2**63), 2**63 - 1
FILE = "file://"
_LENGTH = struct.Struct(">i")
PIECE = struct.Struct(">q?")
"""The number of a request, and whether it ends."""
HEAD = struct.Struct(">qq?")
"""The last one: records are chosen by their times, which Spark does not."""
READ = struct.Struct(">iqqqqqiqiiqqqqq")
"""`SliceRead` of Java, after its texts."""


class PythonReads(Exception):
    """Why Java does not read a load."""


class NativePlanner:
    """A `java.util.function.Function` from requests to answers, which are bytes; None: Python reads."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[bytes]] = {}
        """By the number of a request that is not complete."""

    def apply(self, piece: bytes) -> bytes | None:
        """Answer a request with its last piece.  Never raises."""
        try:
            request = self._complete(piece)
            return None if request is None else _answer(request)
        except Exception as error:  # noqa: BLE001  of any kind: Python's tasks will meet it, too
            logger.debug("this is left to Python: %s", error)
            return None

    def _complete(self, piece: bytes) -> bytes | None:
        number, is_last = PIECE.unpack_from(piece)
        pieces = self._pieces.setdefault(number, [])
        pieces.append(piece[PIECE.size :])
        return zlib.decompress(b"".join(self._pieces.pop(number))) if is_last else None

    class Java:
        """The interface, for Py4J."""

        implements = ("java.util.function.Function",)


def _answer(request: bytes) -> bytes:
    """Raises whatever keeps Java from it."""
    what, schema, query, *rest = _split(request)
    count = 2 * int(rest.pop(0))
    names = [text.decode() for text in rest[:count]]
    streaming = what.endswith(b"stream")
    options = _options(tuple(zip(names[::2], names[1::2], strict=True)), schema.decode(), streaming)
    if not what.startswith(b"plan"):
        _check_condition(options)
        return b""
    tasks = [pickle.loads(task) for task in rest[count:]]
    return _joined(planned(options, schema.decode(), query.decode(), tasks, is_exact=what != b"plan"))


def _check_condition(options: ReadOptions) -> None:
    """Raises PythonReads for a condition of a load that is not ranges: Java chooses records by their times alone."""
    if options.where.rest is not None or options.where.offset.among is not None:
        raise PythonReads("its condition is not of ranges")


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _split(joined: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(joined):
        end = at + 4 + int.from_bytes(joined[at : at + 4], "big")
        yield joined[at + 4 : end]
        at = end


@lru_cache(maxsize=16)
def _options(options: tuple[tuple[str, str], ...], schema: str, streaming: bool) -> ReadOptions:
    """The options of a load.  Raises PythonReads for one that Java does not replace."""
    columns = _columns(schema)
    if strict := [field.name for field in columns if not field.nullable]:
        raise PythonReads(f"column {strict[0]} is NOT NULL")
    parsed = read_options({name.lower(): value for name, value in options}, streaming=streaming)
    if parsed.latest or parsed.of_progress or (parsed.value_format == "json" and "value" in columns.names):
        raise PythonReads("its records are not those of slices")
    check_location(parsed.location)
    return parsed


def _columns(schema: str) -> pa.Schema:
    return arrow_schema(StructType.fromJson(json.loads(schema)))


def check_location(location: Location) -> None:
    """Raises PythonReads for a log of which a root is not a directory.  Sends no request to a bucket."""
    if _is_bucket(storage_url(location.url, location.token)):
        raise PythonReads("its objects are not files")
    if any(_is_bucket(broker.url) for broker in kept_journal(location).roots.brokers.values()):
        raise PythonReads("it has replicas that are not files")


def _is_bucket(url: str) -> bool:
    return bool(SCHEME.match(url)) and not url.lower().startswith("file:")


class Version(NamedTuple):
    """The reads of the tasks of a query, or of a micro-batch."""

    reads: Sequence[Sequence[SliceRead]]
    """By task."""
    erased: Mapping[str, int]
    """By topic id, the version of the last erasure that was known then."""
    made_ms: int
    history: str
    """The history of the log."""


def planned(
    options: ReadOptions, schema: str, query: str, tasks: Sequence[object], *, is_exact: bool = False
) -> list[bytes]:
    """Two parts for each task: its reads for Java, and the same for Python.  Raises PythonReads.

    query:     the name of a batch query; empty for a micro-batch, which is planned at one version.
    is_exact:  Spark does not evaluate the condition again.
    """
    checked = [task for task in tasks if type(task) is ReadTask]
    if not checked or len(checked) < len(tasks):
        raise PythonReads("there are no tasks, or others")
    first = checked[0]
    version = _pinned(options, query, checked) if query else _as_planned(checked)
    _check_reads(version, first.log.version)
    window = options.where.window
    by_time = is_exact and options.where.time_us != ALL
    head, found = HEAD.pack(version.made_ms, LOOK_MS, by_time) + _stored(schema, first.data), []
    for task, reads in zip(checked, version.reads, strict=True):
        found.append(head + _encoded(reads, task.log.objects(), window))
        log = replace(task.log, history=version.history)
        found.append(pickle.dumps(PinnedTask(log, reads, task.data, version.erased, version.made_ms)))
    return found


def _pinned(options: ReadOptions, query: str, tasks: Sequence[ReadTask]) -> Version:
    """The version that a query pins.  Raises what Python's tasks would."""
    # Not that of the reader: another plan of it may divide added records differently.
    scan = uuid.uuid4().hex
    names = names_of_pin(query, scan, tasks[0].log.token)
    everything = tasks[0].with_reads([read for task in tasks for read in task.reads])
    pin, growth = PinnedQuery(options, scan, names, everything).view()
    reads = [PinnedQuery(options, scan, names, task).reads_at(pin, growth) for task in tasks]
    return Version(reads, {topic.topic_id: topic.erased for topic in pin.topics.values()}, pin.made_ms, pin.history)


def _as_planned(tasks: Sequence[ReadTask]) -> Version:
    """The version at which a micro-batch is planned."""
    return Version([task.reads for task in tasks], {}, tasks[0].log.time_ms, tasks[0].log.history)


def _check_reads(version: Version, planned: int) -> None:
    """Raises PythonReads for reads of which records were erased since they were planned, and for too many or too long
    ones.
    """
    if sum(map(len, version.reads)) > READS_MAX:
        raise PythonReads(f"it has more than {READS_MAX:,} slices")
    topics = {read.topic_id for reads in version.reads for read in reads}
    if any(version.erased.get(topic_id, -1) > planned for topic_id in topics):
        raise PythonReads("records were erased since it was planned")
    if any(read.slice.length > LONGEST for reads in version.reads for read in reads):
        raise PythonReads("a slice is too long")


def _stored(schema: str, data: DataColumns | None) -> bytes:
    """The name in objects of each column, empty for one that is not stored."""
    names = names_of(data)
    return b"".join(_text(names.get(name, name if name in STORED else "")) for name in _columns(schema).names)


def _encoded(reads: Sequence[SliceRead], store: ObjectStore, window: Window | None) -> bytes:
    """The reads of a task, as `SegmentReader` of Java decodes them.

    store:  of the objects.  Raises PythonReads if one of its roots is not a directory.
    """
    parts, places = [_LENGTH.pack(len(reads))], dict[str, bytes]()
    for read in reads:
        name = read.slice.object
        if name not in places:
            places[name] = _text(name) + _roots(sources_of(store, name))
        parts += [places[name], _text(read.topic), _numbers(read, window)]
    return b"".join(parts)


def _roots(sources: Sequence[ObjectStore]) -> bytes:
    """The directories that may have an object, and how long each of them is waited for: 0 is for as long as it takes.

    A read of the root of a broker is bounded in time, and continues with another one.
    """
    if any(not source.url.startswith(FILE) for source in sources):
        raise PythonReads("its objects are not files")
    folders = [_text(unquote(source.url.removeprefix(FILE))) for source in sources]
    wait_ms = OTHER_SOURCE_MS if isinstance(sources[0], BoundedStore) else 0
    return b"".join([_LENGTH.pack(len(folders)), *folders, _LENGTH.pack(wait_ms)])


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def _numbers(read: SliceRead, window: Window | None) -> bytes:
    piece = read.slice
    by_time = window is not None and piece.time_kind != APPEND_TIME
    first, last = (window.start, window.end - 1) if window is not None and by_time else (LOWEST, HIGHEST)
    return READ.pack(
        read.partition,
        read.start,
        read.end,
        piece.start,
        piece.end,
        piece.position,
        piece.length,
        piece.crc,
        piece.batches,
        piece.time_kind,
        piece.min_us,
        read.index_position,
        read.object_size,
        max(first, LOWEST),
        min(last, HIGHEST),
    )
