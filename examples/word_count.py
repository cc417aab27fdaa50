"""Count words with two flows: one writes each line's words to a topic by word, and the other keeps their counts.

The process with both flows is killed in the middle, and another one continues.  The counts are those of a batch.

Prints:
    killed before the end: True
    the counts of 7 words equal those of the batch: True
    count: 600, records: 600, a: 200
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

import spark_log

LINES = [line for _ in range(200) for line in ("a flow can count", "count the records", "records count as records")]


def split(lines: pa.Table) -> pa.Table:
    """A record for each word of some lines, with the word as its key."""
    words = pc.list_flatten(pc.split_pattern(pc.cast(lines["value"], pa.string()), " "))
    return pa.table({"key": words, "value": [""] * len(words)})


def count(words: pa.Table, counts: pa.Table) -> tuple[None, pa.Table]:
    """The new counts of the words in a batch."""
    new = words.group_by("key").aggregate([([], "count_all")]).rename_columns(["key", "n"])
    return None, pa.concat_tables([new, counts]).group_by("key").aggregate([("n", "sum")]).rename_columns(["key", "n"])


def run(url: str) -> None:
    """Both flows, until this process is killed."""
    state = spark_log.keyed("counts", pa.schema([("n", pa.int64())]))
    spark_log.flow(url, name="split", source="lines", target="words", function=split)
    counting = spark_log.flow(url, name="count", source="words", function=count, state=state)
    counting.await_termination()


def counted(log: spark_log.Log) -> dict[str, int]:
    """The counts so far."""
    if "counts" not in log.topics():
        return {}
    table = log.table("counts")
    return dict(zip(pc.cast(table["key"], pa.string()).to_pylist(), table["n"].to_pylist(), strict=True))


def write(log: spark_log.Log, lines: list[str]) -> None:
    """Some lines, in commits of ten."""
    for at in range(0, len(lines), 10):
        log.append("lines", [{"value": line} for line in lines[at : at + 10]])


def start(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "run", url])


def main(url: str) -> None:
    batch = Counter(word for line in LINES for word in line.split())
    log = spark_log.connect(url)
    log.admin.create_topics([spark_log.NewTopic("lines", 2), spark_log.NewTopic("words", 4)])
    write(log, LINES[:300])
    first = start(url)
    while not counted(log):
        time.sleep(0.05)
    first.kill()
    first.wait()
    write(log, LINES[300:])
    print("killed before the end:", 0 < sum(counted(log).values()) < batch.total())
    with start(url) as second:
        while sum(counted(log).values()) < batch.total():
            time.sleep(0.05)
        second.kill()
    counts = counted(log)
    print(f"the counts of {len(counts)} words equal those of the batch:", counts == batch)
    print(", ".join(f"{word}: {counts[word]}" for word in ("count", "records", "a")))


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2])
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
