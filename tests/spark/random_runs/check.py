"""Checks of one run of the query against the model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_log.model import TopicPartition
from tests.spark.random_runs.model import (
    Checkpoint,
    Committed,
    Loss,
    Record,
    Verdict,
    Violation,
    losses_ahead,
    plan_batch,
    require,
    rows_of,
)

if TYPE_CHECKING:
    from tests.spark.random_runs.run import Run


@dataclass
class Way:
    """How the next run of the query is started."""

    fail_on_data_loss: bool = True
    skip_older: bool = False
    producer_id: str | None = None


class Check:
    """The result of one run of the query, compared with the model."""

    def __init__(self, run: Run, way: Way, before: Checkpoint, after: Checkpoint, message: str, kind: str) -> None:
        self.world, self.way, self.before, self.after = run, way, before, after
        self.message, self.kind = message, kind
        self.is_ahead = max(before.commits, default=-1) > before.latest or (
            before.latest in before.commits and max(before.commits) != before.latest
        )
        """Spark's log of commits has batches that its log of offsets has not."""
        self.executed = sorted(after.commits - before.commits)
        self.written: dict[str, list[str]] = defaultdict(list)

    def run(self) -> None:
        self._plan()
        for number in self.executed:
            self._executed(number)
        if self.kind:
            self._ended_with_error()
        else:
            self._ended_well()
        self._check_rows()

    def _plan(self) -> None:
        """Where batches begin that are planned in this run."""
        for number in sorted(self.after.offsets):
            text = self.after.offsets[number]
            if text in self.world.planned:
                continue
            before = self.after.position(number - 1) if number else None
            batch, losses = plan_batch(self.world.model, self.world.source, before, self.after.position(number))
            require(not (losses and self.way.fail_on_data_loss), f"batch {number} passes over {losses} in silence")
            self.world.planned[text] = batch

    def _rows(self, number: int) -> tuple[Verdict, Committed, list[tuple[TopicPartition, Record]], list[Loss]]:
        batch = self.world.planned[self.after.offsets[number]]
        rows, losses = rows_of(self.world.model, batch)
        values = tuple(record.value for _, record in rows)
        commit = Committed(number, values, batch.position.places, batch.starts)
        verdict = self.world.identities.judge(self.way.producer_id, self._query, commit)
        return verdict, commit, rows, losses

    @property
    def _query(self) -> str:
        return (self.world.checkpoint / "metadata").read_text()

    def _executed(self, number: int) -> None:
        verdict, commit, rows, losses = self._rows(number)
        require(not (losses and self.way.fail_on_data_loss), f"batch {number} left {losses} out in silence")
        match verdict.outcome:
            case "written":
                self.world.identities.write(self.way.producer_id, self._query, commit)
                _add(self.written, rows)
            case "refused":
                require(
                    self.way.skip_older,
                    f"batch {number} is done, and its rows are not in the log (last {verdict.last})",
                )
            case "fenced":
                raise Violation(f"batch {number} was written by a query that another one has replaced")

    def _ended_well(self) -> None:
        require(not self.is_ahead, "a query ended well whose checkpoint has commits without offsets")
        require(self.after.pending is None, f"the query ended, and batch {self.after.pending} is not done")
        at = self.after.position(self.after.latest)
        there = {(tp, topic.id): part.end for tp, topic, part in self.world.model.named(self.world.source.topics)}
        if there:
            require(at.places == there, f"the query ended at {at.places}, expected {there}")
        if self.way.fail_on_data_loss:
            losses = losses_ahead(self.world.model, self.world.source, at)
            require(not losses, f"the query ended well although records are lost: {losses}")

    def _ended_with_error(self) -> None:
        pending = self.after.pending if not self.is_ahead else self.after.latest
        match self.kind:
            case "DataLoss":
                self._explain_loss(pending)
            case "UnknownTopicOrPartition":
                missing = sorted(set(self.world.source.topics) - self.world.model.topics.keys())
                require(not self.world.source.by_pattern and bool(missing), f"nothing explains {self.message}")
                require(any(name in self.message for name in missing), f"{self.message} names none of {missing}")
            case "SequenceConflict":
                self._explain_conflict(pending)
            case "ProducerFenced":
                require(
                    pending is not None and self._rows(pending)[0].outcome == "fenced",
                    f"nothing explains {self.message}",
                )
            case _:
                require(self.is_ahead, f"nothing explains {self.message}")
                if self.after.latest >= 0 and self.kind != "assertion failed":
                    self._doubt(self.after.latest)

    def _explain_loss(self, pending: int | None) -> None:
        require(self.way.fail_on_data_loss, f"failOnDataLoss=false, and yet {self.message}")
        losses = [] if pending is None else self._rows(pending)[3]
        if not losses and self.after.latest >= 0:
            losses = losses_ahead(self.world.model, self.world.source, self.after.position(self.after.latest))
        require(bool(losses), f"nothing is lost, and yet {self.message}")
        require(any(name_of(loss.tp) in self.message for loss in losses), f"{self.message} names none of {losses}")

    def _explain_conflict(self, pending: int | None) -> None:
        require(pending is not None and not self.way.skip_older, f"nothing explains {self.message}")
        assert pending is not None
        verdict = self._rows(pending)[0]
        require(verdict.outcome in ("refused", "either"), f"batch {pending} is {verdict}, and yet {self.message}")
        numbers = set(map(int, re.findall(r"batch(?: of the query in the log)?(?: is)? (\d+)", self.message)))
        require(pending in numbers, f"the message does not name batch {pending}: {self.message}")

    def _doubt(self, pending: int) -> None:
        """Spark refused the checkpoint after the commit: the rows are in, once, if nothing else kept them out."""
        verdict, commit, rows, _ = self._rows(pending)
        if verdict.outcome == "written":
            self.world.identities.write(self.way.producer_id, self._query, commit)
            _add(self.written, rows)

    def _check_rows(self) -> None:
        found = self.world.observe_sink()
        require(found == dict(self.written), f"the sink got {found}, expected {dict(self.written)}")


def _add(written: dict[str, list[str]], rows: Sequence[tuple[TopicPartition, Record]]) -> None:
    for tp, record in rows:
        written[name_of(tp)].append(record.value)


def name_of(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}"
