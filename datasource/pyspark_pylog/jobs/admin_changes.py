"""The changes that `jobs/admin.py` makes: planned on the state of the log, and committed together.

Each command is decided on the state after those before it, as the log will decide it.  So an error is found before
anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pyspark_pylog.jobs.admin_file import Declared, DeclaredGroup, DeclaredTopic, Faults, Problems
from spark_log.cli.commands.reassignment_file import Wanted, reassignment_errors
from spark_log.client.admin.replica_plans import Plan, current_replicas, with_factor
from spark_log.client.reader.positions_to_offsets import group_entries, partition_of, partitions_of, resolve
from spark_log.client.topic_creation import create_command, new_topic_id
from spark_log.configs.settings import validate_topic_configs
from spark_log.errors import OffsetOutOfRange, SparkLogError
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import AddPartitions, DeleteTopic, SetConfigs, SeveralCommands, Single
from spark_log.metadata.groups.group_commands import UNFENCED, CommitOffsets, DeleteOffsets, Stand
from spark_log.metadata.lines import check_plan, plan_of
from spark_log.metadata.records import GroupCommit
from spark_log.metadata.replay import replay_records
from spark_log.metadata.replicas.decide_replicas import check_replica_list
from spark_log.metadata.replicas.placement import Replicas
from spark_log.metadata.replicas.replica_commands import AlterReassignments, NewReplicas
from spark_log.metadata.restores import history_of
from spark_log.metadata.set_backs import lineage_of
from spark_log.metadata.state import GroupState, State
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.model import NewTopic, OffsetAndMetadata, TopicPartition
from spark_log.positions import At, Earliest, Latest, LatestMinus, Position, format_position
from spark_log.text import counted


class Differences(NamedTuple):
    """The differences between a log and a file.  In pairs, the value now and the new one."""

    create: list[NewTopic]
    partitions: dict[str, tuple[int, int]]
    """By topic."""
    configs: dict[str, dict[str, tuple[str | None, str | None]]]
    """By topic and config; None: not set."""
    replicas: dict[TopicPartition, tuple[Replicas, Replicas]]
    positions: dict[str, dict[TopicPartition, tuple[int | None, int]]]
    """By group; None: it has none there."""
    delete: dict[str, int]
    """By topic, its number of records."""
    delete_groups: dict[str, int]
    """By group, its number of positions."""
    kept: dict[str, dict[TopicPartition, tuple[int, Position]]]
    """By group: its positions that stay, and those in the file."""

    def lines(self) -> Iterator[str]:
        """For people, one change in each line."""
        for topic in self.create:
            yield f"+ {topic.name}: create with {counted(topic.num_partitions, 'partition')}{_details(topic)}"
        for name, (now, new) in self.partitions.items():
            yield f"~ {name}: partitions {now} -> {new}"
        for name, configs in self.configs.items():
            for config, (before, after) in configs.items():
                yield f"~ {name}: {config} {before or '(default)'} -> {after or '(default)'}"
        for tp, (old, replicas) in self.replicas.items():
            yield f"~ {_named(tp)}: replicas {_ids(old)} -> {_ids(replicas)}"
        for group, positions in self.positions.items():
            for tp, (at, to) in positions.items():
                sign, former = ("+", "") if at is None else ("~", f"{at} ")
                yield f"{sign} group {group}: {_named(tp)} {former}-> {to}"
        for name, records in self.delete.items():
            yield f"- {name}: delete with {counted(records, 'record')}"
        for name, count in self.delete_groups.items():
            yield f"- group {name}: delete with {counted(count, 'position')}"

    def kept_lines(self) -> Iterator[str]:
        """For people, one position in each line."""
        for group, positions in self.kept.items():
            for tp, (at, wanted) in positions.items():
                file = format_position(wanted)
                yield f"group {group} keeps {_named(tp)} at {at} (file: {file}); --reset-groups sets it"

    def summary(self) -> dict[str, Any]:
        return {
            "create": [topic.name for topic in self.create],
            "partitions": {name: new for name, (_, new) in self.partitions.items()},
            "configs": {name: {key: new for key, (_, new) in one.items()} for name, one in self.configs.items()},
            "replicas": {_named(tp): new for tp, (_, new) in self.replicas.items()},
            "positions": {
                group: {_named(tp): to for tp, (_, to) in one.items()} for group, one in self.positions.items()
            },
            "delete": list(self.delete),
            "delete_groups": list(self.delete_groups),
            "kept": {
                group: {_named(tp): {"offset": at, "file": format_position(wanted)} for tp, (at, wanted) in one.items()}
                for group, one in self.kept.items()
            },
        }

    def notes(self) -> Iterator[str]:
        """About configs without effect."""
        for topic in self.create:
            yield from validate_topic_configs(topic.configs)[1]
        for configs in self.configs.values():
            yield from validate_topic_configs({key: new for key, (_, new) in configs.items() if new is not None})[1]


def _details(topic: NewTopic) -> str:
    factor = "" if topic.replication_factor is None else f", {counted(topic.replication_factor, 'replica')}"
    lists = (topic.replica_assignment or {}).values()
    replicas = f", replicas {' '.join(map(_ids, lists))}" if lists else ""
    return factor + replicas + "".join(f", {name}={value}" for name, value in topic.configs.items())


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


def _named(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}"


class Draft:
    """Changes of a log that are committed together."""

    def __init__(self, journal: Journal) -> None:
        self.changes = Differences([], {}, {}, {}, {}, {}, {}, {})
        self.state = journal.refresh()
        """After the commands."""
        self._plan, self._set_back = plan_of(self.state), lineage_of(self.state).set_back
        self._journal, self._commands = journal, list[Single]()
        self._now_ms = journal.context.clock.now_ms()

    def add(self, command: Single) -> None:
        """Raises the error with which the log would refuse it."""
        self.state = replay_records(self.state, command(self.state, self._now_ms).records)
        self._commands.append(command)

    def commit(self) -> None:
        """All of them, or none.  Raises ConcurrentChange if a group has committed where they set its position."""
        if self._commands:
            self._journal.propose(SeveralCommands(commands=tuple(self._commands)), set_back=self._set_back)
            check_plan(self._journal.state, self._plan, "apply")


def plan_changes(journal: Journal, declared: Declared, *, resets: bool = False) -> Draft:
    """The changes that `apply` has to make.  Raises InvalidRequest that names everything that cannot be done.

    resets:  also move groups in partitions where they have another position.
    """
    draft, problems = Draft(journal), declared.problems
    for name, topic in sorted(declared.topics.items()):
        _plan_topic(journal, draft, name, topic, problems.of("topic", name))
    if declared.replicas:
        _plan_replicas(draft, declared.replicas, problems)
    for name, group in sorted(declared.groups.items()):
        _plan_group(journal, draft, name, group, problems, resets=resets)
    problems.check()
    return draft


def _plan_replicas(draft: Draft, wanted: Mapping[TopicPartition, Wanted], problems: Problems) -> None:
    """Plans the replicas of a file of Kafka's.  If the log refuses them together, each is tried, for an error of
    each.
    """
    errors = reassignment_errors(draft.state, wanted)
    problems.of_entries(errors)
    right = {tp: one for tp, one in wanted.items() if one.where not in errors}
    try:
        _reassign(draft, {tp: one.replicas for tp, one in right.items()})
    except SparkLogError:
        for tp, one in right.items():
            problems.of("partition", _named(tp)).attempt(_reassign, draft, {tp: one.replicas})


# --------------------------------------------------------------------------------------------------------------- topics


def _plan_topic(journal: Journal, draft: Draft, name: str, topic: DeclaredTopic, faults: Faults) -> None:
    """After an error, the rest of the topic is checked without what was wrong."""
    for number, brokers in enumerate(topic.replicas or ()):
        known = len(faults.lines)
        faults.attempt(check_replica_list, draft.state, f"partition {number}", brokers)
        if len(faults.lines) > known:
            topic = topic._replace(replicas=None)
    if name not in draft.state.names:
        if not topic.delete:
            _create(journal, draft, name, topic, faults)
    elif topic.delete:
        faults.attempt(_delete, draft, name)
    else:
        _alter(draft, name, topic, faults)


def _delete(draft: Draft, name: str) -> None:
    topic_id = draft.state.names[name]
    parts = draft.state.topic_partitions(topic_id)
    draft.changes.delete[name] = sum(part.readable_end - part.start for _, part in parts)
    draft.add(DeleteTopic(name=name, topic_id=topic_id))


def _create(journal: Journal, draft: Draft, name: str, topic: DeclaredTopic, faults: Faults) -> None:
    new = NewTopic(
        name,
        topic.partitions or 1,
        _configs_to_check(topic, faults) or {},
        topic.replication_factor,
        None if topic.replicas is None else dict(enumerate(topic.replicas)),
    )
    faults.attempt(draft.add, create_command(new, new_topic_id(journal)))
    draft.changes.create.append(new)
    if name not in draft.state.names:
        with suppress(SparkLogError):  # so that groups that begin there can be checked
            draft.add(create_command(NewTopic(name, new.num_partitions), new_topic_id(journal)))


def _alter(draft: Draft, name: str, topic: DeclaredTopic, faults: Faults) -> None:
    now = topic_named(draft.state, name)[1].partitions
    if topic.partitions is not None and topic.partitions < now:
        faults.keep(f"it has {counted(now, 'partition')}, and they cannot become {topic.partitions}")
        topic = topic._replace(replicas=None)
    wanted = faults.attempt(_wanted_replicas, draft.state, name, topic) or {}
    before = current_replicas(draft.state, [name])
    falls = any(len(replicas) < len(before[tp]) for tp, replicas in wanted.items())
    if falls:  # min.insync.replicas has to be lowered first, and to be raised last
        faults.attempt(_alter_configs, draft, name, _configs_to_check(topic, faults))
    faults.attempt(_reassign, draft, wanted)
    if topic.partitions is not None and topic.partitions > now:
        faults.attempt(_add_partitions, draft, name, now, topic)
    if not falls:
        faults.attempt(_alter_configs, draft, name, _configs_to_check(topic, faults))


def _configs_to_check(topic: DeclaredTopic, faults: Faults) -> Mapping[str, str] | None:
    """After an error, the number of replicas may be another one than is meant."""
    if not faults.lines or topic.configs is None:
        return topic.configs
    return {name: value for name, value in topic.configs.items() if name != "min.insync.replicas"}


def _wanted_replicas(state: State, name: str, topic: DeclaredTopic) -> Plan:
    """The replicas of the partitions that exist, if the file says anything about them."""
    now = current_replicas(state, [name])
    if topic.replicas is not None:
        return {tp: topic.replicas[tp.partition] for tp in now}
    factor = topic.replication_factor
    if factor is None or all(len(replicas) == factor for replicas in now.values()):
        return {}
    return with_factor(state, name, factor)


def _reassign(draft: Draft, wanted: Mapping[TopicPartition, Replicas]) -> None:
    before = current_replicas(draft.state, dict.fromkeys(tp.topic for tp in wanted))
    changed = {tp: (before[tp], new) for tp, new in sorted(wanted.items()) if new != before[tp]}
    if changed:
        lists = [NewReplicas(*partition_of(draft.state, tp)[0], new) for tp, (_, new) in changed.items()]
        draft.add(AlterReassignments(partitions=tuple(lists)))
        draft.changes.replicas.update(changed)


def _add_partitions(draft: Draft, name: str, now: int, topic: DeclaredTopic) -> None:
    """New partitions have as many replicas as the others, if the file does not name them."""
    assert topic.partitions is not None
    draft.add(AddPartitions(name=name, total=topic.partitions, known=now))
    draft.changes.partitions[name] = (now, topic.partitions)
    if topic.replicas is not None:
        _reassign(draft, {TopicPartition(name, n): topic.replicas[n] for n in range(now, topic.partitions)})


def _alter_configs(draft: Draft, name: str, wanted: Mapping[str, str] | None) -> None:
    known = topic_named(draft.state, name)[1].configs
    if wanted is None:
        return
    keys = sorted({*wanted, *known})
    changed = {key: (known.get(key), wanted.get(key)) for key in keys if known.get(key) != wanted.get(key)}
    if changed:
        draft.add(SetConfigs(name=name, changes={key: new for key, (_, new) in changed.items()}))
        draft.changes.configs[name] = changed


# --------------------------------------------------------------------------------------------------------------- groups


def _plan_group(
    journal: Journal, draft: Draft, name: str, group: DeclaredGroup, problems: Problems, *, resets: bool
) -> None:
    faults = problems.of("group", name)
    known = draft.state.groups.get(name, GroupState()).offsets
    if group.delete:
        if name in draft.state.groups:
            draft.changes.delete_groups[name] = len(known)
            faults.attempt(draft.add, DeleteOffsets(group=name, known=True))
        return
    declared = _declared_positions(draft.state, group, problems, faults)
    before = {tp: known.get(partition_of(draft.state, tp)[0]) for tp in declared}
    now = {tp: None if at is None else at.offset for tp, at in before.items()}
    wanted = {tp: at for tp, at in declared.items() if now[tp] is None or resets}
    changed = {tp: (now[tp], new) for tp, new in _new_offsets(journal, wanted, faults).items() if new != now[tp]}
    kept = {
        tp: (at, declared[tp])
        for tp, at in now.items()
        if at is not None and not resets and not _is_there(journal, tp, at, declared[tp])
    }
    if kept:
        draft.changes.kept[name] = kept
    if changed:
        entries = group_entries(draft.state, {tp: OffsetAndMetadata(new) for tp, (_, new) in changed.items()})
        # A consumer may commit between the plan and the commit of this, or before it is sent again.
        expected = tuple(Stand(*partition_of(draft.state, tp)[0], at) for tp, (at, _) in changed.items())
        commit = GroupCommit(name, UNFENCED, entries)
        faults.attempt(draft.add, CommitOffsets(commit=commit, expected=expected, history=history_of(draft.state)))
        draft.changes.positions[name] = changed


def _declared_positions(
    state: State, group: DeclaredGroup, problems: Problems, faults: Faults
) -> dict[TopicPartition, Position]:
    """Without partitions that are not there because their topic has an error."""
    found = dict[TopicPartition, Position]()
    for topic, positions in sorted(group.positions.items()):
        for number, at in positions.items():
            if not problems.of("topic", topic).lines or _exists(state, TopicPartition(topic, number or 0)):
                some = faults.attempt(_partitions, state, topic, number) or []
                found.update(dict.fromkeys(some, at))
    return found


def _partitions(state: State, topic: str, number: int | None) -> list[TopicPartition]:
    if number is None:
        return partitions_of(state, topic)
    tp = TopicPartition(topic, number)
    partition_of(state, tp)
    return [tp]


def _is_there(journal: Journal, tp: TopicPartition, offset: int, wanted: Position) -> bool:
    """Whether a group is where the file says.  Times and positions of groups are not looked up."""
    if isinstance(wanted, Earliest | Latest | LatestMinus):
        return resolve(journal, {tp: wanted})[tp] == offset
    return wanted == At(offset)


def _new_offsets(
    journal: Journal, wanted: Mapping[TopicPartition, Position], faults: Faults
) -> dict[TopicPartition, int]:
    """Times are looked up together.  Each offset in the file is checked separately, for an error of each."""
    others: dict[TopicPartition, Position] = {tp: at for tp, at in wanted.items() if not isinstance(at, At)}
    alone = [{tp: at} for tp, at in wanted.items() if tp not in others]
    found = dict[TopicPartition, int]()
    for some in (others, *alone):
        found |= faults.attempt(_offsets, journal, some) or {}
    return {tp: found[tp] for tp in wanted if tp in found}


def _offsets(journal: Journal, wanted: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    """The offsets of positions.  A partition that is still to be created begins at 0."""
    new = {tp: at for tp, at in wanted.items() if not _exists(journal.state, tp)}
    for tp, at in new.items():
        if isinstance(at, At) and at.offset:
            raise OffsetOutOfRange(
                f"offset {at.offset} of {_named(tp)} is out of range: the partition is new, and begins at 0",
                start=0,
                end=0,
            )
    return {**dict.fromkeys(new, 0), **resolve(journal, {tp: at for tp, at in wanted.items() if tp not in new})}


def _exists(state: State, tp: TopicPartition) -> bool:
    return tp.topic in state.names and tp.partition < state.topics[state.names[tp.topic]].partitions
