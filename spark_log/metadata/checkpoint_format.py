"""A checkpoint: the whole state at one version, in one file without references to other files.

pylog-checkpoint 2\\n
frames (frames.py): first the header, one row with the small values; then the maps of the state as rows [key, value]

A reader may stop after the header, or skip single frames without decoding them.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec
from immutables import Map, MapMutation

from spark_log.errors import CorruptObject, UnsupportedVersion
from spark_log.groups.group import Roster
from spark_log.metadata.features import check_level
from spark_log.metadata.frames import Frame, encode_end, encode_frames, read_frames
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
    TopicKey,
)
from spark_log.model import Slice

MAGIC = b"pylog-checkpoint"
VERSION = 2
FIRST_LINE_MAX = 64
HEADER = "header"


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The values of the state that do not grow with the log."""

    version: int
    time: int
    changed: int
    fence: int
    times: list[tuple[int, int]]
    configs: dict[str, str]
    coordinator: Leadership | None = None
    """None: the log has had no coordinator."""
    progressed: int = 0
    generations: int = 0
    features: list[tuple[str, int]] = []


class _Levels(msgspec.Struct, frozen=True):
    """The part of the header that every pylog can read, even if a newer pylog wrote the header."""

    features: list[tuple[str, int]] = []


class PartitionRow(NamedTuple):
    start: int
    end: int
    edition: int
    slices: tuple[Slice, ...] = ()
    pieces: tuple[Piece, ...] = ()


class GroupRow(NamedTuple):
    """A group without its positions, which are rows of another kind: there may be many."""

    generation: int
    member: str
    seen: int = 0
    session: MemberSession | None = None
    roster: Roster | None = None


class _Kind(NamedTuple):
    """One kind of rows."""

    rows: Callable[[State], Iterable[Any]]
    """The rows of a state, in order."""
    row: Any
    """Type of a row: key and value."""


def _sorted(of: Map[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Keys and values, in the order of keys."""
    keys = sorted(of)
    return zip(keys, map(of.__getitem__, keys), strict=True)


def _partition_row(part: Partition) -> PartitionRow:
    slices = tuple(entry for entry in part.entries if isinstance(entry, Slice))
    pieces = tuple(entry for entry in part.entries if isinstance(entry, Piece))
    return PartitionRow(part.start, part.end, part.edition, slices, pieces)


def _partition(row: PartitionRow) -> Partition:
    entries: tuple[Slice | Piece, ...] = row.slices
    if row.pieces:
        entries = tuple(sorted((*row.slices, *row.pieces), key=attrgetter("start")))
    return Partition(row.start, row.end, row.edition, entries)


def _partitions(state: State) -> Iterator[tuple[TopicKey, PartitionRow]]:
    return ((key, _partition_row(part)) for key, part in _sorted(state.partitions))


def _groups(state: State) -> Iterator[tuple[str, GroupRow]]:
    return ((name, GroupRow(g.generation, g.member, g.seen, g.session, g.roster)) for name, g in _sorted(state.groups))


def _positions(state: State) -> Iterator[tuple[str, TopicKey, Position]]:
    return ((name, key, position) for name, g in _sorted(state.groups) for key, position in _sorted(g.offsets))


KINDS = {
    "topics": _Kind(lambda state: _sorted(state.topics), tuple[str, Topic]),
    "partitions": _Kind(_partitions, tuple[TopicKey, PartitionRow]),
    "objects": _Kind(lambda state: _sorted(state.objects), tuple[str, ObjectRow]),
    "dropped": _Kind(lambda state: _sorted(state.dropped), tuple[str, int]),
    "producers": _Kind(lambda state: _sorted(state.producers), tuple[str, ProducerState]),
    "positions": _Kind(_positions, tuple[str, TopicKey, Position]),
    "groups": _Kind(_groups, tuple[str, GroupRow]),
    "forgotten": _Kind(lambda state: _sorted(state.forgotten), tuple[tuple[str, str, int], Forgotten]),
}
"""Kinds by name, in the order of the file: positions come before their groups."""

_encoder = msgspec.json.Encoder(enc_hook=lambda configs: dict(sorted(configs.items())))
_decoders = {
    name: msgspec.json.Decoder(kind.row, dec_hook=lambda _, configs: Map(configs)) for name, kind in KINDS.items()
}
_header_decoder = msgspec.json.Decoder(Header)
_levels_decoder = msgspec.json.Decoder(_Levels)


def encode_checkpoint(state: State) -> bytes:
    """The bytes of a checkpoint."""
    file = BytesIO()
    file.writelines(_parts(state))
    return file.getvalue()


def _parts(state: State) -> Iterator[bytes]:
    yield b"%s %d\n" % (MAGIC, VERSION)
    total = 0
    tables = {HEADER: [_header(state)], **{name: kind.rows(state) for name, kind in KINDS.items()}}
    for name, rows in tables.items():
        for count, frame in encode_frames(name, rows, _encoder):
            total += count
            yield frame
    yield encode_end(total)


def state_json(state: State) -> bytes:
    """The content of a checkpoint as one readable document of JSON."""
    rows = {name: list(kind.rows(state)) for name, kind in KINDS.items()}
    return _encoder.encode(msgspec.structs.asdict(_header(state)) | rows)


def _header(state: State) -> Header:
    return Header(
        version=state.version,
        time=state.time,
        changed=state.changed,
        fence=state.fence,
        times=list(state.times),
        configs=dict(sorted(state.configs.items())),
        coordinator=state.coordinator if state.coordinator.epoch else None,
        progressed=state.progressed,
        generations=state.generations,
        features=sorted(state.features.items()),
    )


def decode_checkpoint(data: bytes, name: str) -> State:
    """Decode a checkpoint; `name` is the object's name.

    Raises UnsupportedVersion for a newer format, CorruptObject for damaged bytes.
    """
    with _garbage_collector_paused():
        frames = _frames(data, name)
        header = _read_header(frames, name)
        maps = _Maps()
        for frame in frames:
            maps.add(frame.kind, _read_rows(frame, name))
        return maps.state(header)


def check_checkpoint(data: bytes, name: str) -> None:
    """Check by its checksums that `data` is a whole checkpoint; raises as `decode_checkpoint` does."""
    for _ in _frames(data, name):
        pass


def _frames(data: bytes, name: str) -> Iterator[Frame]:
    line, _, _ = data[:FIRST_LINE_MAX].partition(b"\n")
    magic, _, version = line.partition(b" ")
    if magic != MAGIC:
        raise CorruptObject(f"{name} is not a checkpoint of a pylog metadata log; it starts with {data[:16]!r}")
    check_format(version, VERSION, name)
    return read_frames(data, len(line) + 1, name)


def _read_header(frames: Iterator[Frame], name: str) -> Header:
    """The header, from the first of `frames`.  Its levels are checked before its other fields."""
    frame = next(frames, None)
    if frame is None or frame.kind != HEADER:
        raise CorruptObject(f"{name} is damaged: it begins with {frame.where if frame else 'the end'}, not a header")
    line = frame.lines(name)
    try:
        for feature, level in _levels_decoder.decode(line).features:
            check_level(feature, level, name)
        return _header_decoder.decode(line)
    except msgspec.DecodeError as error:
        raise _unsupported(frame, name, error) from error


def _read_rows(frame: Frame, name: str) -> list[Any]:
    if frame.kind not in _decoders:
        raise UnsupportedVersion(f"{name} has a kind of rows that this pylog does not know, {frame.kind}: update pylog")
    try:
        return _decoders[frame.kind].decode_lines(frame.lines(name))
    except msgspec.DecodeError as error:
        raise _unsupported(frame, name, error) from error


def _unsupported(frame: Frame, name: str, error: Exception) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{name} has a field that this pylog does not know, in {frame.where} ({error}): update pylog"
    )


class _Maps:
    """The maps of a state, while the frames of its checkpoint are read."""

    def __init__(self) -> None:
        self._maps = defaultdict[str, MapMutation[Any, Any]](lambda: Map[Any, Any]().mutate())
        self._offsets = defaultdict[str, MapMutation[TopicKey, Position]](lambda: Map[TopicKey, Position]().mutate())

    def add(self, kind: str, rows: list[Any]) -> None:
        match kind:
            case "partitions":
                self._maps[kind].update([(key, _partition(row)) for key, row in rows])
            case "positions":
                for group, some in groupby(rows, itemgetter(0)):
                    self._offsets[group].update([(key, position) for _, key, position in some])
            case "groups":
                self._maps[kind].update([(group, self._group(group, row)) for group, row in rows])
            case _:
                self._maps[kind].update(rows)

    def _group(self, name: str, row: GroupRow) -> GroupState:
        offsets = self._offsets[name].finish()
        return GroupState(row.generation, row.member, offsets, row.seen, row.session, row.roster)

    def state(self, header: Header) -> State:
        topics = self._maps["topics"].finish()
        return State(
            version=header.version,
            time=header.time,
            changed=header.changed,
            fence=header.fence,
            times=tuple(header.times),
            configs=Map(header.configs),
            names=Map({topic.name: key for key, topic in topics.items() if not topic.deleted}),
            topics=topics,
            partitions=self._maps["partitions"].finish(),
            objects=self._maps["objects"].finish(),
            dropped=self._maps["dropped"].finish(),
            producers=self._maps["producers"].finish(),
            groups=self._maps["groups"].finish(),
            coordinator=header.coordinator or Leadership(),
            forgotten=self._maps["forgotten"].finish(),
            progressed=header.progressed,
            generations=header.generations,
            features=Map(header.features),
        )


@contextmanager
def _garbage_collector_paused() -> Iterator[None]:
    """Millions of new objects cause collections that take longer than the decoding, and free nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
