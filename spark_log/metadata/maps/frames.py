"""Frames: rows in compressed pieces with a checksum each, so that a large file is written and read piece by piece.

    <kind> <rows> <plain length> <length> <crc32c>\\n     checksum in hex, of the line before it and the body
    zstd(rows)                                           <length> bytes: one line of JSON a row, or one Arrow IPC stream
    ...
    end <rows of all frames> 0 0 <crc32c>\\n              the last frame; it has no body, and nothing follows it

Rows are not compressed if <length> is <plain length>.
A frame holds whole rows of one kind: at most `FRAME_BYTES` before compression, unless a single row is longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from crc32c import crc32c

from spark_log.bounds import decoded_bytes_max
from spark_log.errors import CorruptObject
from spark_log.segment.arrays.ipc_sizes import check_decoded, check_each

CODEC = "zstd"
END = "end"
FRAME_BYTES = 1 << 20
ROWS_AT_ONCE = 100
"""Rows that are encoded in one call; few, because the rows of large groups are long."""
LINE_BYTES_MAX = 200


class Frame(NamedTuple):
    kind: str
    rows: int
    """Number of rows; for the end frame, of all frames before it."""
    plain_bytes: int
    """Length of the body before compression."""
    body: memoryview
    encoded: memoryview
    """The whole frame."""
    end: int
    """Position of the next frame."""
    where: str
    """Number and kind, for messages."""

    def lines(self, name: str) -> bytes:
        """The rows, one line of JSON each; `name` is the object's name.  Raises CorruptObject."""
        return self._plain(name).to_pybytes()

    def columns(self, name: str) -> pa.RecordBatch:
        """The rows as Arrow columns, without a copy.  Raises CorruptObject, also for rows that are no columns."""
        plain = self._plain(name)
        try:
            check_each(memoryview(plain))
            found = pa.ipc.open_stream(plain).read_next_batch()
            found.validate(full=True)
            return found
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise CorruptObject(f"{name} is damaged: {self.where} has no Arrow columns ({error})") from error

    def _plain(self, name: str) -> pa.Buffer:
        if len(self.body) == self.plain_bytes:
            return pa.py_buffer(self.body)
        try:
            check_decoded(self.plain_bytes, len(self.body), "it")
            return pa.decompress(self.body, decompressed_size=self.plain_bytes, codec=CODEC)
        except MemoryError as error:
            raise MemoryError(f"too little memory to read {name}, {self.where}: {error}") from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptObject(f"{name} is damaged: {self.where} cannot be decompressed ({error})") from error


def encode_frames(kind: str, rows: Iterable[Any], encoder: msgspec.json.Encoder) -> Iterator[tuple[int, bytes]]:
    """(number of rows, bytes) of each frame; no frame if there are no rows."""
    rows, lines = iter(rows), bytearray()
    while some := list(islice(rows, ROWS_AT_ONCE)):
        lines += encoder.encode_lines(some)
        while len(lines) > FRAME_BYTES:
            cut = lines.rfind(b"\n", 0, FRAME_BYTES) + 1 or lines.find(b"\n") + 1
            yield _encode_lines(kind, bytes(lines[:cut]))
            del lines[:cut]
    if lines:
        yield _encode_lines(kind, bytes(lines))


def _encode_lines(kind: str, lines: bytes) -> tuple[int, bytes]:
    rows = lines.count(b"\n")
    return rows, _encode_frame(kind, rows, len(lines), _body(lines))


def _body(plain: bytes | pa.Buffer) -> bytes:
    """Compressed, unless that makes it longer, or so short that a reader would refuse it."""
    size, body = memoryview(plain).nbytes, pa.compress(plain, codec=CODEC, asbytes=True)
    return body if len(body) < size <= decoded_bytes_max(len(body)) else bytes(memoryview(plain))


def encode_columns(kind: str, batch: pa.RecordBatch) -> bytes:
    """A frame with rows in Arrow columns."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    plain = sink.getvalue()
    return _encode_frame(kind, batch.num_rows, plain.size, _body(plain))


def encode_end(rows: int) -> bytes:
    """The last frame of a file with so many rows."""
    return _encode_frame(END, rows, 0, b"")


def _encode_frame(kind: str, rows: int, plain_bytes: int, body: bytes) -> bytes:
    head = b"%s %d %d %d" % (kind.encode(), rows, plain_bytes, len(body))
    return b"%s %08x\n%s" % (head, crc32c(body, crc32c(head)), body)


def read_frames(data: bytes, at: int, name: str) -> Iterator[Frame]:
    """The frames from position `at` to the end frame, which is left out; each is checked before it is returned.

    Raises CorruptObject, with number and kind of the frame, for damaged bytes, a cut file, a missing frame, and bytes
    after the end frame.
    """
    number = rows = 0
    while (frame := _read_frame(data, at, number, name)).kind != END:
        yield frame
        number, rows, at = number + 1, rows + frame.rows, frame.end
    if frame.rows != rows:
        raise CorruptObject(f"{name} is damaged: its frames have {rows} rows, by {frame.where} they had {frame.rows}")
    if frame.end != len(data):
        raise CorruptObject(f"{name} is damaged: {len(data) - frame.end} bytes follow {frame.where}")


def _read_frame(data: bytes, at: int, number: int, name: str) -> Frame:
    if at == len(data):
        raise CorruptObject(f"{name} is damaged: it is cut off after {number} frames, before the end frame")
    line, _, _ = data[at : at + LINE_BYTES_MAX].partition(b"\n")
    head, _, checksum = line.rpartition(b" ")
    kind, *numbers = head.split(b" ")
    if len(numbers) != 3 or not all(map(bytes.isdigit, numbers)):
        raise CorruptObject(f"{name} is damaged: frame {number}, at byte {at}, begins with {line[:24]!r}")
    rows, plain_bytes, length = map(int, numbers)
    begin, end = at + len(line) + 1, at + len(line) + 1 + length
    body, encoded = memoryview(data)[begin:end], memoryview(data)[at:end]
    where = f"frame {number} ({kind.decode(errors='replace')})"
    if end > len(data):
        raise CorruptObject(f"{name} is damaged: {where} is cut off, {len(body)} of its {length} bytes are there")
    if checksum != b"%08x" % crc32c(body, crc32c(head)):
        raise CorruptObject(f"{name} is damaged: the checksum of {where} differs from its line")
    return Frame(kind.decode(), rows, plain_bytes, body, encoded, end, where)
