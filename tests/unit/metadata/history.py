"""A log's metadata without storage: decisions carried out one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from spark_log.metadata.commits.decide_commits import Committed, decide_commit
from spark_log.metadata.decision import Decision
from spark_log.metadata.formats.slice_index import decode_piece, slices_of
from spark_log.metadata.invariants import check_state, check_step
from spark_log.metadata.maintenance.decide_maintenance import decide_fence, decide_swap
from spark_log.metadata.maintenance.swaps import Rewrite, build_swap, prune_range, resolve, seal_range
from spark_log.metadata.records import Batch, CommitRecord, GroupCommit, OffsetEntry, Piece
from spark_log.metadata.replay import next_version, replay
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import State, TopicKey
from spark_log.metadata.topics.decide_topics import decide_create_topic, decide_set_configs
from spark_log.model import DataObject, Run, Slice


class History:
    """States and the batches that led to them."""

    def __init__(self) -> None:
        self.states = [State()]
        self.batches: list[Batch] = []
        self.now = 1_000
        self.indexes: dict[str, bytes] = {}

    @property
    def state(self) -> State:
        return self.states[-1]

    def do(self, decide: Callable[[State, int], Decision[Any]]) -> Any:
        """Carry a decision out at the next version; its reply.  Raises what it raises."""
        self.now += 1
        decision = decide(next_version(self.state, self.now), self.now)
        if decision.records:
            self.write(*decision.records)
        return decision.reply

    def write(self, *records: Any) -> None:
        """A batch of records, decided by nobody.  The state after it breaks no rule."""
        history = history_of(self.state)
        batch = Batch(id=f"b{len(self.batches)}", time=self.now, history=history, records=tuple(records))
        before, after = self.state, replay(self.state, batch)
        self.batches.append(batch)
        self.states.append(after)
        broken = [*check_step(before, after), *check_state(after)]
        assert not broken, broken

    def create(self, name: str = "t", partitions: int = 1, **configs: str) -> str:
        """A topic; its id is its name with the version."""
        given = {key.replace("_", "."): value for key, value in configs.items()}
        topic_id = f"{name}-{self.state.version}"
        return self.do(lambda state, now: decide_create_topic(state, name, partitions, given, topic_id))

    def commit(self, *runs: tuple[str, int, int], **fields: Any) -> Committed:
        """Commit runs of (topic id, partition, rows), in one object."""
        commit = self.upload(*runs, **fields)
        return self.do(lambda state, now: decide_commit(state, commit, history=history_of(state)))

    def upload(self, *runs: tuple[str, int, int], **fields: Any) -> CommitRecord:
        """The record of a commit, not written."""
        epoch = fields.pop("upload_epoch", self.state.version)
        fields = {"producer": f"p{len(self.batches)}", "sequence": 0, "birth": self.state.version, **fields}
        name = f"data/{epoch:016x}/{len(self.batches)}-{fields['producer']}-{fields['sequence']}.seg"
        slices = tuple((0, run(*entry, number)) for number, entry in enumerate(runs))
        objects = (DataObject(name, 1000, 900),) if runs else ()
        return CommitRecord(upload_epoch=epoch, objects=objects, slices=slices, **fields)

    def slices(self, key: TopicKey) -> list[Slice]:
        """All slices of a partition, looked up in indexes."""
        return self._resolve(self.state.partitions[key].entries)

    def seal(self, key: TopicKey) -> bool:
        """Seal what `seal_range` says."""
        low, high = seal_range(self.state.partitions[key])
        return low < high and self.swap(key, low, high, sealed=True)

    def prune(self, key: TopicKey) -> bool:
        part = self.state.partitions[key]
        low, high = prune_range(part, self.state.topics[key[0]].deleted)
        return low < high and self.swap(key, low, high, new=())

    def swap(
        self, key: TopicKey, low: int, high: int, *, new: Any = None, sealed: bool = False, objects: Any = ()
    ) -> bool:
        """Replace entries with the same entries, or with `new`."""
        part = self.state.partitions[key]
        old = part.entries[low:high]
        slices = self._resolve(old)
        name = f"data/{self.state.version:016x}/{len(self.batches)}.idx"
        rewrite = Rewrite(key, part.edition, old, slices, slices if new is None else new, sealed)
        swap, data = build_swap(self.state.version, [rewrite], name, objects)
        if data:
            self.indexes[name] = data
        return bool(self.do(lambda state, now: decide_swap(state, swap)))

    def pass_fence(self) -> int:
        """Let everything up to here grow old."""
        self.now += 100_000_000
        self.do(lambda state, now: decide_set_configs(state, None, {"num.partitions": str(now % 1000 + 1)}))
        self.now += 100_000_000
        return int(self.do(decide_fence))

    def recount(self) -> dict[str, int]:
        """Live slices of each object, from the entries themselves."""
        count = Counter[str]()
        for part in self.state.partitions.values():
            count.update(entry.object for entry in part.entries)
            inner = self._resolve([entry for entry in part.entries if isinstance(entry, Piece)])
            count.update(piece.object for piece in inner)
        return dict(count)

    def counts(self) -> dict[str, int]:
        """The same as the state has it."""
        return {name: row.live for name, row in self.state.objects.items()}

    def _resolve(self, entries: Any) -> list[Slice]:
        pieces = [entry for entry in entries if isinstance(entry, Piece)]
        return resolve(entries, {p: slices_of(decode_piece(p, self._bytes(p))) for p in pieces})

    def _bytes(self, piece: Piece) -> bytes:
        return self.indexes[piece.object][piece.position : piece.position + piece.length]


def run(topic_id: str, partition: int, rows: int, number: int = 0) -> Run:
    return Run(topic_id, partition, 100 * number, 100, 7, rows, 1, 10, 20)


def positions(group: str, topic_id: str, offset: int, generation: int = -1, partition: int = 0) -> GroupCommit:
    """A group's position in one partition."""
    return GroupCommit(group, generation, (OffsetEntry(topic_id, partition, offset),))
