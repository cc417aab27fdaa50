"""Plans for `PylogWriter.java`, in the driver's Python: the rules by which its tasks encode rows.

Spark's writer in Python has checked the frame, has created the topic and drawn the upload epoch before Java asks.
"""

from __future__ import annotations

import inspect
import pickle
import struct

from pyspark_pylog.sink.writer import Begun, LogWriter
from spark_log.client.producing.topic_rules import TopicSpec, TopicTable
from spark_log.segment.compression import Compression
from spark_log.segment.partitioners import STICKY_BATCH_BYTES
from spark_log.segment.row_sorter import HELD_BYTES
from spark_log.segment.writer import BATCH_BYTES, BATCH_ROWS

COLUMNS = frozenset(("topic", "key", "value", "partition", "timestamp"))
"""The columns that Java takes."""
PARTITIONERS = {"default": 0, "murmur2": 0, "sticky": 1, "round-robin": 2}
CODECS = {"zstd": 1, "lz4": 2}
RECORD_MAX = 4 << 20
"""Bytes of a record: Java has several copies of one, in a heap that Spark needs.  Below what a reader always decodes
(`DECODED_FREE`), so that Java compresses each batch.
"""
RULES = struct.Struct(">iiiiiiiqqiii")
"""`WriteRules` of Java."""


class PythonWrites(Exception):
    """Why Java does not encode the rows of a write."""


def planned_write(function: bytes) -> list[bytes]:
    """The rules of a write for Java, and the names of its columns.  Raises PythonWrites.

    function:  what Spark sends to its tasks in Python: a pickle.
    """
    begun = _begun(function)
    spec, codec = _checked(begun)
    table = TopicTable((spec,))
    rules = RULES.pack(
        CODECS[codec.codec],
        codec.level,
        spec.partitions,
        min(spec.max_message_bytes, RECORD_MAX),
        spec.compacted,
        PARTITIONERS[begun.options.partitioner],
        STICKY_BATCH_BYTES,
        int(table.before_max_ms[0]),
        int(table.after_max_ms[0]),
        BATCH_ROWS,
        BATCH_BYTES,
        HELD_BYTES,
    )
    return [rules, *(name.encode() for name in begun.columns)]


def _begun(function: bytes) -> Begun:
    task, _ = pickle.loads(function)
    writer = inspect.getclosurevars(task).nonlocals["writer"]
    if not isinstance(writer, LogWriter):
        raise PythonWrites("it is another writer")
    return writer.begun


def _checked(begun: Begun) -> tuple[TopicSpec, Compression]:
    """The topic of a write, and its compression.  Raises PythonWrites for what Java does not know."""
    options = begun.options
    if options.topic is None or begun.typed is not None or options.beside:
        raise PythonWrites("its rows have data columns, or name their topics")
    if not COLUMNS.issuperset(begun.columns):
        raise PythonWrites("its rows have headers")
    if options.partitioner not in PARTITIONERS:
        raise PythonWrites(f"the partitioner {options.partitioner} is a class of Python")
    spec = begun.specs[options.topic]
    codec = spec.compression.of_writer(options.compression)
    if codec.codec not in CODECS:
        raise PythonWrites("its bytes are not compressed, and would be copied more often")
    if spec.schema is not None or spec.sort_columns:
        raise PythonWrites("the topic has a schema or sorts its rows")
    return spec, codec
