"""Draw the figures of `growth.py`, `object_store.py`, `busy_month.py` and `million_commits.py`: SVG pictures, and the
tables of docs/measurements.md between its marks.

    python benchmarks/_pictures.py        from docs/pictures/figures.json, which `make pictures` measures first

A picture has some lines on logarithmic axes, a few dozen elements.  It is drawn here without a library, and the same
figures give the same file.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "measurements.md"
FOLDER = ROOT / "docs" / "pictures"
FIGURES = FOLDER / "figures.json"
TITLES = {
    "partitions": "A batch of Spark's, by partitions",
    "commits": "A small commit, and opening the log, by commits",
    "maintained": "The same where `pylog maintain` runs",
    "record_size": "A record, by its size",
    "writers": "Small commits, by writers",
    "slices": "Planning, by slices",
    "objects": "Checkpoints, by live objects",
    "maintenance": "A round of `pylog maintain`, by merged slices",
    "groups": "Group members, by groups and members",
    "topics": "A row that names its topic, by topics",
}
OVER_TIME = {
    "busy_month": {
        "sizes": "A busy month: what there is, by day",
        "bytes": "A busy month: bytes, by day",
        "requests": "A busy month: requests a day, by day",
        "times": "A busy month: CPU time, by day",
    },
    "million_commits": {
        "times": "Commits one after the other: times",
        "sizes": "Commits one after the other: what there is",
    },
}
"""By benchmark, the titles of its tables, which must be level."""
SHOWN = (1, 2, 3, 5, 10, 15, 20, 30)
"""Points of a long table that the page shows, and the last one."""
WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 56, 44
COLOURS = ("#1f6feb", "#d1570a", "#1a7f37", "#8250df", "#6e7781")


def drawn(title: str, table: Mapping[str, Any]) -> str:
    """The picture of one table: a line with its points for each cost, on a white background."""
    xs, costs = table["x"], table["costs"]
    across, up = decades(xs), decades([value for cost in costs.values() for value in cost])
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="13" font-weight="bold">{escape(title)}</text>',
        *_axes(across, up, table["varied"]),
    ]
    for number, (name, cost) in enumerate(costs.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [(_x(x, across), _y(y, up)) for x, y in zip(xs, cost, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        at = LEFT + number * (WIDTH - LEFT - RIGHT) // len(costs)
        lines.append(f'<rect x="{at}" y="29" width="9" height="9" fill="{colour}"/>')
        lines.append(f'<text x="{at + 13}" y="38">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten around all values, at least one apart."""
    low, high = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    return low, max(high, low + 1)


def _axes(across: tuple[int, int], up: tuple[int, int], name: str) -> Iterator[str]:
    for power in range(across[0], across[1] + 1):
        x = _x(10.0**power, across)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#d0d7de"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{10.0**power:,.10g}</text>'
    for power in range(up[0], up[1] + 1):
        y = _y(10.0**power, up)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#d0d7de"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:,.10g}</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) // 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(name)}</text>'


def _x(value: float, range_: tuple[int, int]) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(value) - range_[0]) / (range_[1] - range_[0])


def _y(value: float, range_: tuple[int, int]) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (math.log10(value) - range_[0]) / (range_[1] - range_[0])


def growth_markdown(figures: Mapping[str, Any]) -> str:
    """The tables and pictures of how cost grows."""
    parts = []
    for name, title in TITLES.items():
        table = figures[name]
        parts += [f"### {title}", "", f"![{title}](pictures/{name}.svg)", ""]
        parts.append(f"| {table['varied']} | {' | '.join(_number(x) for x in table['x'])} | exponent | growth |")
        parts.append("|---|" + "---|" * (len(table["x"]) + 2))
        for cost, values in table["costs"].items():
            points = " | ".join(_number(value) for value in values)
            parts.append(f"| {cost} | {points} | {table['exponents'][cost]:+.2f} | {table['growth'][cost]} |")
        limit = textwrap.fill(f"**Reading it.** {table['bound']}.", 120, break_long_words=False, break_on_hyphens=False)
        parts += ["", limit, ""]
    return "\n".join([*parts, f"Measured {machine_line(figures['machine'])}."])


def over_time_markdown(name: str, figures: Mapping[str, Any]) -> str:
    """The tables and pictures of figures that must not grow."""
    parts = []
    for part, title in OVER_TIME[name].items():
        table = figures[name]["tables"][part]
        count = len(table["x"])
        shown = [at - 1 for at in sorted({*(at for at in SHOWN if at <= count), count})]
        parts += [f"![{title}](pictures/{name}_{part}.svg)", ""]
        parts.append(f"| {table['varied']} | {' | '.join(_number(table['x'][at]) for at in shown)} |")
        parts.append("|---|" + "---|" * len(shown))
        for cost, values in table["costs"].items():
            parts.append(f"| {cost} | {' | '.join(_number(values[at]) for at in shown)} |")
        parts.append("")
    return "\n".join([*parts, f"Measured {machine_line(figures[name]['machine'])}."])


def machine_line(machine: Mapping[str, Any]) -> str:
    return (
        f"on {machine['cores']} cores ({machine['system']}, load {machine['load']} when it was done), "
        f"Python {machine['python']}, PySpark {machine['pyspark']}, pyarrow {machine['pyarrow']}"
    )


def object_store_markdown(figures: Mapping[str, Any]) -> str:
    """The table of round trips, requests and prices."""
    found = figures["object_store"]
    rows = ["| what | round trips | ms | requests | dollars a month |", "|---|---|---|---|---|"]
    for line in found["lines"]:
        asked = ", ".join(f"{_number(count)} {kind}" for kind, count in sorted(line["requests"].items()))
        month = "" if line["every_s"] is None else f"{line['dollars_a_month']:.2f}, one every {line['every_s']:g} s"
        took = f"{line['ms']:.0f}" if line["ms"] else ""
        rows.append(f"| {line['what']} | {line['round_trips']} | {took} | {asked} | {month} |")
    return "\n".join([*rows, "", f"Prices: {found['prices']}."])


def _number(value: float) -> str:
    """Three digits, with thousands separated."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def between_marks(page: str, name: str, text: str) -> str:
    """The page with `text` between the marks of that name."""
    begin, end = f"<!-- {name}: written by make pictures -->", f"<!-- end of {name} -->"
    assert page.count(begin) == page.count(end) == 1, f"the page has no marks for {name}"
    return re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL)


def files(figures: Mapping[str, Any], page: str) -> dict[Path, str]:
    """Every output of the figures: each picture, and the page."""
    page = between_marks(page, "growth", growth_markdown(figures))
    page = between_marks(page, "object stores", object_store_markdown(figures))
    for name in OVER_TIME:
        page = between_marks(page, name.replace("_", " "), over_time_markdown(name, figures))
    pictures = {name: (title, figures[name]) for name, title in TITLES.items()}
    for name, titles in OVER_TIME.items():
        pictures |= {f"{name}_{part}": (title, figures[name]["tables"][part]) for part, title in titles.items()}
    return {**{FOLDER / f"{name}.svg": drawn(*picture) for name, picture in pictures.items()}, PAGE: page}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path, text in files(json.loads(FIGURES.read_text()), PAGE.read_text()).items():
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
