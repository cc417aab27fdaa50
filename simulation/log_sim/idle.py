"""The final state of an abandoned log while maintenance continues.

Only what is needed remains: every unneeded object, log record and checkpoint, and every expired producer and group, is
removed.  After that, maintenance writes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.log_sim.erasure import check_copies
from simulation.log_sim.readers_and_maintenance import expire
from simulation.log_sim.setting import RETENTIONS_MS, Simulation
from simulation.verdict import Violation
from spark_log.journal import dropped_lists, garbage_collection, maintenance, sealing
from spark_log.journal.context import Proposal
from spark_log.journal.maintenance_limits import LIMITS
from spark_log.journal.storage import opening
from spark_log.journal.storage.opening import KEPT_CHECKPOINTS, View
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.metadata.commands import SetConfigs
from spark_log.metadata.decide_coordinators import decide_release
from spark_log.metadata.state import State
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG

ROUNDS = 4
"""After this many rounds of maintenance, each a fence age after a change, no work is left."""
FOREVER_MS = 100 * 86_400_000
"""Longer than every retention time."""


def abandon(sim: Simulation) -> Steps[None]:
    """Check the promises about an abandoned log."""
    yield Sleep(max(RETENTIONS_MS))  # records that expire between the rounds would be dropped too late for the check
    view = yield from _release(sim)
    view = yield from _rounds(sim, view)
    _check_space(sim, view.state)
    if sim.erases:
        check_copies(sim)
    yield Sleep(FOREVER_MS)
    view = yield from _rounds(sim, view)
    _check_space(sim, view.state)
    _check_forgotten(view.state)
    yield from _check_quiet(sim, view)


def _release(sim: Simulation) -> Steps[View]:
    """The coordinator, if there was one, has gone."""
    view = yield from sim.load()
    epoch = view.state.coordinator.epoch + 1
    release = Proposal(lambda state, now: decide_release(state, epoch), takes_over=True)
    return (yield from sim.propose(view, [release]))


def _rounds(sim: Simulation, view: View) -> Steps[View]:
    """Run maintenance with a change of the log before each round, because the fence of an idle log does not move."""
    for _ in range(ROUNDS):
        yield Sleep(sim.age + 1)
        size = 1 + sim.oracle.state.version
        configs = {"retention.ms": None, "retention.bytes": None, "max.message.bytes": str(size)}
        change = Proposal(SetConfigs(name="t0", changes=configs))
        view = yield from sim.propose(view, [change])
        assert change.error is None, change.error
        yield Sleep(sim.age + 1)
        view = yield from _maintenance(sim, view)
    return view


def _maintenance(sim: Simulation, view: View) -> Steps[View]:
    """The duties of `pylog maintain` except merging."""
    context = replace(sim.context, limits=replace(LIMITS, dropped_inline=sim.constants.limits.dropped_inline))
    view = yield from expire(sim, view)
    view, _ = yield from sim.decided(view, sealing.prune(view.state, context))
    view, _ = yield from sim.decided(view, maintenance.fence_and_expire(view.state, context))
    yield from garbage_collection.collect(view.state, context)
    view, _ = yield from sim.decided(view, sealing.seal(view.state, context))
    view, _ = yield from sim.decided(view, dropped_lists.list_dropped(view.state, context))
    log = sim.log_of(context)
    view = yield from log.checkpoint(view)
    yield from log.truncate(view)
    return view


def _check_space(sim: Simulation, state: State) -> None:
    """Every stored object is one that the state refers to."""
    oracle, files = sim.oracle, sim.world.store.files
    unnamed = sorted(files[DATA].keys() - oracle.referenced().keys())
    if unnamed:
        raise Violation(f"idle: {len(unnamed)} objects that nothing refers to are left, such as {unnamed[0]}")
    if len(files[CHECKPOINTS]) > KEPT_CHECKPOINTS:
        raise Violation(f"idle: checkpoints are left: {sorted(files[CHECKPOINTS])}")
    below = sorted(key for key in files[LOG] if int(key.removeprefix(LOG)[:20]) <= state.fence)
    if below:
        raise Violation(f"idle: {len(below)} records below the fence at {state.fence} are left, such as {below[0]}")


def _check_forgotten(state: State) -> None:
    """Expired producers and groups are forgotten."""
    left: dict[str, list[Any]] = {
        "producers": list(state.producers),
        "groups": list(state.groups),
        "dropped objects": list(state.dropped),
        "lists of dropped objects": list(state.dropped_lists),
        "forgotten positions": list(state.forgotten),
        "deleted topics": [topic.name for topic in state.topics.values() if topic.deleted],
    }
    for what, names in left.items():
        if names:
            raise Violation(f"idle: {what} are still remembered: {names[:3]}")


def _check_quiet(sim: Simulation, view: View) -> Steps[None]:
    """Maintenance of an idle log reaches an end, and so do the writes of a process that follows the log."""
    before, following = 0, view
    for number in range(4):
        yield Sleep(sim.age + 1)
        yield from _maintenance(sim, (yield from sim.load()))
        following = yield from opening.poll(following, relist=False)
        following = yield from sim.run_maintenance(following)
        before = before if number else sim.world.store.writes
    written = sim.world.store.writes - before
    if written:
        raise Violation(f"idle: {written} objects were written while nothing happened")
