"""The product's constants, replaced by small random ones, so that an event that otherwise happens once in a million
records happens in every run.  The seed decides them.

`StepLimits` are part of the context of an actor that runs maintenance.  The other constants are attributes of modules
of the product.  They are patched for the length of a run, in the same way as a mutation (`mutation.py`) patches a rule.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulation.mutation import Patch
from spark_log.journal import record_wait
from spark_log.journal.maintenance_limits import LIMITS, StepLimits
from spark_log.journal.storage import opening
from spark_log.metadata import replay
from spark_log.metadata.formats import checkpoint_format

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

    def patches(self) -> tuple[Patch, ...]:
        """The patches that set these constants in the product's modules."""
        return (
            Patch(record_wait, "CHECKS_A_LOOK", 0),  # a check takes as long as a look here, which actors draw
            Patch(replay, "ANSWER_MS", self.answer_ms),
            Patch(replay, "FORMER_HOLDERS", self.former_holders),
            Patch(opening, "WAVE_MAX", self.wave_max),
            Patch(opening, "WAVE_FAR", self.wave_far),
            Patch(checkpoint_format, "CHANGES_MIN", self.rows_in_maps),
        )
