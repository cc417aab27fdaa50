"""A flow as its users see it: functions, targets, several tasks and processes, and its end."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.client.consumer.consumer import Consumer
from spark_log.errors import FunctionFailed, InvalidRequest, NoLog, RequestTimedOut, UnknownTopicOrPartition
from spark_log.flows.task import TaskCounts

WAIT_S = 60.0


def made(url: str, *topics: tuple[str, int]) -> spark_log.Log:
    log = spark_log.connect(url)
    log.admin.create_topics([NewTopic(name, partitions) for name, partitions in topics])
    return log


def upper(table: pa.Table) -> pa.Table:
    return table.set_column(
        table.column_names.index("value"), "value", pc.ascii_upper(table["value"].cast(pa.string()))
    )


def values(log: spark_log.Log, topic: str) -> list[str]:
    return [value.decode() for value in log.read(topic).column("value").to_pylist()]


def append(log: spark_log.Log, topic: str, *texts: str, **more: Any) -> None:
    log.append(topic, [{"key": text[:1], "value": text, **more} for text in texts])


# Promise: tasks/flow.md#start-a-flow
def test_records_go_through_the_function_into_the_target(url: str) -> None:
    """With their keys, also those that come later; the positions are in the log when the records are."""
    log = made(url, ("in", 2), ("out", 3))
    append(log, "in", *(f"{letter}{n}" for letter in "abc" for n in range(5)))
    with spark_log.flow(url, name="up", source="in", target="out", function=upper) as flow:
        flow.process_all_available(WAIT_S)
        append(log, "in", "z")
        flow.process_all_available(WAIT_S)
        progress = flow.progress
    table = log.read("out")
    got = sorted(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert got == sorted(
        [(t[:1].encode(), t.upper().encode()) for t in [*(f"{x}{n}" for x in "abc" for n in range(5)), "z"]]
    )
    assert (progress.records_in, progress.records_out, progress.lag, progress.state) == (16, 16, 0, "running")
    assert sum(at.offset for at in log.admin.list_consumer_group_offsets("up").values()) == 16
    assert flow.progress.state == "stopped" and not flow.is_active


# Promise: tasks/flow.md#start-a-flow
def test_a_flow_that_starts_again_continues_where_it_was(url: str) -> None:
    """Its name is its group, and `start` is for its first start."""
    log = made(url, ("in", 2), ("out", 1))
    append(log, "in", "old")
    for number, start in enumerate(("latest", "earliest", "earliest")):
        with spark_log.flow(url, name="up", source="in", target="out", function=upper, start=start) as flow:
            append(log, "in", f"new{number}")
            flow.process_all_available(WAIT_S)
    assert values(log, "out") == ["NEW0", "NEW1", "NEW2"]


# Promise: tasks/flow.md#outputs
def test_a_function_may_return_frames_of_several_topics_or_nothing(url: str) -> None:
    """pandas and Arrow by topic; None for a batch without output, whose positions are committed."""
    log = made(url, ("in", 1), ("even", 1), ("odd", 1))

    def parted(table: pa.Table) -> dict[str, Any] | None:
        frame = table.to_pandas()
        frame = frame[frame["value"] != b"x"]
        is_even = frame["value"].map(lambda value: int(value) % 2 == 0)
        return (
            {"even": frame[is_even], "odd": pa.Table.from_pandas(frame[~is_even]), "none": None} if len(frame) else None
        )

    append(log, "in", *(str(n) for n in range(10)))
    with spark_log.flow(url, name="parted", source="in", function=parted) as flow:
        flow.process_all_available(WAIT_S)
        append(log, "in", "x")
        flow.process_all_available(WAIT_S)
    assert values(log, "even") == ["0", "2", "4", "6", "8"] and values(log, "odd") == ["1", "3", "5", "7", "9"]
    assert "none" not in log.topics() and flow.progress.records_in == 11


# Promise: tasks/flow.md#outputs
def test_typed_topics_are_columns(url: str) -> None:
    """A source with a schema gives its columns, and the first frame gives the target its schema."""
    log = spark_log.connect(url)
    prices = pa.schema([("price", pa.int64()), ("n", pa.int64())])
    log.create_topic(NewTopic("orders", 2, schema=prices))
    log.create_topic(NewTopic("enriched", 1, {"schema.auto": "true"}))
    log.append("orders", pd.DataFrame({"key": ["a", "b"], "price": [2, 3], "n": [10, 20]}))

    def total(table: pa.Table) -> pa.Table:
        return table.append_column("total", pc.multiply(table["price"], table["n"]))

    with spark_log.flow(url, name="enrich", source="orders", target="enriched", function=total) as flow:
        flow.process_all_available(WAIT_S)
    found = log.read("enriched")
    assert sorted(found["total"].to_pylist()) == [20, 60] and sorted(found["key"].to_pylist()) == [b"a", b"b"]


# Promise: tasks/flow.md#sources
def test_a_pattern_takes_in_topics_that_are_created_later(url: str) -> None:
    """From their first record."""
    log = made(url, ("in-a", 1), ("other", 1), ("out", 1))
    append(log, "in-a", "a")
    append(log, "other", "no")
    with spark_log.flow(url, name="all", source=re.compile("in-.*"), target="out", function=upper) as flow:
        flow.process_all_available(WAIT_S)
        log.create_topic(NewTopic("in-b", 2))
        append(log, "in-b", "b", "c")
        flow.process_all_available(WAIT_S)
    assert sorted(values(log, "out")) == ["A", "B", "C"]


# Promise: tasks/flow.md#look-up-records-by-key
def test_a_function_looks_up_the_latest_records_of_a_topic(url: str) -> None:
    """The function gets the latest records: a changed one, a new one, and none for a key that was deleted."""
    log = made(url, ("in", 2), ("out", 1))
    log.create_topic(NewTopic("names", 2, {"cleanup.policy": "compact"}))
    log.append("names", [{"key": "a", "value": "Anna"}, {"key": "a", "value": "Ann"}, {"key": "b", "value": "Bob"}])

    def named(table: pa.Table, names: pa.Table) -> pa.Table:
        known = dict(zip(names["key"].to_pylist(), names["value"].to_pylist(), strict=True))
        return pa.table({"value": [known.get(key, b"?") for key in table["key"].to_pylist()]})

    append(log, "in", "a", "b", "c")
    with spark_log.flow(url, name="f", source="in", target="out", function=named, lookup="names") as flow:
        flow.process_all_available(WAIT_S)
        assert sorted(values(log, "out")) == ["?", "Ann", "Bob"]
        log.append("names", [{"key": "c", "value": "Carl"}, {"key": "b", "value": None}])
        until_s = time.monotonic() + WAIT_S
        while values(log, "out")[-2:] != ["Carl", "?"]:  # the table is not read again for each batch
            assert time.monotonic() < until_s
            append(log, "in", "c")
            flow.process_all_available(WAIT_S)
            append(log, "in", "b")
            flow.process_all_available(WAIT_S)


# Promise: tasks/flow.md#look-up-records-by-key
@pytest.mark.parametrize("remove", ["erase", "trim"])
def test_a_record_that_was_removed_is_not_looked_up_any_more(url: str, remove: str) -> None:
    """Erased, or trimmed: the topic ends where it did."""
    log = made(url, ("in", 1), ("out", 1))
    log.create_topic(NewTopic("names", 1, {"cleanup.policy": "compact"}))
    log.append("names", [{"key": "a", "value": "Ann"}])

    def named(table: pa.Table, names: pa.Table) -> pa.Table:
        return pa.table({"value": [b",".join(names["value"].to_pylist())] * table.num_rows})

    append(log, "in", "a")
    with spark_log.flow(url, name="f", source="in", target="out", function=named, lookup="names") as flow:
        flow.process_all_available(WAIT_S)
        assert values(log, "out") == ["Ann"]
        if remove == "erase":
            log.admin.erase_records("names", ["a"])
        else:
            log.admin.delete_records({TopicPartition("names", 0): 1})
        until_s = time.monotonic() + 10
        while values(log, "out")[-1] != "":
            assert time.monotonic() < until_s
            append(log, "in", "a")
            flow.process_all_available(WAIT_S)


# Promise: tasks/flow.md#look-up-records-by-key
def test_only_compacted_topics_are_looked_up(url: str) -> None:
    """The others are named, also one that does not exist."""
    log = made(url, ("in", 1), ("out", 1))
    append(log, "in", "a")
    for topic, error in ("out", InvalidRequest), ("none", UnknownTopicOrPartition):
        with pytest.raises(error, match=f"topic '{topic}'"):
            spark_log.flow(
                url, name="f", source="in", function=lambda table, other: None, lookup=[topic]
            ).await_termination(WAIT_S)


# Promise: tasks/flow.md#stop-a-flow
def test_a_poll_ends_when_its_task_is_stopped(url: str) -> None:
    """Not at the end of its timeout, which is an hour here."""
    log, stop = made(url, ("in", 1)), threading.Event()
    consumer = Consumer(log.journal, "in", group_id="g", stop=stop)
    while not consumer.assignment():
        consumer.poll(100)
    waiting = threading.Thread(target=consumer.poll, args=(3_600_000,), daemon=True)
    waiting.start()
    stop.set()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    consumer.close()


# Promise: tasks/flow.md#several-tasks-and-processes
def test_tasks_share_the_partitions_and_keep_their_order(url: str) -> None:
    """Each record once, and those of a key in their order."""
    log = made(url, ("in", 6), ("out", 3))
    expected = [f"{letter}{n:03}" for n in range(60) for letter in "abcdefgh"]
    with spark_log.flow(url, name="up", source="in", target="out", function=upper, tasks=3, batch_bytes=200) as flow:
        for at in range(0, len(expected), 40):
            append(log, "in", *expected[at : at + 40])
        flow.process_all_available(WAIT_S)
    got = values(log, "out")
    assert sorted(got) == sorted(text.upper() for text in expected)
    for letter in "ABCDEFGH":
        mine = [text for text in got if text[0] == letter]
        assert mine == sorted(mine)


# Promise: tasks/flow.md#several-tasks-and-processes
def test_flows_of_one_name_share_the_partitions(url: str) -> None:
    """With a coordinator any number of them; without one, each runs other tasks."""
    log = made(url, ("in", 4), ("out", 1))
    served = url.startswith("pylog://")
    seen: list[Counter[str]] = [Counter(), Counter()]

    def note(number: int) -> Any:
        def function(table: pa.Table) -> pa.Table:
            seen[number].update(table["value"].to_pylist())
            return table

        return function

    def start(number: int) -> Any:
        more: dict[str, Any] = {} if served else {"tasks": 2, "task_numbers": [number]}
        return spark_log.flow(url, name="two", source="in", target="out", function=note(number), **more)

    with start(0) as flow, start(1):
        deadline, sent = time.monotonic() + WAIT_S, 0
        while not all(seen):
            assert time.monotonic() < deadline
            append(log, "in", *(f"{letter}{sent}" for letter in "abcdefgh"))
            sent += 1
            time.sleep(0.05)
        flow.process_all_available(WAIT_S)
    assert Counter(values(log, "out")) == Counter(f"{letter}{n}" for n in range(sent) for letter in "abcdefgh")


def fragile(table: pa.Table) -> pa.Table:
    """Fails at records with a minus."""
    if pc.any(pc.starts_with(table["value"].cast(pa.string()), "-")).as_py():
        raise ValueError("negative")
    return table


# Promise: tasks/flow.md#records-at-which-the-function-fails
def test_a_record_at_which_the_function_fails_stops_the_flow(url: str) -> None:
    """The error names it; nothing of its batch is committed, and the corrected function gets it again."""
    log = made(url, ("in", 1), ("out", 1))
    append(log, "in", *"12-34")
    flow = spark_log.flow(url, name="f", source="in", target="out", function=fragile)
    with pytest.raises(FunctionFailed, match=r"in-0, offset 2: ValueError: negative; nothing") as failed, flow:
        flow.await_termination(WAIT_S)
    assert (failed.value.topic, failed.value.partition, failed.value.offset) == ("in", 0, 2)
    assert isinstance(failed.value.__cause__, ValueError) and flow.progress.state == "failed"
    assert log.read("out").num_rows == 0
    with spark_log.flow(url, name="f", source="in", target="out", function=lambda table: table) as flow:
        flow.process_all_available(WAIT_S)
    assert values(log, "out") == list("12-34")


# Promise: tasks/flow.md#records-at-which-the-function-fails
def test_bad_records_are_kept_as_dead_letters_or_skipped(url: str) -> None:
    """A dead letter has the record and the reason; the others keep their order."""
    log = made(url, ("in", 1), ("kept", 1), ("rest", 1))
    log.append(
        "in", [{"key": "k", "value": text, "headers": [("h", b"1")]} for text in ["1", "2", "-3", "4", "-5", "6"]]
    )
    with spark_log.flow(url, name="a", source="in", target="kept", function=fragile, bad_records="topic:bad") as flow:
        flow.process_all_available(WAIT_S)
    with spark_log.flow(url, name="b", source="in", target="rest", function=fragile, bad_records="skip") as other:
        other.process_all_available(WAIT_S)
    assert values(log, "kept") == values(log, "rest") == ["1", "2", "4", "6"]
    bad = log.read("bad").to_pylist()
    assert [row["value"] for row in bad] == [b"-3", b"-5"] and {row["key"] for row in bad} == {b"k"}
    headers = [{one["key"]: one["value"] for one in row["headers"]} for row in bad]
    assert headers[0] == {
        "h": b"1",
        "pylog.error": b"negative",
        "pylog.error.class": b"ValueError",
        "pylog.topic": b"in",
        "pylog.partition": b"0",
        "pylog.offset": b"2",
    }
    assert flow.progress.bad_records == other.progress.bad_records == 2
    assert (flow.progress.records_out, other.progress.records_out) == (6, 4)


# Promise: tasks/flow.md#as-a-command
def test_a_function_that_exits_fails_at_its_record(url: str) -> None:
    """Its status, which may be 0, is not that of the process."""
    log = made(url, ("in", 1), ("out", 1))
    append(log, "in", *"12")

    def function(table: pa.Table) -> pa.Table:
        if b"2" in table["value"].to_pylist():
            sys.exit(0)
        return table

    with pytest.raises(FunctionFailed, match=r"in-0, offset 1: SystemExit: 0; nothing"):
        spark_log.flow(url, name="f", source="in", target="out", function=function).await_termination(WAIT_S)


def test_the_reason_of_a_dead_letter_may_be_any_text(url: str) -> None:
    """Such as one with the name of a file that is not UTF-8, or an error that has no text."""

    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def function(table: pa.Table) -> pa.Table:
        if b"-" in table["value"].to_pylist():
            raise OSError("no file \udce4.csv")
        if b"+" in table["value"].to_pylist():
            raise Silent
        return table

    log = made(url, ("in", 1), ("out", 1))
    append(log, "in", *"1-+2")
    with spark_log.flow(url, name="f", source="in", target="out", function=function, bad_records="topic:bad") as flow:
        flow.process_all_available(WAIT_S)
    reasons = [row["headers"][0]["value"] for row in log.read("bad").to_pylist()]
    assert reasons[0] == rb"no file \udce4.csv" and b"cannot be shown" in reasons[1]
    assert values(log, "out") == ["1", "2"]


# Promise: tasks/flow.md#records-at-which-the-function-fails
def test_outputs_that_the_target_refuses_are_bad_records(url: str) -> None:
    """A record without a key for a compacted topic; a dead letter of a typed topic has its value as JSON."""
    log = spark_log.connect(url)
    log.create_topic(NewTopic("in", 1, schema=pa.schema([("n", pa.int64())])))
    log.create_topic(NewTopic("state", 1, {"cleanup.policy": "compact"}))
    log.append("in", pa.table({"key": ["a", None, "c"], "n": [1, 2, 3]}))

    def function(table: pa.Table) -> pa.Table:
        return pa.table({"key": table["key"], "value": table["n"].cast(pa.string())})

    with spark_log.flow(url, name="s", source="in", target="state", function=function, bad_records="topic:bad") as flow:
        flow.process_all_available(WAIT_S)
    assert values(log, "state") == ["1", "3"]
    assert values(log, "bad") == ['{"n":2}']


# Promise: tasks/flow.md#outputs
@pytest.mark.parametrize(
    ("target", "result", "said"),
    [
        ("out", 7, r"the function returned an int: expected a pyarrow Table"),
        (None, pa.table({"value": ["x"]}), r"the flow has no target"),
        ("out", {1: pa.table({"value": ["x"]})}, r"a dict with the key 1"),
        ("out", {"value": ["x"]}, r"the function returned a list"),
    ],
)
def test_a_result_that_is_no_output_ends_the_flow(url: str, target: str | None, result: object, said: str) -> None:
    log = made(url, ("in", 1), ("out", 1))
    append(log, "in", "1", "2")
    flow = spark_log.flow(url, name="f", source="in", target=target, function=lambda table: result, bad_records="skip")
    with pytest.raises(InvalidRequest, match=said):
        flow.await_termination(WAIT_S)
    assert log.read("out").num_rows == 0


# Promise: tasks/flow.md#stop-a-flow
def test_stop_lets_the_batch_end(url: str) -> None:
    """Its outputs are there; a function that does not return is named after the timeout, and commits nothing later."""
    log = made(url, ("in", 1), ("out", 1))
    begun, go_on = threading.Event(), threading.Event()

    def slow(table: pa.Table) -> pa.Table:
        begun.set()
        go_on.wait(WAIT_S)
        return table

    append(log, "in", "1")
    flow = spark_log.flow(url, name="f", source="in", target="out", function=slow)
    assert begun.wait(WAIT_S)
    with pytest.raises(RequestTimedOut, match="a task has not ended within"):
        flow.stop(0.1)
    assert flow.is_active and not flow.await_termination(0.01)
    go_on.set()
    flow.stop(WAIT_S)
    assert flow.await_termination() and values(log, "out") == ["1"]


# Promise: tasks/flow.md#start-a-flow
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": ""}, "invalid name ''"),
        ({"source": []}, "source: no topic is given"),
        ({"source": "a/b"}, "a/b"),
        ({"function": 3}, "expected a function of a pyarrow Table, not 3"),
        ({"tasks": 0}, "invalid value 0 for tasks"),
        ({"tasks": 2, "task_numbers": [2]}, "task_numbers: expected different numbers from 0 to 1"),
        ({"bad_records": "topic"}, "invalid value 'topic' for bad_records"),
        ({"target": "in"}, "topic 'in' is a source, too"),
        ({"source": re.compile(".*")}, "topic 'out' is a source, too"),
        ({"bad_records": "topic:in"}, "topic 'in' is a source, too"),
        ({"start": "yesterday"}, "start"),
        ({"value_format": "xml"}, "invalid value 'xml' for value_format"),
        ({"linger_ms": -1}, "invalid value -1 for linger_ms"),
    ],
)
def test_odd_arguments_are_refused_when_the_flow_starts(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    made(str(tmp_path), ("in", 1), ("out", 1))
    arguments: dict[str, Any] = {"name": "f", "source": "in", "target": "out", "function": upper, **given}
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        spark_log.flow(str(tmp_path), **arguments)


# Promise: tasks/flow.md#start-a-flow
def test_a_flow_creates_no_log(tmp_path: Path) -> None:
    with pytest.raises(NoLog):
        spark_log.flow(str(tmp_path / "typo"), name="f", source="in", function=upper)


def test_the_records_of_lookups_are_those_of_the_last_batch() -> None:
    """None if the tables are empty by then; an attempt without a batch knows nothing of them."""
    before = TaskCounts(batches=1, lookup_records=5)
    assert before.plus(TaskCounts(restarts=1)).lookup_records == 5
    assert before.plus(TaskCounts(batches=1)).lookup_records == 0
