"""Kafka's behaviour as data: every case of tests/vectors, through the command that runs such files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulation.vectors.__main__ import main
from simulation.vectors.group_vectors import run_scenario

VECTORS = Path(__file__).parents[1] / "vectors"


# Promise: service.md#groups
@pytest.mark.parametrize("kind", ["assignors", "group_protocol"])
def test_all_cases_pass(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The file's cases, all of them, and none fails."""
    status = main([kind, str(VECTORS / f"{kind}.json")])
    assert capsys.readouterr().out.splitlines()[-1].endswith(" passed, 0 failed")
    assert status == 0


def test_timers_that_are_late_do_the_same() -> None:
    """A delayed coordinator finds all timers due at the same time: the scenarios end as they do on time."""
    scenarios = json.loads((VECTORS / "group_protocol.json").read_text())["scenarios"]
    results = [run_scenario(scenario, late=True) for scenario in scenarios]
    assert len(results) == 52
    assert [result for result in results if not result.passed] == []


def test_an_answer_that_differs_is_a_failed_case() -> None:
    """The scenario stops there, and names the step."""
    step = {
        "op": "heartbeat",
        "group": "g",
        "member_id": "m",
        "generation": 1,
        "group_instance_id": None,
        "expect": {"error": "NONE"},
    }
    case = run_scenario({"id": "x", "config": {}, "steps": [step]})
    assert (case.name, case.expected, case.found) == (
        "x step 1 (heartbeat)",
        {"error": "NONE"},
        {"error": "UNKNOWN_MEMBER_ID"},
    )
