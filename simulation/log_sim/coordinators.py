"""Coordinators that take a log over, lead, die, release the log or lose it; an operator who releases it for a dead
coordinator; and the members of a group that a coordinator runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from simulation.log_sim.setting import Simulation
from simulation.log_sim.world import Request, RequestQueue
from spark_log.errors import (
    ClockSkewed,
    CoordinatorNotAvailable,
    GroupInUse,
    IllegalGeneration,
    NotCoordinator,
    StorageUnavailable,
    UnknownTopicOrPartition,
)
from spark_log.groups.group import Roster, RosterMember
from spark_log.journal.context import Context, Proposal
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import Answered, Sleep, Steps
from spark_log.metadata import decide_coordinators as coordinators
from spark_log.metadata.groups.group_commands import CommitOffsets, SetGeneration
from spark_log.metadata.groups.replay_groups import next_generation
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.state import GroupState

SHARED = "shared"
MEMBERS = 2
EARLY_TAKEOVER = 0.05
"""How often a standby takes the log from a coordinator that is alive."""


@dataclass(slots=True)
class _Node:
    """One process.  After a restart it has another address."""

    sim: Simulation
    address: str
    queue: RequestQueue
    context: Context = field(init=False)


def coordinator(sim: Simulation) -> Steps[None]:
    """Stand by, then lead, repeatedly."""
    address = sim.fresh("node")
    node = _Node(sim, address, sim.world.open_queue(address))
    view = yield from sim.load()
    while True:
        yield Sleep(sim.rng.choice((20, 200)))
        view = yield from sim.refresh(view)
        held = view.state.coordinator
        if held.address and sim.rng.random() > EARLY_TAKEOVER:
            continue
        node.context = replace(sim.context, epoch=held.epoch + 1)
        view, leads = yield from _take_over(node, view)
        if leads:
            node.queue.open = True
            try:
                view = yield from _lead(node, view)
            finally:
                _close(node)


def _take_over(node: _Node, view: View) -> Steps[tuple[View, bool]]:
    epoch = node.context.epoch
    take = Proposal(
        lambda state, now: coordinators.decide_take_over(state, epoch - 1, node.address, "host", "cluster"),
        takes_over=True,
    )
    view = yield from node.sim.propose(view, [take], node.context)
    if take.error is None:
        node.sim.oracle.ack_leader(epoch, node.address)
    return view, take.error is None


def _lead(node: _Node, view: View) -> Steps[View]:
    """Lead until another coordinator leads, this one dies, or it releases the log."""
    sim, epoch, generation = node.sim, node.context.epoch, 0
    for _ in range(sim.rng.choice((5, 60, 300))):
        asked = node.queue.take()
        commands = []
        if sim.rng.random() < 0.1:
            # The group's machine does the same: a generation is never reused, even if its write has an unknown outcome.
            generation = max(generation + 1, next_generation(view.state, SHARED))
            commands = [_generation(sim, generation)]
        if asked or commands:
            view = yield from _carry_out(node, view, asked, commands)
        else:
            yield Sleep(sim.rng.choice((1, 20)))
            view = yield from sim.refresh(view)
        if view.state.coordinator.in_force != epoch:
            return view
        view = yield from sim.run_maintenance(view, node.context)
    if sim.rng.random() < 0.5:
        release = Proposal(lambda state, now: coordinators.decide_release(state, epoch), takes_over=True)
        view = yield from sim.propose(view, [release], node.context)
    elif sim.rng.random() < 0.7:
        yield Sleep(sim.rng.choice((500, 3000)))  # the coordinator hangs, and its requests get no answer
    return view


def _close(node: _Node) -> None:
    """A request of this epoch is never carried out under the next one."""
    node.queue.open = False
    for request in node.queue.take():
        node.sim.world.reply(request, _unsure("it leads no more"))


def _carry_out(node: _Node, view: View, asked: list[Request], own: list[Proposal]) -> Steps[View]:
    """Carry out all waiting requests in one batch, and answer them when the batch is committed."""
    commands = [[Proposal(decide, check=True) for decide in request.ask.commands] for request in asked]
    flat = [command for several in commands for command in several]
    try:
        view = yield from node.sim.propose(view, [*flat, *own], node.context)
    except (NotCoordinator, StorageUnavailable, ClockSkewed):
        # The outcome is unknown: another coordinator may lead, or the storage did not answer.
        for request in asked:
            node.sim.world.reply(request, _unsure("broken off"))
        return (yield from node.sim.refresh(view))
    for request, several in zip(asked, commands, strict=True):
        outcomes = [command.reply if command.error is None else command.error for command in several]
        node.sim.world.reply(request, Answered(outcomes))
    unexpected = [one.error for one in own if not isinstance(one.error, GroupInUse | IllegalGeneration | None)]
    assert not unexpected, unexpected
    return view


def _unsure(message: str) -> CoordinatorNotAvailable:
    error = CoordinatorNotAvailable(message)
    error.maybe_applied = True
    return error


def _generation(sim: Simulation, generation: int) -> Proposal:
    """The members of the group rebalance."""
    members = tuple(
        RosterMember(f"{sim.fresh('member')}", None, "client", "host", 10_000, 10_000, b"", b"") for _ in range(MEMBERS)
    )
    return Proposal(SetGeneration(group=SHARED, roster=Roster(generation, members=members)))


def operator(sim: Simulation) -> Steps[None]:
    """Release the log to embedded writers, sometimes from a coordinator that is still alive."""
    while True:
        yield Sleep(sim.rng.choice((1500, 4000)))
        view = yield from sim.load()
        epoch = view.state.coordinator.epoch + 1
        release = Proposal(lambda state, now, epoch=epoch: coordinators.decide_release(state, epoch), takes_over=True)  # type: ignore[misc]
        yield from sim.propose(view, [release])


def member(sim: Simulation, number: int) -> Steps[None]:
    """Read and commit the assigned partitions, under the generation of the assignment."""
    view = yield from sim.load()
    born = _generation_of(view)
    while True:
        yield Sleep(sim.rng.choice((20, 300)))
        view = yield from sim.refresh(view)
        generation = _generation_of(view)
        if generation <= born:
            continue  # an operation that it began before it died may still be running
        keys = [key for key in sorted(view.state.partitions) if key[1] % MEMBERS == number]
        ends = tuple(OffsetEntry(*key, view.state.partitions[key].end) for key in keys)
        yield from sim.pause()
        commit = Proposal(CommitOffsets(commit=GroupCommit(SHARED, generation, ends)))
        view = yield from sim.propose(view, [commit])
        if not isinstance(commit.error, IllegalGeneration | UnknownTopicOrPartition | None):
            raise commit.error
        sim.oracle.seen["shared commits"] += commit.error is None


def _generation_of(view: View) -> int:
    return view.state.groups.get(SHARED, GroupState()).generation
