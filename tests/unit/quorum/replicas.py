"""Small builders for the tests of one machine: its disk writes immediately, and messages are lists."""

from __future__ import annotations

from random import Random

from spark_log.quorum.machine import Machine
from spark_log.quorum.messages import (
    BeginQuorumEpoch,
    Entry,
    FetchRequest,
    FetchResponse,
    Kind,
    Message,
    Position,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
)
from spark_log.quorum.ready import Config, Ready, Restored

CONFIG = Config()
LATER_MS = CONFIG.fetch_timeout_ms * 3 // 2
ONE, TWO, THREE = VOTERS = tuple(ReplicaKey(number, "a") for number in (1, 2, 3))


def data(*epochs: int) -> tuple[Entry, ...]:
    """Entries of these epochs, from offset 0 on."""
    return tuple(Entry(offset, epoch, Kind.DATA, b"%d" % offset) for offset, epoch in enumerate(epochs))


def replica(
    key: ReplicaKey = ONE, *epochs: int, epoch: int = 0, config: Config = CONFIG, **restored: object
) -> Machine:
    """A replica with entries of these epochs on its disk, of three voters if nothing else is said."""
    values = {"epoch": max([epoch, *epochs]), "voters": VOTERS, "entries": data(*epochs), **restored}
    return Machine(key, Restored(**values), config, Random(key.id), 0)  # type: ignore[arg-type]


def work(machine: Machine, now_ms: int = 0) -> list[Ready]:
    """Let the disk write everything; what the machine gave out meanwhile."""
    found = []
    while True:
        ready = machine.ready()
        found.append(ready)
        if ready.persist is None:
            return found
        machine.persisted(ready.persist.number, now_ms)


def sent(machine: Machine, now_ms: int = 0) -> list[Message]:
    """The messages that the machine sends when everything is durable."""
    return [message for ready in work(machine, now_ms) for message in ready.send]


def give(machine: Machine, message: Message, now_ms: int = 0) -> list[Message]:
    """The messages that a machine sends because of another one."""
    machine.step(message, now_ms)
    return sent(machine, now_ms)


def vote(source: ReplicaKey, target: ReplicaKey, epoch: int, end: Position, pre_vote: bool = False) -> VoteRequest:
    return VoteRequest(source=source, target=target, epoch=epoch, end=end, pre_vote=pre_vote)


def granted(source: ReplicaKey, target: ReplicaKey, epoch: int, pre_vote: bool = False) -> VoteResponse:
    return VoteResponse(source=source, target=target, epoch=epoch, granted=True, pre_vote=pre_vote, leader=None)


def begin(source: ReplicaKey, target: ReplicaKey, epoch: int) -> BeginQuorumEpoch:
    return BeginQuorumEpoch(source=source, target=target, epoch=epoch)


def fetch(
    source: ReplicaKey, target: ReplicaKey, epoch: int, end: Position, high_watermark: int = 0, confirms: int = 0
) -> FetchRequest:
    return FetchRequest(
        source=source, target=target, epoch=epoch, end=end, high_watermark=high_watermark, confirms=confirms
    )


def fetched(source: ReplicaKey, target: ReplicaKey, epoch: int, end: Position, **answer: object) -> FetchResponse:
    values = {"high_watermark": 0, **answer}
    return FetchResponse(source=source, target=target, epoch=epoch, end=end, **values)  # type: ignore[arg-type]


def leader(*epochs: int, epoch: int = 0, config: Config = CONFIG) -> Machine:
    """Node 1, elected by node 2; its log has two entries behind those of `epochs`."""
    machine = replica(ONE, *epochs, epoch=epoch, config=config)
    machine.tick(LATER_MS)
    sent(machine, LATER_MS)
    give(machine, granted(TWO, ONE, machine.epoch, pre_vote=True), LATER_MS)
    give(machine, granted(TWO, ONE, machine.epoch), LATER_MS)
    assert machine.is_leader
    return machine
