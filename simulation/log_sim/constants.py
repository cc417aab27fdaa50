"""The product's constants, replaced by small random ones, so that an event that otherwise happens once in a million
records happens in every run.  The seed decides them.

`StepLimits` are part of the context of an actor that runs maintenance.  The other constants are attributes of modules
of the product.  They are patched for the length of a run, in the same way as a mutation (`mutation.py`) patches a rule.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from simulation.mutation import Patch
from spark_log.journal import other_lines, record_wait
from spark_log.journal.maintenance_limits import LIMITS, StepLimits
from spark_log.journal.storage import beyond_the_end, opening, storage_log
from spark_log.journal.storage.beyond_the_end import Beyond
from spark_log.journal.storage.log_identity import LogIdentity
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import Steps
from spark_log.metadata import replay
from spark_log.metadata.formats import checkpoint_format
from spark_log.metadata.state import State
from spark_log.store.object_names import log_key, log_version

CLOCK_SKEW_MAX_MS = 60_000
"""`log.clock.skew.max.ms`: longer than any answer of the store takes, and much shorter than the offset of a wrong
clock.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The constants of one run."""

    limits: StepLimits
    answer_ms: int
    former_holders: int
    wave_max: int
    wave_far: int
    rows_in_maps: int
    """Number of changed rows that a checkpoint leaves out of columns."""
    read_ahead: int
    """Number of versions that are read with the checkpoint in runs that share rounds."""

    @classmethod
    def draw(cls, rng: random.Random) -> Constants:
        """Draw small constants."""
        inline, changes_max = rng.choice(((4, 1), (12, 4))), rng.choice((1, 2, 1000))
        limits = StepLimits(
            inline_slices=inline[0],
            inline_per_partition=inline[1],
            changes_max=changes_max,
            clean_keys=3 if changes_max < 1000 else LIMITS.clean_keys,
            remembered_slices=0,
            dropped_inline=rng.choice((1, 2, 3)),
            deletes_max=rng.choice((1, 5, 1000)),
        )
        return cls(
            limits=limits,
            answer_ms=rng.choice((0, 900_000)),
            former_holders=rng.choice((2, 100)),
            wave_max=rng.choice((2, 8, 64)),
            wave_far=rng.choice((2, 32)),
            rows_in_maps=2 if inline[0] == 4 else checkpoint_format.CHANGES_MIN,
            read_ahead=rng.choice((1, 4)),
        )

    def patches(self, *, looks_back: bool = False) -> tuple[Patch, ...]:
        """The patches that set these constants in the product's modules.

        looks_back:  processes read records again that they have replayed, because the log may be set back.
        """
        return (
            *(() if looks_back else NO_LOOKS_BACK),
            Patch(record_wait, "CHECKS_A_LOOK", 0),  # a check takes as long as a look here, which actors draw
            Patch(replay, "ANSWER_MS", self.answer_ms),
            Patch(replay, "FORMER_HOLDERS", self.former_holders),
            Patch(opening, "WAVE_MAX", self.wave_max),
            Patch(opening, "WAVE_FAR", self.wave_far),
            Patch(checkpoint_format, "CHANGES_MIN", self.rows_in_maps),
        )


def _stay(view: View) -> Steps[View]:
    """The log is never set back: the view has its records."""
    return view
    yield


def _indirect(cluster_id: str, url: str, is_mirror: bool, _: bool) -> LogIdentity:
    """A get costs as much here as any request."""
    return LogIdentity(cluster_id, url, is_mirror)


def _no_strays(state: State, names: Iterable[str]) -> Steps[Beyond]:
    """No client of a log that was set back has left a record: each one behind the state follows it."""
    return Beyond({}, [name for name in names if log_version(name) > state.version])
    yield


def _later(state: State) -> Steps[Beyond]:
    """A version behind the state is there, so the next one was, too."""
    return Beyond({}, [log_key(state.version + 2)])
    yield


NO_LOOKS_BACK = (
    Patch(storage_log, "in_line", _stay),
    Patch(storage_log, "LogIdentity", _indirect),
    Patch(other_lines, "records_beyond", _no_strays),
    Patch(beyond_the_end, "records_beyond", _no_strays),
    Patch(opening, "listed_beyond", _later),
)
"""Without the reads that notice a log which was set back.  Here they take time and meet faults, so they hide what other
missing rules break (docs/decisions/0148-records-behind-the-end.md).
"""
