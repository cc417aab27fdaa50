"""One simulated log: its world, its oracle, its configs, and the steps that all actors share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from simulation.levels import TOMORROW
from simulation.log_sim.blocking import SimulatedProcess, SimulatedStore, format_file
from simulation.log_sim.constants import CLOCK_SKEW_MAX_MS, Constants
from simulation.log_sim.content import COMPACTED, KEYED, Codec, PlacedRun, PlainCodec, Row, SegmentCodec, whole_run
from simulation.log_sim.memoized_functions import MemoizedFunctions
from simulation.log_sim.promises.oracle import Oracle
from simulation.log_sim.world import FaultRates, World
from spark_log.client.producer.commit import index_parts
from spark_log.errors import ClockSkewed, CorruptObject, NotCoordinator, StorageUnavailable
from spark_log.journal import maintenance, metadata_log
from spark_log.journal.context import Context, DecisionRule, Proposal
from spark_log.journal.storage import checkpointing, commit_protocol, opening
from spark_log.journal.storage.clock_check import check_clock, stamp_of
from spark_log.journal.storage.log_format import parse_format
from spark_log.journal.storage.opening import View
from spark_log.journal.storage.storage_log import StorageLog
from spark_log.journal.store_operations import OWN_ROOT, Ask, Get, Put, Sleep, Steps
from spark_log.metadata.commands import SeveralCommands, UpdateFeature
from spark_log.metadata.decision import Decision
from spark_log.metadata.features import METADATA_VERSION
from spark_log.metadata.formats.slice_index import encode_index
from spark_log.metadata.records import AnyRecord, Batch, CommitRecord
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State, TopicKey
from spark_log.metadata.topics.decide_topics import decide_create_topic, decide_set_configs
from spark_log.model import DataObject, Run, Slice
from spark_log.store.object_names import FORMAT_KEY, META, data_key

Result = TypeVar("Result")

SEGMENTS_EVERY = 10
"""One seed in this many encodes real segments, and has processes that use the whole product."""
TOGETHER_FROM = 1000
"""From this seed on, every second seed shares rounds, as a journal does on an object store."""
COMPACTED_IN = (0, 4, 10, 14, 19)
"""Remainders by 20 of the seeds that have compacted topics."""
RETENTIONS_MS = (300, 3000, 30_000)
"""Retention times of topics with `compact,delete`."""
RUN_BYTES = 700
"""The approximate length of a run of a few records."""
PEEKS_IN = (1, 7)
"""Last digits of the seeds in which writers decide on records that are not confirmed."""
MIRRORED_IN = (59, 99)
"""Last two digits of the seeds in which the log has mirrors."""
RESTORED_IN = (69, 89)
"""Last two digits of the seeds in which the log has mirrors, and readers that continue in one that replaces it."""
PUT_BACK_IN = (779,)
"""Last three digits of the seeds in which the last records are lost, and put back beside later ones."""
LEFT_BEHIND_IN = (779,)
"""Remainders by 2000 of those of these seeds in which one of the lost records is there all the time."""
LOOKS_BACK_IN = (2,)
"""Remainders by 4 of the seeds from `TOGETHER_FROM` on in which processes look for a log that was set back, although it
is not.
"""
COPIED, COPIED_ID, COPIED_PARTITIONS = "copied", "copied0", 2
"""The topic that is read and written in these seeds."""
UPGRADE = SeveralCommands(commands=(UpdateFeature(name=METADATA_VERSION, level=TOMORROW),))
"""The command as `log.admin` sends it."""
COORDINATOR_WAIT_MS = 4000
"""How long a change waits for a coordinator."""


class Copied(NamedTuple):
    """A mirror that took the place of the log."""

    history: str
    """The one that began then."""
    ends: dict[int, int]
    """The ends of the partitions of the copied topic at that time."""


class Simulation:
    """The state that actors share.  The seed decides every draw."""

    ages: Sequence[int] = (300, 900, 2500)
    """Ages of the fence."""
    mirrors = False
    """The log has mirrors."""
    restores = False
    """The log is lost in the end, and one of its mirrors takes its place."""
    puts_back = False
    leaves_record = False
    """The last records are lost, and put back beside later ones."""
    clock_error_ms = 0
    """How much more the clock of a batch may be wrong than that of a process."""

    def __init__(self, seed: int, *, transcript: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        self._choose(seed)
        self.erases = isinstance(self.codec, SegmentCodec)
        self.age = rng.choice(self.ages)
        self.pauses = rng.choice(((20, 300), (20, 3000)))
        self.p_pause = rng.choice((0.3, 0.9))
        self.truncations = rng.choice((1, 5))
        self.constants = Constants.draw(rng)
        rates = FaultRates.draw(rng, self.age)
        self.grace = self.age - 2 * (rates.skew_ms + self.clock_error_ms)
        """A clock may be behind when an object is dropped, and another one ahead when the fence moves."""
        self.memoized = MemoizedFunctions()
        self.oracle = self._make_oracle(rates)
        self.world = self._make_world(rates, transcript)
        self.oracle.files = self.world.store.files
        self.world.store.files[META][FORMAT_KEY] = format_file()
        self.context = Context(self.world, rng, coordinator_wait_ms=COORDINATOR_WAIT_MS, limits=self.constants.limits)
        self.progress: dict[str, int] = {}
        """Last batch of each streaming query, as in Spark's checkpoint."""
        self.losses = 0
        """How often the log was lost."""
        self.recovered: list[Copied] = []
        """The mirrors that took its place."""
        self.mirrored: dict[str, int] = {}
        """By mirror, how often the log had been lost before its last round."""
        self.readers: list[Any] = []
        """The readers of the copied topic."""
        self._names = 0
        self._start(rng.choice((1, 4, 12)), rng.choice((1, 2, 3)))

    def _choose(self, seed: int) -> None:
        """The choices that the last digits of a seed make."""
        self.codec: Codec = SegmentCodec() if seed % SEGMENTS_EVERY == SEGMENTS_EVERY - 1 else PlainCodec()
        self.together = seed >= TOGETHER_FROM and seed % 2 == 1
        self.peeks = self.together or seed % 10 in PEEKS_IN
        self.compacts = seed % 20 in COMPACTED_IN
        self.restores = seed % 100 in RESTORED_IN
        self.puts_back = seed % 1000 in PUT_BACK_IN
        self.leaves_record = seed % 2000 in LEFT_BEHIND_IN
        self.looks_back = self.restores or self.puts_back or (seed >= TOGETHER_FROM and seed % 4 in LOOKS_BACK_IN)
        self.mirrors = self.restores or seed % 100 in MIRRORED_IN

    def _make_oracle(self, rates: FaultRates) -> Oracle:
        return Oracle(self.codec, self.grace, self.constants, rates.ahead_ms, self.memoized)

    def _make_world(self, rates: FaultRates, transcript: bool) -> World:
        return World(self.rng, rates, self.oracle, transcript=transcript)

    def _start(self, interval: int, partitions: int) -> None:
        """Write the first records of the log."""
        self.world.alone(self._begin(interval, partitions))

    def _begin(self, interval: int, partitions: int) -> Steps[None]:
        configs: dict[str, str | None] = {
            "gc.fence.age.ms": str(self.age),
            "metadata.checkpoint.interval": str(interval),
            "producer.id.expiration.ms": str(self.rng.choice((1, self.age))),
            "log.clock.skew.max.ms": str(CLOCK_SKEW_MAX_MS),
            "offsets.retention.minutes": str(self.rng.choice((1, 10_080))),
        }
        decisions: list[DecisionRule] = [
            lambda state, now: decide_set_configs(state, None, configs),
            lambda state, now: decide_create_topic(state, "t0", partitions, {}, "id0"),
        ]
        if self.compacts:
            compacted = self.compacted_configs()
            decisions.append(lambda state, now: decide_create_topic(state, "c0", 1, compacted, f"{COMPACTED}0"))
        if self.erases:
            decisions.append(lambda state, now: decide_create_topic(state, "k0", 1, {}, f"{KEYED}0"))
        if self.restores or self.puts_back:
            kept = {"retention.ms": "-1"}
            decisions.append(lambda state, now: decide_create_topic(state, COPIED, COPIED_PARTITIONS, kept, COPIED_ID))
        begin = self._begin_at_newest_level if self.rng.random() < 0.8 or self.mirrors else self._begin_at_level_1
        yield from begin((yield from opening.open_view()), decisions)

    def compacted_configs(self) -> dict[str, str]:
        """Configs of a new compacted topic.  One in three has retention as well."""
        return {
            "cleanup.policy": self.rng.choice(("compact", "compact", "compact,delete")),
            "retention.ms": str(self.rng.choice(RETENTIONS_MS)),
            "retention.bytes": self.rng.choice(("-1", str(8 * self.run_bytes))),
            "segment.ms": str(self.rng.choice((1, 20, 3000))),
            "delete.retention.ms": str(self.rng.choice((0, 300, 3000))),
            "min.compaction.lag.ms": str(self.rng.choice((0, 0, 3000))),
            "min.cleanable.dirty.ratio": str(self.rng.choice((0, 0.5))),
        }

    def _begin_at_newest_level(self, view: View, decisions: Sequence[DecisionRule]) -> Steps[None]:
        yield from commit_protocol.propose(view, [Proposal(decide) for decide in decisions], self.context)

    def _begin_at_level_1(self, view: View, decisions: Sequence[DecisionRule]) -> Steps[None]:
        """Write the first batch without a level, as pylogs of level 1 do."""
        context, stamp = self.context, stamp_of(self.context.clock)
        state, records, unique = next_version(view.state, stamp.now_ms), list[AnyRecord](), context.unique()
        for decide in decisions:
            decided = decide(state, stamp.now_ms).records
            state, records = replay_records(state, decided), [*records, *decided]
        yield from check_clock(view.state, stamp, context.clock, context.watch, context.unique)
        batch = Batch(id=unique, time=stamp.now_ms, records=tuple(records))
        yield from commit_protocol.append(view, batch, lambda: state, 0.0)

    @property
    def now(self) -> int:
        return self.world.now

    @property
    def run_bytes(self) -> int:
        """The approximate length of a run."""
        return RUN_BYTES if isinstance(self.codec, SegmentCodec) else 1

    def fresh(self, stem: str) -> str:
        """A new unique name."""
        self._names += 1
        return f"{stem}{self._names}"

    # --------------------------------------------------------------------------------------------------- views, checked

    def load(self) -> Steps[View]:
        since = self.oracle.state.version
        view = yield from opening.open_view(ahead=self.constants.read_ahead if self.together else 0)
        self.oracle.check_view(view, since)
        return view

    def refresh(self, view: View) -> Steps[View]:
        since = self.oracle.state.version
        before, together = view, self.shares_rounds(view)
        view = yield from opening.refresh(view, together=together)
        if together and not self.shares_rounds(before):  # the rounds took too long, as in `Journal`
            view = yield from opening.refresh(view)
        self.oracle.check_view(view, since)
        return view

    def peek(self, view: View) -> Steps[View]:
        """Now and then look for other processes' records before an upload, as Spark's sink does on an object store.

        Also with an old view, which the product refreshes instead: no time is needed for what is decided to be right.
        """
        if not self.peeks or self.rng.random() < 0.5:
            return view
        view = yield from opening.peek(view)
        self.oracle.check_view(view)
        self.oracle.seen["peeks"] += view.unconfirmed is not None
        return view

    def shares_rounds(self, view: View) -> bool:
        """Whether a view is so young that nothing it needs next can have been deleted, as in `Journal`."""
        return self.together and self.now - view.state.time < self.age // 4

    def propose(self, view: View, commands: Sequence[Proposal], context: Context | None = None) -> Steps[View]:
        """Commit as a process does; after StorageUnavailable it keeps the old view.  context: of a coordinator."""
        actor = self.world.current
        assert actor is not None
        watched = [replace(command, decide=self._watched(command.decide)) for command in commands]
        try:
            if context is None:
                view = yield from commit_protocol.propose(view, watched, self.context)
            else:
                view = yield from unlinked(commit_protocol.propose(view, watched, context))
        finally:
            actor.decided = None
            for command, twin in zip(commands, watched, strict=True):
                command.reply, command.error, command.done = twin.reply, twin.error, twin.done
        self.oracle.check_view(view)
        return view

    def decided(self, view: View, steps: Steps[Result]) -> Steps[tuple[View, Result]]:
        """Carry out steps of maintenance, and what they decide, as the product does."""
        return (yield from metadata_log.decided(self.log_of(self.context), view, steps))

    def log_of(self, context: Context) -> StorageLog:
        """The log as a process has it."""
        store = SimulatedStore(SimulatedProcess(self.world))
        return StorageLog(context, parse_format(format_file(), store.url), store)

    def _watched(self, decide: Callable[[State, int], Decision[Any]]) -> Callable[[State, int], Decision[Any]]:
        """Record the state that a batch is decided on: the first command runs first at each version."""

        def watch(state: State, now: int) -> Decision[Any]:
            actor = self.world.current
            assert actor is not None
            if actor.decided is None or actor.decided.version != state.version:
                actor.decided = state
            return decide(state, now)

        return watch

    def run_maintenance(self, view: View, context: Context | None = None) -> Steps[View]:
        """Run maintenance after an acknowledgement, as `Journal` does."""
        if not checkpointing.is_due(view):
            return view
        try:
            view = yield from unlinked(self.maintenance_if_due(view, context or self.context))
        except (StorageUnavailable, NotCoordinator, CorruptObject, ClockSkewed):
            return view
        self.oracle.check_view(view)
        return view

    def maintenance_if_due(self, view: View, context: Context) -> Steps[View]:
        """Seal, prune and checkpoint, unless another process has done so."""
        log = self.log_of(context)
        view = yield from log.look_again(view)
        if not log.is_due(view):
            return view
        fence_before = view.state.fence
        view, _ = yield from metadata_log.decided(log, view, maintenance.seal_and_expire(view.state, context))
        return (yield from log.checkpoint_and_truncate(view, fence_before))

    def pause(self) -> Steps[None]:
        if self.rng.random() < self.p_pause:
            yield Sleep(self.rng.choice(self.pauses))

    # ---------------------------------------------------------------------------------------------------------- objects

    def put_object(self, epoch: int, runs: Sequence[PlacedRun]) -> Steps[tuple[DataObject, tuple[Run, ...]]]:
        """Put one object of some runs."""
        encoded = self.codec.encode(runs)
        name = data_key(epoch, f"{self.context.unique()}.seg")
        yield Put(name, encoded.chunks, OWN_ROOT)
        return DataObject(name, encoded.size, encoded.index_position), encoded.runs

    def upload(self, view: View, payload: str) -> Steps[CommitRecord]:
        """Write a payload of a few rows to some partitions, in one or two objects; return the commit without its
        identity.
        """
        rng, state = self.rng, view.newest
        keys = sorted(key for key in state.partitions if not state.topics[key[0]].deleted)
        chosen = [key for key in keys if rng.random() < 0.6] or [rng.choice(keys)]
        now = self.context.clock.now_ms()
        rows = iter([Row(payload, number, now) for number in range(3 * len(chosen))])
        runs = [(key, tuple(next(rows) for _ in range(rng.randint(1, 3)))) for key in chosen]
        halves = [runs] if rng.random() < 0.6 else [runs[: len(runs) // 2], runs[len(runs) // 2 :], runs[:1]]
        # The last of three objects has separate rows for a partition that another object has as well.
        if len(halves) == 3:
            halves[2] = [(runs[0][0], (Row(payload, 1000, now),))]
        objects: list[DataObject] = []
        slices: list[tuple[int, Run]] = []
        for half in filter(None, halves):
            made, found = yield from self.put_object(state.version, [whole_run(*run) for run in half])
            slices += [(len(objects), run) for run in found]
            objects.append(made)
        if rng.random() < 0.15:
            return (yield from self._as_pieces(state.version, objects, slices))
        return CommitRecord(
            producer="", sequence=0, upload_epoch=state.version, objects=tuple(objects), slices=tuple(slices)
        )

    def _as_pieces(self, epoch: int, objects: list[DataObject], slices: list[tuple[int, Run]]) -> Steps[CommitRecord]:
        """A commit whose many slices go into an index object."""
        name = data_key(epoch, f"{self.context.unique()}.idx")
        data, pieces = encode_index(name, parts := index_parts(objects, slices))
        yield Put(name, (data,), OWN_ROOT)
        named = [number for number, _ in slices]
        return CommitRecord(
            producer="",
            sequence=0,
            upload_epoch=epoch,
            objects=(*objects, DataObject(name, len(data), 0)),
            counts=(*(named.count(number) for number in range(len(objects))), len(pieces)),
            pieces=tuple((part.topic_id, part.partition, piece) for part, piece in zip(parts, pieces, strict=True)),
        )

    def read_slices(self, key: TopicKey, slices: Sequence[Slice]) -> Steps[list[tuple[int, Row]] | None]:
        """Rows of slices with their offsets; None if a slice was deleted."""
        rows: list[tuple[int, Row]] = []
        for piece in slices:
            content = yield Get(piece.object, piece.position, piece.position + piece.length, OWN_ROOT)
            if content is None:
                return None
            rows += ((piece.start + offset, row) for offset, row in self.codec.decode(content, piece, key))
        return rows


def driven(steps: Steps[Any], before: Callable[[Any], None]) -> Steps[Any]:
    """The steps; an error that `before` raises for a request is that of the request."""
    answer: Any = None
    failed: BaseException | None = None
    while True:
        try:
            request = steps.throw(failed) if failed is not None else steps.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = failed = None
        try:
            before(request)
            answer = yield request
        except Exception as raised:  # noqa: BLE001  thrown into the steps, which raise it
            failed = raised


def unlinked(steps: Steps[Any]) -> Steps[Any]:
    """The steps of a process that asks no coordinator, because it is one."""

    def refuse(request: Any) -> None:
        if isinstance(request, Ask):
            raise NotCoordinator("another one leads", address=request.holder.address, epoch=request.holder.epoch)

    return driven(steps, refuse)
