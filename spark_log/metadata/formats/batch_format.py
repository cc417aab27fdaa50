"""The bytes of a batch of records: tagged records as lines of JSON.

A batch is one object of the log, `meta/log/<version>.rec`:

    pylog-batch 1 <length> <crc32c>\\n         length of the rest in bytes, checksum in hex
    {"id":…,"time":…}\\n                       random id of the write; time in ms, which never decreases along the log;
                                              `epoch` if a coordinator wrote it, `history` after a restore, `after`:
                                              the end of the id of the batch before
    {"type":"commit",…}\\n                     the records, one a line
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from spark_log.errors import CorruptObject, UnsupportedVersion
from spark_log.metadata.features import check_level
from spark_log.metadata.records import AnyRecord, Batch, FeatureLevelRecord
from spark_log.text import first_bytes

BATCH_MAGIC = b"pylog-batch"
BATCH_VERSION = 1


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    time: int
    epoch: int = 0
    history: str = ""
    after: str = ""


_encoder = msgspec.json.Encoder()
_head_decoder = msgspec.json.Decoder(_Head)
_record_decoder = msgspec.json.Decoder(AnyRecord)


def encode_batch(batch: Batch) -> bytes:
    """The bytes of one object of the metadata log."""
    lines = [_Head(batch.id, batch.time, batch.epoch, batch.history, batch.after), *batch.records]
    body = b"".join(_encoder.encode(line) + b"\n" for line in lines)
    return b"%s %d %d %08x\n" % (BATCH_MAGIC, BATCH_VERSION, len(body), crc32c(body)) + body


def decode_batch(data: bytes, name: str) -> Batch:
    """Decode a batch; `name` is the object's name.

    Raises UnsupportedVersion for a newer format, CorruptObject for damaged bytes.
    """
    head, _, body = data.partition(b"\n")
    fields = head.split(b" ")
    if fields[0] != BATCH_MAGIC or len(fields) != 4:
        raise CorruptObject(f"{name} is not a record of a pylog metadata log; {first_bytes(data)}")
    check_format(fields[1], BATCH_VERSION, name)
    if fields[2] != b"%d" % len(body) or fields[3] != b"%08x" % crc32c(body):
        raise CorruptObject(
            f"{name} is damaged: length or checksum differ from its first line ({len(body)} bytes follow)"
        )
    lines = body.splitlines()
    try:
        first = _head_decoder.decode(lines[0])
        records = tuple(_decode_record(line, name) for line in lines[1:])
    except (msgspec.DecodeError, IndexError) as error:
        raise UnsupportedVersion(
            f"{name} holds a record that this pylog does not know ({error}): update pylog"
        ) from error
    return Batch(
        id=first.id, time=first.time, epoch=first.epoch, history=first.history, after=first.after, records=records
    )


def _decode_record(line: bytes, name: str) -> AnyRecord:
    """A level is checked before the next record is decoded, which may be of that level."""
    record = _record_decoder.decode(line)
    if isinstance(record, FeatureLevelRecord):
        check_level(record.name, record.level, name)
    return record


def first_line(data: bytes) -> bytes:
    """Length and checksum of a batch; they identify it, because its id is random."""
    return data[: data.find(b"\n")]


def check_format(found: bytes, known: int, name: str) -> None:
    """Raises UnsupportedVersion for another format than `known`, CorruptObject for another text."""
    if found == b"%d" % known:
        return
    if found.isdigit() and int(found) > known:
        raise UnsupportedVersion(
            f"{name} has format {int(found)}, this pylog reads {known}: update pylog; if no "
            "newer pylog ever wrote to this log, the file is damaged: restore it from a copy of the log (`pylog repair` "
            "changes no file of a newer format)"
        )
    if found.isdigit() and int(found) > 0:
        raise UnsupportedVersion(
            f"{name} has format {int(found)}, which no release has written, this pylog reads {known}: "
            "use the pylog that wrote the log"
        )
    raise CorruptObject(f"{name} is damaged: its first line has {found!r} for a format")
