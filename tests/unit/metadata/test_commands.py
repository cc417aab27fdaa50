"""Commands: decisions that travel."""

from __future__ import annotations

import re
from typing import get_args

import msgspec
import pytest

from spark_log.errors import InvalidRequest, UnknownTopicOrPartition
from spark_log.metadata import commands as c
from spark_log.metadata.groups import group_commands as gc
from spark_log.metadata.records import (
    CommitRecord,
    Copy,
    ErasedRecord,
    GroupCommit,
    HeldRecord,
    LostRecord,
    MissingRecord,
    Moved,
    MovedRecord,
    OffsetEntry,
    WipedRecord,
)
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.replicas.replica_commands import NewReplicas
from spark_log.metadata.state import State
from spark_log.model import DataObject, Run

NOW = 1_000_000
TOPIC = c.CreateTopic(name="t", partitions=2, topic_id="id")
RUN = Run("id", 1, 10, 0, 100, 7, 1, 0, 0)


def append(sequence: int = 0) -> c.Append:
    commit = CommitRecord(
        producer="p",
        sequence=sequence,
        upload_epoch=0,
        objects=(DataObject(f"data/0000000000000000/x{sequence}.seg", 100, 90),),
        slices=((0, RUN),),
    )
    return c.Append(commit=commit)


def offsets(**more: object) -> gc.CommitOffsets:
    return gc.CommitOffsets(commit=GroupCommit("g", -1, (OffsetEntry("id", 1, 5, "note"),)), **more)  # type: ignore[arg-type]


EXAMPLES: tuple[c.Single, ...] = (
    TOPIC,
    c.AddPartitions(name="t", total=3),
    c.SetConfigs(name="t", changes={"retention.ms": "5", "retention.bytes": None}),
    append(),
    offsets(),
    c.Trim(starts=(c.Start("id", 1, c.WHOLE),)),
    c.InitProducer(producer="txn:x"),
    c.UpdateFeature(name="metadata.version", level=1),
    c.InitProducer(producer="txn:x", timeout_ms=60_000),
    c.AbortTransaction(producer="txn:x"),
    gc.JoinGroup(group="h", member="m", token="t", owner="me", timeout_ms=5),
    gc.RenewSession(group="h", generation=1),
    gc.LeaveGroup(group="h", member="m"),
    gc.RemoveMember(group="h"),
    gc.DeleteOffsets(group="g", partitions=(("id", 1),)),
    gc.DeleteOffsets(group="g"),
    c.Fence(),
    c.ResetClock(),
    c.Expire(held=(("g", "id", 1),)),
    c.DeleteTopic(name="t"),
    c.RegisterBroker(broker=1, directory="d", url="/b1", rack="r", options={"endpoint": "e"}),
    c.RegisterBroker(broker=1, directory="e", url="/b1", replaces=True, lose_data=True),
    c.FenceBroker(broker=1, reason="it does not answer"),
    c.ReturnBroker(broker=1, epoch=1, missing=("data/0000000000000001/x.seg",)),
    c.CreateTopic(name="u", partitions=1, topic_id="u", replicas=((1, 0),)),
    c.CreateTopic(name="typed", partitions=1, topic_id="v", schema="id BIGINT"),
    c.SetSchema(name="typed", topic_id="v", schema="id BIGINT"),
    c.Report(record=HeldRecord(copies=(Copy("data/0000000000000001/x.seg", 1, 1),))),
    c.Report(record=MissingRecord(copies=(Copy("data/0000000000000001/x.seg", 1, 1),))),
    c.JoinIsr(members=((1, 1),)),
    c.Report(
        record=LostRecord(commit=("data/0000000000000001/a.seg",), upload_epoch=1, objects=(), slices=(), placed=())
    ),
    c.AddPendingCopies(copies=(Copy("data/0000000000000001/a.seg", 1, 1),), late=(("data/0000000000000001/a.seg", 2),)),
    c.ElectLeader(group=1, leader=0),
    c.DropCopies(broker=3, answering=(0,)),
    c.AlterBroker(broker=0, rack="a"),
    c.AlterReassignments(partitions=(NewReplicas("u", 0, (0, 1)),), keeps_factor=True),
    c.Report(record=MovedRecord(partitions=(Moved("u", 0, 1, 1),))),
    c.ResetReplicas(),
    c.RegisterBroker(broker=2, directory="f", url="/b2", is_async=True),
    c.Report(record=ErasedRecord(topic_id="u", incomplete=True)),
    c.RemoveBroker(broker=2),
    c.Report(record=WipedRecord(broker=2, directory="f", upto=1)),
    c.AddFormerRoot(url="file:///former"),
    c.DeleteTopic(name="u"),
    c.DeleteTopic(name="typed"),
    c.BeginHistory(history="h", version=1),
)


def carried_out(state: State, command: c.AnyCommand) -> tuple[State, object]:
    """The state after a command, and its reply as it arrives."""
    data = msgspec.json.encode(command)
    received: c.AnyCommand = msgspec.json.decode(data, type=c.AnyCommand)
    decision = received(state, NOW)
    packed = msgspec.json.decode(msgspec.json.encode(received.pack(decision.reply)))
    assert command.unpack(packed) == decision.reply
    return replay_records(state, decision.records), decision.reply


def test_every_command_and_its_reply_survive_the_journey() -> None:
    """A command that was JSON decides as the one that was sent, and its reply comes back as it was."""
    state = next_version(State(), NOW)
    for command in EXAMPLES:
        if isinstance(command, gc.RenewSession):
            command = msgspec.structs.replace(command, generation=state.groups["h"].generation)
        state, _ = carried_out(state, command)
    assert not state.names
    missing = set(get_args(c.Single)) - {type(command) for command in EXAMPLES} - {c.Swap, c.MarkCleaned}
    assert not missing


def test_a_value_of_a_wrong_type_is_named() -> None:
    """No process could read a record with it; a command that is right is."""
    for command in EXAMPLES:
        command.check_types()
    for wrong, says in (
        (c.UpdateFeature(name="metadata.version", level=True), "update_feature: level: expected `int`, got True"),
        (c.CreateTopic(name="t", partitions=1, topic_id="id", replicas=((True,),)), "create_topic: replicas[0][0]: "),
        (c.SetConfigs(name="t", changes={"retention.ms": 5}), "set_configs: changes[...]: expected `str | null`"),  # type: ignore[dict-item]
        (gc.JoinGroup(group="\ud800", member="m"), "join_group: group: '\\ud800' cannot be encoded as UTF-8"),
        (c.FenceBroker(broker=1j), "fence_broker: broker: 1j has a type that the log cannot store"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequest, match=re.escape(says)):
            c.SeveralCommands(commands=(TOPIC, wrong)).check_types()


def test_commands_in_one_are_decided_one_after_the_other_and_all_or_none() -> None:
    """The second sees what the first did; if it is refused, nothing is."""
    state = next_version(State(), NOW)
    state, replies = carried_out(state, c.SeveralCommands(commands=(TOPIC, append())))
    assert replies[1].ranges == {("id", 1): range(7)}  # type: ignore[index]
    with pytest.raises(UnknownTopicOrPartition):
        c.SeveralCommands(commands=(append(1), c.DeleteTopic(name="nope")))(state, NOW)


def test_a_command_names_the_topics_that_it_touches() -> None:
    """Tokens may be limited to topics."""
    state, _ = carried_out(next_version(State(), NOW), TOPIC)
    both = c.SeveralCommands(commands=(append(), c.AddPartitions(name="u", total=2)))
    assert list(both.topics(state)) == ["t", "u"]
    assert list(offsets().topics(state)) == ["t"]


def test_a_command_names_the_groups_that_it_touches() -> None:
    """Tokens may be limited to groups."""
    touched = {type(command): list(command.groups()) for command in EXAMPLES}
    assert {kind: names for kind, names in touched.items() if names} == {
        gc.CommitOffsets: ["g"],
        gc.JoinGroup: ["h"],
        gc.RenewSession: ["h"],
        gc.LeaveGroup: ["h"],
        gc.RemoveMember: ["h"],
        gc.DeleteOffsets: ["g"],
    }
    with_positions = c.Append(commit=msgspec.structs.replace(append().commit, groups=(offsets().commit,)))
    both = c.SeveralCommands(commands=(gc.LeaveGroup(group="h", member="m"), with_positions))
    assert list(with_positions.groups()) == ["g"] and list(both.groups()) == ["g", "h"]


def test_what_a_coordinator_keeps_from_expiry_reaches_each_command() -> None:
    """Alone, or in an atomic set; nobody looks for it if nothing can expire."""
    held = ("g", "id", 1)
    expire, other = c.Expire(held=(("h", "id", 2),)), gc.DeleteOffsets(group="g")
    kept = c.Expire(held=(("h", "id", 2), held))
    assert expire.keeping(lambda: (held,)) == kept
    several = c.SeveralCommands(commands=(other, expire))
    assert several.keeping(lambda: (held,)) == c.SeveralCommands(commands=(other, kept))
    assert TOPIC.keeping(lambda: pytest.fail("not needed")) is TOPIC


def test_the_coordinator_says_how_far_the_metadata_is_copied() -> None:
    """Not the client, alone or in an atomic set."""
    asked = c.Fence(copied=100)
    assert asked.keeping(tuple, 7) == c.Fence(copied=7) and asked.keeping(tuple) == c.Fence()
    both = c.SeveralCommands(commands=(asked, TOPIC))
    assert both.keeping(tuple, 7) == c.SeveralCommands(commands=(c.Fence(copied=7), TOPIC))
