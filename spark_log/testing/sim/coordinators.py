"""Coordinators that take a log over, lead, die, give it back or lose it, the operator who takes it from one that is gone,
and members of a group that one of them runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
from spark_log.journal.opening import View
from spark_log.journal.proposal import Context, Proposal
from spark_log.journal.store_operations import Answered, Sleep, Steps
from spark_log.metadata import decide as d
from spark_log.metadata.commands import CommitOffsets, SetGeneration
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.replay import next_generation
from spark_log.metadata.state import GroupState
from spark_log.testing.sim.setting import Simulation
from spark_log.testing.sim.world import Desk, Request

SHARED = "shared"
MEMBERS = 2
IMPATIENT = 0.05
"""How often one that stands by takes another for gone that is not."""


@dataclass(slots=True)
class _Node:
    """One process: it comes back under another address."""

    sim: Simulation
    address: str
    desk: Desk
    context: Context = field(init=False)


def coordinator(sim: Simulation) -> Steps[None]:
    """Stands by, leads, and does so again."""
    address = sim.fresh("node")
    node = _Node(sim, address, sim.world.open_desk(address))
    view = yield from sim.load()
    while True:
        yield Sleep(sim.rng.choice((20, 200)))
        view = yield from sim.refresh(view)
        held = view.state.coordinator
        if held.address and sim.rng.random() > IMPATIENT:
            continue
        node.context = replace(sim.context, epoch=held.epoch + 1)
        view, leads = yield from _take_over(node, view)
        if leads:
            node.desk.open = True
            try:
                view = yield from _lead(node, view)
            finally:
                _close(node)


def _take_over(node: _Node, view: View) -> Steps[tuple[View, bool]]:
    epoch = node.context.epoch
    take = Proposal(
        lambda state, now: d.decide_take_over(state, epoch - 1, node.address, "host", "cluster"), takes_over=True
    )
    view = yield from node.sim.propose(view, [take], node.context)
    if take.error is None:
        node.sim.oracle.ack_leader(epoch, node.address)
    return view, take.error is None


def _lead(node: _Node, view: View) -> Steps[View]:
    """Until another one leads, or it dies, or it gives the log back."""
    sim, epoch, generation = node.sim, node.context.epoch, 0
    for _ in range(sim.rng.choice((5, 60, 300))):
        asked = node.desk.take()
        commands = []
        if sim.rng.random() < 0.1:
            # As the group's machine counts: a number is not given twice, though nobody may know whether it was written.
            generation = max(generation + 1, next_generation(view.state, SHARED))
            commands = [_generation(sim, generation)]
        if asked or commands:
            view = yield from _carry_out(node, view, asked, commands)
        else:
            yield Sleep(sim.rng.choice((1, 20)))
            view = yield from sim.refresh(view)
        if view.state.coordinator.in_force != epoch:
            return view
        view = yield from sim.run_upkeep(view, node.context)
    if sim.rng.random() < 0.5:
        release = Proposal(lambda state, now: d.decide_release(state, epoch), takes_over=True)
        view = yield from sim.propose(view, [release], node.context)
    elif sim.rng.random() < 0.7:
        yield Sleep(sim.rng.choice((500, 3000)))  # it hangs; who asks it waits in vain
    return view


def _close(node: _Node) -> None:
    """Nothing that it was asked under this epoch is done under its next one."""
    node.desk.open = False
    for request in node.desk.take():
        node.sim.world.reply(request, _unsure("it leads no more"))


def _carry_out(node: _Node, view: View, asked: list[Request], own: list[Proposal]) -> Steps[View]:
    """What came together shares one batch, and is answered when it is in."""
    commands = [[Proposal(decide, check=True) for decide in request.ask.commands] for request in asked]
    flat = [command for several in commands for command in several]
    try:
        view = yield from node.sim.propose(view, [*flat, *own], node.context)
    except (NotCoordinator, StorageUnavailable, ClockSkewed):
        # Whether it is in is not known: another one may lead, or the storage did not say.
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
    """The members of the group share it out anew."""
    members = tuple(
        RosterMember(f"{sim.fresh('member')}", None, "client", "host", 10_000, 10_000, b"", b"") for _ in range(MEMBERS)
    )
    return Proposal(SetGeneration(group=SHARED, roster=Roster(generation, members=members)))


def operator(sim: Simulation) -> Steps[None]:
    """Gives the log back to embedded writers, sometimes from a coordinator that is alive after all."""
    while True:
        yield Sleep(sim.rng.choice((1500, 4000)))
        view = yield from sim.load()
        epoch = view.state.coordinator.epoch + 1
        release = Proposal(lambda state, now, epoch=epoch: d.decide_release(state, epoch), takes_over=True)  # type: ignore[misc]
        yield from sim.propose(view, [release])


def member(sim: Simulation, number: int) -> Steps[None]:
    """Reads and commits its share of the partitions, under the generation in which it was given them."""
    view = yield from sim.load()
    born = _generation_of(view)
    while True:
        yield Sleep(sim.rng.choice((20, 300)))
        view = yield from sim.refresh(view)
        generation = _generation_of(view)
        if generation <= born:
            continue  # what it did before it died may still be under way in that one
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
