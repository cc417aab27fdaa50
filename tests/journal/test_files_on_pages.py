"""Every file of a used log has a line in docs/storage.md and in docs/format/metadata.md."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_log
from spark_log.journal.maintenance_limits import LIMITS
from spark_log.store.local import LocalStore
from spark_log.store.object_names import is_of_a_log
from tests.services import Services

PAGES = Path(__file__).parents[2] / "docs"
PARTITIONS = 10
PARTS = {
    "<version>": "[0-9]{20}",
    "<id>": "[0-9a-f]{16}",
    "<upload epoch>": "[0-9a-f]{16}",
    "<name>": ".+",
    "<file>": ".+",
    "…": ".+",
}


def forms(page: str) -> list[re.Pattern[str]]:
    """Patterns of names as a page gives them."""
    text = (PAGES / page).read_text(encoding="utf-8")
    named = re.findall(r"^(?:\| `)?((?:meta|data)/.*?)(?:`|  )", text, re.MULTILINE)
    assert len(named) >= 5
    found = []
    for name in named:
        pattern = re.escape(name).replace(r"\ ", " ")
        for part, stands_for in PARTS.items():
            pattern = pattern.replace(re.escape(part).replace(r"\ ", " "), stands_for)
        found.append(re.compile(pattern))
    return found


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Of a log with a coordinator, checkpoints, segments, slice indexes and a pin."""
    folder = tmp_path_factory.mktemp("used") / "log"
    store = LocalStore(str(folder), "os")
    services = Services()
    running = services.start(folder, storage_timeout_ms=1000)
    with spark_log.connect(f"pylog://{running.coordinator.address}") as log:
        log.admin.create_topics([spark_log.NewTopic("t", PARTITIONS)])
        log.admin.incremental_alter_configs({None: {"metadata.checkpoint.interval": "10"}})
        for _ in range(LIMITS.inline_slices // PARTITIONS + 15):
            log.append("t", [{"value": b"x", "partition": number} for number in range(PARTITIONS)])
        store.put("meta/pin/some-query", [b"{}"])
        deadline = time.monotonic() + 60
        while not (any(name.endswith(".idx") for name in store.list("data/")) and store.list("meta/alive/")):
            assert time.monotonic() < deadline, store.list("meta/")
            time.sleep(0.05)
        found = [*store.list("meta/"), *store.list("data/")]
    yield found
    services.close()


def test_every_file_of_a_log_is_known_in_a_listing(names: list[str]) -> None:
    """Files with other names are passed over."""
    assert [name for name in names if not is_of_a_log(name)] == []


# Promise: format/metadata.md#the-metadata-log-format-version-1, storage.md#what-is-where
@pytest.mark.parametrize("page", ["storage.md", "format/metadata.md"])
def test_every_file_of_a_log_is_on_the_page(names: list[str], page: str) -> None:
    """Under a form of name that it has."""
    known = forms(page)
    kinds = {"/".join(name.split("/")[:2]) if name.startswith("meta/") else name[-4:] for name in names}
    assert kinds == {"meta/format", "meta/reserve", "meta/log", "meta/ckpt", "meta/pin", "meta/alive", ".seg", ".idx"}
    assert [name for name in names if not any(form.fullmatch(name) for form in known)] == []
