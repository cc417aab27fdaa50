"""Objects of the format, kept as bytes in tests/vectors/segments.json, which both readers must read.

    python -m tests.spark.segment_vectors > tests/vectors/segments.json

writes them again after a change of the format.  The expected rows are those that were written, not those of a reader.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from crc32c import crc32c

from spark_log.client.reader.plan import SliceRead
from spark_log.model import APPEND_TIME, Run, Slice
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import TopicSchema, as_schema
from spark_log.segment.arrays import ipc
from spark_log.segment.batch_index import BatchEntry, encode_index
from spark_log.segment.compression import Compression
from spark_log.segment.schema import RECORD_SCHEMA, RECORD_SCHEMA_HEADERS
from spark_log.segment.typed_rows import conform_typed
from spark_log.segment.writer import SegmentWriter

FILE = Path(__file__).parents[1] / "vectors" / "segments.json"
NAME = "data/7/a.seg"
START, START_US = 1000, 1_700_000_000_000_000
TYPES = (
    "flag BOOLEAN, tiny TINYINT, small SMALLINT, number INT, large BIGINT, money DECIMAL(9,2), text STRING, few STRING, "
    "some BINARY, day DATE, at TIMESTAMP, list ARRAY<INT>, words MAP<STRING,ARRAY<STRING>>, "
    "place STRUCT<x: BIGINT, y: STRUCT<z: STRING>>"
)


class Vector(NamedTuple):
    """An object, and what a read of it returns."""

    name: str
    data: bytes
    reads: list[SliceRead]
    typed: str = ""
    """The DDL of the topic's schema; empty for bytes."""
    rows: Sequence[str] = ()
    """Key, value or data columns, offset, time and headers of each record, as `SegmentProbe` writes them."""

    @property
    def schema(self) -> TopicSchema | None:
        return TopicSchema(1, to_json(as_schema(self.typed))) if self.typed else None

    @property
    def columns(self) -> str:
        """The columns of the frame that is read."""
        values = self.typed or "value binary"
        headers = "headers array<struct<key:string,value:binary>>"
        return f"key binary, {values}, offset bigint, timestamp timestamp, timestampType int, {headers}"


Record = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None]
"""Key, value, time and headers."""


def hexed(value: bytes | None) -> str:
    return "-" if value is None else f"x{value.hex()}"


def shown(record: Record, offset: int, value: str = "", kind: int = 0) -> str:
    key, data, time_us, headers = record
    inside = " ".join(f"({hexed(name.encode())} {hexed(one)})" for name, one in headers or [])
    listed = f"[{inside}]" if headers else "-"
    return f"({hexed(key)} {value or hexed(data)} {offset} {time_us} {kind} {listed})"


def record(number: int, headers: bool = False) -> Record:
    """With each kind of null and of emptiness somewhere."""
    key = [b"k%d" % number, None, b""][number % 3]
    value = [b"v%d" % number * (number % 5), b"", None, bytes(range(number % 7))][number % 4]
    of_it: list[Any] = [None, [], [("h", b"x"), ("", None)], [("\u00e4", b"")]]
    return key, value, START_US + 1000 * (number % 5), of_it[number % 4] if headers else None


def batch(records: Sequence[Record], headers: bool = False) -> pa.RecordBatch:
    schema = RECORD_SCHEMA_HEADERS if headers else RECORD_SCHEMA
    columns = zip(*records, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=False)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def slice_read(
    run: Run, span: int, data: bytes, index: int, kind: int = 0, part: tuple[int, int] = (0, 0)
) -> SliceRead:
    """A read of a run from START on; of a part of its offsets, if one is given."""
    low, high = part if part[1] else (0, span)
    where = (NAME, run.position, run.length, run.crc, run.batches, run.min_us, run.max_us, kind)
    return SliceRead("t", "t", 0, START + low, START + high, Slice(START, START + span, *where), index, len(data))


def written(
    rows: pa.RecordBatch, offsets: Sequence[int] = (), span: int = 0, **settings: Any
) -> tuple[bytes, Run, int]:
    """An object's bytes, its run, and where its index is."""
    writer = SegmentWriter(**{"compression": Compression("zstd"), **settings})
    writer.append("other", 0, batch([record(1)]))
    writer.append("t", 0, rows, offsets=pa.array(offsets).to_numpy() if offsets else None)
    if span:
        writer.extend("t", 0, span)
    found = writer.finish()
    (run,) = (run for run in found.runs if run.topic_id == "t")
    return b"".join(found.chunks()), run, found.index_position


def of_bytes() -> Iterator[Vector]:
    for codec in ("zstd", "lz4", "none"):
        headers, records = codec == "lz4", [record(n, codec == "lz4") for n in range(30)]
        data, run, index = written(batch(records, headers), compression=Compression(codec))
        rows = [shown(one, START + n) for n, one in enumerate(records)]
        yield Vector(f"bytes, {codec}", data, [slice_read(run, 30, data, index)], rows=rows)
    data, run, index = written(batch(records), batch_rows=4)
    part = slice_read(run, 30, data, index, part=(5, 18))
    yield Vector("a part, by the index", data, [part], rows=rows[5:18])
    read = slice_read(run, 30, data, index, kind=APPEND_TIME)
    given = [shown((k, v, run.min_us, h), START + n, kind=1) for n, (k, v, _, h) in enumerate(records)]
    yield Vector("times of the log", data, [read], rows=given)


def with_holes() -> Iterator[Vector]:
    offsets = [2, 3, 5, 8, 13, 21, 34]
    records = [record(n) for n in offsets]
    data, run, index = written(batch(records), offsets, 40, batch_rows=3)
    rows = [shown(one, START + n) for n, one in zip(offsets, records, strict=True)]
    yield Vector("holes", data, [slice_read(run, 40, data, index)], rows=rows)
    yield Vector("a part with holes", data, [slice_read(run, 40, data, index, part=(4, 21))], rows=rows[2:5])


def of_another_writer() -> Iterator[Vector]:
    """Arrow's own writer: parts of arrays, batches of other sizes, and buffers that pylog would not compress."""
    records = [record(n) for n in range(12)]
    whole, sink = batch(records), pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, RECORD_SCHEMA, options=options) as writer:
        for at, count in ((0, 1), (1, 8), (9, 3)):
            writer.write_batch(whole.slice(at, count))
    run = sink.getvalue().to_pybytes()
    data = run + encode_index(list[BatchEntry](), [], ipc.write_options(None))
    of_it = Run("t", 0, 0, len(run), crc32c(run), 12, 3, START_US, START_US)
    rows = [shown(one, START + n) for n, one in enumerate(records)]
    yield Vector("Arrow's own writer", data, [slice_read(of_it, 12, data, len(run))], rows=rows)


def typed() -> Iterator[Vector]:
    schema = TopicSchema(1, to_json(as_schema(TYPES)))
    values = [_values(n) for n in range(240)]
    (conformed,) = conform_typed([one for one, _ in values], schema, now_us=START_US)
    data, run, index = written(conformed.records, batch_rows=120)
    rows = [shown((None, None, START_US, None), START + n, text) for n, (_, text) in enumerate(values)]
    yield Vector("each type", data, [slice_read(run, 240, data, index)], TYPES, rows)
    part = slice_read(run, 240, data, index, part=(117, 123))
    yield Vector("each type, by the index", data, [part], TYPES, rows[117:123])


def _values(n: int) -> tuple[dict[str, Any], str]:
    """The values of a row, and their text."""
    if n % 6 == 5:
        return {"few": None}, " ".join(["-"] * 14)
    found = {
        "flag": n % 2 == 0,
        "tiny": n % 256 - 128,
        "small": n - 2**15,
        "number": n - 2**31,
        "large": n - 2**63,
        "money": Decimal(f"{n}.25"),
        "text": f"t{n}\u00e4",
        "few": ["DE", "", "a longer one"][n % 3],
        "some": bytes([n]),
        "day": date(1970, 1, n % 28 + 1),
        "at": datetime.fromtimestamp(START_US // 10**6, UTC) + timedelta(microseconds=n),
        "list": [n, None],
        "words": {"a": ["x", None], "": None},
        "place": {"x": n, "y": {"z": "z"}},
    }
    texts = [str(found["flag"]).lower(), *(str(found[name]) for name in ("tiny", "small", "number", "large", "money"))]
    texts += [hexed(str(found[name]).encode()) for name in ("text", "few")]
    texts += [hexed(bytes([n])), str(n % 28), str(START_US + n), f"[{n} -]", "[x61 x][[x78 -] -]", f"({n} (x7a))"]
    return found, " ".join(texts)


def vectors() -> Iterator[Vector]:
    for kind in (of_bytes, with_holes, of_another_writer, typed):
        yield from kind()


def kept() -> list[Vector]:
    """The golden vectors in the file."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return [
        Vector(
            one["name"],
            base64.b64decode(found["objects"][one["object"]]),
            msgspec.convert(one["reads"], list[SliceRead]),
            one["typed"],
            one["rows"],
        )
        for one in found["vectors"]
    ]


def main() -> None:
    objects, listed = list[bytes](), []
    for one in vectors():
        if one.data not in objects:
            objects.append(one.data)
        reads = msgspec.to_builtins(one.reads)
        listed.append(
            {
                "name": one.name,
                "object": objects.index(one.data),
                "reads": reads,
                "typed": one.typed,
                "rows": list(one.rows),
            }
        )
    found = {"objects": [base64.b64encode(data).decode() for data in objects], "vectors": listed}
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
