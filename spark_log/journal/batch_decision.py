"""Decisions on commands that share a batch of the metadata log, each on the state that the ones before it leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.journal.context import Proposal
from spark_log.metadata.decision import Decision
from spark_log.metadata.invariants import new_problems
from spark_log.metadata.maintenance.decide_maintenance import bootstrap_records
from spark_log.metadata.new_names import check_new_names
from spark_log.metadata.records import AnyRecord
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State
from spark_log.runtime.debug import INVARIANTS_VARIABLE, checks_invariants


@dataclass(slots=True)
class Attempt:
    """A batch put at a version, in case a put that seemed lost is found later."""

    before: State
    """The next version, after the records that have been replayed."""
    decisions: list[tuple[Proposal, Decision[Any]]] = field(default_factory=list)
    pending: Sequence[AnyRecord] = ()
    """Its last records, if they have not been replayed."""

    def state(self) -> State:
        """The state after its records."""
        if self.pending:
            self.before, self.pending = replay_records(self.before, self.pending), ()
        return self.before

    def set_replies(self) -> None:
        """Those of its decisions; the batch is in the log."""
        for command, decision in self.decisions:
            command.reply, command.done = decision.reply, True


class DecidedBatch(NamedTuple):
    """The decisions on some commands, all on one state."""

    attempt: Attempt
    records: list[AnyRecord]
    refused: list[tuple[Proposal, SparkLogError]]


def decide_batch(state: State, commands: Sequence[Proposal], now: int, *, again: bool) -> DecidedBatch:
    """Decide each command on the state that the previous ones leave; rejected commands are left out.

    again:  the put of an earlier attempt lost.  Every ms until the next put is time for other writers, so the replay of
            the last records comes after the put.  It takes 10 ms for a swap of a thousand objects.  The first attempt
            has shown that they can be replayed; those of another process (`check`) are always replayed first.

    The first records of a new log precede those of the commands.
    """
    bootstrap = bootstrap_records(state)
    attempt, records, refused = DecidedBatch(Attempt(replay_records(next_version(state, now), bootstrap)), [], [])
    for command in commands:
        if command.done:
            continue
        before = attempt.state()
        try:
            command.check_planned(before)
            decision = command.decide(before, now)
            check_new_names(before, decision.records)
            if command.allow is not None and decision.records:
                command.allow(before)
            if command.check or not again or checks_invariants():
                attempt.before = _state_after(before, decision.records)
            else:
                attempt.pending = decision.records
        except SparkLogError as error:
            refused.append((command, error))
            continue
        except Exception as error:
            if not command.check:
                raise
            refused.append((command, InvalidRequest(f"the command is invalid: {error!r}")))
            continue
        records += decision.records
        attempt.decisions.append((command, decision))
    return DecidedBatch(attempt, [*bootstrap, *records] if records else [], refused)


def _state_after(before: State, records: Sequence[AnyRecord]) -> State:
    """The state after the records of a command.  Raises InvalidRequest if they break a rule of the log, and these are
    checked.
    """
    after = replay_records(before, records)
    if checks_invariants() and (broken := new_problems(before, after)):
        raise InvalidRequest(
            f"nothing was written, because the change would break a rule of the log: {broken[0]}; this is a fault of "
            f"pylog: report this line, or unset {INVARIANTS_VARIABLE} to write the change"
        )
    return after
