"""State by key belongs to the positions of its flow: with others, records would be counted twice."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import spark_log
from spark_log import NewTopic, OffsetAndMetadata, TopicPartition
from spark_log.cli.main import pylog
from spark_log.errors import InvalidRequest, OffsetOutOfRange, UnknownTopicOrPartition
from spark_log.recovery.repair import repair
from spark_log.recovery.verify_repair import verify_and_repair
from spark_log.store.local import LocalStore
from tests.flows.test_keyed_state import COUNTS, WAIT_S, check, count, counts, made, start, write
from tests.processes import eventually


def run(url: str) -> None:
    with start(url) as flow:
        flow.process_all_available(WAIT_S)


def ended(log: spark_log.Log) -> None:
    """Wait until the group of a flow that was stopped has no members."""
    eventually(lambda: log.admin.describe_consumer_groups(["count"])["count"].state in ("Empty", "Dead"), WAIT_S)


def counted(url: str, words: str, partitions: int = 1) -> spark_log.Log:
    """A log in which a flow has counted these words, and was stopped."""
    log = made(url, partitions)
    write(log, words)
    run(url)
    ended(log)
    return log


def cli(url: str, command: str) -> None:
    done = CliRunner().invoke(pylog, [*shlex.split(command), "--yes", "-u", url])
    assert done.exit_code == 0, done.output


def group_deleted(log: spark_log.Log) -> None:
    log.admin.delete_consumer_groups(["count"])


def moved_back(log: spark_log.Log) -> None:
    log.admin.alter_consumer_group_offsets("count", {TopicPartition("words", 0): "earliest"})


def created_again(log: spark_log.Log) -> None:
    log.admin.delete_topics(["words"])
    log.create_topic(NewTopic("words", 1))
    write(log, "a")


# Promise: tasks/flow.md#keep-state-by-key
@pytest.mark.parametrize("change", [group_deleted, moved_back, created_again])
def test_a_state_whose_positions_are_gone_ends_the_flow(url: str, change: Callable[[spark_log.Log], None]) -> None:
    """Its records would be counted again.  Without the state, they are counted once."""
    log = counted(url, "a b a")
    change(log)
    with pytest.raises(
        InvalidRequest, match=r"topic 'counts' has state in 1 partition \(0\) in which group 'count' has"
    ):
        run(url)
    assert counts(log) == {"a": 2, "b": 1}
    ended(log)
    log.admin.delete_topics(["counts"])
    run(url)
    assert counts(log) == ({"a": 1} if change is created_again else {"a": 2, "b": 1})


# Promise: tasks/flow.md#keep-state-by-key
def test_a_state_is_computed_again_although_its_first_records_have_expired(tmp_path: Path) -> None:
    """The advice of the error is followed: the seek moves no position back, before maintenance removes the topic."""
    url = str(tmp_path)
    log = counted(url, "a b a")
    log.admin.delete_records({TopicPartition("words", 0): 3})
    write(log, "a c")
    log.admin.delete_topics(["counts"])
    with pytest.raises(UnknownTopicOrPartition, match="pylog group seek count --to earliest"):
        run(url)
    ended(log)
    cli(url, "group seek count --to earliest")
    run(url)
    assert counts(log) == {"a": 1, "c": 1}


# Promise: tasks/flow.md#keep-state-by-key
def test_a_flow_with_another_name_does_not_take_over_a_state(url: str) -> None:
    """It is that of the positions of the first flow, which continues."""
    log = counted(url, "a b a")
    with (
        pytest.raises(InvalidRequest, match="For another flow, choose another state topic"),
        spark_log.flow(url, name="second", source="words", target="out", function=count, state=COUNTS) as flow,
    ):
        flow.process_all_available(WAIT_S)
    write(log, "a")
    run(url)
    check(log, "a b a a")


# Promise: tasks/flow.md#keep-state-by-key
def test_another_state_topic_is_refused_and_not_created(url: str) -> None:
    """The positions belong to the first one."""
    log = counted(url, "a b a")
    with pytest.raises(UnknownTopicOrPartition, match="'other' was deleted, or the positions belong to another one"):
        start(url, state=spark_log.keyed("other"))
    assert "other" not in log.topics()


# Promise: tasks/flow.md#keep-state-by-key
def test_partitions_that_both_topics_got_end_the_flow(url: str) -> None:
    """The partitioner now chooses other partitions for some keys: these would get a second state."""
    log = counted(url, "a b c d e f")
    log.admin.create_partitions({"words": 3})
    log.admin.create_partitions({"counts": 3})
    with pytest.raises(InvalidRequest, match="with its state had 1 partitions, and now has 3"):
        run(url)
    assert set(log.table("counts")["partition"].to_pylist()) == {0}


def not_copied(log: spark_log.Log) -> None:
    """A copy of the source and of the positions has another text, and no topic of the state."""
    log.admin.delete_topics(["counts"])
    log.admin.alter_consumer_group_offsets("count", {TopicPartition("words", 0): OffsetAndMetadata(2, "copied")})


def without_state(log: spark_log.Log) -> None:
    log.admin.delete_topics(["counts"])
    log.admin.delete_consumer_groups(["count"])
    function, settings = (lambda words: None), {"name": "count", "source": "words"}
    with spark_log.flow(log.url, function=function, **settings) as flow:
        flow.process_all_available(WAIT_S)
    ended(log)


def trimmed(log: spark_log.Log) -> None:
    log.admin.delete_records({TopicPartition("counts", 0): 1})


# Promise: tasks/flow.md#keep-state-by-key
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (not_copied, "offset 2 of words-0, and topic 'counts' has no state of the records before"),
        (without_state, "offset 3 of words-0, and topic 'counts' has no state of the records before"),
        (trimmed, "the records of counts-0 before offset 1 were removed"),
    ],
)
def test_positions_without_their_state_end_the_flow(
    tmp_path: Path, change: Callable[[spark_log.Log], None], error: str
) -> None:
    """The flow would count from the middle.  With the commands of the error, it counts all."""
    url = str(tmp_path)
    log = counted(url, "a b a")
    change(log)
    with pytest.raises(InvalidRequest, match=error) as raised:
        run(url)
    for command in str(raised.value).partition("and then: ")[2].partition(". ")[0].split("; "):
        if "topic delete" not in command or "counts" in log.topics():
            cli(url, command.removeprefix("pylog "))
    run(url)
    assert counts(log) == {"a": 2, "b": 1}


# Promise: tasks/flow.md#keep-state-by-key
def test_a_state_that_is_trimmed_ends_a_running_flow(url: str) -> None:
    """With the next batch."""
    log = made(url, 1)
    write(log, "a")
    flow = start(url)
    flow.process_all_available(WAIT_S)
    trimmed(log)
    write(log, "a")
    with pytest.raises(InvalidRequest, match="the records of counts-0 before offset 1 were removed"):
        flow.await_termination(WAIT_S)


# Promise: tasks/flow.md#keep-state-by-key
def test_a_flow_with_state_may_begin_at_the_end(url: str) -> None:
    """Its first positions belong to a state that is empty, also if it is started again before its first batch."""
    log = made(url, 1)
    write(log, "a b a")
    for _ in range(2):
        with start(url, start="latest") as flow:
            flow.process_all_available(WAIT_S)
        ended(log)
    write(log, "a")
    run(url)
    assert counts(log) == {"a": 1}


# Promise: tasks/flow.md#keep-state-by-key
def test_a_topic_that_no_longer_holds_the_state_ends_a_running_flow(url: str) -> None:
    """Before retention has removed anything."""
    log = made(url, 1)
    write(log, "a a b")
    flow = start(url)
    flow.process_all_available(WAIT_S)
    log.admin.incremental_alter_configs({"counts": {"cleanup.policy": "compact,delete"}})
    write(log, "a")
    with pytest.raises(InvalidRequest, match="must only be compacted"):
        flow.await_termination(WAIT_S)
    log.admin.incremental_alter_configs({"counts": {"cleanup.policy": "compact"}})
    ended(log)
    run(url)
    check(log, "a a b a")


# Promise: tasks/flow.md#exactly-once
def test_records_that_were_removed_are_left_out_and_no_others_are_processed_again(tmp_path: Path) -> None:
    """The command of the error moves the group in that partition only, and the state stays that of its positions."""
    url = str(tmp_path)
    log = made(url, 2)
    log.append("words", [{"key": key, "value": "", "partition": number} for number, key in enumerate("ab")] * 3)
    run(url)
    log.append("words", [{"key": "a", "value": "", "partition": 0}] * 2)
    log.admin.delete_records({TopicPartition("words", 0): 4})
    with pytest.raises(OffsetOutOfRange, match=r"records 3 to 3 of words-0 were removed") as error:
        run(url)
    command = str(error.value).partition("and then: pylog ")[2]
    assert command == "group seek count --topic words:0 --to earliest"
    cli(url, command)
    run(url)
    assert counts(log) == {"a": 4, "b": 3}
    cli(url, "group seek count --shift-by -1")
    with pytest.raises(InvalidRequest, match="has state in 2 partitions"):
        run(url)


# Promise: storage-failures.md#continue-without-what-is-lost
def test_a_state_does_not_continue_after_an_accepted_loss(tmp_path: Path) -> None:
    """The positions were set back to the last intact offset, and the state has the records since."""
    url = str(tmp_path / "log")
    log = made(url, 1)
    runs = []
    for _ in range(3):
        write(log, "a a")
        before = set((tmp_path / "log/meta/log").iterdir())
        run(url)
        runs.append(sorted(set((tmp_path / "log/meta/log").iterdir()) - before))
    log.close()
    runs[1][1].unlink()
    repair(LocalStore(url), is_alive=lambda holder: False, accept_loss=True)
    with pytest.raises(InvalidRequest, match="`pylog repair --accept-loss` has set the flow's positions back") as error:
        run(url)
    for command in str(error.value).partition("and then: ")[2].split("; "):
        cli(url, command.removeprefix("pylog "))
    run(url)
    log = spark_log.connect(url)
    assert counts(log) == {"a": log.read("words").num_rows}


# Promise: tasks/flow.md#keep-state-by-key
def test_a_state_of_which_records_were_given_up_ends_the_flow(url: str, tmp_path: Path) -> None:
    """Keys of them would be counted from nothing, by this process and by any other."""
    log = made(url, 1)
    write(log, "a b a")
    before = set((tmp_path / "log").rglob("*.seg"))
    run(url)
    ended(log)
    for segment in set((tmp_path / "log").rglob("*.seg")) - before:
        segment.unlink()
    assert verify_and_repair(log, repair=True, lose_data=True).given_up
    write(log, "a")
    with pytest.raises(
        InvalidRequest, match=r"the records of counts-0 0 to \d+ were lost, .*pylog topic delete counts"
    ):
        run(url)
    ended(log)
    log.admin.delete_topics(["counts"])
    cli(url, "group seek count --to earliest")
    run(url)
    check(log, "a b a a")
