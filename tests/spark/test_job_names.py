"""Jobs on odd names of topics and groups: those that a log may have work, others are refused before Spark starts."""

from __future__ import annotations

import datetime
import importlib
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.jobs import backfill, erase, export, maintain, mirror_pylog, verify

from spark_log import Log, NewTopic, OffsetAndMetadata, TopicPartition, connect

ALLOWED = ["-x", "--help", "..a", "a..b", "_", "0", "x" * 249]
"""Names of topics."""
GROUPS = ["a/b", "../g", "-g", "ü 1", "g" * 249]
REFUSED = ["", "a b", "a\x1b[2Jb", "ü", "a/b", "../x", ".", "..", "a\x00b", "x" * 250, "\udc80", "a\nb", "a\u202eb"]
URL = ("--url", "file:///none")
TABLE = (*URL, "--from", "t", "--value", "columns", "--timestamp", "at", "--create", "1")
MIRROR = (*URL, "--checkpoint", "c")
FLOW = (*URL, "--function", "a:f", "--name", "f")
PLACES = {
    ("backfill", "--topic"): TABLE,
    ("erase", "--topic"): (*URL, "--key", "a"),
    ("export", "--topic"): (*URL, "--to", "t"),
    ("flow", "--source"): FLOW,
    ("flow", "--target"): (*FLOW, "--source", "in"),
    ("flow", "--lookup"): (*FLOW, "--source", "in"),
    ("flow", "--state"): (*FLOW, "--source", "in"),
    ("mirror_pylog", "--topics"): (*MIRROR, "--source", "file:///other"),
    ("mirror_pylog", "--map"): (*MIRROR, "--source", "file:///other", "--topics", "t"),
    ("mirror_pylog", "--bad-records"): (*MIRROR, "--source", "file:///other", "--topics", "t"),
    ("mirror_kafka", "--topics"): (*MIRROR, "--bootstrap-servers", "h:1"),
    ("mirror_kafka", "--map"): (*MIRROR, "--bootstrap-servers", "h:1", "--topics", "t"),
    ("mirror_kafka", "--bad-records"): (*MIRROR, "--bootstrap-servers", "h:1", "--topics", "t"),
}


@pytest.mark.parametrize(("job", "option"), PLACES)
def test_a_name_that_no_topic_can_have_is_refused(job: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message has the option and the name, and no control character."""
    parse = importlib.import_module(f"pyspark_pylog.jobs.{job}").parse_args
    for name in REFUSED:
        if not name and option == "--bad-records":
            continue  # none
        with pytest.raises(SystemExit) as ended:
            parse([*PLACES[job, option], f"{option}={name}"])
        said = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2 and f"argument {option}: " in said, said
        assert said.isprintable() and (repr(name[:40])[:-1] in said or not name), said
    for name in ALLOWED:
        parse([*PLACES[job, option], f"{option}={name}"])


@pytest.mark.parametrize("job", ["mirror_pylog", "mirror_kafka"])
def test_groups_with_control_characters_are_refused(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A log takes no new group with such a name."""
    source = ("--source", "file:///other") if job == "mirror_pylog" else ("--bootstrap-servers", "h:1")
    parse = importlib.import_module(f"pyspark_pylog.jobs.{job}").parse_args
    for name in (one for one in REFUSED if not one.isprintable()):
        with pytest.raises(SystemExit):
            parse([*MIRROR, *source, "--topics", "t", f"--groups={name}"])
        said = capsys.readouterr().err.splitlines()[-1]
        assert "argument --groups: " in said and said.isprintable(), said
    assert parse([*MIRROR, *source, "--topics", "t", f"--groups={','.join(GROUPS)}"]).groups == tuple(GROUPS)


@pytest.fixture
def odd(tmp_path: Path) -> Log:
    """A log whose topics and groups have all allowed names."""
    log = connect(str(tmp_path / "source"), durability="os")
    log.admin.create_topics([NewTopic(name, 1, {"retention.ms": "-1"}) for name in ALLOWED])
    for name in ALLOWED:
        log.append(name, [{"key": b"k", "value": name.encode()}, {"key": b"gone", "value": b"x"}])
        for group in GROUPS:
            log.admin.alter_consumer_group_offsets(group, {TopicPartition(name, 0): OffsetAndMetadata(1)})
    return log


def test_topics_with_odd_names_are_mirrored(classic: SparkSession, odd: Log, tmp_path: Path) -> None:
    """With their groups; a second run has nothing to do."""
    places = ["--source", odd.url, "--url", str(tmp_path / "copy"), "--checkpoint", str(tmp_path / "checkpoint")]
    given = [*places, f"--topics={','.join(ALLOWED)}", f"--groups={','.join(GROUPS)}", f"--map=-{'m' * 248}"]
    for records in (2, 0):
        args = mirror_pylog.parse_args(given)
        mirror_pylog.check_args(args)
        summary, status = mirror_pylog.run(classic, args)
        assert (status, summary["groups_set"]) == (0, True)
        assert summary["records"] == (dict.fromkeys(ALLOWED, records) if records else summary["records"])
    copy = connect(str(tmp_path / "copy"), create=False)
    for name in ALLOWED:
        assert copy.read(name).column("value").to_pylist() == [name.encode(), b"x"]
        for group in GROUPS:
            assert copy.admin.list_consumer_group_offsets(group)[TopicPartition(name, 0)].offset == 1


def test_other_jobs_take_topics_with_odd_names(classic: SparkSession, odd: Log, tmp_path: Path) -> None:
    """Export, erase, verify, maintain, and a backfill whose name for its progress has everything but control
    characters."""
    at = datetime.datetime(2024, 5, 1, tzinfo=datetime.timezone.utc)
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table({"v": ["filled"], "at": pa.array([at], pa.timestamp("us", "UTC"))}), tmp_path / "table/a")
    for number, name in enumerate(["-x", "..a", "x" * 249]):
        to, where = tmp_path / f"to{number}", ["--url", odd.url, f"--topic={name}"]
        args = export.parse_args([*where, "--to", str(to), f"--name={'_ü/../' + name}"])
        export.check_args(args)
        assert export.export(classic, args)[1] == 0
        assert ds.dataset(to, partitioning="hive").to_table().column("topic").to_pylist() == [name, name]
        args = erase.parse_args([*where, "--key", "gone"])
        erase.check_args(args)
        assert erase.erase(classic, args)[0]["records"] == 1
        table = ["--from", str(tmp_path / "table"), "--value", "v", "--timestamp", "at", "--name", "ü /../ -n"]
        args = backfill.parse_args([*where, *table])
        backfill.check_args(args)
        for rows in (1, 0):
            assert backfill.backfill(classic, args)[0]["rows"] == rows
        assert odd.read(name).column("value").to_pylist() == [name.encode(), b"filled"]
    assert maintain.maintain(classic, maintain.parse_args(["--url", odd.url]))[1] == 0
    assert verify.check(classic, verify.parse_args(["--url", odd.url, "--deep"]))[1] == 0
