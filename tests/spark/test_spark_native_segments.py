"""Objects by both readers of the format: golden ones, damaged ones, and some with right checksums and wrong bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_log.bounds import DECODED_FREE
from spark_log.client.reader.plan import SliceRead
from spark_log.model import Slice
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import TopicSchema, as_schema
from spark_log.segment.arrays import ipc
from spark_log.segment.arrays.dictionaries import dictionary_schema
from spark_log.segment.batch_index import INDEX_SCHEMA, MAGIC, TAIL, TAIL_BYTES, VERSION
from spark_log.segment.schema import RECORD_SCHEMA, typed_base
from tests.bombs import compressed, zeros
from tests.spark.native_paths import MARKS
from tests.spark.segment_probe import Probe, Reads
from tests.spark.segment_vectors import NAME, START, START_US, Vector, batch, kept, slice_read, written
from tests.unit.segment.test_segment_format_page import shown

pytestmark = MARKS
VECTORS = {vector.name: vector for vector in kept()}
NUMBERS = (-1, 0, 1, 2**31 - 1, 2**31, 2**32 + 5, 2**62, 2**63 - 1, -(2**63))


@pytest.fixture(scope="module")
def probe(classic: SparkSession) -> Probe:
    return Probe(classic)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the object of a vector is written."""
    found = tmp_path / NAME
    found.parent.mkdir(parents=True)
    return found


@pytest.fixture
def reads(tmp_path: Path, path: Path) -> Callable[[Vector], Reads]:
    """Puts the object of a vector there."""

    def put(vector: Vector) -> Reads:
        path.write_bytes(vector.data)
        return Reads(tmp_path, StructType.fromDDL(vector.columns), vector.reads, vector.schema)

    return put


# Promise: spark-read.md#read-in-the-jvm
@pytest.mark.parametrize("name", VECTORS)
def test_golden_objects(probe: Probe, reads: Callable[[Vector], Reads], name: str) -> None:
    """Their rows are those that were written."""
    vector = VECTORS[name]
    found = reads(vector)
    assert found.by_python(vector.data) == vector.rows
    assert probe.lines(found).splitlines() == vector.rows


def test_the_object_of_the_page(probe: Probe, reads: Callable[[Vector], Reads]) -> None:
    """The page about the format shows its run byte by byte."""
    run = bytes(value for at, value in sorted(shown().items()) if at < 552)
    vector = whole_run("page", run)
    found, row = reads(vector), f"(x6b x76 {START} 1700000000000000 0 -)"
    assert probe.rows(found) == found.by_python(run) == [row]


def whole_run(name: str, run: bytes, rows: int = 1, typed: str = "") -> Vector:
    """An object that is only a run of one batch."""
    piece = Slice(START, START + rows, NAME, 0, len(run), crc32c(run), 1, 0, 0)
    return Vector(name, run, [SliceRead("t", "t", 0, START, START + rows, piece, len(run), len(run))], typed)


def large() -> Vector:
    """A part of a run that is so large that both readers find its batches by the index."""
    rng = random.Random(1)
    records = [(b"k", rng.randbytes(600_000 if n in (2, 5) else 10), START_US, None) for n in range(6)]
    data, run, index = written(batch(records), batch_rows=2)
    return Vector("large", data, [slice_read(run, 6, data, index, part=(1, 4))])


def places_in(vector: Vector, count: int = 300) -> list[int]:
    """Bytes of an object: of its ends more than of the middle."""
    rng, size = random.Random(1), len(vector.data)
    low, high = vector.reads[0].slice.position, vector.reads[0].index_position
    near = [
        *rng.sample(range(min(high, low + 1500)), count // 3),
        *rng.sample(range(max(0, size - 3000), size), count // 3),
    ]
    return sorted({*near, *rng.sample(range(size), count // 3), *range(size - TAIL_BYTES, size)})


# Promise: spark-read.md#read-in-the-jvm
@pytest.mark.parametrize("cut", [False, True], ids=["flipped", "cut"])
@pytest.mark.parametrize(
    "vector", [VECTORS["bytes, lz4"], VECTORS["holes"], VECTORS["each type"], large()], ids=lambda one: one.name
)
def test_damaged_objects(probe: Probe, reads: Callable[[Vector], Reads], path: Path, vector: Vector, cut: bool) -> None:
    """Both readers have the same verdict wherever a byte is another one, or an object ends."""
    found, places = reads(vector), places_in(vector)
    whole, expected = found.by_python(vector.data), ""
    for at in places:
        rest = b"" if cut else bytes([vector.data[at] ^ 16]) + vector.data[at + 1 :]
        rows = found.by_python(vector.data[:at] + rest)
        expected += "!" if rows is None else "=" if rows == whole else "?"
    assert probe.verdicts(found, path, vector.data, places, cut=cut) == expected
    assert expected.count("!") > 50 and "?" not in expected


def with_sums(vector: Vector, data: bytes, in_index: bool) -> tuple[bytes, SliceRead]:
    """Changed bytes with the checksums that are right for them."""
    (read,) = vector.reads
    piece = read.slice
    if in_index:
        index = data[read.index_position : -TAIL_BYTES]
        return data[:-TAIL_BYTES] + TAIL.pack(len(index), crc32c(index), VERSION, MAGIC), read
    run = data[piece.position : piece.position + piece.length]
    return data, replace(read, slice=replace(piece, crc=crc32c(run)))


def changed(rng: random.Random, vector: Vector, in_index: bool) -> bytes:
    """An object with one to three other numbers or bytes in its run, or in its index."""
    (read,) = vector.reads
    piece, data = read.slice, bytearray(vector.data)
    low, high = piece.position, piece.position + piece.length
    if in_index:
        low, high = read.index_position, len(data) - TAIL_BYTES
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(low, high - 8)
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at & ~3 : (at & ~3) + 4] = struct.pack("<q", rng.choice(NUMBERS))[:4]
            case 2:
                data[at & ~7 : (at & ~7) + 8] = struct.pack("<q", rng.choice(NUMBERS))
            case 3:
                other = rng.randrange(low, high - 8)
                data[at : at + 8] = data[other : other + 8]
    return bytes(data)


# Promise: spark-read.md#read-in-the-jvm
def test_wrong_bytes_with_the_right_checksum_are_not_other_rows(
    probe: Probe, reads: Callable[[Vector], Reads], path: Path
) -> None:
    """Rows of the JVM are those of Python, which may also refuse them.  Nothing hangs or crashes.

    Python reads so small a run as a whole, without the index.
    """
    rng = random.Random(1)
    plain = [vector for vector in VECTORS.values() if not vector.typed]
    loaded = {vector.name: reads(vector) for vector in plain}
    agreed = 0
    for _ in range(600):
        vector = rng.choice(plain)
        in_index = vector.name.startswith("a part")
        data, read = with_sums(vector, changed(rng, vector, in_index), in_index)
        path.write_bytes(data)
        found = loaded[vector.name].with_reads([read])
        by_python, by_java = found.by_python(data), probe.rows(found)
        assert by_java is None or by_python is None or by_java == by_python
        agreed += by_java == by_python
    assert agreed > 400


def stream(schema: pa.Schema, message: bytes) -> bytes:
    return ipc.schema_message(schema) + message + ipc.END


def bombs() -> Iterator[Vector]:
    """Few bytes that would become many."""
    yield whole_run("a value", stream(RECORD_SCHEMA, compressed(zeros(DECODED_FREE + 1))))
    rows, typed = 2000, TopicSchema(1, to_json(as_schema("a STRING")))
    schema = dictionary_schema(typed_base(typed), ["value.a"])
    values = pa.ListArray.from_arrays(pa.array([0, *[1] * rows], pa.int32()), pa.array(["x" * 50_000]))
    numbers = pa.array(np.zeros(rows, np.int16))
    text = pa.StructArray.from_arrays([numbers, values], fields=list(schema.field("value.a").type))
    columns = [pa.nulls(rows, pa.binary()), pa.array([False] * rows), text, pa.array([0] * rows)]
    arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    yield whole_run("a dictionary", sink.getvalue().to_pybytes(), rows, "a STRING")
    part = large()
    (read,) = part.reads
    ends = [pa.array(["x" * (DECODED_FREE + 1)]), *(pa.array([0], field.type) for field in list(INDEX_SCHEMA)[1:])]
    names = pa.RecordBatch.from_arrays(ends, schema=INDEX_SCHEMA)
    index = stream(INDEX_SCHEMA, compressed(names))
    data = part.data[: read.index_position] + index + TAIL.pack(len(index), crc32c(index), VERSION, MAGIC)
    yield part._replace(name="an index", data=data, reads=[replace(read, object_size=len(data))])


# Promise: spark-read.md#read-in-the-jvm
def test_few_bytes_do_not_become_many(probe: Probe, reads: Callable[[Vector], Reads]) -> None:
    """They are refused before they are decoded."""
    for vector in bombs():
        found = reads(vector)
        assert found.by_python(vector.data) is None, vector.name
        assert "decoded bytes" in probe.lines(found), vector.name
