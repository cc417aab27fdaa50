"""Transactions and bookmarks on a real log."""

# ruff: noqa: PT012 - what raises is the end of a transaction's block

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest

import spark_log
from spark_log.client.producer.transaction import ROWS_MAX
from spark_log.errors import (
    ConcurrentChange,
    IllegalGeneration,
    InvalidRecord,
    InvalidRequest,
    InvalidTxnState,
    InvalidTxnTimeout,
    MessageTooLarge,
    OffsetOutOfRange,
    ProducerFenced,
    TransactionTimedOut,
    UnknownTopicOrPartition,
)
from spark_log.model import OffsetAndMetadata, TopicPartition
from tests.client.logs import new_log, values

P0 = TopicPartition("orders", 0)


# Promise: clients.md#transactions, tasks/exactly-once.md#exactly-once-end-to-end
def test_records_of_many_topics_and_positions_are_one_commit(tmp_path: Path) -> None:
    """append, send and commit_offsets: one version of the metadata log for all of it."""
    log = new_log(tmp_path, orders=1, out=2)
    log.append("orders", [{"value": "1"}, {"value": "2"}, {"value": "3"}])
    consumer = log.consumer("orders", group_id="etl", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.poll(1000, max_records=2)
    with log.transaction("etl-1") as txn:
        before = log.journal.refresh().version
        txn.append("out", pa.table({"value": ["a", "b"], "partition": [0, 1]}))
        txn.send("out", b"c", key=b"k", headers=[("h", None)], partition=1, timestamp_ms=5)
        txn.commit_offsets(consumer)
        txn.commit_offsets("other", {P0: 1})
        assert values(log, "out") == []
    assert log.journal.refresh().version == before + 1
    assert txn.offsets == {TopicPartition("out", 0): range(1), TopicPartition("out", 1): range(2)}
    assert values(log, "out") == [b"a", b"b", b"c"]
    assert log.admin.list_consumer_group_offsets("etl") == {P0: OffsetAndMetadata(2)}
    assert log.admin.list_consumer_group_offsets("other") == {P0: OffsetAndMetadata(1)}
    consumer.close()


# Promise: clients.md#transactions
def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    """Neither records nor positions."""
    log = new_log(tmp_path, orders=1)
    with pytest.raises(ZeroDivisionError), log.transaction("t") as txn:
        txn.send("orders", b"1")
        txn.commit_offsets("g", {P0: 0})
        raise ZeroDivisionError
    assert values(log, "orders") == [] and log.admin.list_consumer_groups() == []


def test_single_records_and_tables_keep_their_order(tmp_path: Path) -> None:
    """Whatever is sent before an append comes before it."""
    log = new_log(tmp_path, orders=1)
    with log.transaction("t", value_serializer=lambda n: b"%d" % n) as txn:
        txn.send("orders", 1)
        txn.append("orders", [{"value": "2"}])
        txn.send("orders", 3)
    assert values(log, "orders") == [b"1", b"2", b"3"]


# Promise: clients.md#transactions
def test_who_takes_the_id_over_fences_who_held_it(tmp_path: Path) -> None:
    """A zombie's commit is refused, whole; the new holder's is in."""
    log = new_log(tmp_path, orders=1)
    zombie = log.transaction("t")
    zombie.__enter__()
    zombie.send("orders", b"zombie")
    with spark_log.connect(log.url).transaction("t") as txn:
        txn.send("orders", b"new")
    with pytest.raises(ProducerFenced) as error:
        zombie.__exit__(None, None, None)
    assert error.value.current == 1
    assert values(log, "orders") == [b"new"]


def test_the_admin_fences_and_shows_transactional_ids(tmp_path: Path) -> None:
    """fence_producers, abort_transaction, list_transactions."""
    log = new_log(tmp_path, orders=1)
    with log.transaction("t") as txn:
        txn.send("orders", b"1")
    with pytest.raises(ProducerFenced), log.transaction("t") as txn:
        txn.send("orders", b"2")
        assert log.admin.fence_producers(["t"]) == {"t": 2}
    assert [(one.producer_epoch, one.state) for one in log.admin.list_transactions()] == [(2, "Empty")]
    with pytest.raises(ProducerFenced), log.transaction("t") as txn:
        txn.send("orders", b"3")
        log.admin.abort_transaction("t")
    (listed,) = log.admin.list_transactions()
    assert (listed.transactional_id, listed.producer_epoch, listed.state) == ("t", 4, "CompleteAbort")
    with pytest.raises(InvalidRequest, match="is unknown"):
        log.admin.abort_transaction("nope")
    assert values(log, "orders") == [b"1"]


# Promise: clients.md#transactions
def test_an_administrator_sees_what_transactions_do(tmp_path: Path) -> None:
    """Ongoing while it runs, with its time, then how it ended, and which offsets it committed."""
    log = new_log(tmp_path, orders=2)
    seen = []

    def states() -> dict[str, str]:
        return {one.transactional_id: one.state for one in log.admin.list_transactions()}

    with log.transaction("good", transaction_timeout_ms=50_000) as txn:
        txn.send("orders", b"x", partition=1)
        seen = log.admin.list_transactions()
    with pytest.raises(ZeroDivisionError), log.transaction("bad"):
        assert states() == {"good": "CompleteCommit", "bad": "Ongoing"}
        raise ZeroDivisionError
    with log.transaction("idle"):
        pass
    assert [(one.transactional_id, one.state, one.timeout_ms) for one in seen] == [("good", "Ongoing", 50_000)]
    assert states() == {"bad": "CompleteAbort", "good": "CompleteCommit", "idle": "CompleteAbort"}
    found = log.admin.describe_transactions(["good", "bad"])
    assert found["good"].offsets == {TopicPartition("orders", 1): range(1)} and found["bad"].offsets == {}
    with pytest.raises(InvalidRequest, match="is unknown"):
        log.admin.describe_transactions(["nope"])


# Promise: clients.md#transactions
def test_a_transaction_that_took_too_long_commits_nothing(tmp_path: Path) -> None:
    """It is over for every observer when its time is, and its process learns of it at the next write or at the end."""
    log = new_log(tmp_path, orders=1)
    with (
        pytest.raises(TransactionTimedOut, match="transaction_timeout_ms"),
        log.transaction("t", transaction_timeout_ms=300) as txn,
    ):
        txn.send("orders", b"1")
        time.sleep(0.4)
        assert [one.state for one in log.admin.list_transactions()] == ["PrepareAbort"]
        with pytest.raises(TransactionTimedOut):
            txn.append("orders", [{"value": "2"}])
    with log.transaction("t", transaction_timeout_ms=60_000) as txn:
        txn.send("orders", b"3")
    assert values(log, "orders") == [b"3"]
    with pytest.raises(InvalidRequest, match="transaction_timeout_ms"):
        log.transaction("t", transaction_timeout_ms=0)


# Promise: clients.md#transactions
def test_a_transaction_that_took_too_long_does_not_take_its_id_back(tmp_path: Path) -> None:
    """A process that gets the timeout error starts again: with a successor it is fenced, by its next write and at the
    end.
    """
    log, other = new_log(tmp_path, orders=1), spark_log.connect(tmp_path / "log")
    with (
        pytest.raises(ProducerFenced, match="a newer one has taken over"),
        log.transaction("t", transaction_timeout_ms=300) as txn,
    ):
        txn.send("orders", b"1")
        time.sleep(0.4)
        with other.transaction("t", transaction_timeout_ms=60_000) as successor:
            successor.send("orders", b"2")
            with pytest.raises(ProducerFenced):
                txn.append("orders", [{"value": "3"}])
    assert values(log, "orders") == [b"2"]


# Promise: clients.md#transactions
def test_a_transaction_that_asks_for_more_time_than_the_log_gives_is_refused(tmp_path: Path) -> None:
    """At its start, and nobody is fenced.  The limit itself, a quarter of an hour by default, is accepted."""
    log = new_log(tmp_path, orders=1)
    with log.transaction("t", transaction_timeout_ms=900_000) as txn:
        with pytest.raises(
            InvalidTxnTimeout, match=r"timeout_ms=900001 is above .* transaction.max.timeout.ms, 900000:"
        ):
            log.transaction("t", transaction_timeout_ms=900_001).__enter__()
        txn.send("orders", b"1")
    log.admin.incremental_alter_configs({None: {"transaction.max.timeout.ms": "50000"}})
    with pytest.raises(InvalidTxnTimeout, match=r"timeout_ms=60000 is above .* transaction.max.timeout.ms, 50000:"):
        log.transaction("t").__enter__()
    log.admin.incremental_alter_configs({None: {"transaction.max.timeout.ms": "900001"}})
    with log.transaction("t", transaction_timeout_ms=900_001) as txn:
        txn.send("orders", b"2")
    assert values(log, "orders") == [b"1", b"2"]


# Promise: clients.md#transactions
def test_what_has_committed_is_not_aborted(tmp_path: Path) -> None:
    """The error says that it has committed; aborting twice is the same as aborting once."""
    log = new_log(tmp_path, orders=1)
    with log.transaction("t") as txn:
        txn.send("orders", b"1")
    with pytest.raises(InvalidTxnState, match="has committed"):
        log.admin.abort_transaction("t")
    hanging = log.transaction("t")
    hanging.__enter__()
    log.admin.abort_transaction("t")
    log.admin.abort_transaction("t")
    with pytest.raises(ProducerFenced):
        hanging.send("orders", b"2")
        hanging.__exit__(None, None, None)
    assert [(one.producer_epoch, one.state) for one in log.admin.list_transactions()] == [(2, "CompleteAbort")]


def test_the_end_of_an_old_transaction_does_not_end_a_new_one(tmp_path: Path) -> None:
    """One that was taken over and fails afterwards says nothing about its successor."""
    log = new_log(tmp_path, orders=1)
    old = log.transaction("t")
    old.__enter__()
    with log.transaction("t") as txn:
        old.__exit__(ValueError, ValueError("late"), None)
        txn.send("orders", b"new")
    assert values(log, "orders") == [b"new"]


# Promise: clients.md#transactions
def test_no_reader_waits_for_an_open_transaction(tmp_path: Path) -> None:
    """Commits of others are read immediately meanwhile; staged records arrive with the commit, behind them."""
    log = new_log(tmp_path, orders=1)
    consumer = log.consumer("orders", auto_offset_reset="earliest")
    with log.transaction("t") as txn:
        txn.send("orders", b"staged")
        log.append("orders", [{"value": "meanwhile"}])
        assert [record.value for records in consumer.poll(5000).values() for record in records] == [b"meanwhile"]
    assert [record.value for records in consumer.poll(5000).values() for record in records] == [b"staged"]
    consumer.close()


# Promise: clients.md#transactions
def test_a_consumer_that_lost_its_group_stops_the_transaction(tmp_path: Path) -> None:
    """Embedded, positions of an old generation are refused, and the records with them."""
    log = new_log(tmp_path, orders=1, out=1)
    log.append("orders", [{"value": "1"}])
    old = log.consumer("orders", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    old.poll()
    with pytest.raises(IllegalGeneration), log.transaction("t") as txn:
        txn.send("out", b"x")
        txn.commit_offsets(old)
        log.consumer("orders", group_id="g").poll()
    assert values(log, "out") == []


def test_a_failed_append_makes_the_transaction_unusable(tmp_path: Path) -> None:
    """Catching its error does not commit half of the data."""
    log = new_log(tmp_path, orders=1)
    good = pa.record_batch({"value": ["1"]})
    with pytest.raises(InvalidRequest, match="cannot be committed") as error, log.transaction("t") as txn:
        txn.append("orders", [{"value": "0"}])
        with pytest.raises(MessageTooLarge):
            txn.append("orders", pa.table({"value": ["x", "y" * 2_000_000]}))
        txn.append("orders", good)
    assert isinstance(error.value.__cause__, MessageTooLarge)
    assert values(log, "orders") == []


def test_records_that_were_sent_are_all_in_or_none(tmp_path: Path) -> None:
    """One that is refused when they are encoded takes the transaction along, also where its error is caught."""
    log = new_log(tmp_path, orders=1)
    with pytest.raises(InvalidRequest, match="cannot be committed"), log.transaction("t") as txn:
        txn.send("orders", bytes(2_000_000))
        with pytest.raises(MessageTooLarge):
            for _ in range(ROWS_MAX):
                txn.send("orders", b"1")
        txn.send("orders", b"2")
    assert values(log, "orders") == []


def test_wrong_use_is_told(tmp_path: Path) -> None:
    """Outside of its block, a second time, wrong partitions, unknown settings."""
    log = new_log(tmp_path, orders=1)
    txn = log.transaction("t")
    with pytest.raises(InvalidRequest, match="not open"):
        txn.send("orders", b"1")
    with txn:
        with pytest.raises(UnknownTopicOrPartition):
            txn.send("orders", b"1", partition=3)
        with pytest.raises(InvalidRecord):
            txn.send("orders", 5)
        with pytest.raises(InvalidRequest, match="give offsets"):
            txn.commit_offsets("g")
        with pytest.raises(UnknownTopicOrPartition):
            txn.commit_offsets("g", {TopicPartition("nope", 0): 1})
    with pytest.raises(InvalidRequest, match="used once"):
        txn.__enter__()
    with pytest.raises(InvalidRequest, match="id is empty"):
        log.transaction("")
    with pytest.raises(InvalidRequest, match="acks"):
        log.transaction("t", acks=1)


# Promise: clients.md#bookmarks
def test_a_bookmark_goes_on_where_its_last_run_ended(tmp_path: Path) -> None:
    """The first run begins at the start; the end is pinned when it begins."""
    log = new_log(tmp_path, orders=2)
    log.append("orders", [{"value": "1", "partition": 0}, {"value": "2", "partition": 0}])
    with log.bookmark("nightly", "orders") as b:
        log.append("orders", [{"value": "3", "partition": 1}])
        assert json.loads(b.options["assign"]) == {"orders": [0, 1]}
        assert json.loads(b.options["startingOffsets"]) == {"orders": {"0": 0, "1": 0}}
        assert json.loads(b.options["endingOffsets"]) == {"orders": {"0": 2, "1": 0}}
    with log.bookmark("nightly", "orders") as b:
        assert b.starts == {P0: 2, P0._replace(partition=1): 0} and b.ends == {P0: 2, P0._replace(partition=1): 1}
    assert log.admin.list_consumer_group_offsets("nightly")[P0].offset == 2


def test_a_run_that_fails_is_repeated(tmp_path: Path) -> None:
    """Nothing is committed on an exception."""
    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"value": "1"}])
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), log.bookmark("nightly", "orders") as b:
            assert (b.starts[P0], b.ends[P0]) == (0, 1)
            raise ZeroDivisionError


# Promise: clients.md#bookmarks
def test_two_runs_at_once_are_noticed(tmp_path: Path) -> None:
    """The second to end hears that the same records were read twice."""
    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"value": "1"}])
    with pytest.raises(ConcurrentChange, match="nightly"), log.bookmark("nightly", "orders"):
        log.bookmark("nightly", "orders").__enter__().__exit__(None, None, None)
    with pytest.raises(InvalidRequest, match="no topic"):
        log.bookmark("nightly")
    with pytest.raises(UnknownTopicOrPartition), log.bookmark("nightly", "nope"):
        pass


# Promise: clients.md#bookmarks
def test_a_run_ends_where_it_began_to_look(tmp_path: Path) -> None:
    """A partition or a topic that comes meanwhile is read by the next run, from its first record."""
    log = new_log(tmp_path, orders=1)
    with log.bookmark("nightly", "orders") as b:
        log.admin.create_partitions({"orders": 2})
        log.append("orders", [{"value": "1", "partition": 1}])
        assert json.loads(b.options["assign"]) == {"orders": [0]}
    log.append("audit", [{"value": "2"}])
    with log.bookmark("nightly", "orders", "audit") as b:
        assert b.starts == {P0: 0, P0._replace(partition=1): 0, TopicPartition("audit", 0): 0}


# Promise: clients.md#bookmarks
def test_records_that_were_trimmed_before_the_run_are_not_passed_over(tmp_path: Path) -> None:
    """The run starts where the last one ended, and reading says that they are gone."""
    log = new_log(tmp_path, orders=1)
    with log.bookmark("nightly", "orders"):
        log.append("orders", [{"value": "1"}] * 5)
    log.admin.delete_records({P0: 3})
    with pytest.raises(OffsetOutOfRange), log.bookmark("nightly", "orders") as b:
        log.read("orders", 0, b.starts[P0], b.ends[P0])
    assert log.admin.list_consumer_group_offsets("nightly")[P0].offset == 0


def test_a_topic_that_is_created_again_during_a_run_begins_anew(tmp_path: Path) -> None:
    """Positions of the old topic are not committed for the new one; those of other topics are."""
    log = new_log(tmp_path, orders=1, audit=1)
    log.append("orders", [{"value": "1"}] * 5)
    log.append("audit", [{"value": "1"}] * 5)
    with log.bookmark("nightly", "orders", "audit"):
        log.admin.delete_topics(["orders"])
        log.append("orders", [{"value": "2"}] * 7)
    committed = log.admin.list_consumer_group_offsets("nightly")
    assert {tp: position.offset for tp, position in committed.items()} == {TopicPartition("audit", 0): 5}
    with log.bookmark("nightly", "orders", "audit") as b:
        assert (b.starts[P0], b.ends[P0]) == (0, 7)
