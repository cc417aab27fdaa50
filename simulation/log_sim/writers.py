"""Actors that commit: plain writers, writers that share a batch, streaming writers, writers that hand an identity over,
and transactional writers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from simulation.log_sim.promises.identities import identity as identity_of
from simulation.log_sim.setting import Simulation
from simulation.verdict import Violation
from spark_log.client.producer.commit import Identity
from spark_log.errors import (
    ClockSkewed,
    CoordinatorNotAvailable,
    IllegalGeneration,
    ProducerFenced,
    SequenceConflict,
    StorageUnavailable,
    TransactionTimedOut,
    UnknownProducerId,
    UnknownTopicOrPartition,
    UploadFenced,
)
from spark_log.journal.context import Proposal
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.metadata.commands import AbortTransaction, Append, InitProducer
from spark_log.metadata.commits.decide_transactional_ids import epoch_of_holder
from spark_log.metadata.records import CommitRecord, GroupCommit, OffsetEntry
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import State
from spark_log.store.object_names import LOG, log_version

COMMIT_TRIES = 5
BATCHES = 13
"""Identity of a streaming query."""


class WriterOutcome(Enum):
    """The outcome of a commit, as its writer knows it."""

    DONE = "done"
    AGAIN = "again"
    """Certainly refused: upload again under the same identity."""
    REFUSED = "refused"
    """Certainly fenced: a newer owner exists."""
    UNKNOWN = "unknown"


def attempt(
    sim: Simulation, view: View, commits: Sequence[CommitRecord], *, skip_older: bool = False
) -> Steps[tuple[View, list[WriterOutcome]]]:
    """Commit uploads in one batch, retrying for as long as a client does."""
    history = history_of(view.state)
    commands = [_Command(Append(commit=commit, skip_older=skip_older, history=history)) for commit in commits]
    for _ in range(COMMIT_TRIES):
        waiting = [command for command in commands if not command.done]
        try:
            view = yield from sim.propose(view, waiting)
            break
        except (StorageUnavailable, CoordinatorNotAvailable, ClockSkewed):
            for command in commands:
                command.unsure |= not command.done
    return view, [_outcome(sim, commit, command) for commit, command in zip(commits, commands, strict=True)]


@dataclass(slots=True)
class _Command(Proposal):
    """A command that an earlier try, without an answer, may have committed."""

    unsure: bool = False


def _outcome(sim: Simulation, commit: CommitRecord, command: _Command) -> WriterOutcome:
    error = command.error
    # A retried commit is recognised as long as its producer is the same, whatever else has changed.
    if not command.done or isinstance(error, UnknownProducerId):
        sim.oracle.seen["unknown"] += 1
        return WriterOutcome.UNKNOWN
    if isinstance(error, ProducerFenced | TransactionTimedOut) and (error.maybe_applied or command.unsure):
        return WriterOutcome.REFUSED
    if command.error is None:
        sim.oracle.ack(commit, command.reply)
        return WriterOutcome.DONE
    if isinstance(error, SequenceConflict):  # payloads are drawn again, so a retried batch may have other rows
        if identity_of(commit) not in sim.oracle.committed:
            raise Violation(f"lost: {identity_of(commit)} was refused and is not in the log: {error}")
        return WriterOutcome.DONE
    sim.oracle.refuse(commit)
    if isinstance(command.error, UploadFenced | UnknownTopicOrPartition):
        return WriterOutcome.AGAIN
    if isinstance(command.error, ProducerFenced | IllegalGeneration | TransactionTimedOut):
        return WriterOutcome.REFUSED
    raise Violation(f"progress: {type(command.error).__name__}: {command.error}")


def identified(commit: CommitRecord, identity: Identity, groups: Sequence[GroupCommit] = ()) -> CommitRecord:
    """An upload under an identity."""
    return msgspec.structs.replace(
        commit,
        producer=identity.producer,
        epoch=identity.epoch,
        sequence=identity.sequence,
        birth=identity.birth,
        dense=identity.dense,
        holder=identity.holder,
        groups=tuple(groups),
    )


def write(sim: Simulation, view: View, identity: Identity) -> Steps[tuple[View, WriterOutcome]]:
    """Upload and commit until the commit is in the log or fenced."""
    while True:
        view = yield from sim.peek(view)
        commit = yield from sim.upload(view, sim.fresh("p"))
        commit = identified(commit, identity, _some_positions(sim, view))
        view, (outcome,) = yield from attempt(sim, view, [commit])
        if outcome is not WriterOutcome.AGAIN:
            return view, outcome


def _some_positions(sim: Simulation, view: View) -> tuple[GroupCommit, ...]:
    """Now and then a commit carries the positions of a group, not fenced."""
    if sim.rng.random() < 0.8:
        return ()
    key = min(view.state.partitions)
    return (GroupCommit("with-records", -1, (OffsetEntry(*key, sim.rng.randrange(100)),)),)


class PlainIdentity:
    """Draws ids as `client.commit.PlainProducer` does."""

    def __init__(self, sim: Simulation, name: str) -> None:
        self._sim, self._name = sim, name
        self._producer = ""
        self._birth = self._sequence = 0

    def next(self, state: State) -> Identity:
        if not self._producer or (self._sequence and self._producer not in state.producers):
            self._producer, self._birth, self._sequence = self._sim.fresh(f"{self._name}."), state.version, 0
        return Identity(producer=self._producer, sequence=self._sequence, birth=self._birth)

    def learn(self, outcome: WriterOutcome) -> None:
        if outcome is WriterOutcome.DONE:
            self._sequence += 1
        elif outcome is not WriterOutcome.AGAIN:
            self._producer = ""


def plain_writer(sim: Simulation, name: str) -> Steps[None]:
    """A random producer id with sequences from 0.  A refused payload may be dropped; the next takes its sequence."""
    view = yield from sim.load()
    identity, left = PlainIdentity(sim, name), sim.rng.randint(4, 14)
    while left > 0:
        if sim.rng.random() < 0.5:
            view, outcome = yield from write(sim, view, identity.next(view.state))
        else:
            commit = yield from sim.upload(view, sim.fresh("p"))
            view, (outcome,) = yield from attempt(sim, view, [identified(commit, identity.next(view.state))])
        identity.learn(outcome)
        left -= outcome is WriterOutcome.DONE
        view = yield from _between(sim, view)


def late_writers(sim: Simulation, name: str) -> Steps[None]:
    """Two writers that slept with one old view.  The first put takes the name of the last record that was deleted, and
    the second writer finds that.
    """
    while True:
        yield Sleep(sim.rng.choice((50, 500)))
        view, commits = (yield from sim.load()), []
        for _ in range(2):
            commit = yield from sim.upload(view, sim.fresh("p"))
            commits.append(identified(commit, PlainIdentity(sim, name).next(view.state)))
        first = min(map(log_version, sim.world.store.files[LOG]))
        if first < 4:
            continue
        old = View("", sim.oracle.states[first - 2])
        yield from attempt(sim, old, commits[:1])
        yield from attempt(sim, (yield from sim.peek(old)), commits[1:])


def batching_writer(sim: Simulation, name: str) -> Steps[None]:
    """Two producers of one process, whose commits share a batch."""
    view = yield from sim.load()
    identities = [PlainIdentity(sim, f"{name}a"), PlainIdentity(sim, f"{name}b")]
    for _ in range(sim.rng.randint(2, 6)):
        commits = []
        for identity in identities:
            commit = yield from sim.upload(view, sim.fresh("p"))
            commits.append(identified(commit, identity.next(view.state)))
        view, outcomes = yield from attempt(sim, view, commits)
        for identity, outcome in zip(identities, outcomes, strict=True):
            identity.learn(outcome)
        view = yield from _between(sim, view)


def _between(sim: Simulation, view: View) -> Steps[View]:
    view = yield from sim.run_maintenance(view)
    yield from sim.pause()
    return (yield from sim.refresh(view)) if sim.rng.random() < 0.3 else view


def streaming_writer(sim: Simulation, query: str) -> Steps[None]:
    """Every fourth batch is empty.  A new incarnation replays as Spark does: the last recorded batch, or the one after
    it.
    """
    view = yield from sim.load()
    for batch in range(_first_batch(sim, query), BATCHES + 1):
        if batch % 4:
            outcome = WriterOutcome.UNKNOWN
            while outcome is WriterOutcome.UNKNOWN:
                view, outcome = yield from write(sim, view, Identity(producer=query, sequence=batch, dense=False))
            if outcome is not WriterOutcome.DONE:
                raise Violation(f"progress: batch {batch} of {query} was {outcome.value}")
            _record(sim, query, batch)
            view = yield from sim.run_maintenance(view)
        yield from sim.pause()


def _first_batch(sim: Simulation, query: str) -> int:
    return max(1, sim.progress.get(query, 0) + sim.rng.randint(0, 1))


def _record(sim: Simulation, query: str, batch: int) -> None:
    sim.progress[query] = max(batch, sim.progress.get(query, 0))


def application(sim: Simulation, name: str) -> Steps[None]:
    """Write versions of an application, some twice.  A repeat is skipped, and returns its offsets while they are
    remembered.
    """
    view, done = (yield from sim.load()), list[int]()
    while (version := sim.progress.get(name, 0)) < BATCHES:
        sim.progress[name] = version + 1  # an unknown outcome: not retried, as a later version may be in the log
        for number in (version, *done[-4:][:1]):
            commit = yield from sim.upload(view, sim.fresh("p"))
            commit = identified(commit, Identity(producer=name, sequence=number, dense=False))
            view, (outcome,) = yield from attempt(sim, view, [commit], skip_older=True)
            if number == version and outcome is WriterOutcome.DONE:
                done.append(version)
            view = yield from _between(sim, view)


def handover_writer(sim: Simulation, producer: str) -> Steps[None]:
    """A named producer: the same query restarted, a new query, which fences the previous one, or an earlier query."""
    view = yield from sim.load()
    for _ in range(sim.rng.randint(1, 4)):
        queries = sim.progress.setdefault(f"{producer} queries", 1)
        if sim.rng.random() < 0.5:
            queries = sim.progress[f"{producer} queries"] = queries + 1
        query = f"{producer}.query{queries if sim.rng.random() < 0.7 else sim.rng.randint(1, queries)}"
        view = yield from _write_batches(sim, view, producer, query)


def _write_batches(sim: Simulation, view: View, producer: str, query: str) -> Steps[View]:
    """Write the batches of a query until another one has the identity, or it stops."""
    first = _first_batch(sim, query)
    for batch in range(first, first + sim.rng.randint(1, 4)):
        outcome = WriterOutcome.UNKNOWN
        while outcome is WriterOutcome.UNKNOWN:
            view = yield from sim.refresh(view)
            try:
                epoch = epoch_of_holder(view.state, producer, query)
            except ProducerFenced:
                return view
            identity = Identity(producer=producer, sequence=batch, epoch=epoch, holder=query, dense=False)
            view, outcome = yield from write(sim, view, identity)
        if outcome is not WriterOutcome.DONE:
            return view
        _record(sim, query, batch)
        yield from sim.pause()
    return view


def transactional_writer(sim: Simulation, producer: str) -> Steps[None]:
    """Take a transactional id over, commit, repeat; other writers do the same."""
    view = yield from sim.load()
    for _ in range(3):
        init = Proposal(InitProducer(producer=producer, timeout_ms=sim.rng.choice((0, 30, 300))))
        try:
            view = yield from sim.propose(view, [init])
        except (StorageUnavailable, CoordinatorNotAvailable, ClockSkewed):
            continue
        sim.oracle.identities.check_epoch(producer, init.reply)
        if sim.rng.random() < 0.1:
            view = yield from sim.propose(view, [Proposal(AbortTransaction(producer=producer, epoch=init.reply))])
            continue
        outcome, sequence = WriterOutcome.DONE, 0
        while outcome is WriterOutcome.DONE and sequence < 3:
            view, outcome = yield from write(
                sim, view, Identity(producer=producer, epoch=init.reply, sequence=sequence)
            )
            sequence += 1
            yield from sim.pause()
        view = yield from sim.run_maintenance(view)
