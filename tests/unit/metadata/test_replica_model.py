"""Random lives of a log with brokers, against a model that knows the brokers of each object and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import SparkLogError
from spark_log.metadata import records as r
from spark_log.metadata.commands import AddPartitions, DeleteTopic, Report
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.invariants import check_state
from spark_log.metadata.invariants.replicas import copies_count_their_objects
from spark_log.metadata.maps.column_blocks import ObjectBlock, PartitionBlock
from spark_log.metadata.maps.column_map import fold
from spark_log.metadata.projection import Delta, Holdings, apply, delta, held_of, is_projected, nothing_held
from spark_log.metadata.replay import replay
from spark_log.metadata.replicas.reassignments import moving, objects_elsewhere, reassignment_of
from spark_log.metadata.replicas.replica_commands import (
    AlterReassignments,
    ElectLeader,
    JoinIsr,
    NewReplicas,
    RemoveBroker,
    ResetReplicas,
)
from spark_log.metadata.replicas.replica_state import NO_LEADER, OWN_GROUP
from spark_log.metadata.replicas.replicas import can_lead, epoch_of, group_at, holders, is_active
from spark_log.metadata.state import ObjectRow, State
from tests.unit.metadata.replica_history import ReplicaHistory

BROKERS = (1, 2, 3)
LISTS = ((1, 2, 0), (0, 1), (2, 3), (3, 1, 2), (0,))
KINDS = (
    "topic", "grow", "delete", "prune", "upload", "upload", "put", "put", "put", "commit", "commit", "copied", "copied",
    "copied", "lost", "fence", "fence", "back", "back", "renew", "join", "join", "elect", "swap", "swap", "remove",
    "reset", "later", "add", "reassign", "reassign", "moved", "barrier",
)  # fmt: skip
actions = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 15)), min_size=10, max_size=50
)  # fmt: skip


@dataclass
class Model:
    """The brokers of each live object with copies, by its name; None: it is in the log's own root."""

    objects: dict[str, tuple[tuple[int, ...], set[int]] | None] = field(default_factory=dict)
    """(replicas of its group, those that have it)."""

    def note(self, before: State, record: r.AnyRecord, after: State) -> None:
        match record:
            case r.CommitRecord() | r.SwapRecord():
                for number, made in enumerate(record.objects):
                    self.objects[made.name] = self._placed(before, record, number)
                self.objects = {name: known for name, known in self.objects.items() if name in after.objects}
            case r.HeldRecord():
                for copy in record.copies:
                    self._change(before, copy, has=True)
            case r.MissingRecord():
                for copy in record.copies:
                    self._change(before, copy, has=False)
            case r.ReturnBrokerRecord():
                for name in record.missing:
                    self._change(before, r.Copy(name, record.broker, record.epoch), has=False)
            case r.RegisterBrokerRecord():
                for known in self.objects.values():
                    if known is not None:
                        known[1].discard(record.broker)
            case r.ResetReplicasRecord():
                self.objects = dict.fromkeys(self.objects)

    def _placed(
        self, before: State, record: r.CommitRecord | r.SwapRecord, number: int
    ) -> tuple[tuple[int, ...], set[int]] | None:
        if not record.placed or record.placed[number].group == OWN_GROUP:
            return None
        where = record.placed[number]
        replicas = group_at(before, where.group).replicas
        some = {broker for broker, epoch in where.held if self._counts(before, broker, epoch, replicas)}
        return replicas, {broker for broker in some if is_active(before, broker)}

    @staticmethod
    def _counts(state: State, broker: int, epoch: int, replicas: Sequence[int]) -> bool:
        return broker in replicas and epoch_of(state, broker) == epoch

    def _change(self, before: State, copy: r.Copy, *, has: bool) -> None:
        known = self.objects.get(copy.object)
        if known is not None and self._counts(before, copy.broker, copy.epoch, known[0]):
            if has and not is_active(before, copy.broker):
                return
            (known[1].add if has else known[1].discard)(copy.broker)

    def lacking(self, replicas: tuple[int, ...]) -> set[int]:
        """The replicas of a group that lack an object which another one has."""
        there = [has for of, has in filter(None, self.objects.values()) if of == replicas and has]
        return {broker for broker in replicas if any(broker not in has for has in there)}


class Life(ReplicaHistory):
    """A history that is compared with the model at each version."""

    def __init__(self) -> None:
        self.model = Model()
        self.uploads: list[r.CommitRecord] = []
        super().__init__(*BROKERS)

    def write(self, *records: r.AnyRecord) -> None:
        before = self.state
        super().write(*records)
        for record in records:
            self.model.note(before, record, self.state)
        self.check(before, records)

    def check(self, before: State, records: Sequence[r.AnyRecord]) -> None:
        state = self.state
        known = {name: None if one is None else one[1] for name, one in self.model.objects.items()}
        assert known == {name: brokers_in(state, row) for name, row in state.objects.items()}
        for number, group in state.placement_groups.items():
            if len(group.isr) > 1:
                assert not self.model.lacking(group.replicas).intersection(group.isr), (group, records)
            whole = {one for one in group.replicas if can_lead(state, one)} - self.model.lacking(group.replicas)
            assert not whole.intersection(group.joining), (group, records)
            assert not whole or whole.intersection(group.isr) or group.leader != NO_LEADER, (group, records)
            old = before.placement_groups.get(number)
            if old is not None and old.replicas == group.replicas:
                renewed = {record.broker for record in records if isinstance(record, r.RegisterBrokerRecord)}
                assert group.isr or not old.isr or renewed, (group, records)
                assert not self.model.lacking(group.replicas) & renewed.intersection(group.isr), (group, records)
        for record in records:
            if isinstance(record, r.CommitRecord):
                for made in record.objects:
                    self._check_acknowledged(made.name)
        self._check_moves()

    def _check_moves(self) -> None:
        """No broker is added and removed by one move."""
        for key in self.state.partitions:
            move = reassignment_of(self.state, key)
            assert move is None or not {*move.adding_replicas} & {*move.removing_replicas}

    def _check_acknowledged(self, name: str) -> None:
        """A commit that was decided is in the state, and every replica of the ISR has its objects."""
        known = self.model.objects[name]
        assert name in self.state.objects
        if known is not None:
            (group,) = [one for one in self.state.placement_groups.values() if one.replicas == known[0]]
            assert group.isr and known[1].issuperset(group.isr)

    def act(self, kind: str, which: int, amount: int) -> None:
        state = self.state
        topics = sorted(state.names)
        name = topics[which % len(topics)] if topics else "t0"
        match kind:
            case "topic":
                self.topic(LISTS[amount % len(LISTS)], LISTS[amount % len(LISTS)], name=f"t{len(self.batches)}")
            case "grow" if topics:
                self.command(AddPartitions(name=name, total=state.topics[name].partitions + 1))
            case "delete":
                self.command(DeleteTopic(name=name))
            case "prune":
                for key in sorted(state.partitions):
                    self.prune(key)
            case "upload" | "put" if topics:
                key = name, amount % state.topics[name].partitions
                subset = [one for one in self.group(*key).replicas if which >> (one % 3) & 1]
                upload = self.upload_to(subset if amount > 4 else None, key, birth=-1, dense=False)
                if kind == "upload":
                    self.uploads.append(upload)
                else:
                    self.commit_record(upload)
            case "commit" if self.uploads:
                self.commit_record(self.uploads.pop(0))
            case "elect" if state.placement_groups:
                number = sorted(state.placement_groups)[amount % len(state.placement_groups)]
                self.command(ElectLeader(group=number, leader=which % 4, unclean=amount % 2 == 0))
            case "swap":
                for key, part in sorted(state.partitions.items()):
                    if len(part.entries) > 1 and self.number(*key) and not state.topics[key[0]].deleted:
                        group = self.group(*key)
                        self.swap_record(self.replaced(key, group.replicas if amount % 2 else group.isr))
            case "reassign" if topics:
                key = name, amount % state.topics[name].partitions
                replicas = LISTS[amount % len(LISTS)] if which else None
                self.command(AlterReassignments(partitions=(NewReplicas(*key, replicas),)))
            case "moved":
                for key in moving(state):
                    if not objects_elsewhere(state, key, (one.object for one in state.partitions[key].entries)):
                        ended = r.Moved(*key, state.reassignments[key].version, state.version)
                        self.command(Report(record=r.MovedRecord(partitions=(ended,))))
            case "barrier":
                self.write(r.FenceRecord(upto=max(-1, state.version - amount)))
            case "later":
                self.now += 1_000_000 * amount
            case _:
                self.act_on_brokers(kind, which, amount)

    def act_on_brokers(self, kind: str, which: int, amount: int) -> None:
        state = self.state
        broker = BROKERS[which % len(BROKERS)]
        some = [one for number, one in enumerate(sorted(state.objects)) if amount >> (number % 4) & 1]
        match kind:
            case "copied":
                self.copied(which % 4, *some, epoch=None if which < 4 else 1)
            case "lost" if which < 4:
                self.lost(which, *some[:2])
            case "fence":
                self.fence(broker)
            case "back":
                self.back(broker, tuple(some[:1]) if amount > 12 else ())
            case "renew" if amount < 8:
                self.renew(broker, lose_data=amount < 3, is_async=amount == 7)
            case "add":
                self.add(broker, is_async=amount == 0)
            case "join":
                for number in state.placement_groups:
                    self.command(_join(number, which % 4))
            case "remove" if amount < 4:
                self.command(RemoveBroker(broker=broker))
            case "reset" if which == 0 and amount == 0:
                self.command(ResetReplicas())
                for one in BROKERS:
                    self.add(one)


def _join(number: int, broker: int) -> JoinIsr:
    return JoinIsr(members=((number, broker),))


def brokers_in(state: State, row: ObjectRow) -> set[int] | None:
    copies = state.copies.get(row.copies)
    return None if copies is None else set(copies.brokers)


def lived(given_actions: Iterable[tuple[str, int, int]]) -> Life:
    log = Life()
    for replicas in LISTS[:3]:
        log.topic(replicas, name=f"t{len(log.batches)}")
    for action in given_actions:
        try:
            log.act(*action)
        except SparkLogError:
            continue
    return log


# Promise: format/metadata.md#brokers-and-placement-groups
@given(actions)
def test_the_state_agrees_with_a_model_that_keeps_the_brokers_of_each_object(
    given_actions: list[tuple[str, int, int]],
) -> None:
    """`Life.check` compares them, and what a group must be, at each version."""
    lived(given_actions)


def in_columns(state: State) -> State:
    return replace(state, partitions=fold(state.partitions, PartitionBlock), objects=fold(state.objects, ObjectBlock))


# Promise: format/metadata.md#brokers-and-placement-groups
@given(actions, st.data())
def test_a_checkpoint_and_what_follows_give_the_same_state_as_all_records(
    given_actions: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    """Also if its rows are in columns."""
    log = lived(given_actions)
    at = data.draw(st.integers(0, len(log.batches)))
    for before in (log.states[at], in_columns(log.states[at])):
        state = decode_checkpoint(encode_checkpoint(before), "checkpoint")
        assert state == log.states[at]
        for batch in log.batches[at:]:
            state = replay(state, decode_batch(encode_batch(batch), "batch"))
        assert state == log.state
        assert encode_checkpoint(in_columns(state)) == encode_checkpoint(in_columns(log.state))


@given(actions, actions)
def test_records_of_another_log_are_replayed_without_an_error(
    ours: list[tuple[str, int, int]], theirs: list[tuple[str, int, int]]
) -> None:
    """Replay is total, and keeps the counts of copies.  Other rules hold for records that were decided on the state:
    another log places a commit on its own brokers.
    """
    log = lived(ours)
    state = log.state
    for batch in lived(theirs).batches:
        state = replay(state, batch)
        assert not [*check_state(state, (copies_count_their_objects,))]


def sent(state: State, held: Holdings) -> Delta:
    """The delta as the client gets it."""
    found = delta(state, f"record {state.version}", held, f"record {held.version}")
    return msgspec.json.decode(msgspec.json.encode(found), type=Delta)


@given(actions, st.lists(st.sampled_from(["t4", "t5", "t6", "missing"]), unique=True), st.data())
def test_a_client_of_some_topics_knows_the_brokers_and_finds_a_copy(
    given_actions: list[tuple[str, int, int]], topics: list[str], data: st.DataObject
) -> None:
    """Deltas lead from one projection to another, but for rows of objects whose copies have moved: of these, the
    client's list of brokers has one with a copy, too."""
    log = lived(given_actions)
    steps = sorted(data.draw(st.lists(st.integers(4, len(log.states) - 1), min_size=1)))
    state = nothing_held(topics)
    for number in steps:
        whole = log.states[number]
        state = apply(state, sent(whole, held_of(state, f"record {state.version}")))
        fresh = apply(nothing_held(topics), sent(whole, held_of(nothing_held(topics))))
        assert is_projected(state) and replace(state, objects=fresh.objects) == fresh
        assert state.objects.keys() == fresh.objects.keys()
        assert (state.brokers, state.placement_groups, state.copies) == (
            whole.brokers,
            whole.placement_groups,
            whole.copies,
        )
        for name, row in state.objects.items():
            there = brokers_in(whole, whole.objects[name])
            assert there == set() or not (there or {0}).isdisjoint(holders(state, row)), (name, row)
            assert (there is None) or fresh.objects[name].copies == whole.objects[name].copies
