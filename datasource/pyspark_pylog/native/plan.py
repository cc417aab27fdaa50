"""Plans for `PylogReader.java`, in the driver's Python: which bytes of which objects its tasks read.

Java asks twice.  When Spark makes a physical plan: whether a load can be read natively at all.  When it runs the query:
the reads of each task, at the version of the log that the query pins, as Python's own tasks would agree on one.  If
anything fails here, the answer is that Python reads the load: its tasks then meet the same error, and report it.
"""

from __future__ import annotations

import json
import logging
import pickle
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from urllib.parse import unquote

from pyspark.sql.types import StructType

from pyspark_pylog.open_log import kept_journal
from pyspark_pylog.options.parse import Location, ReadOptions, read_options
from pyspark_pylog.source.native_task import PinnedTask
from pyspark_pylog.source.query_pins import Pin, names_of
from pyspark_pylog.source.read_task import PinnedQuery, ReadTask
from pyspark_pylog.source.task_erasures import LOOK_MS
from spark_log.client.open_journal import storage_url
from spark_log.client.reading.plan import SliceRead
from spark_log.conditions import Window
from spark_log.model import APPEND_TIME
from spark_log.store.open import SCHEME

logger = logging.getLogger("spark_log")

COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
READS_MAX = 100_000
"""Parts of slices in a query: all of them are sent to the JVM, some 300 bytes each."""
LONGEST = 2**31 - 64
"""Bytes of a run, which is an array in Java."""
LOWEST, HIGHEST = -(2**63), 2**63 - 1
FILE = "file://"
_LENGTH = struct.Struct(">i")
HEAD = struct.Struct(">qqi")
READ = struct.Struct(">iqqqqqiqiiqqqqq")
"""`SliceRead` of Java, after its two texts."""


class PythonReads(Exception):
    """Why Java does not read a load."""


class NativePlanner:
    """A `java.util.function.Function` from requests to answers, which are bytes; None: Python reads."""

    def apply(self, request: bytes) -> bytes | None:
        """Answer a request.  Never raises."""
        try:
            what, schema, query, *rest = map(bytes, _split(bytes(request)))
            count = 2 * int(rest.pop(0))
            names = [text.decode() for text in rest[:count]]
            options = _options(tuple(zip(names[::2], names[1::2], strict=True)), schema.decode())
            tasks = [pickle.loads(task) for task in rest[count:]]
            parts = planned(options, query.decode(), tasks) if what == b"plan" else []
        except Exception as error:  # noqa: BLE001  of any kind: Python's tasks will meet it, too
            logger.debug("Python reads this load: %s", error)
            return None
        return b"".join(_LENGTH.pack(len(part)) + part for part in parts)

    class Java:
        """The interface, for Py4J."""

        implements = ("java.util.function.Function",)


def _split(joined: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(joined):
        end = at + 4 + int.from_bytes(joined[at : at + 4], "big")
        yield joined[at + 4 : end]
        at = end


@lru_cache(maxsize=16)
def _options(options: tuple[tuple[str, str], ...], schema: str) -> ReadOptions:
    """The options of a load.  Raises PythonReads for one that Java does not replace."""
    columns = StructType.fromJson(json.loads(schema))
    for field in columns:
        if COLUMNS.get(field.name) != field.dataType.simpleString() or not field.nullable:
            raise PythonReads(f"column {field.name} of type {field.dataType.simpleString()}")
    parsed = read_options({name.lower(): value for name, value in options}, streaming=False)
    if parsed.latest or parsed.of_progress or parsed.value_format != "columns":
        raise PythonReads("its records are not those of slices")
    check_location(parsed.location)
    return parsed


def check_location(location: Location) -> None:
    """Raises PythonReads for a log whose objects are not all in one directory.  Sends no request to a bucket.

    Reads of brokers are bounded in time, and continue with another one.
    """
    if SCHEME.match(url := storage_url(location.url, location.token)) and not url.lower().startswith("file:"):
        raise PythonReads("its objects are not files")
    if kept_journal(location).roots.brokers:
        raise PythonReads("its objects have replicas on brokers")


def planned(options: ReadOptions, query: str, tasks: Sequence[object]) -> list[bytes]:
    """Two parts for each task: its reads for Java, and the same for Python.  Raises PythonReads."""
    checked = [task for task in tasks if isinstance(task, ReadTask)]
    if len(checked) < len(tasks):
        raise PythonReads("there are no tasks")
    _check_log(checked[0])
    pin, reads = _pinned(options, query, checked)
    _check_reads(pin, reads, checked[0].log.version)
    erased = {topic.topic_id: topic.erased for topic in pin.topics.values()}
    root, window = checked[0].log.roots.store().url, options.where.window
    found = []
    for task, several in zip(checked, reads, strict=True):
        found.append(_encoded(several, pin.made_ms, root, window))
        log = replace(task.log, history=pin.history)
        found.append(pickle.dumps(PinnedTask(log, several, task.data, erased, pin.made_ms)))
    return found


def _check_log(task: ReadTask) -> None:
    if task.log.brokers:
        raise PythonReads("its objects have replicas on brokers")
    if not task.log.roots.store().url.startswith(FILE):
        raise PythonReads("its objects are not files")
    if task.data is not None and (task.data.value is not None or task.data.stored):
        raise PythonReads("its topics have a schema")


def _pinned(options: ReadOptions, query: str, tasks: Sequence[ReadTask]) -> tuple[Pin, list[list[SliceRead]]]:
    """The pin of a query, and the reads of each of its tasks at that version.  Raises what Python's tasks would."""
    # Not that of the reader: another plan of it may divide added records differently.
    scan = uuid.uuid4().hex
    names = names_of(query, scan, tasks[0].log.token)
    everything = tasks[0].with_reads([read for task in tasks for read in task.reads])
    pin, growth = PinnedQuery(options, scan, names, everything).view()
    return pin, [PinnedQuery(options, scan, names, task).reads_at(pin, growth) for task in tasks]


def _check_reads(pin: Pin, reads: Sequence[Sequence[SliceRead]], version: int) -> None:
    """Raises PythonReads for reads of which records were erased since they were planned, and for too many or too long
    ones.
    """
    if sum(map(len, reads)) > READS_MAX:
        raise PythonReads(f"it has more than {READS_MAX:,} slices")
    if any(pin.topics[topic].erased > version for topic in {read.topic for several in reads for read in several}):
        raise PythonReads("records were erased since it was planned")
    if any(read.slice.length > LONGEST for several in reads for read in several):
        raise PythonReads("a slice is too long")


def _encoded(reads: Sequence[SliceRead], pinned_ms: int, root: str, window: Window | None) -> bytes:
    """The reads of a task, as `SegmentReader` of Java decodes them.

    root:  the URL of the directory of the objects.
    """
    folder = unquote(root.removeprefix(FILE))
    parts = [HEAD.pack(pinned_ms, LOOK_MS, len(reads))]
    for read in reads:
        path = f"{folder}/{read.slice.object}".encode()
        topic = read.topic.encode()
        parts += [_LENGTH.pack(len(path)), path, _LENGTH.pack(len(topic)), topic, _numbers(read, window)]
    return b"".join(parts)


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
