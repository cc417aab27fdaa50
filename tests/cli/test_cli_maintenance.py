"""`pylog maintain | merge | gc | checkpoint | verify | plan | segment | metadata | cluster | config | producer`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import spark_log
from spark_log.cli.commands.maintenance import compacted_text
from spark_log.errors import WrongRoot
from spark_log.journal.journal import Journal
from spark_log.journal.sealing import seal
from spark_log.store.local import LocalStore
from tests.cli.commands import Pylog
from tests.maintenance.logs import maintenance


@pytest.fixture
def small(pylog: Pylog) -> Pylog:
    """Five more small commits."""
    for number in range(5):
        pylog.ok("produce", "orders", "-p", "1", stdin=f"more {number}\n")
    return pylog


def test_maintain(small: Pylog) -> None:
    """A round, and what it did."""
    assert "6 slices merged into 1 segment " in small.ok("maintain")
    assert small.json("maintain")["merged_slices"] == 0
    assert len(small.ok("consume", "orders").splitlines()) == 15


def test_maintain_compacts(pylog: Pylog) -> None:
    """The plan has the partitions, the report the removed records; neither speaks of compaction without any."""
    log = spark_log.connect(pylog.url)
    assert "compact" not in pylog.ok("maintain") + pylog.ok("maintain", "--dry-run")
    log.create_topic(spark_log.NewTopic("latest", 1, {"cleanup.policy": "compact", "segment.ms": "1"}))
    for value in range(3):
        log.append("latest", [{"key": "a", "value": str(value), "timestamp": 1}])
    assert ", compact 1 partition (" in pylog.ok("maintain", "--dry-run")
    text = pylog.ok("maintain")
    assert re.search(r", 1 partition compacted \(2 records less, \d+ B more\)", text), text
    assert "compact" not in pylog.ok("maintain", "--dry-run")


def test_a_compaction_that_goes_on_has_finished_no_partition() -> None:
    """Such as one that leaves out records which it could not read."""
    assert compacted_text(0, 3, -88) == "compacted in part (3 records less, 88 B more)"
    assert compacted_text(1, 1, 2048) == "1 partition compacted (1 record and 2.0 KiB less)"


# Promise: cli.md#pylog-maintain
def test_a_round_is_looked_at(small: Pylog) -> None:
    """Once, and not done."""
    version = small.json("cluster", "info")["version"]
    assert small.ok("maintain", "--dry-run").startswith("would expire 0 records (0 B), merge 6 slices (")
    assert small.json("maintain", "--dry-run")["collected"] == 0
    assert small.json("cluster", "info")["version"] == version
    assert "leave out --every" in small.wrong("maintain", "--dry-run", "--every", "10m")


# Promise: tasks/keep-the-latest.md#see-that-it-runs
def test_maintain_says_what_it_compacts(pylog: Pylog) -> None:
    """Before, with --dry-run, and after; a round that compacts nothing does not mention it."""
    pylog.ok("topic", "create", "latest", "-c", "cleanup.policy=compact")
    rows = [{"key": f"k{number % 2}", "value": "v", "timestamp": 1_790_000_000_000} for number in range(10)]
    spark_log.connect(pylog.url).append("latest", rows)
    assert "compact 1 partition (" in pylog.ok("maintain", "--dry-run")
    assert pylog.json("maintain", "--dry-run")["cleaned_partitions"] == 1
    text = pylog.ok("maintain")
    assert re.search(r"1 partition compacted \(8 records less, \d+ B more\)", text), text
    assert pylog.ok("consume", "latest", "-f", "%o %k\n") == "8 k0\n9 k1\n"
    found = pylog.json("maintain")
    assert [found[field] for field in ("cleaned_partitions", "removed_records", "uncleaned", "uncleanable")] == [
        0,
        0,
        0,
        [],
    ]
    assert "compact" not in pylog.ok("maintain")


# Promise: tasks/keep-the-latest.md#see-that-it-runs
def test_maintain_says_that_segments_have_grown(pylog: Pylog) -> None:
    """A few records take less than the column of offsets that their segment has afterwards."""
    pylog.ok("topic", "create", "latest", "-c", "cleanup.policy=compact")
    rows = [{"key": key, "value": "v", "timestamp": 1_790_000_000_000} for key in "aba"]
    spark_log.connect(pylog.url).append("latest", rows)
    text = pylog.ok("maintain")
    assert re.search(r"1 partition compacted \(1 record less, \d+ B more\)", text), text


# Promise: cli.md#pylog-checkpoint
def test_merge_and_checkpoint_alone(small: Pylog) -> None:
    """Each duty has its verb."""
    assert small.json("merge")["slices"] == 6
    assert small.json("checkpoint")["version"] == small.json("cluster", "info")["checkpoint"]
    assert "0 slices" in small.ok("merge")


def test_a_duration_has_a_unit(small: Pylog) -> None:
    """Wrong ones show a right one."""
    for text in ("10", "0s", "ten"):
        assert "as in 10m" in small.wrong("maintain", "--every", text)


def test_gc_asks(small: Pylog) -> None:
    """A dry run lists; without --yes it is refused."""
    small.ok("config", "alter", "-c", "gc.fence.age.ms=1")
    small.ok("merge")
    assert "--yes" in small.refused("gc")
    for _ in range(2):
        small.ok("maintain")
    assert small.json("gc", "--dry-run") == []
    assert small.json("gc", "--yes") == {"deleted": 0}


# Promise: cli.md#pylog-verify
def test_verify(small: Pylog, tmp_path: Path) -> None:
    """A sound log passes; damage is a table, or JSON, and exit status 1."""
    assert small.ok("verify", "--deep").startswith("no problems found in 1 topic")
    assert small.json("verify") == []
    lost = next(tmp_path.glob("log/data/*/*.seg"))
    lost.unlink()
    result = small.run("verify", "--output", "json")
    assert result.exit_code == 1
    message = json.loads(result.stdout)[0]["message"]
    assert message.startswith("the object is not there: offsets 0 to 9 of orders-1 cannot be read: ")
    assert message.endswith("give these offsets up by `pylog verify --repair --lose-data`")
    assert "1 problem found" in small.refused("verify")


def test_plan(small: Pylog) -> None:
    """Segments, batches and bytes of the total."""
    small.ok("merge")
    whole = small.json("plan", "orders")
    assert whole["total"]["records"] == 15
    assert whole["total"]["batches"] == whole["total"]["total_batches"] == 1
    assert small.json("plan", "orders", "--start", "latest")["total"]["batches"] == 0
    assert "1 of 1" in small.ok("plan", "orders", "--start", "now-10m")


def test_plan_of_a_condition(small: Pylog) -> None:
    """Slices that cannot match are not counted; times without a zone are UTC."""
    found = small.json("plan", "orders", "--where", "partition = 1 and offset >= 13")
    assert [found["total"][name] for name in ("records", "segments", "batches", "total_segments")] == [2, 2, 2, 6]
    assert small.json("plan", "orders", "--where", "timestamp < '2026-01-31'")["total"]["bytes"] == 0
    assert "where: 'key = 1' cannot be used by a read" in small.refused("plan", "orders", "--where", "key = 1")


# Promise: cli.md#pylog-segment-dump
def test_segment_dump(pylog: Pylog, tmp_path: Path) -> None:
    """The batches of an object; other files are refused."""
    (name,) = [str(file.relative_to(tmp_path / "log")) for file in tmp_path.glob("log/data/*/*.seg")]
    found = pylog.json("segment", "dump", name)
    assert (found["records"], found["index"][0]["topic"], found["index"][0]["rows"]) == (10, "orders", 10)
    assert "CRC32C" in pylog.ok("segment", "dump", name)
    assert "does not exist" in pylog.refused("segment", "dump", "data/x.seg")
    assert "not a pylog segment" in pylog.refused("segment", "dump", "meta/format")
    assert "relative" in pylog.refused("segment", "dump", "../../etc/passwd")


# Promise: cli.md#pylog-segment-dump
def test_segment_dump_of_a_slice_index(small: Pylog, tmp_path: Path) -> None:
    """Its slices with topic and offsets, or without a topic if the log dropped them; other files are refused."""
    journal = Journal.open(LocalStore(small.url), create=False)
    maintenance(journal, seal)
    (name,) = [str(file.relative_to(tmp_path / "log")) for file in tmp_path.glob("log/data/*/*.idx")]
    found = small.json("segment", "dump", name)
    rows = [(row["topic"], row["partition"], row["start"], row["end"]) for row in found["index"]]
    assert rows[:2] == [("orders", 1, 0, 10), ("orders", 1, 10, 11)]
    assert (found["pieces"], found["slices"], found["records"]) == (1, len(rows), rows[-1][-1])
    small.ok("merge")
    assert {row["topic"] for row in small.json("segment", "dump", name)["index"]} == {""}
    assert "crc32c" in small.ok("segment", "dump", name).lower()
    for content, words in (
        (b"hello " * 20, "not a slice index"),
        ((tmp_path / "log" / name).read_bytes()[:-9], "at byte 0"),
    ):
        (tmp_path / "log" / name).write_bytes(content)
        assert words in small.refused("segment", "dump", name)


# Promise: cli.md#pylog-metadata-dump
def test_metadata_dump(pylog: Pylog) -> None:
    """Records, a version a line, or the state that they come to."""
    lines = [json.loads(line) for line in pylog.ok("metadata", "dump", "--output", "json").splitlines()]
    assert [line["version"] for line in lines] == [1, 2]
    assert [record["type"] for record in lines[0]["records"]] == ["create_topic"]
    assert "create_topic" in pylog.ok("metadata", "dump")
    assert json.loads(pylog.ok("metadata", "dump", "--state"))["version"] == 2


# Promise: cli.md#pylog-cluster-release
def test_a_log_whose_coordinator_crashed_is_released_by_hand(pylog: Pylog) -> None:
    """Only with --force; where nobody has the log there is nothing to do."""
    journal = Journal.open(LocalStore(pylog.url, "os"), create=True)
    assert pylog.json("cluster", "release") == {"released": False}
    journal.take_over(0, "127.0.0.1:1", "here")
    assert "127.0.0.1:1 has this log" in pylog.refused("cluster", "release")
    assert "URL of the log's storage" in Pylog("pylog://127.0.0.1:1").wrong("cluster", "release", "--force")
    assert pylog.json("cluster", "info")["coordinator"] == "127.0.0.1:1"
    assert pylog.json("cluster", "release", "--force") == {"released": True}
    assert pylog.json("cluster", "info")["coordinator"] == ""


# Promise: cli.md#pylog-repair
def test_repair(pylog: Pylog, tmp_path: Path) -> None:
    """A healthy log is left alone; a damaged one is named, with --dry-run, and restored with --yes."""
    assert "nothing to repair" in pylog.ok("repair")
    pylog.ok("checkpoint")
    (file,) = tmp_path.glob("log/meta/ckpt/*")
    file.write_bytes(b"")
    assert f"{file.name} is damaged" in pylog.ok("repair", "--dry-run")
    assert "1 file moved to meta/damaged/" in pylog.ok("repair", "--dry-run")
    assert "--yes" in pylog.refused("repair")
    assert "moved to meta/damaged/" in pylog.ok("repair", "--yes")
    assert not file.exists() and len(list(tmp_path.glob("log/meta/damaged/*"))) == 1
    assert "no problems" in pylog.ok("verify")


def test_a_lost_version_is_looked_at(small: Pylog, tmp_path: Path) -> None:
    """Without --accept-loss nothing would be done: status 1.  The output shows the kept records and the moved files."""
    records = sorted(tmp_path.glob("log/meta/log/*"))
    records[-2].write_bytes(b"")
    result = small.run("repair", "--dry-run")
    assert result.exit_code == 1
    assert "`pylog repair` would change nothing" in result.stderr and "--accept-loss" in result.stderr
    assert "with --accept-loss can be restored: version " in result.stdout
    assert "2 files moved to meta/damaged/" in result.stdout and f"{records[-2].name} is damaged" in result.stdout
    assert "are kept" in result.stdout and "2 files" in small.ok("repair", "--dry-run", "--accept-loss")
    assert "nothing was changed" in small.refused("repair", "--yes")
    assert "2 files moved" in small.ok("repair", "--accept-loss")
    assert len(list(tmp_path.glob("log/meta/damaged/*"))) == 2


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize("line", ["produce orders", "topic create t", "consume orders", "verify", "maintain"])
@pytest.mark.parametrize("left", ["log", "ckpt"])
def test_a_missing_format_file_is_to_be_restored(pylog: Pylog, tmp_path: Path, line: str, left: str) -> None:
    """Whatever is done, no log is begun in the place of the one whose metadata is there."""
    pylog.ok("checkpoint")
    (tmp_path / "log/meta/format").unlink()
    for file in tmp_path.glob(f"log/meta/{'ckpt' if left == 'log' else 'log'}/*"):
        file.unlink()
    assert "meta/format is missing, and meta/" in (shown := pylog.refused(*line.split(), stdin="x\n"))
    assert "restore that file from a copy of the log, or run `pylog repair -u " in shown
    assert not (tmp_path / "log/meta/format").exists()


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_process_that_has_the_log_open_reads_on_without_the_format_file(pylog: Pylog, tmp_path: Path) -> None:
    """It commits offsets, too.  Appends to a folder fail: its disk may not be mounted."""
    with spark_log.connect(pylog.url) as log:
        (tmp_path / "log/meta/format").unlink()
        log.admin.alter_consumer_group_offsets("g", {spark_log.TopicPartition("orders", 1): 3})
        assert log.read("orders").num_rows == 10
        with pytest.raises(WrongRoot, match="is its disk mounted"):
            log.append("orders", [{"value": b"after"}])
    pylog.ok("repair", "--yes", "--cluster-id", "new")
    assert len(pylog.ok("consume", "orders", "-p", "1", "-g", "g").split()) == 7


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_a_missing_format_file_is_made_again_by_repair(small: Pylog, tmp_path: Path) -> None:
    """Not without being asked, nor under an id that nobody has named; then the log has everything."""
    before, identity = small.ok("topic", "list"), small.json("cluster", "info")["cluster_id"]
    (tmp_path / "log/meta/format").unlink()
    for line in (["--dry-run"], ["--yes"]):
        assert "meta/format is missing" in (said := small.refused("repair", *line)) and "--cluster-id ID" in said
    given = ("--cluster-id", identity)
    warning = f"no root of a broker has the id {identity}, so nothing here tells whether it is right. With a wrong id, mirrors"
    assert f"made again with the log's id {identity}, as given;" in (said := small.ok("repair", "--dry-run", *given))
    assert warning in said and warning in small.refused("repair", *given)
    assert not (tmp_path / "log/meta/format").exists()
    assert "made again with a new id, as asked for" in small.ok("repair", "--yes", "--cluster-id", "new")
    assert warning in small.refused("repair", *given)
    assert f"meta/format gets the id {identity} in place of" in small.ok("repair", "--yes", *given)
    assert small.ok("topic", "list") == before and "nothing to repair" in small.ok("repair", "--yes")


def test_verify_says_how_much_it_looked_at(small: Pylog) -> None:
    """With --deep also how many bytes it read."""
    assert re.fullmatch(
        r"no problems found in 1 topic, \d+ partitions?, 6 objects; the records were not read \(--deep reads them\)\n",
        small.ok("verify"),
    )
    assert re.fullmatch(
        r"no problems found in 1 topic, \d+ partitions?, 6 objects and [0-9.]+ KiB of records\n",
        small.ok("verify", "--deep"),
    )


def test_maintain_says_only_what_it_did(small: Pylog) -> None:
    text = small.ok("maintain")
    assert re.match(r"version \d+: 6 slices merged into 1 segment \([0-9.]+ KiB\)", text)
    assert " 0 " not in text and "(0 B)" not in text
    assert re.match(r"version \d+: nothing was due", small.ok("maintain"))


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_repair_says_missing_of_a_missing_record(small: Pylog, tmp_path: Path) -> None:
    """Nothing is moved then.  An empty file is called empty."""
    for value in "ab":
        small.ok("checkpoint")
        small.ok("produce", "orders", stdin=f"{value}\n")
    older = int(min((tmp_path / "log/meta/ckpt").iterdir()).name[:20])
    record = tmp_path / f"log/meta/log/{older + 1:020}.rec"
    record.write_bytes(b"")
    assert f"{record.name} is not a record of a pylog metadata log; it is empty" in small.run("verify").stdout
    assert f"{record.name} is damaged" in small.ok("repair", "--dry-run")
    record.unlink()
    plan = small.ok("repair", "--dry-run")
    assert f"{record.name} is missing, and two new checkpoints replace it" in plan
    assert "is damaged" not in plan and "0 files moved" in plan
    assert small.json("repair", "--yes")["absent"] == [f"meta/log/{record.name}"]
    assert "no problems found" in small.ok("verify")
    assert "nothing to repair" in small.ok("repair", "--dry-run")


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_health_names_a_lost_checkpoint(small: Pylog, tmp_path: Path) -> None:
    small.ok("checkpoint")
    (tmp_path / "log/meta/log/00000000000000000001.rec").unlink()
    shown = small.run("cluster", "health")
    assert shown.exit_code == 1 and "another checkpoint is lost; `pylog checkpoint` writes a new one" in shown.stdout
    small.ok("checkpoint")
    small.ok("cluster", "health")


def test_records_far_behind_the_end_are_named_with_the_way_out(small: Pylog, tmp_path: Path) -> None:
    """The whole hole, and what to do with files that are not of this log."""
    records = tmp_path / "log/meta/log"
    strays = [records / f"{version:020}.rec" for version in (98, 99)]
    for stray in strays:
        stray.write_bytes((records / f"{1:020}.rec").read_bytes())
    version = small.json("cluster", "info")["version"]
    found = small.run("verify").stdout
    assert f"no records of versions {version + 1} to 97 are there, but version 99 is later" in found
    assert "move it out of meta/log/" in found
    assert "move it out of meta/log/" in small.refused("repair", "--yes")
    assert "move it out of meta/log/" in small.refused("repair", "--dry-run")
    for stray in strays:
        stray.rename(tmp_path / stray.name)
    assert "no problems found" in small.ok("verify")


def test_a_single_record_far_behind_the_end_is_moved_away(small: Pylog, tmp_path: Path) -> None:
    """A client that went on over a copy leaves one: the log ends before it, and a repair keeps the file."""
    records = tmp_path / "log/meta/log"
    stray = records / f"{99:020}.rec"
    stray.write_bytes((records / f"{1:020}.rec").read_bytes())
    version = small.json("cluster", "info")["version"]
    found = small.run("verify").stdout
    assert stray.name in found and f"the log ends at version {version}" in found and "`pylog repair` moves" in found
    small.ok("repair", "--yes")
    assert not stray.exists() and list((tmp_path / "log/meta/damaged").rglob(f"*{stray.name}*"))
    assert "no problems found" in small.ok("verify")
