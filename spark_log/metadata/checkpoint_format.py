"""A checkpoint: the whole state at one version, in one file without references to other files.

pylog-checkpoint 1 <plain length> <crc32c>\\n      checksum in hex, of the length as written and the bytes that follow
zstd(JSON document)                                the fields of `State`, maps as lists of [key, value]
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from crc32c import crc32c
from immutables import Map

from spark_log.errors import CorruptObject, UnsupportedVersion
from spark_log.groups.group import Roster
from spark_log.metadata.features import check_level
from spark_log.metadata.records import Piece, check_format
from spark_log.metadata.state import (
    Forgotten,
    GroupState,
    Leadership,
    MemberSession,
    ObjectRow,
    Partition,
    Position,
    ProducerState,
    State,
    Topic,
)
from spark_log.model import Slice

MAGIC = b"pylog-checkpoint"
VERSION = 1
CODEC = "zstd"


class _GroupRow(NamedTuple):
    name: str
    generation: int
    member: str
    offsets: list[tuple[str, int, Position]]
    seen: int = 0
    session: MemberSession | None = None
    roster: Roster | None = None


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    version: int
    time: int
    changed: int
    fence: int
    times: list[tuple[int, int]]
    configs: dict[str, str]
    topics: list[tuple[str, str, int, dict[str, str], int, bool]]
    partitions: list[tuple[str, int, int, int, int, list[Slice], list[Piece]]]
    objects: list[tuple[str, ObjectRow]]
    dropped: dict[str, int]
    producers: list[tuple[str, ProducerState]]
    groups: list[_GroupRow]
    coordinator: Leadership = Leadership()
    forgotten: list[tuple[str, str, int, Forgotten]] = []
    progressed: int = 0
    generations: int = 0
    features: list[tuple[str, int]] = []


class _Levels(msgspec.Struct, frozen=True):
    """The part of the document that every pylog can read, even in a newer one."""

    features: list[tuple[str, int]] = []


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Document)
_levels_decoder = msgspec.json.Decoder(_Levels)


def encode_checkpoint(state: State) -> bytes:
    """The bytes of a checkpoint."""
    plain = state_json(state)
    body = pa.compress(plain, codec=CODEC, asbytes=True)
    size = b"%d" % len(plain)
    return b"%s %d %s %08x\n" % (MAGIC, VERSION, size, crc32c(body, crc32c(size))) + body


def state_json(state: State) -> bytes:
    """The document of a checkpoint as readable JSON."""
    return _encoder.encode(_document(state))


def _document(state: State) -> _Document:
    return _Document(
        version=state.version,
        time=state.time,
        changed=state.changed,
        fence=state.fence,
        times=list(state.times),
        configs=dict(sorted(state.configs.items())),
        topics=[
            (key, t.name, t.partitions, dict(sorted(t.configs.items())), t.created_ms, t.deleted)
            for key, t in sorted(state.topics.items())
        ],
        partitions=[
            (
                *key,
                part.start,
                part.end,
                part.edition,
                [entry for entry in part.entries if isinstance(entry, Slice)],
                [entry for entry in part.entries if isinstance(entry, Piece)],
            )
            for key, part in sorted(state.partitions.items())
        ],
        objects=sorted(state.objects.items(), key=itemgetter(0)),
        dropped=dict(sorted(state.dropped.items())),
        producers=sorted(state.producers.items()),
        groups=[
            _GroupRow(
                name,
                g.generation,
                g.member,
                [(*key, p) for key, p in sorted(g.offsets.items())],
                g.seen,
                g.session,
                g.roster,
            )
            for name, g in sorted(state.groups.items())
        ],
        coordinator=state.coordinator,
        forgotten=[(*key, when) for key, when in sorted(state.forgotten.items())],
        progressed=state.progressed,
        generations=state.generations,
        features=sorted(state.features.items()),
    )


def decode_checkpoint(data: bytes, name: str) -> State:
    """Decode a checkpoint; `name` is the object's name.

    Raises UnsupportedVersion for a newer format, CorruptObject for damaged bytes.
    """
    size, body = _checked(data, name)
    try:
        plain = pa.decompress(body, decompressed_size=size, codec=CODEC, asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptObject(f"{name} is damaged: it cannot be decompressed ({error})") from error
    try:
        for feature, level in _levels_decoder.decode(plain).features:
            check_level(feature, level, name)
        return _state(_decoder.decode(plain))
    except msgspec.DecodeError as error:
        raise UnsupportedVersion(f"{name} has a field that this pylog does not know ({error}): update pylog") from error


def check_checkpoint(data: bytes, name: str) -> None:
    """Check by its checksum that `data` is a whole checkpoint; raises as `decode_checkpoint` does."""
    _checked(data, name)


def _checked(data: bytes, name: str) -> tuple[int, bytes]:
    """(length of the document, its compressed bytes)."""
    head, _, body = data.partition(b"\n")
    fields = head.split(b" ")
    if fields[0] != MAGIC or len(fields) != 4:
        raise CorruptObject(f"{name} is not a checkpoint of a pylog metadata log; it starts with {data[:16]!r}")
    check_format(fields[1], VERSION, name)
    if fields[3] != b"%08x" % crc32c(body, crc32c(fields[2])) or not fields[2].isdigit():
        raise CorruptObject(f"{name} is damaged: the checksum of its {len(body)} bytes differs from its first line")
    return int(fields[2]), body


def _state(doc: _Document) -> State:
    partitions: dict[tuple[str, int], Any] = {}
    for topic_id, number, start, end, edition, slices, pieces in doc.partitions:
        both: list[Slice | Piece] = [*slices, *pieces]
        entries = tuple(sorted(both, key=lambda entry: entry.start) if pieces else both)
        partitions[topic_id, number] = Partition(start, end, edition, entries)
    return State(
        version=doc.version,
        time=doc.time,
        changed=doc.changed,
        fence=doc.fence,
        times=tuple(doc.times),
        configs=Map(doc.configs),
        names=Map({name: key for key, name, _, _, _, deleted in doc.topics if not deleted}),
        topics=Map({key: Topic(name, n, Map(configs), at, gone) for key, name, n, configs, at, gone in doc.topics}),
        partitions=Map(partitions),
        objects=Map(doc.objects),
        dropped=Map(doc.dropped),
        producers=Map(doc.producers),
        groups=Map(
            {
                g.name: GroupState(
                    g.generation,
                    g.member,
                    Map({(key, number): p for key, number, p in g.offsets}),
                    g.seen,
                    g.session,
                    g.roster,
                )
                for g in doc.groups
            }
        ),
        coordinator=doc.coordinator,
        forgotten=Map({(group, topic, number): when for group, topic, number, when in doc.forgotten}),
        progressed=doc.progressed,
        generations=doc.generations,
        features=Map(doc.features),
    )
