"""The promises about who may commit: holders, transactions, generations, and retries that are recognised."""

from __future__ import annotations

from collections import defaultdict

from simulation.log_sim.constants import Constants
from simulation.verdict import Violation
from spark_log.metadata import records as r
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.state import State

Identity = tuple[str, int, str, int]
"""(producer, epoch, holder, sequence)."""


def identity(commit: r.CommitRecord) -> Identity:
    """The fields that are equal when a commit is retried."""
    return commit.producer, commit.epoch, commit.holder, commit.sequence


class Identities:
    """Epochs, holders and generations, with every value that was ever assigned."""

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._epochs: dict[str, int] = {}
        self._holders: dict[tuple[str, int], str] = {}
        self._former: dict[str, list[str]] = defaultdict(list)
        self._last: dict[tuple[str, int, str], tuple[int, int]] = {}
        """The last sequence of each epoch, and when it was committed."""
        self._open: dict[str, tuple[int, int]] = {}
        """The start and the timeout of each transaction."""
        self._generations: dict[str, int] = {}

    # -------------------------------------------------------------------------------------------------------- producers

    def init(self, record: r.InitProducerRecord, after: State) -> None:
        """A transactional id was taken over."""
        epoch = after.producers[record.producer].epoch
        if epoch <= self._epochs.get(record.producer, -1):
            raise Violation(f"fenced: {record.producer} got epoch {epoch} again")
        self._epochs[record.producer] = epoch
        self._open[record.producer] = (after.time, record.timeout_ms)

    def commit(self, commit: r.CommitRecord, after: State) -> None:
        """A commit took effect in the log."""
        who, producer = identity(commit), commit.producer
        if commit.epoch < self._epochs.get(producer, 0):
            raise Violation(f"fenced: {who} is in, epoch {self._epochs[producer]} is in force")
        if commit.epoch > self._epochs.get(producer, commit.epoch):
            self._former[producer].append(self._holders.get((producer, self._epochs[producer]), ""))
        self._epochs[producer] = commit.epoch
        if self._holders.setdefault((producer, commit.epoch), commit.holder) != commit.holder:
            raise Violation(f"fenced: {who} is in, another holds the epoch")
        if commit.holder and commit.holder in self._former[producer][-self._constants.former_holders :]:
            raise Violation(f"fenced: {who} is in, {commit.holder} was replaced before")
        began, timeout_ms = self._open.pop(producer, (0, 0))
        if timeout_ms and after.time > began + timeout_ms:
            raise Violation(f"timeout: {who} is in {after.time - began} ms after it began, {timeout_ms} are allowed")
        self._last[who[:3]] = (commit.sequence, after.time)

    def expire(self, record: r.ExpireProducersRecord, before: State, after: State, ages: tuple[int, int]) -> None:
        """Producers expired.  ages: the earliest age at which stream producers and plain producers may expire."""
        for name in set(record.producers) - set(after.producers):
            self._epochs.pop(name, None)
            self._former.pop(name, None)
            known = before.producers[name]
            if after.time <= known.time + ages[known.plain]:
                raise Violation(f"expired: {name} is forgotten {after.time - known.time} ms after its last commit")

    def recall(self, commit: r.CommitRecord, reply: Committed, now: int) -> None:
        """A commit was acknowledged as a retry of an earlier one.  now: the log's time."""
        last, time = self._last[identity(commit)[:3]]
        forgettable = commit.birth >= 0 and now > time + self._constants.answer_ms
        if not reply.ranges and commit.slices and commit.sequence == last and not forgettable:
            raise Violation(f"acked: the offsets of {identity(commit)}, the last commit, are forgotten")

    def check_epoch(self, producer: str, epoch: int) -> None:
        """A producer received its epoch."""
        if epoch > self._epochs.get(producer, -1):
            raise Violation(f"acked: epoch {epoch} of {producer} is not in the log")

    # ----------------------------------------------------------------------------------------------------------- groups

    def generation(self, group: str) -> int:
        """The last generation that a group received, even if the group was deleted since."""
        return self._generations.get(group, 0)

    def next_generation(self, group: str, generation: int) -> None:
        """A generation of a group took effect in the log."""
        if generation <= self.generation(group):
            raise Violation(f"fenced: {group} got generation {generation} again")
        self._generations[group] = generation
