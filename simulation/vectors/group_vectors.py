"""Run scenarios of the group protocol against the product: its state machine, and a metadata state for what is
journaled.

A scenario is a list of steps.  Only the step `advance_time` moves its clock.  `Shell` plays the coordinator around the
machine, with a journal that answers immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simulation.vectors.vector_case import Case
from spark_log.errors import SparkLogError
from spark_log.groups.group import ConsumerGroupState, Group, GroupConfig, JournalRecord, StepOutcome
from spark_log.groups.messages import (
    Code,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    Journaled,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    MemberProtocol,
    OffsetCommitRequest,
    Request,
    Response,
    SyncGroupRequest,
    SyncGroupResponse,
)
from spark_log.groups.offset_deletion import (
    METADATA_BYTES_MAX,
    check_delete_group,
    check_delete_offsets,
    check_metadata,
    may_expire,
)
from spark_log.groups.state_machine import next_deadline, step, tick
from spark_log.groups.subscription import CONSUMER, Subscription, encode
from spark_log.metadata import records as r
from spark_log.metadata.commands import Expire
from spark_log.metadata.decision import Decision
from spark_log.metadata.groups.consumer_offsets import partition_of_group
from spark_log.metadata.groups.group_commands import UNFENCED, CommitOffsets, DeleteOffsets, SetGeneration
from spark_log.metadata.replay import next_version, replay
from spark_log.metadata.state import State
from spark_log.model import OffsetAndMetadata, TopicPartition

MINUTE_MS = 60_000
"""One millisecond of a scenario is one minute of the metadata log, whose retention of offsets is in minutes."""


def group_cases(vectors: Mapping[str, Any]) -> Iterator[Case]:
    """The partition of each group id, then each scenario."""
    for vector in vectors.get("group_partition", {}).get("vectors", ()):
        expected = vector["partition_of_50"]
        yield Case(f"partition of {vector['id']!r}", expected, partition_of_group(vector["id"]))
    for scenario in vectors.get("scenarios", ()):
        yield run_scenario(scenario)


def run_scenario(scenario: Mapping[str, Any], *, late: bool = False) -> Case:
    """Run the scenario up to the first step whose result differs from the expected one."""
    shell = Shell(scenario.get("config", {}), late=late)
    for number, asked in enumerate(scenario["steps"], 1):
        name = f"{scenario['id']} step {number} ({asked['op']})"
        expected = {key: shell.resolve(value) for key, value in asked.get("expect", {}).items()}
        found = shell.run(asked)
        differs = {key for key, value in expected.items() if found.get(key) != value}
        if differs:
            return Case(name, {key: expected[key] for key in differs}, {key: found.get(key) for key in differs})
    return Case(str(scenario["id"]), "as expected", "as expected")


class Shell:
    """One coordinator with all its groups."""

    def __init__(self, config: Mapping[str, Any], *, late: bool = False) -> None:
        """late: timers are checked after the whole time has passed, not when each one expires."""
        self.late = late
        self.config = GroupConfig(
            initial_rebalance_delay_ms=config.get("group_initial_rebalance_delay_ms", 3_000),
            min_session_timeout_ms=config.get("group_min_session_timeout_ms", 0),
            max_session_timeout_ms=config.get("group_max_session_timeout_ms", 1_800_000),
            max_size=config.get("group_max_size", 2_147_483_647),
            new_member_join_timeout_ms=config.get("new_member_join_timeout_ms", 300_000),
        )
        self.metadata_bytes_max = config.get("offset_metadata_max_bytes", METADATA_BYTES_MAX)
        self.now_ms = 0
        self.groups: dict[str, Group] = {}
        self.staged: dict[int, dict[tuple[str, TopicPartition], OffsetAndMetadata | None]] = {}
        """Positions of open transactions by producer, kept until the commit as a client's transaction keeps them.
        None: a newer position was committed since.
        """
        self.state = State()
        self.answers: dict[int, Response] = {}
        self.correlation_ids: dict[str, int] = {}
        """Topics by the name of the request."""
        self.aliases: dict[str, int] = {}
        """Aliases of member ids, by the request whose answer has the id."""
        self._requests = 0
        self._write(r.TakeOverRecord(epoch=1, address="localhost:9550", host="localhost", cluster_id="vectors"))

    def run(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry one step out, and return what the scenario can compare."""
        operation: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = getattr(self, asked["op"])
        return operation(asked) or {}

    def resolve(self, value: Any) -> Any:
        """The text with member ids replaced by their aliases."""
        if isinstance(value, str) and value.startswith("$"):
            answer = self.answers.get(self.aliases[value[1:]])
            assert isinstance(answer, JoinGroupResponse), f"the request that is to give {value} is not answered"
            return answer.member_id
        if isinstance(value, list):
            return [self.resolve(one) for one in value]
        if isinstance(value, dict):
            return {self.resolve(key): self.resolve(one) for key, one in value.items()}
        return value

    # ------------------------------------------------------------------------------------------------------ the machine

    def send(self, request: Request, failing: Code = Code.NONE) -> int:
        """failing: the journal's answer to the writes of this step."""
        self._requests += 1
        group_id = request.group_id
        outcome = step(
            self.groups.get(group_id), request, self.now_ms, correlation_id=self._requests, config=self.config
        )
        sent = self._requests
        self._take(group_id, outcome, failing)
        return sent

    def _take(self, group_id: str, outcome: StepOutcome, failing: Code = Code.NONE) -> None:
        if outcome.group is not None:
            self.groups[group_id] = outcome.group
        for reply in outcome.replies:
            self.answers[reply.correlation_id] = reply.response
        for record in outcome.records:
            self._journal(group_id, record, failing)

    def _journal(self, group_id: str, record: JournalRecord, failing: Code) -> None:
        if failing is Code.NONE:
            self._decide(SetGeneration(group=group_id, roster=record.roster))
        self.send(Journaled(group_id=group_id, ticket=record.ticket, error=failing))

    def _decide(self, command: Callable[[State, int], Decision[Any]]) -> None:
        decision = command(next_version(self.state, self.now_ms * MINUTE_MS), self.now_ms * MINUTE_MS)
        if decision.records:
            self._write(*decision.records)

    def _write(self, *records: r.AnyRecord) -> None:
        batch = r.Batch(id="vectors", time=self.now_ms * MINUTE_MS, epoch=1, records=records)
        self.state = replay(self.state, batch)

    # ------------------------------------------------------------------------------------------------- time and members

    def advance_time(self, asked: Mapping[str, Any]) -> None:
        end = self.now_ms + asked["ms"]
        if self.late:
            self.now_ms = end
        while True:
            deadlines = [at for group in self.groups.values() if (at := next_deadline(group)) is not None]
            due = min(deadlines, default=end + 1)
            if due > end:
                break
            self.now_ms = max(self.now_ms, due)
            for group_id, group in list(self.groups.items()):
                self._take(group_id, tick(group, self.now_ms, config=self.config))
        self.now_ms = end

    def join_group(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if "save_member_id_as" in asked:
            self.aliases[asked["save_member_id_as"]] = self._requests + 1
        kind = asked["protocol_type"]
        sent = self.send(
            JoinGroupRequest(
                group_id=asked["group"],
                member_id=self.resolve(asked["member_id"]),
                new_member_id=f"{asked['group_instance_id'] or 'member'}-{self._requests + 1}",
                group_instance_id=asked["group_instance_id"],
                protocol_type=kind,
                protocols=tuple(MemberProtocol(p["name"], _metadata(kind, p["metadata"])) for p in asked["protocols"]),
                session_timeout_ms=asked["session_timeout_ms"],
                rebalance_timeout_ms=asked["rebalance_timeout_ms"],
                require_known_member_id=asked["require_known_member_id"],
                supports_skipping_assignment=asked["supports_skip_assignment"],
            )
        )
        return self._named(asked, sent)

    def sync_group(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        request = SyncGroupRequest(
            group_id=asked["group"],
            member_id=self.resolve(asked["member_id"]),
            generation_id=asked["generation"],
            group_instance_id=asked["group_instance_id"],
            protocol_type=asked["protocol_type"],
            protocol_name=asked["protocol_name"],
            assignments={name: text.encode() for name, text in self.resolve(asked["assignments"]).items()},
        )
        return self._named(asked, self.send(request, Code(asked.get("simulate_log_append_error", "NONE"))))

    def heartbeat(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        request = HeartbeatRequest(
            group_id=asked["group"],
            member_id=self.resolve(asked["member_id"]),
            generation_id=asked["generation"],
            group_instance_id=asked["group_instance_id"],
        )
        return self._found(self.send(request))

    def leave_group(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        members = tuple(
            LeavingMember(self.resolve(one["member_id"]), one["group_instance_id"]) for one in asked["members"]
        )
        return self._found(self.send(LeaveGroupRequest(group_id=asked["group"], members=members)))

    def expect_response(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._found(self.correlation_ids[asked["name"]], asked.get("expect", {}))

    def expect_group(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        group = self.groups.get(asked["group"])
        exists = group is not None or asked["group"] in self.state.groups
        group = group or Group(asked["group"])
        wanted = self.resolve(asked["expect"])
        return {
            "exists": exists,
            "state": group.state.value,
            "generation": group.generation,
            "members": len(group.members),
            "pending_members": len(group.pending),
            "leader": group.leader,
            "member_present": [name for name in wanted.get("member_present", ()) if name in group.members],
            "member_absent": [name for name in wanted.get("member_absent", ()) if name not in group.members],
            "has_static": sorted(group.static_ids),
        }

    def force_group_state(self, asked: Mapping[str, Any]) -> None:
        self.groups[asked["group"]] = Group(asked["group"], ConsumerGroupState(asked["state"]))

    def _named(self, asked: Mapping[str, Any], sent: int) -> Mapping[str, Any]:
        self.correlation_ids[asked["name"]] = sent
        return self._found(sent, asked.get("expect", {}))

    def _found(self, sent: int, wanted: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        answer = self.answers.get(sent)
        if answer is None:
            return {"status": "pending"}
        found: dict[str, Any] = {"status": "done", "error": answer.error.value}
        match answer:
            case JoinGroupResponse():
                found |= {
                    "member": answer.member_id,
                    "generation": answer.generation_id,
                    "protocol": answer.protocol_name,
                    "leader": answer.leader,
                    "leader_is_self": answer.leader == answer.member_id,
                    "members_count": len(answer.members),
                    "skip": answer.skip_assignment,
                }
                other = self.resolve((wanted or {}).get("member_not"))
                found["member_not"] = other if answer.member_id != other else None
            case SyncGroupResponse():
                found |= {
                    "assignment": answer.assignment.decode(),
                    "protocol_type": answer.protocol_type,
                    "protocol_name": answer.protocol_name,
                }
            case LeaveGroupResponse():
                found["member_errors"] = [left.error.value for left in answer.members]
            case _:
                pass
        return found

    # ---------------------------------------------------------------------------------------------------------- offsets

    def offset_commit(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        found = self._found(self.send(self._commit_request(asked)))
        note = "x" * asked.get("metadata_length", 0)
        error = Code(found["error"])
        if error is Code.NONE:
            error = check_metadata(note, self.metadata_bytes_max)
        if error is Code.NONE:
            positions = {_partition(name): OffsetAndMetadata(at, note) for name, at in asked["offsets"].items()}
            group = self.groups.get(asked["group"])
            generation = asked["generation"] if group is not None and group.members else UNFENCED
            self._commit(asked["group"], generation, positions)
            for mine in self.staged.values():
                mine.update({place: None for tp in positions if (place := (asked["group"], tp)) in mine})
        return {**found, "error": error.value}

    def txn_offset_commit(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        found = self._found(self.send(self._commit_request(asked, transactional=True)))
        if found["error"] == Code.NONE:
            mine = self.staged.setdefault(asked["producer_id"], {})
            mine |= {(asked["group"], _partition(name)): OffsetAndMetadata(at) for name, at in asked["offsets"].items()}
        return found

    def end_txn_marker(self, asked: Mapping[str, Any]) -> None:
        mine = self.staged.pop(asked["producer_id"], {})
        if asked["result"] == "COMMIT":
            asked_for = {place: position for place, position in mine.items() if position is not None}
            for (group_id, partition), position in asked_for.items():
                stored = self.state.groups.get(group_id)
                # Kafka accepts positions of a transaction that names no member, even if the group has members; pylog
                # rejects them.
                self._commit(group_id, UNFENCED if stored is None else stored.generation, {partition: position})

    def _commit_request(self, asked: Mapping[str, Any], *, transactional: bool = False) -> OffsetCommitRequest:
        return OffsetCommitRequest(
            group_id=asked["group"],
            member_id=self.resolve(asked["member_id"]),
            generation_id=asked["generation"],
            group_instance_id=asked["group_instance_id"],
            transactional=transactional,
            knows_group_id_not_found=asked.get("api_version", 9) >= 9,
        )

    def _commit(self, group_id: str, generation: int, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        entries = tuple(r.OffsetEntry(*self._key(tp), at.offset, at.metadata) for tp, at in positions.items())
        self._decide(CommitOffsets(commit=r.GroupCommit(group_id, generation, entries)))

    def _key(self, partition: TopicPartition) -> tuple[str, int]:
        """Create the topic on first use; its id is its name."""
        if partition.topic not in self.state.names:
            self._write(r.CreateTopicRecord(topic_id=partition.topic, name=partition.topic, partitions=100))
        return partition

    def offset_fetch(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        offsets = {}
        group = self.state.groups.get(asked["group"])
        for name in asked["expect"]["offsets"]:
            partition = _partition(name)
            position = group.offsets.get(partition) if group is not None else None
            unstable = asked["require_stable"] and any(
                (asked["group"], partition) in mine for mine in self.staged.values()
            )
            error = Code.UNSTABLE_OFFSET_COMMIT if unstable else Code.NONE
            offset = -1 if position is None or unstable else position.offset
            offsets[name] = {"offset": offset, "error": error.value}
        return {"offsets": offsets}

    def delete_group(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        group_id = asked["group"]
        error = check_delete_group(self.groups.get(group_id), stored=self._stored(group_id))
        if error is Code.NONE:
            self.groups.pop(group_id, None)
            for mine in self.staged.values():
                for place in [place for place in mine if place[0] == group_id]:
                    del mine[place]
            if group_id in self.state.groups:
                error = self._tried(DeleteOffsets(group=group_id))
        return {"error": error.value}

    def offset_delete(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        group_id, named = asked["group"], {_partition(name): name for name in asked["partitions"]}
        group = self.groups.get(group_id)
        error, each = check_delete_offsets(group, named, stored=self._stored(group_id))
        allowed = tuple(self._key(tp) for tp, code in each.items() if code is Code.NONE)
        if allowed and group_id in self.state.groups:
            error = self._tried(DeleteOffsets(group=group_id, partitions=allowed))
        return {"error": error.value, "partition_errors": {named[tp]: code.value for tp, code in each.items()}}

    def _stored(self, group_id: str) -> bool:
        return group_id in self.state.groups or any(
            place[0] == group_id for mine in self.staged.values() for place in mine
        )

    def _tried(self, command: Callable[[State, int], Decision[Any]]) -> Code:
        try:
            self._decide(command)
        except SparkLogError:
            return Code.NON_EMPTY_GROUP
        return Code.NONE

    def run_offset_expiration(self, asked: Mapping[str, Any]) -> None:
        minutes = asked["offsets_retention_ms"]
        # pylog keeps a group that never had members longer than Kafka does, unless both are configured alike.
        groups = {"offsets.retention.minutes": minutes, "streaming.identity.retention.ms": minutes * MINUTE_MS}
        self._write(r.SetConfigsRecord(configs={name: str(value) for name, value in groups.items()}))
        held = [(group_id, *self._key(tp)) for mine in self.staged.values() for group_id, tp in mine]
        for group_id, group in self.groups.items():
            if not may_expire(group) and group_id in self.state.groups:
                held += [(group_id, *key) for key in self.state.groups[group_id].offsets]
        self._decide(Expire(held=tuple(held)))
        for group_id, group in list(self.groups.items()):
            if group.state is ConsumerGroupState.EMPTY and not self._stored(group_id):
                del self.groups[group_id]


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def _metadata(protocol_type: str, topics: str) -> bytes:
    if protocol_type != CONSUMER or not topics:
        return topics.encode()
    return encode(Subscription(topics=tuple(topics.split(","))))
