"""The words of the pages of the documentation, counted by two flows whose processes are killed."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from pathlib import Path

import spark_log
from spark_log import NewTopic
from tests.processes import ROOT, Started, eventually

WAIT_S = 120.0
KILLS = 4

# The first flow writes the words of each line by key, and the second one counts them.
PROGRAM = """
import sys
import pyarrow as pa, pyarrow.compute as pc
import spark_log

url, _, name = sys.argv[1:]

def split(lines):
    text = pc.replace_substring_regex(lines["value"].cast(pa.string()), "[^a-z]+", " ")
    words = pc.list_flatten(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(text)))
    words = words.filter(pc.not_equal(words, ""))
    return pa.table({"key": words, "value": [""] * len(words)})

def count(words, counts):
    new = words.group_by("key").aggregate([([], "count_all")]).rename_columns(["key", "n"])
    return None, pa.concat_tables([new, counts]).group_by("key").aggregate([("n", "sum")]).rename_columns(["key", "n"])

state = spark_log.keyed("counts", pa.schema([("n", pa.int64())]))
print("ready", flush=True)
first = spark_log.flow(url, name="split", source="lines", target="words", function=split, tasks=2)
spark_log.flow(url, name="count", source="words", function=count, state=state, tasks=2).await_termination()
"""


# Promise: tasks/flow.md#keep-state-by-key
def test_a_word_count_equals_its_batch(url: str, tmp_path: Path) -> None:
    """Killed some times in the middle, also between the commit of a batch and the next one."""
    lines = [line.lower() for page in sorted((ROOT / "docs").glob("*.md")) for line in page.read_text().splitlines()]
    batch = Counter(word for line in lines for word in re.sub("[^a-z]+", " ", line).split())
    log, rng = spark_log.connect(url), random.Random(5)
    log.admin.create_topics([NewTopic("lines", 3), NewTopic("words", 4)])

    def counted() -> dict[str, int]:
        table = log.table("counts") if "counts" in log.topics() else None
        if table is None:
            return {}
        return dict(zip((key.decode() for key in table["key"].to_pylist()), table["n"].to_pylist(), strict=True))

    process = Started(PROGRAM, tmp_path, "first", url)
    try:
        size = len(lines) // KILLS + 1
        for number in range(KILLS):
            before, part = sum(counted().values()), lines[number * size : (number + 1) * size]
            for at in range(0, len(part), 100):
                log.append("lines", [{"value": line} for line in part[at : at + 100]])
            process.wait_until(lambda before=before: sum(counted().values()) > before, WAIT_S)
            time.sleep(rng.random() * 0.3)
            process.kill()
            process = Started(PROGRAM, tmp_path, f"later{number}", url)
        eventually(lambda: sum(counted().values()) >= batch.total(), WAIT_S)
        assert counted() == batch
    finally:
        process.kill()
