"""A checkpoint: the whole state at one version, in one file without references to other files.

pylog-checkpoint 4\\n
frames (frames.py): first the header, one row with the small values; then the base layers of large maps, in columns
(column_blocks.py); then the other maps, and what changed since the base layers, as rows [key, value]

A reader may stop after the header, or skip single frames without decoding them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from itertools import chain, groupby, islice
from operator import attrgetter, itemgetter
from sys import intern
from typing import Any, NamedTuple, TypeVar

import msgspec
from immutables import Map, MapMutation

from spark_log.errors import CorruptObject, UnsupportedVersion
from spark_log.groups.group import Roster
from spark_log.metadata.commits.last_commit import shared
from spark_log.metadata.features import check_level
from spark_log.metadata.formats.batch_format import check_format
from spark_log.metadata.maps.column_blocks import Block, ObjectBlock, PartitionBlock
from spark_log.metadata.maps.column_map import ColumnMap, fold, in_order
from spark_log.metadata.maps.frames import ROWS_AT_ONCE, Frame, encode_end, encode_frames, read_frames
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.records import Piece
from spark_log.metadata.replicas.replica_state import Broker, Copies, PlacementGroup, Reassignment
from spark_log.metadata.state import (
    CleanedPart,
    DroppedList,
    ErasedTopic,
    Forgotten,
    FormerRoot,
    GroupPosition,
    GroupState,
    KafkaProducer,
    Leadership,
    LostRange,
    MemberSession,
    ObjectRow,
    Partition,
    PendingCommit,
    ProducerKey,
    ProducerState,
    Restore,
    ShareMember,
    State,
    Topic,
    TopicKey,
    TopicSchemas,
)
from spark_log.model import Slice
from spark_log.runtime.collector_pause import collector_paused
from spark_log.text import first_bytes

Key = TypeVar("Key")
Value = TypeVar("Value")

MAGIC = b"pylog-checkpoint"
VERSION = 4
FIRST_LINE_MAX = 64
CHANGES_MIN = 10_000
"""So many rows that changed stay out of the columns in any case."""
CHANGES_SHARE = 8
"""The rows that changed are at most one in so many of those in columns."""
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
    copies_made: int = 0
    groups_made: int = 0
    kafka_expired: int = -1
    log: str = ""
    """The id of the log, for `pylog repair`; empty in checkpoints that others write, such as backups."""
    line: list[str] = []
    strays: list[int] = []


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
    shares: tuple[ShareMember, ...] = ()


class _Kind(NamedTuple):
    """One kind of rows of JSON."""

    rows: Callable[[State], Iterable[Any]]
    """The rows of a state, in order."""
    row: Any
    """Type of a row: key and value."""


def _sorted(of: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Keys and values, in the order of keys.  There may be many: a group may have a position in each partition."""
    return in_order(of.items())


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


def _objects(state: State) -> Iterator[tuple[str, Any]]:
    """Objects, without copies for those in the log's own root."""
    for name, row in _sorted(state.objects):
        yield name, row if row.copies else (row.size, row.index_position, row.live)


def _sharing(known: ProducerState) -> ProducerState:
    last = known.last_commit
    return known if last is None else known._replace(last_commit=last._replace(topics=shared(last.topics)))


def _interned(key: ProducerKey, row: KafkaProducer) -> tuple[ProducerKey, KafkaProducer]:
    """A row that shares its names with others."""
    return (key[0], intern(key[1]), key[2]), row._replace(topic_id=intern(row.topic_id))


def _producers(state: State) -> Iterator[tuple[str, Any]]:
    """Producers, without lost sequences for the many that have none."""
    return ((name, known if known.lost else known[:-1]) for name, known in _sorted(state.producers))


def _groups(state: State) -> Iterator[tuple[str, Any]]:
    """Groups, without shares for those that have none."""
    for name, g in _sorted(state.groups):
        row = GroupRow(g.generation, g.member, g.seen, g.session, g.roster, g.shares)
        yield name, row if row.shares else row[:-1]


def _positions(state: State) -> Iterator[tuple[str, TopicKey, GroupPosition]]:
    return ((name, key, position) for name, g in _sorted(state.groups) for key, position in _sorted(g.offsets))


KINDS = {
    "topics": _Kind(lambda state: _sorted(state.topics), tuple[str, Topic]),
    "partitions": _Kind(_partitions, tuple[TopicKey, PartitionRow]),
    "objects": _Kind(_objects, tuple[str, ObjectRow]),
    "dropped": _Kind(lambda state: _sorted(state.dropped), tuple[str, int]),
    "dropped_lists": _Kind(lambda state: _sorted(state.dropped_lists), tuple[str, DroppedList]),
    "cleaned_partitions": _Kind(lambda state: _sorted(state.cleaned), tuple[TopicKey, CleanedPart]),
    "producers": _Kind(_producers, tuple[str, ProducerState]),
    "kafka_producers": _Kind(lambda state: _sorted(state.kafka_producers), tuple[ProducerKey, KafkaProducer]),
    "positions": _Kind(_positions, tuple[str, TopicKey, GroupPosition]),
    "groups": _Kind(_groups, tuple[str, GroupRow]),
    "forgotten": _Kind(lambda state: _sorted(state.forgotten), tuple[tuple[str, str, int], Forgotten]),
    "brokers": _Kind(lambda state: _sorted(state.brokers), tuple[int, Broker]),
    "placement_groups": _Kind(lambda state: _sorted(state.placement_groups), tuple[int, PlacementGroup]),
    "assignments": _Kind(lambda state: _sorted(state.assignments), tuple[str, tuple[int, ...]]),
    "reassignments": _Kind(lambda state: _sorted(state.reassignments), tuple[TopicKey, Reassignment]),
    "copies": _Kind(lambda state: _sorted(state.copies), tuple[int, Copies]),
    "schemas": _Kind(lambda state: _sorted(state.schemas), tuple[str, TopicSchemas]),
    "lost_ranges": _Kind(lambda state: _sorted(state.lost), tuple[TopicKey, tuple[LostRange, ...]]),
    "erasures": _Kind(lambda state: _sorted(state.erasures), tuple[str, ErasedTopic]),
    "former_roots": _Kind(lambda state: _sorted(state.former_roots), tuple[str, FormerRoot]),
    "pending": _Kind(lambda state: enumerate(state.pending), tuple[int, PendingCommit]),
    "restores": _Kind(lambda state: enumerate(state.restores), tuple[int, Restore]),
}
"""Kinds by name, in the order of the file: positions come before their groups."""
REMOVED_KINDS = {
    "removed_partitions": _Kind(lambda state: sorted(state.partitions.removed()), TopicKey),
    "removed_objects": _Kind(lambda state: sorted(state.objects.removed()), str),
}
"""Keys of the base layers that are gone."""


COLUMNS: dict[str, type[Block[Any, Any]]] = {block.KIND: block for block in (PartitionBlock, ObjectBlock)}
"""Kinds of the blocks of base layers."""

_encoder = msgspec.json.Encoder(enc_hook=lambda configs: dict(sorted(configs.items())))
_decoders = {
    name: msgspec.json.Decoder(kind.row, dec_hook=lambda _, configs: Map(configs))
    for name, kind in (KINDS | REMOVED_KINDS).items()
}
_header_decoder = msgspec.json.Decoder(Header)
_levels_decoder = msgspec.json.Decoder(_Levels)


def folded(state: State) -> State:
    """An equal state; where many rows of a large map have changed since they were put into columns, this is done again.

    So what changed is little beside the columns, in memory and in a checkpoint.
    """
    partitions, objects = _folded(state.partitions, PartitionBlock), _folded(state.objects, ObjectBlock)
    if partitions is state.partitions and objects is state.objects:
        return state
    return replace(state, partitions=partitions, objects=objects)


def _folded(rows: LayeredMap[Key, Value], block: type[Block[Key, Value]]) -> LayeredMap[Key, Value]:
    limit = max(CHANGES_MIN, len(rows.base) // CHANGES_SHARE)
    return fold(rows, block) if len(rows.changes) > limit else rows


def rebased(state: State, before: State, after: State) -> State:
    """An equal state with the columns of `after`, which is `before` folded; `state` follows from `before`."""
    return replace(
        state,
        partitions=state.partitions.rebased(before.partitions, after.partitions),
        objects=state.objects.rebased(before.objects, after.objects),
    )


def encode_checkpoint(state: State, log: str = "") -> bytes:
    """The bytes of a checkpoint; `log` is the id of the log."""
    file = BytesIO()
    file.writelines(checkpoint_parts(state, log))
    return file.getvalue()


def checkpoint_parts(state: State, log: str = "") -> Iterator[bytes | memoryview]:
    """The bytes of a checkpoint, one part after another."""
    yield b"%s %d\n" % (MAGIC, VERSION)
    total, header = 0, _lines(HEADER, [_header(state, log)])
    frames = chain[tuple[int, bytes | memoryview]](header, _columns(state), _changes(state))
    for count, frame in frames:
        total += count
        yield frame
    yield encode_end(total)


def _lines(name: str, rows: Iterable[Any]) -> Iterator[tuple[int, bytes]]:
    return encode_frames(name, rows, _encoder)


def _columns(state: State) -> Iterator[tuple[int, memoryview]]:
    """The base layers.  Only blocks that were made since the last checkpoint are encoded."""
    return ((block.batch.num_rows, block.frame) for block in _blocks(state))


def _blocks(state: State) -> Iterator[Block[Any, Any]]:
    for base in state.partitions.base, state.objects.base:
        if isinstance(base, ColumnMap):
            yield from base.blocks


def _changes(state: State) -> Iterator[tuple[int, bytes]]:
    """The rows that are not in columns."""
    changed = replace(
        state, partitions=LayeredMap(state.partitions.changed()), objects=LayeredMap(state.objects.changed())
    )
    for name, kind in KINDS.items():
        yield from _lines(name, kind.rows(changed))
    for name, kind in REMOVED_KINDS.items():
        yield from _lines(name, kind.rows(state))


def row_lines(state: State, but: Collection[str]) -> Iterator[bytes]:
    """The header, and the rows of all kinds but some, as lines of JSON.  Equal states have the same."""
    yield _encoder.encode(_header(state))
    for name, kind in KINDS.items():
        rows = iter(() if name in but else kind.rows(state))
        yield b"\n%s\n" % name.encode()
        while some := list(islice(rows, ROWS_AT_ONCE)):
            yield _encoder.encode_lines(some)


def state_json(state: State) -> bytes:
    """The content of a checkpoint as one readable document of JSON."""
    rows = {name: list(kind.rows(state)) for name, kind in KINDS.items()}
    return _encoder.encode(msgspec.structs.asdict(_header(state)) | rows)


def _header(state: State, log: str = "") -> Header:
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
        copies_made=state.copies_made,
        groups_made=state.groups_made,
        kafka_expired=state.kafka_expired,
        log=log,
        line=list(state.line),
        strays=list(state.strays),
    )


def decode_checkpoint(data: bytes, name: str, known: State | None = None) -> State:
    """Decode a checkpoint; `name` is the object's name.

    known:  a state that shares its blocks where the checkpoint has the same bytes: what was decoded once is not decoded
            again.
    Raises UnsupportedVersion for a newer format, CorruptObject for damaged bytes.
    """
    with collector_paused():
        frames = _frames(data, name)
        header = _read_header(frames, name)
        maps, blocks = _Maps(), {block.frame: block for block in _blocks(known or State()) if block.was_read}
        for frame in frames:
            if frame.kind in COLUMNS:
                maps.add_block(blocks.get(frame.encoded) or _read_block(frame, name))
            else:
                maps.add(frame.kind, _read_rows(frame, name))
        return maps.state(header)


def reads_back(data: bytes, name: str, state: State) -> bool:
    """Whether `data` holds a state.  Decodes what was never decoded: rows, and blocks that this process has made."""
    same = decode_checkpoint(data, name, state) == state
    for block in _blocks(state) if same else ():
        block.was_read = True
    return same


def log_of_checkpoint(data: bytes, name: str) -> str:
    """The id of the log in a checkpoint; empty if it has none.  Raises as `decode_checkpoint` does."""
    return _read_header(_frames(data, name), name).log


def check_checkpoint(data: bytes, name: str) -> None:
    """Check by its checksums that `data` is a whole checkpoint; raises as `decode_checkpoint` does."""
    for _ in _frames(data, name):
        pass


def _frames(data: bytes, name: str) -> Iterator[Frame]:
    line, _, _ = data[:FIRST_LINE_MAX].partition(b"\n")
    magic, _, version = line.partition(b" ")
    if magic != MAGIC:
        raise CorruptObject(f"{name} is not a checkpoint of a pylog metadata log; {first_bytes(data)}")
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


def _read_block(frame: Frame, name: str) -> Block[Any, Any]:
    found, kind = frame.columns(name), COLUMNS[frame.kind]
    batch = kind.maybe_read(found)
    if batch is None:
        raise _unsupported(frame, name, ", ".join(f"{field.name} {field.type}" for field in found.schema))
    return kind(batch, frame.encoded)


def _unsupported(frame: Frame, name: str, error: object) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{name} has a field that this pylog does not know, in {frame.where} ({error}): update pylog"
    )


class _Maps:
    """The maps of a state, while the frames of its checkpoint are read."""

    def __init__(self) -> None:
        self._maps = defaultdict[str, MapMutation[Any, Any]](lambda: Map[Any, Any]().mutate())
        self._offsets = defaultdict[str, MapMutation[TopicKey, GroupPosition]](
            lambda: Map[TopicKey, GroupPosition]().mutate()
        )
        self._blocks = defaultdict[str, list[Block[Any, Any]]](list)
        self._removed = defaultdict[str, list[Any]](list)
        self._pending: list[PendingCommit] = []
        self._restores: list[Restore] = []

    def add_block(self, block: Block[Any, Any]) -> None:
        self._blocks[block.KIND].append(block)

    def add(self, kind: str, rows: list[Any]) -> None:
        match kind:
            case "partitions":
                self._maps[kind].update([(key, _partition(row)) for key, row in rows])
            case "positions":
                for group, some in groupby(rows, itemgetter(0)):
                    self._offsets[group].update([(key, position) for _, key, position in some])
            case "groups":
                self._maps[kind].update([(group, self._group(group, row)) for group, row in rows])
            case "producers":
                self._maps[kind].update([(name, _sharing(known)) for name, known in rows])
            case "kafka_producers":
                self._maps[kind].update([_interned(*row) for row in rows])
            case "pending":
                self._pending += [commit for _, commit in rows]
            case "restores":
                self._restores += [one for _, one in rows]
            case "removed_partitions" | "removed_objects":
                self._removed[kind.removeprefix("removed_")] += rows
            case _:
                self._maps[kind].update(rows)

    def _group(self, name: str, row: GroupRow) -> GroupState:
        offsets = self._offsets[name].finish()
        return GroupState(row.generation, row.member, offsets, row.seen, row.session, row.roster, row.shares)

    def _layered(self, name: str, kind: str) -> LayeredMap[Any, Any]:
        rows = self._maps[name].finish()
        if not self._blocks[kind]:
            return LayeredMap(rows)
        return LayeredMap.over(ColumnMap(self._blocks[kind]), rows, self._removed[name])

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
            partitions=self._layered("partitions", PartitionBlock.KIND),
            objects=self._layered("objects", ObjectBlock.KIND),
            dropped=self._maps["dropped"].finish(),
            dropped_lists=self._maps["dropped_lists"].finish(),
            cleaned=self._maps["cleaned_partitions"].finish(),
            producers=self._maps["producers"].finish(),
            kafka_producers=self._maps["kafka_producers"].finish(),
            groups=self._maps["groups"].finish(),
            coordinator=header.coordinator or Leadership(),
            forgotten=self._maps["forgotten"].finish(),
            progressed=header.progressed,
            generations=header.generations,
            features=Map(header.features),
            brokers=self._maps["brokers"].finish(),
            placement_groups=self._maps["placement_groups"].finish(),
            assignments=self._maps["assignments"].finish(),
            copies=self._maps["copies"].finish(),
            copies_made=header.copies_made,
            pending=tuple(self._pending),
            restores=tuple(self._restores),
            line=tuple(header.line),
            strays=tuple(header.strays),
            schemas=self._maps["schemas"].finish(),
            lost=self._maps["lost_ranges"].finish(),
            erasures=self._maps["erasures"].finish(),
            former_roots=self._maps["former_roots"].finish(),
            groups_made=header.groups_made,
            kafka_expired=header.kafka_expired,
            reassignments=self._maps["reassignments"].finish(),
        )
