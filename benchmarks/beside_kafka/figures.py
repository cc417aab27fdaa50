"""From rounds to medians, ratios and a table.  Plain values in, plain values out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

OURS, OTHER, CEILING, BESIDE = "pylog", "kafka", "null", ("python", "parquet", "delta")
HEAD = ("what", "settings", "pylog", "Kafka", "times as good", "to reach", "of null", CEILING, *BESIDE)


class Round(NamedTuple):
    """One run of one side."""

    seconds: float
    cpu_seconds: float
    """User and system time of all processes involved."""


class Part(NamedTuple):
    """The measurements of one kind of work under one set of settings."""

    name: str
    title: str
    settings: str
    rows: int
    """Rows that one round moves."""
    rounds: Mapping[str, Sequence[Round]]
    """Rounds by side; all sides ran in turn."""
    memory: Mapping[str, Mapping[str, float]]
    """Peak memory of one round in MB, by side and kind of process."""
    target: float | None = None
    """The target: how many times as fast as Kafka."""
    of_null_target: float | None = None


class Latency(NamedTuple):
    """Time from the append of a record to its arrival behind a running query, in milliseconds."""

    settings: str
    sides: Mapping[str, Sequence[float]]


class Fact(NamedTuple):
    """A counted figure; less is better."""

    title: str
    settings: str
    sides: Mapping[str, float]
    target: float | None = None


def rate(part: Part, side: str) -> float:
    """Rows a second."""
    return part.rows / statistics.median(one.seconds for one in part.rounds[side])


def cpu_per_million(part: Part, side: str) -> float:
    """CPU seconds per million rows."""
    return statistics.median(one.cpu_seconds for one in part.rounds[side]) / part.rows * 1e6


def times_as_fast(part: Part, side: str, other: str) -> float:
    """The median of the ratios pair by pair: when the machine slows down, both sides of a pair slow down."""
    pairs = zip(part.rounds[side], part.rounds[other], strict=True)
    return statistics.median(b.seconds / a.seconds for a, b in pairs)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value with at least `percent` of the values at or below it."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


# ------------------------------------------------------------------------------------------------------------ the table


def table(parts: Sequence[Part], latencies: Sequence[Latency], facts: Sequence[Fact]) -> str:
    """Everything as one Markdown table, one line for each kind of work and set of settings."""
    rows = [_speed(part) for part in parts]
    rows += [_percentile(latency, percent) for latency in latencies for percent in (50, 99)]
    rows += [_less(fact) for fact in [*_cpu(parts), *_memory(parts), *facts]]
    return markdown([HEAD, *rows])


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Align the columns; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _row(
    title: str, settings: str, sides: Mapping[str, float], ratio: float | None, to_reach: str, of_null: str = ""
) -> tuple[str, ...]:
    shown = {side: number(value) for side, value in sides.items()}
    good = "" if ratio is None else f"{ratio:.2f}"
    ours = [shown.get(OURS, ""), shown.get(OTHER, ""), good, to_reach, of_null]
    return (title, settings, *ours, *(shown.get(side, "") for side in (CEILING, *BESIDE)))


def _speed(part: Part) -> tuple[str, ...]:
    sides = {side: rate(part, side) for side in part.rounds}
    ratio = times_as_fast(part, OURS, OTHER) if {OURS, OTHER} <= set(sides) else None
    of_null = f"{times_as_fast(part, OURS, CEILING):.2f}" if {OURS, CEILING} <= set(sides) else ""
    if of_null and part.of_null_target:
        of_null += f" (≥ {part.of_null_target:g})"
    return _row(f"{part.title}, rows/s", part.settings, sides, ratio, _at_least(part.target), of_null)


def _percentile(latency: Latency, percent: int) -> tuple[str, ...]:
    sides = {side: percentile(values, percent) for side, values in latency.sides.items()}
    return _less(Fact(f"record in → query → record out, p{percent}, ms", latency.settings, sides, 2))


def _cpu(parts: Sequence[Part]) -> list[Fact]:
    return [
        Fact(
            f"{part.title}, CPU s a million rows",
            part.settings,
            {side: cpu_per_million(part, side) for side in part.rounds},
            2,
        )
        for part in parts
    ]


def _memory(parts: Sequence[Part]) -> list[Fact]:
    return [
        Fact(
            f"{part.title}, peak MB of all processes",
            part.settings,
            {side: sum(kinds.values()) for side, kinds in part.memory.items()},
        )
        for part in parts
        if part.memory
    ]


def _less(fact: Fact) -> tuple[str, ...]:
    sides = fact.sides
    ratio = sides[OTHER] / sides[OURS] if sides.get(OURS) and OTHER in sides else None
    return _row(fact.title, fact.settings, sides, ratio, _at_least(fact.target))


def _at_least(target: float | None) -> str:
    return "" if target is None else f"≥ {target:g}"


# -------------------------------------------------------------------------------------------------------------- as JSON


def as_json(parts: Sequence[Part], latencies: Sequence[Latency], facts: Sequence[Fact]) -> dict[str, Any]:
    """All measurements, round by round, and the figures that the table derives from them."""
    return {
        "parts": [_part_as_json(part) for part in parts],
        "latencies": [
            {
                "settings": latency.settings,
                "p50_ms": {side: percentile(values, 50) for side, values in latency.sides.items()},
                "p99_ms": {side: percentile(values, 99) for side, values in latency.sides.items()},
                "ms": {side: list(values) for side, values in latency.sides.items()},
            }
            for latency in latencies
        ],
        "facts": [fact._asdict() for fact in facts],
    }


def _part_as_json(part: Part) -> dict[str, Any]:
    others = [side for side in part.rounds if side != OURS]
    return {
        "name": part.name,
        "settings": part.settings,
        "rows": part.rows,
        "rows_per_second": {side: rate(part, side) for side in part.rounds},
        "cpu_seconds_per_million": {side: cpu_per_million(part, side) for side in part.rounds},
        "times_as_fast_as": {side: times_as_fast(part, OURS, side) for side in others if OURS in part.rounds},
        "target": part.target,
        "of_null_target": part.of_null_target,
        "peak_mb": part.memory,
        "rounds": {side: [one._asdict() for one in rounds] for side, rounds in part.rounds.items()},
    }
