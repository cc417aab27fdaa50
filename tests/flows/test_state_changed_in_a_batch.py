"""State by key, and records of a source, that others change while a batch runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import spark_log
from spark_log import NewTopic
from tests.flows.test_keyed_state import COUNTS, WAIT_S, change_state, check, count, counts, made, start, waiting, write


# Promise: tasks/flow.md#keep-state-by-key
@pytest.mark.parametrize("change", ["write", "erase"])
def test_a_state_that_others_change_during_a_batch_is_not_overwritten(tmp_path: Path, change: str) -> None:
    """The batch is processed again, with the state that the topic has then."""
    log = made(str(tmp_path), 1)
    write(log, "a a")
    with start(str(tmp_path)) as flow:
        flow.process_all_available(WAIT_S)
    write(log, "a b")
    with waiting(str(tmp_path)) as (flow, gate):
        change_state(log, change, "a", 100)
        gate.may_go_on.set()
        flow.process_all_available(WAIT_S)
    assert counts(log) == {"a": 101 if change == "write" else 1, "b": 1}


# Promise: tasks/erase.md#flows
def test_records_that_are_erased_during_a_batch_do_not_come_back_by_its_outputs(url: str) -> None:
    """Neither in the target nor in the state: the batch is processed again without them."""
    log = made(url, 1)
    write(log, "a a b")
    with waiting(url) as (flow, gate):
        log.admin.erase_records("words", ["a"])
        gate.may_go_on.set()
        flow.process_all_available(WAIT_S)
    check(log, "b")


# Promise: tasks/erase.md#flows
@pytest.mark.parametrize("times", [1, 100])
def test_a_state_that_is_written_while_it_is_erased_is_erased_too(url: str, times: int) -> None:
    """The batch read the erased state, and was committed before the erasure had ended.  If that happens again and
    again, the report says what to do."""
    log, other, more = made(url, 1), spark_log.connect(url), iter(range(times))
    write(log, "a a b")
    with start(url) as flow:
        flow.process_all_available(WAIT_S)

        def meanwhile(name: str, at: int, total: int) -> None:
            if next(more, None) is not None:
                write(other, "a")
                flow.process_all_available(WAIT_S)

        report = log.admin.erase_records("counts", ["a"], progress=meanwhile)
        assert [text.partition(" to topic")[0] for text in report.problems] == (
            [] if times == 1 else ["flow 'count' writes state of these keys"]
        )
        assert set(counts(log)) == ({"b"} if times == 1 else {"a", "b"})
        write(log, "a")
        flow.process_all_available(WAIT_S)
    assert counts(log)["a"] == 1 or times > 1


# Promise: tasks/erase.md#flows
def test_a_record_of_a_lookup_that_is_erased_during_a_batch_does_not_come_back_by_its_outputs(url: str) -> None:
    """The batch is processed again with the table as it is then, however short ago it was read."""
    log, gate = made(url, 1), threading.Event()
    begun = threading.Event()
    log.create_topic(NewTopic("names", 1, {"cleanup.policy": "compact"}))
    log.append("names", [{"key": "a", "value": "Ann"}, {"key": "b", "value": "Bo"}])
    log.create_topic(NewTopic("named", 1))

    def named(words: pa.Table, names: pa.Table) -> pa.Table:
        begun.set()
        assert gate.wait(WAIT_S)
        return pa.table({"value": [b",".join(sorted(names["value"].to_pylist()))] * words.num_rows})

    write(log, "a")
    with spark_log.flow(url, name="f", source="words", target="named", function=named, lookup="names") as flow:
        assert begun.wait(WAIT_S)
        log.admin.erase_records("names", ["a"])
        gate.set()
        flow.process_all_available(WAIT_S)
    assert log.read("named")["value"].to_pylist() == [b"Bo"]


# Promise: tasks/flow.md#keep-state-by-key
@pytest.mark.parametrize("change", ["write", "erase"])
def test_a_state_that_others_change_during_a_divided_batch_is_read_again(tmp_path: Path, change: str) -> None:
    """The batch is processed again, and memory is the topic afterwards."""
    log = made(str(tmp_path), 1)
    write(log, "x x x")
    with start(str(tmp_path)) as flow:
        flow.process_all_available(WAIT_S)
    changed = threading.Event()

    def fragile(words: pa.Table, counts: pa.Table) -> tuple[pa.Table, pa.Table]:
        keys = words["key"].to_pylist()
        if keys == [b"b", b"c"] and not changed.is_set():
            changed.set()
            change_state(log, change, "x", 100)
        if b"bad" in keys:
            raise ValueError
        assert flow.progress.state == "running"  # it has read the end of the log
        return count(words, counts)

    with start(str(tmp_path), fragile, bad_records="skip") as flow:
        write(log, "a bad b c")
        flow.process_all_available(WAIT_S)
        write(log, "x")
        flow.process_all_available(WAIT_S)
    assert changed.is_set()
    assert counts(log) == {"a": 1, "b": 1, "c": 1, "x": 101 if change == "write" else 1}


# Promise: tasks/flow.md#keep-state-by-key
def test_a_column_that_the_state_gets_during_a_batch_fails_no_record(tmp_path: Path) -> None:
    """The batch is processed again, and its state has the column."""
    log = made(str(tmp_path), 1)

    def altering(words: pa.Table, counts: pa.Table) -> tuple[pa.Table, pa.Table]:
        if "more" not in counts.column_names:
            log.admin.alter_schema("counts", pa.schema([("n", pa.int64()), ("more", pa.string())]))
            assert flow.progress.state == "running"  # it has read the end of the log
        return count(words, counts.select(["key", "n"]))

    log.create_topic(NewTopic("counts", 1, {"cleanup.policy": "compact"}, schema=COUNTS.schema))
    with start(str(tmp_path), altering, spark_log.keyed("counts"), bad_records="skip") as flow:
        write(log, "a b a")
        flow.process_all_available(WAIT_S)
        assert flow.progress.bad_records == 0
    assert "more" in log.table("counts").column_names
    check(log, "a b a")
