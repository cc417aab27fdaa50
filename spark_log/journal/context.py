"""The environment in which a process decides, and the decisions that it wants written to the metadata log.

They are written by `commit_protocol.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spark_log.errors import CommitUnknown, ConcurrentChange, CoordinatorNotAvailable, SparkLogError, UploadFenced
from spark_log.journal.maintenance_limits import LIMITS, StepLimits
from spark_log.journal.storage.clock_check import ClockWatch
from spark_log.metadata.commands import Append
from spark_log.metadata.decision import Decision
from spark_log.metadata.set_backs import lineage_of
from spark_log.metadata.state import State
from spark_log.runtime.clock import Clock
from spark_log.runtime.threads import SYSTEM_THREADS, Threads

DecisionRule = Callable[[State, int], Decision[Any]]
"""A decision with its command: (state, now in ms)."""


@dataclass(frozen=True, slots=True)
class Context:
    """The environment of a process: clock, randomness, identity."""

    clock: Clock
    rng: random.Random
    epoch: int = 0
    """The coordinator epoch of this process; 0: it is not a coordinator."""
    served: bool = False
    """Changes go through a coordinator, even while there is none."""
    watch: ClockWatch = field(default_factory=ClockWatch, compare=False)
    coordinator_wait_ms: int = 30_000
    """How long a change waits for a coordinator."""
    tag: str = ""
    """In the names of the objects that this process uploads (`metadata/object_tags.py`)."""
    limits: StepLimits = LIMITS
    threads: Threads = SYSTEM_THREADS

    def random(self) -> random.Random:
        """A separate generator for many numbers; not for those that others must not guess."""
        return random.Random(self.rng.getrandbits(64))

    def unique(self) -> str:
        """A random name, 64 bits."""
        return f"{self.rng.getrandbits(64):016x}"


@dataclass(slots=True)
class Proposal:
    """A decision to be written to the log, and its outcome."""

    decide: DecisionRule
    check: bool = False
    """It came from outside: try to replay its records before they are written."""
    allow: Callable[[State], None] | None = None
    """Raises the error of a client that may not write what was decided on a state; None: it may write everything."""
    takes_over: bool = False
    """It changes who writes the log, so it is decided even while another process leads."""
    releases: bool = False
    """It releases the log."""
    reply: Any = None
    error: SparkLogError | None = None
    done: bool = False
    sent: bool = False
    """It was sent to a coordinator or put into the log, and the outcome is unknown."""
    deadline_ms: int | None = None
    """Limits the wait for a coordinator, on the monotonic clock; None: `Context.coordinator_wait_ms`."""
    set_back: str | None = None
    """The `Lineage.set_back` of the state by which it was planned; None: it may be decided after another one."""

    def check_planned(self, state: State) -> None:
        """Raises ConcurrentChange if the log was set back since, which may lack what was read; UploadFenced for an
        append, which may lack what was written."""
        if self.set_back in (None, lineage_of(state).set_back):
            return
        if isinstance(self.decide, Append):
            raise UploadFenced(
                "the log was set back to an older copy since this upload began, and may lack its objects: upload again"
            )
        raise ConcurrentChange(
            "the log was set back to an older copy meanwhile, which may lack what was read before, so nothing was "
            "changed: run it again; a consumer has to poll() first"
        )


def is_led_elsewhere(state: State, context: Context) -> bool:
    """Whether another process writes the log."""
    return state.coordinator.in_force != context.epoch or (context.served and not context.epoch)


def unanswered(error: SparkLogError, sent: bool) -> SparkLogError:
    """The error of a change that no coordinator has answered."""
    if not sent:
        return CoordinatorNotAvailable(str(error))
    unknown = CommitUnknown(f"no answer to a change, which may have been applied: {error}")
    unknown.__cause__ = error
    return unknown
