"""A small log over days of simulated time: `make sim` has a month of it."""

from __future__ import annotations

import pytest

from simulation.month import SILENT_DAYS, Month, excesses, main, unrest

DAYS = 4


# Promise: testing.md#simulations
def test_what_a_small_log_needs_does_not_grow() -> None:
    """Appends, retention, merges, fences, collection and checkpoints, for days; then silence."""
    month = Month(seed=0)
    assert excesses(list(month.days(DAYS))) == []
    *_, last = month.silence(SILENT_DAYS)
    assert unrest(last) == []


def test_growth_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code of the command says whether the bounds held."""
    (day,) = Month(seed=1).days(1)
    grown = day._replace(most=day.most._replace(data_files=2 * day.most.data_files))
    assert excesses([day, day, grown])[0].startswith("data_files grew")
    assert main(["--days", "1"]) == 0
    assert "checkpoint_bytes" in capsys.readouterr().out
