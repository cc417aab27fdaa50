"""Lag and rates of queries, as a listener writes them: checked with the parsers that collectors use."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)
from pyspark_pylog.progress.listener import ENDED_MAX, MetricsListener
from pyspark_pylog.progress.openmetrics import METRICS, QueryMetrics, openmetrics, parse_batch

import spark_log
from simulation.harness.clocks import ManualClock
from spark_log import NewTopic
from spark_log.errors import InvalidRequest
from tests.logged import logged
from tests.spark.builders import copy, load_stream, texts, wait_until

RUN = UUID(int=7)
Offsets = dict[str, Any]


class Heard(NamedTuple):
    """A listener, its file, and its clock."""

    listener: MetricsListener
    path: Path
    clock: ManualClock

    def start(self, number: int = 1, name: str | None = None, run: UUID = RUN) -> None:
        self.listener.onQueryStarted(QueryStartedEvent(UUID(int=number), run, name, "", set()))

    def progress(
        self, *sources: Offsets, number: int = 1, name: str | None = None, run: UUID = RUN, **more: Any
    ) -> None:
        event = {
            "id": str(UUID(int=number)),
            "runId": str(run),
            "name": name,
            "timestamp": "2026-01-31T10:00:00.000Z",
            "batchId": 3,
            "batchDuration": 500,
            "stateOperators": [],
            "sources": [{**SOURCE, **source} for source in sources],
            "sink": {"description": "", "numOutputRows": 20},
            **more,
        }
        self.listener.onQueryProgress(QueryProgressEvent.fromJson({"progress": event}))

    def end(self, number: int = 1, error: str | None = None, run: UUID = RUN) -> None:
        self.listener.onQueryTerminated(QueryTerminatedEvent(UUID(int=number), run, error, None))

    def read(self) -> dict[str, float]:
        """`metric{labels but query and id}`: value."""
        return {key: value for key, (_, value) in samples(self.path).items()}


SOURCE = {
    "description": "s",
    "startOffset": None,
    "endOffset": None,
    "latestOffset": None,
    "numInputRows": 10,
    "inputRowsPerSecond": 12.5,
    "processedRowsPerSecond": 25.0,
}


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    clock = ManualClock()
    path = tmp_path / "queries.prom"
    return Heard(MetricsListener(str(path), clock), path, clock)


def samples(path: Path) -> dict[str, tuple[dict[str, str], float]]:
    """The samples of the file, by metric and labels; they must be valid in both formats, and equal."""
    text = path.read_text()
    assert text.endswith("# EOF\n")
    found = {}
    for family in parse_openmetrics(text):
        assert family.type == "gauge" and family.documentation
        assert not family.unit or family.name.endswith(f"_{family.unit}")
        for one in family.samples:
            labels = ",".join(value for label, value in one.labels.items() if label not in ("query", "id"))
            found[f"{one.name.removeprefix('pylog_stream_')}{{{labels}}}"] = (one.labels, one.value)
    older = [one for family in parse_prometheus(text) for one in family.samples]
    newer = [one for family in parse_openmetrics(text) for one in family.samples]
    assert sorted((s.name, sorted(s.labels.items()), s.value) for s in older) == sorted(
        (s.name, sorted(s.labels.items()), s.value) for s in newer
    )
    return found


def offset(topic_id: str = "a", /, **ends: int) -> Offsets:
    """Of topic t: p0=5 is partition 0."""
    return {"t": {name.removeprefix("p"): end for name, end in ends.items()}, "@topics": {"t": topic_id}}


def test_a_query_that_was_started_is_active(heard: Heard) -> None:
    """Before its first batch, too."""
    heard.start()
    assert heard.read() == {"active{}": 1, "failed{}": 0, "last_seen_timestamp_seconds{}": heard.clock.ms / 1000}


def test_lag_is_between_the_position_and_the_end(heard: Heard) -> None:
    """By partition, with both offsets."""
    heard.progress({"endOffset": offset(p0=5, p1=7), "latestOffset": offset(p0=13, p1=7)})
    found = heard.read()
    assert {key: value for key, value in found.items() if key.startswith(("lag", "position", "end"))} == {
        "position_offset{0,t,0}": 5,
        "position_offset{0,t,1}": 7,
        "end_offset{0,t,0}": 13,
        "end_offset{0,t,1}": 7,
        "lag_records{0,t,0}": 8,
        "lag_records{0,t,1}": 0,
    }


def test_rates_and_batches(heard: Heard) -> None:
    """In by source, out by query; when the last batch was done, and how long it took."""
    heard.progress({}, {"inputRowsPerSecond": 3.0})
    found = heard.read()
    assert {key: value for key, value in found.items() if "per_second" in key} == {
        "input_rows_per_second{0}": 12.5,
        "input_rows_per_second{1}": 3.0,
        "processed_rows_per_second{0}": 25.0,
        "processed_rows_per_second{1}": 25.0,
        "output_rows_per_second{}": 40.0,
    }
    assert (found["last_batch_id{}"], found["batch_duration_seconds{}"]) == (3, 0.5)
    assert found["last_progress_timestamp_seconds{}"] == 1_769_853_600.5


def test_what_spark_does_not_know_is_left_out(heard: Heard) -> None:
    """A sink that does not count, a source that was not asked for its end (before Spark 4.2)."""
    heard.progress({"endOffset": offset(p0=5)}, sink={"description": "", "numOutputRows": -1})
    found = heard.read()
    assert found["position_offset{0,t,0}"] == 5
    assert not {key for key in found if key.startswith(("output", "end", "lag"))}


def test_rates_that_are_no_numbers_are_left_out() -> None:
    """Spark leaves them out of its events after a batch that took no time."""
    event = {
        "timestamp": "2026-01-31T10:00:00.000Z",
        "batchId": 0,
        "batchDuration": 0,
        "sources": [{"endOffset": None}],
        "sink": {"numOutputRows": 1},
    }
    text = openmetrics([QueryMetrics(id="i", run_id="r", name="", seen_ms=0, batch=parse_batch(event))])
    assert "last_batch_id" in text and "per_second" not in text


@pytest.mark.parametrize("other", [{"t": {"0": 5}}, [1, 2], 17, "s3://x", None])
def test_other_sources_of_a_query_give_rates_only(heard: Heard, other: Any) -> None:
    """Kafka's offsets, files, rates: their offsets mean something else."""
    heard.progress(
        {"endOffset": other, "latestOffset": other}, {"endOffset": offset(p0=1), "latestOffset": offset(p0=2)}
    )
    found = heard.read()
    assert {key for key in found if key.startswith("lag")} == {"lag_records{1,t,0}"}
    assert found["input_rows_per_second{0}"] == 12.5


def test_two_sources_on_one_topic_are_told_apart(heard: Heard) -> None:
    """A self-join."""
    heard.progress(*[{"endOffset": offset(p0=n), "latestOffset": offset(p0=9)} for n in (1, 4)])
    found = heard.read()
    assert (found["lag_records{0,t,0}"], found["lag_records{1,t,0}"]) == (8, 5)


def test_a_topic_that_was_created_again_is_all_unread(heard: Heard) -> None:
    """Its offsets begin again at 0; new partitions are unread as well."""
    heard.progress({"endOffset": offset(p0=5), "latestOffset": offset("b", p0=7, p1=2)})
    found = heard.read()
    assert (found["lag_records{0,t,0}"], found["lag_records{0,t,1}"]) == (7, 2)


def test_names_are_escaped(heard: Heard) -> None:
    """Whatever a query is called."""
    name = 'say "hi"\\n\nand \\ more {a="b"} ä'
    heard.progress({}, name=name)
    assert {labels["query"] for labels, _ in samples(heard.path).values()} == {name}


def test_one_file_has_all_queries(heard: Heard) -> None:
    """By id, since names need not differ."""
    heard.start(1, "q")
    heard.start(2, "q")
    heard.progress({}, number=2, name="q")
    lines = heard.path.read_text().splitlines()
    assert len([line for line in lines if line.startswith("pylog_stream_active")]) == 2
    assert len([line for line in lines if line.startswith("# TYPE pylog_stream_active")]) == 1
    samples(heard.path)


def test_an_idle_query_is_alive(heard: Heard) -> None:
    """Its last batch stays the last one."""
    heard.progress({})
    before = heard.read()
    heard.clock.ms += 10_000
    heard.listener.onQueryIdle(QueryIdleEvent(UUID(int=1), RUN, ""))
    after = heard.read()
    assert {key for key in after if after[key] != before[key]} == {"last_seen_timestamp_seconds{}"}


@pytest.mark.parametrize("error", [None, "boom"])
def test_a_query_that_ended_is_marked(heard: Heard, error: str | None) -> None:
    """Its progress stays; it has no rates; the file shows whether it failed."""
    heard.progress({"endOffset": offset(p0=5), "latestOffset": offset(p0=13)})
    heard.end(error=error)
    found = heard.read()
    assert (found["active{}"], found["failed{}"], found["lag_records{0,t,0}"]) == (0, error is not None, 8)
    assert not {key for key in found if "per_second" in key or "duration" in key}


def test_a_query_that_is_started_again_takes_its_own_place(heard: Heard) -> None:
    """Also if Spark reports the end of its last run after the new start."""
    heard.start()
    heard.start(run=UUID(int=8))
    heard.progress({}, batchId=4)
    heard.end(error="late")
    found = heard.read()
    assert (found["active{}"], found["failed{}"]) == (1, 0) and "last_batch_id{}" not in found


# Promise: monitoring.md#watch-a-query
def test_only_so_many_queries_that_ended_are_kept(heard: Heard) -> None:
    """The ones that ended last, and all that run."""
    heard.start(1)
    for number in range(2, ENDED_MAX + 4):
        heard.start(number)
        heard.end(number)
    ids = {UUID(labels["id"]).int for labels, _ in labelled(heard.path)}
    assert ids == {1, *range(4, ENDED_MAX + 4)}


def labelled(path: Path) -> list[tuple[dict[str, str], float]]:
    return [(one.labels, one.value) for family in parse_openmetrics(path.read_text()) for one in family.samples]


# Promise: monitoring.md#watch-a-query
def test_the_file_is_replaced_as_a_whole(heard: Heard) -> None:
    """A reader with the old file open continues to read it; nothing else is left in the folder."""
    heard.start()
    with heard.path.open() as old:
        heard.start(2)
        assert old.read().count("pylog_stream_active{") == 1
    assert heard.path.read_text().count("pylog_stream_active{") == 2
    assert list(heard.path.parent.iterdir()) == [heard.path]


# Promise: monitoring.md#watch-a-query
def test_metrics_of_the_listener_are_those_on_the_page() -> None:
    """docs/monitoring.md has a row for each, and no other."""
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    table = page.partition("| metric, `pylog_stream_…` |")[2].partition("\n\n")[0]
    named = [name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(named) == sorted(METRICS)


# Promise: monitoring.md#watch-a-query
def test_a_file_that_cannot_be_written_stops_no_query(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, until it works again."""
    heard.path.mkdir()
    with caplog.at_level(logging.WARNING, "spark_log"):
        heard.start(1)
        heard.start(2)
    assert len(logged(caplog, str(heard.path))) == 1
    heard.path.rmdir()
    heard.end(2)
    assert len(heard.path.read_text().split("pylog_stream_active{")) == 3


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """When the listener is made, not when the first query runs."""
    with pytest.raises(InvalidRequest, match="nowhere is not a folder"):
        spark_log.metrics_listener(str(tmp_path / "nowhere" / "x.prom"))


def test_a_stream_tells_its_lag(
    spark: SparkSession,
    url: str,
    log: spark_log.Log,
    heard: Heard,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Spark's own events: a run in two batches that ends at the end of the log, and what it wrote."""
    log.admin.create_topics([NewTopic("t", 2), NewTopic("copy", 2)])
    log.append("t", texts(13), partitioner="round-robin")
    spark.streams.addListener(heard.listener)
    request.addfinalizer(lambda: spark.streams.removeListener(heard.listener))
    copy(load_stream(spark, url, maxOffsetsPerTrigger=8), url, "copy", tmp_path / "checkpoint")
    assert wait_until(lambda: heard.path.exists() and heard.read().get("active{}") == 0)
    found = heard.read()
    names = ("position_offset", "end_offset", "lag_records")
    assert [found[f"{name}{{0,t,0}}"] + found[f"{name}{{0,t,1}}"] for name in names] == [13, 13, 0]
    assert (found["failed{}"], found["last_batch_id{}"]) == (0, 1)
