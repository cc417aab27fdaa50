"""Each thing that is done to a log, crossed with each thing that users leave in it.

One log for each operation has all features in it.  docs/crossings.md is the table of these tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from spark_log.errors import SparkLogError
from tests.crossings.feature import After, Feature
from tests.crossings.features import FEATURES
from tests.crossings.operations import OPERATIONS, World

PAGE = Path(__file__).parents[2] / "docs" / "crossings.md"


@pytest.fixture(scope="module", params=OPERATIONS)
def crossing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, World, After]]:
    """A log after an operation."""
    with ExitStack() as stack:
        world = World(tmp_path_factory.mktemp("crossing"), FEATURES, stack)
        yield request.param, world, OPERATIONS[request.param](world)


def results() -> dict[tuple[str, str], str]:
    """The result of each operation for each feature, by the page."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    heads = cells[0]
    rows = [row for row in cells[1:] if len(row) == len(heads)]
    return {(row[0], head): cell for row in rows for head, cell in zip(heads[1:], row[1:], strict=True)}


RESULTS = results()


# Promise: crossings.md#the-columns, crossings.md#the-operations
def test_the_page_has_a_cell_for_each_pair() -> None:
    assert set(RESULTS) == {(operation, feature.head) for operation in OPERATIONS for feature in FEATURES}
    assert set(RESULTS.values()) == {"continues", "refused"}


# Promise: crossings.md#what-continues-after-an-operation
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.head)
def test_a_feature_continues_or_is_refused_as_the_page_says(
    feature: type[Feature], crossing: tuple[str, World, After]
) -> None:
    """No record is skipped or doubled, and nothing is torn."""
    operation, world, after = crossing
    (used,) = (one for one in world.features if type(one) is feature)
    expected = RESULTS[operation, feature.head]
    with pytest.raises(SparkLogError) if expected == "refused" else nullcontext():
        used.check(after)
