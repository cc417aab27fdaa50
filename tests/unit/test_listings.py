"""Every place where the product lists a folder is known: a folder may have other files than pylog's."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from spark_log.store.object_names import is_of_a_log
from tests.foreign_files import NEARLY, OF_ANY_NAME, foreign_names

ROOT = Path(__file__).parents[2]
PRODUCT = ("spark_log", "datasource", "jobs")
CALLS = ("list", "listdir", "scandir", "iterdir", "glob", "rglob", "walk", "fwalk")
"""Of the operating system, of `pathlib`, and of stores."""
LISTINGS = {
    "spark_log/store/object_names.py": (2, "passes over other files; tests/recovery/test_foreign_files.py"),
    "spark_log/recovery/backup_files.py": (1, "passes over other files; tests/recovery/test_foreign_files.py"),
    "spark_log/store/local.py": (3, "a store lists all files"),
    "spark_log/store/memory.py": (1, "a store lists all files"),
    "spark_log/store/store_wrapper.py": (1, "a store in a store"),
    "spark_log/server/recent_records.py": (1, "a store in a store"),
    "spark_log/recovery/late_files.py": (1, "a store in a store"),
    "datasource/pyspark_pylog/export/manifest.py": (1, "hidden files are passed over, others refused"),
    "spark_log/client/admin/brokers.py": (1, "hidden files are passed over, others refused"),
    "spark_log/quorum/node/directory.py": (1, "hidden files are passed over, others refused"),
    "spark_log/quorum/node/file_operations.py": (1, "files only; users of `names` match whole names"),
    "spark_log/console/http_routes.py": (1, "files of the package"),
    "jobs/quickstart.py": (2, "files of a package, and of Spark's output in a folder that it makes"),
}
"""How often each module lists something, and what becomes of other files."""


def calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
            yield node.func.attr


# Promise: storage.md#other-files-in-the-folders
def test_every_listing_is_known() -> None:
    """A new one uses `listed`, or says here what becomes of other files."""
    found = Counter[str]()
    for path in (path for part in PRODUCT for path in (ROOT / part).rglob("*.py")):
        found.update(str(path.relative_to(ROOT)) for _ in calls(path))
    assert found == {name: number for name, (number, _) in LISTINGS.items()}


def test_names_of_others_are_not_names_of_a_log() -> None:
    """Names in any folder, also those that are nearly a log's."""
    record, unique = f"{1:020}", "0123456789abcdef"
    names = {
        "meta": ["format", "log.json", "broker.json", "maintenance", "reserve", f"probe-{unique}-1"],
        "meta/log": [f"{record}.rec"],
        "meta/ckpt": [f"{record}-{unique}"],
        "meta/quorum": [f"{1:016}-{record}-{unique}.checkpoint"],
        "meta/pin": [f"clock-{unique}"],
        "meta/alive": ["host-127.0.0.1-9092", f"start-{unique}", "host-health"],
        "meta/probe": [f"{unique}/001"],
        "meta/damaged": [f"log-{record}.rec"],
        "data": [],
        f"data/{1:016x}": [f"{unique}.seg", f"t-0-{record}-{unique}.seg", f"{unique}.idx", f"{unique}.dropped"],
    }
    assert [
        f"{folder}/{name}" for folder, some in names.items() for name in some if not is_of_a_log(f"{folder}/{name}")
    ] == []
    assert [key for key in foreign_names(names) if is_of_a_log(key)] == []
    assert len(NEARLY) > 5 and {folder for folder in OF_ANY_NAME if folder not in names} == set()
