"""Names of dropped objects leave the state for a list, and none is lost (docs/decisions/0052-dropped-objects.md)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import CorruptObject, InvalidRequest, UnsupportedVersion
from spark_log.metadata.commands import AnyCommand, Report
from spark_log.metadata.commits.decide_commits import decide_commit
from spark_log.metadata.formats.dropped_list_format import decode_list, encode_list
from spark_log.metadata.records import ListDroppedRecord
from spark_log.metadata.state import DroppedList
from spark_log.metadata.topics.decide_topics import decide_trim
from spark_log.model import DataObject
from tests.unit.metadata.history import History


@pytest.fixture
def log() -> History:
    return History()


def drop(log: History, topic: str, number: int = 1) -> list[str]:
    """Commit so many objects, and drop them; their names."""
    for _ in range(number):
        log.commit((topic, 0, 3))
    names = list(log.state.objects)
    log.do(lambda state, now: decide_trim(state, {(topic, 0): state.partitions[topic, 0].end}))
    log.prune((topic, 0))
    return names


def listed(upto: int, name: str = "a") -> ListDroppedRecord:
    return ListDroppedRecord(upload_epoch=upto, object=f"data/{upto:016x}/{name}.dropped")


def list_names(log: History, record: ListDroppedRecord) -> bool:
    """As a coordinator does that received the command."""
    received: AnyCommand = msgspec.json.decode(msgspec.json.encode(Report(record=record)), type=AnyCommand)
    return bool(log.do(received))


# Promise: format/metadata.md#lists-of-dropped-objects
def test_names_leave_the_state_for_a_list_until_the_fence_has_passed_its_version(log: History) -> None:
    topic = log.create()
    drop(log, topic, 3)
    record = listed(log.state.version)
    late = drop(log, topic)
    assert list_names(log, record)
    assert dict(log.state.dropped_lists) == {record.object: DroppedList(record.upload_epoch, 3)}
    assert list(log.state.dropped) == late
    log.pass_fence()
    assert not log.state.dropped and not log.state.dropped_lists


def test_the_second_list_of_the_same_names_is_not_written(log: History) -> None:
    """Two processes list them: the second file is an object without a reference."""
    drop(log, log.create(), 3)
    first, second = listed(log.state.version, "a"), listed(log.state.version, "b")
    assert list_names(log, first) and not list_names(log, second)
    before = log.state
    log.write(second)
    assert log.state.dropped_lists == before.dropped_lists


def test_a_later_list_has_the_names_that_a_first_one_left(log: History) -> None:
    """It may have more: names that are in the first list too."""
    topic = log.create()
    drop(log, topic)
    first = listed(log.state.version)
    drop(log, topic)
    second = listed(log.state.version)
    assert list_names(log, first) and list_names(log, second)
    assert not log.state.dropped
    assert [row.names for row in log.state.dropped_lists.values()] == [1, 1]


VOID: dict[str, Callable[[History], ListDroppedRecord]] = {
    "nothing was dropped before": lambda log: listed(1),
    "at the fence": lambda log: listed(log.state.fence),
    "of the future": lambda log: listed(log.state.version + 1),
    "a live object": lambda log: ListDroppedRecord(
        upload_epoch=log.state.version, object=next(iter(log.state.objects))
    ),
    "a dropped object": lambda log: ListDroppedRecord(
        upload_epoch=log.state.version, object=next(iter(log.state.dropped))
    ),
}


@pytest.mark.parametrize("what", VOID)
def test_a_void_list_changes_nothing_and_is_not_decided(log: History, what: str) -> None:
    topic = log.create()
    drop(log, topic)
    log.commit((topic, 0, 3))
    record, before = VOID[what](log), log.state
    assert not list_names(log, record) and log.state is before
    log.write(record)
    assert (log.state.dropped, log.state.dropped_lists) == (before.dropped, before.dropped_lists)


def test_a_commit_does_not_name_a_list(log: History) -> None:
    topic = log.create()
    drop(log, topic)
    record = listed(log.state.version)
    list_names(log, record)
    upload = log.upload((topic, 0, 1))
    stolen = DataObject(record.object, 10, 0)
    with pytest.raises(InvalidRequest, match="in the log already"):
        log.do(
            lambda state, now: decide_commit(
                state,
                type(upload)(
                    producer="p",
                    sequence=0,
                    birth=log.state.version,
                    upload_epoch=upload.upload_epoch,
                    objects=(stolen,),
                    slices=upload.slices,
                ),
            )
        )


# ---------------------------------------------------------------------------------------------------------------- bytes


@given(st.sets(st.text(max_size=9), max_size=5))
def test_names_survive_the_bytes_of_a_list(names: set[str]) -> None:
    assert decode_list(encode_list(names, "x"), "x") == sorted(names)


def test_a_list_that_is_cut_or_damaged_anywhere_is_an_error_that_names_it() -> None:
    data = encode_list((f"data/{number:016x}/a.seg" for number in range(9)), "data/9")
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]):
            with pytest.raises(CorruptObject, match="^data/9 "):
                decode_list(damaged, "data/9")


def test_a_list_of_a_newer_format_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="has format 2, this pylog reads 1"):
        decode_list(b"pylog-dropped 2\n", "data/9")


def test_a_list_in_the_place_of_another_one_is_an_error() -> None:
    """Such as one that was copied from another log: garbage collection would delete what the lost one protects."""
    with pytest.raises(CorruptObject, match="data/8 is another list of dropped objects, 'data/9'"):
        decode_list(encode_list(["data/1"], "data/9"), "data/8")
