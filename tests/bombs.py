"""Objects whose few bytes become very many when they are decoded, as a peer with a token can put them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from spark_log import Log
from spark_log.metadata.commits.decide_commits import decide_commit
from spark_log.metadata.records import CommitRecord
from spark_log.model import DataObject, Run
from spark_log.segment.arrays.ipc import END, schema_message, write_options
from spark_log.segment.batch_index import BatchEntry, encode_index
from spark_log.segment.schema import RECORD_SCHEMA

NOW_US = 1_700_000_000_000_000
_numbers = count()


def zeros(size: int) -> pa.RecordBatch:
    """One record with a value of so many zeros."""
    ends = pa.py_buffer(np.array([0, size], np.int32))
    value = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(bytes(size))])
    times = pa.array([NOW_US]).cast(RECORD_SCHEMA.field("timestamp").type)
    return pa.RecordBatch.from_arrays([pa.nulls(1, pa.binary()), value, times], schema=RECORD_SCHEMA)


def compressed(batch: pa.RecordBatch) -> bytes:
    """The message of a batch, by Arrow alone."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=write_options(pa.Codec("zstd", 3))) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()[len(schema_message(batch.schema)) : -len(END)]


def put_run(log: Log, topic: str, messages: Sequence[bytes], rows: int) -> str:
    """Commit an object with a run of these messages, each of so many rows.  The name of the object."""
    state, number = log.journal.refresh(), next(_numbers)
    schema = schema_message(RECORD_SCHEMA)
    run = b"".join([schema, *messages, END])
    topic_id, at, entries = state.names[topic], len(schema), []
    for place, message in enumerate(messages):
        first, last = place * rows, place * rows + rows - 1
        numbers = first, last, rows, at, len(message), NOW_US, NOW_US, crc32c(message), 0
        entries.append(BatchEntry(topic_id, 0, *numbers))
        at += len(message)
    data = run + encode_index(entries, [schema], write_options(None))
    name = f"data/{state.version:016x}/bomb-{number}.seg"
    log.journal.objects.put(name, [data])
    of_run = Run(topic_id, 0, 0, len(run), crc32c(run), rows * len(messages), len(messages), NOW_US, NOW_US)
    commit = CommitRecord(
        producer=f"bomb-{number}-{time.time_ns()}",
        sequence=0,
        upload_epoch=state.version,
        objects=(DataObject(name, len(data), len(run)),),
        slices=((0, of_run),),
    )
    log.journal.propose(lambda state, now: decide_commit(state, commit))
    return name
