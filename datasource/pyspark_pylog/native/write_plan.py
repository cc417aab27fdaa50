"""The rules by which the tasks of `PylogWriter.java` encode rows.

Spark's writer in Python has them as one byte string, which Java finds in the pickle that Spark sends to its tasks.  So
a micro-batch needs no request, and rules are always those of its writer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from crc32c import crc32c

from pyspark_pylog.options.parse import WriteOptions
from spark_log.client.producer.topic_rules import TopicSpec, TopicTable
from spark_log.log_lines import logger
from spark_log.segment.partitioners import STICKY_BATCH_BYTES
from spark_log.segment.row_sorter import HELD_BYTES
from spark_log.segment.writer import BATCH_BYTES, BATCH_ROWS

MARK = b"pylog.write.rules"
_LENGTH = struct.Struct(">i")
_CHECK = struct.Struct(">Ii")
"""After the mark: the checksum of the rules, and their length."""
PARTITIONERS = {"default": 0, "murmur2": 0, "sticky": 1, "round-robin": 2}
CODECS = {"zstd": 1, "lz4": 2}
RECORD_MAX = 4 << 20
"""Bytes of a record: Java has several copies of one, in a heap that Spark needs.  Below what a reader always decodes
(`DECODED_FREE`), so that Java compresses each batch.
"""
PARTITIONS_MAX = 100_000
"""Partitions of all topics that rows may name: Java has arrays with a number for each."""
RULES = struct.Struct(">iiiiii")
"""`WriteRules` of Java."""
TOPIC = struct.Struct(">iiiiiqq")
"""`TopicRules` of Java, before the name."""


class PythonWrites(Exception):
    """Why Java does not encode the rows of a write."""


def write_rules(
    options: WriteOptions, columns: Sequence[str], specs: Mapping[str, TopicSpec], *, has_data: bool
) -> bytes:
    """The rules of a write, with the names of its columns; empty if Python writes its rows.

    has_data:  the frame has data columns.
    """
    try:
        parts = _rules(options, columns, specs, has_data=has_data)
    except PythonWrites as why:
        logger.debug("Python encodes the rows: %s", why)
        return b""
    joined = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    return MARK + _CHECK.pack(crc32c(joined), len(joined)) + joined


def _rules(
    options: WriteOptions, columns: Sequence[str], specs: Mapping[str, TopicSpec], *, has_data: bool
) -> list[bytes]:
    if has_data or options.beside:
        raise PythonWrites("they have data columns")
    if options.partitioner not in PARTITIONERS:
        raise PythonWrites(f"the partitioner {options.partitioner} is a class of Python")
    topics = encoded_topics(options, specs)
    if not 0 < sum(spec.partitions for spec in topics) <= PARTITIONS_MAX:
        raise PythonWrites(f"no topic takes rows from Java, or they have more than {PARTITIONS_MAX:,} partitions")
    numbers = PARTITIONERS[options.partitioner], STICKY_BATCH_BYTES, BATCH_ROWS, BATCH_BYTES, HELD_BYTES, len(columns)
    return [RULES.pack(*numbers), *(name.encode() for name in columns), *(_of_topic(spec, options) for spec in topics)]


def encoded_topics(options: WriteOptions, specs: Mapping[str, TopicSpec]) -> list[TopicSpec]:
    """The topics of which Java encodes rows, by their numbers in the rules."""
    names = sorted(specs) if options.topic is None else [options.topic]
    return [spec for spec in map(specs.__getitem__, names) if _is_encoded(spec, options)]


def _is_encoded(spec: TopicSpec, options: WriteOptions) -> bool:
    """Bytes that are not compressed are many, and would be copied more often."""
    codec = spec.compression.of_writer(options.compression).codec
    return codec in CODECS and spec.schema is None and not spec.sort_columns


def _of_topic(spec: TopicSpec, options: WriteOptions) -> bytes:
    codec, table = spec.compression.of_writer(options.compression), TopicTable((spec,))
    rules = TOPIC.pack(
        CODECS[codec.codec],
        codec.level,
        spec.partitions,
        min(spec.max_message_bytes, RECORD_MAX),
        spec.compacted,
        int(table.before_max_ms[0]),
        int(table.after_max_ms[0]),
    )
    return rules + spec.name.encode()
