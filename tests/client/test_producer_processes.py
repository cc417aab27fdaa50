"""Producers and consumers when processes fork and end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import spark_log
from simulation import ROOT
from spark_log.errors import InvalidRequest
from tests.client.logs import in_child, new_log, values


# Promise: clients.md#python-clients
def test_a_forked_child_is_told_that_the_producer_is_its_parents(tmp_path: Path) -> None:
    """Neither a silent loss nor a deadlock; a producer made in the child works, and so does the parent's."""
    log = new_log(tmp_path, orders=1)
    producer = log.producer(linger_ms=60_000)
    waiting = producer.send("orders", b"parent")

    def child() -> None:
        with pytest.raises(InvalidRequest, match="forked"):
            producer.send("orders", b"child")
        with pytest.raises(InvalidRequest, match="forked"):
            waiting.result(5)
        with log.producer() as own:
            own.send("orders", b"own").result(60)

    assert in_child(child) == 0
    waiting.result(60)
    producer.close()
    assert sorted(values(log, "orders")) == [b"own", b"parent"]


def test_a_forked_child_is_told_that_the_consumer_is_its_parents(tmp_path: Path) -> None:
    """Otherwise both would get the same records.  The end of the child does not close the parent's consumer."""
    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"value": b"1"}, {"value": b"2"}])
    consumer = log.consumer("orders", group_id="g", auto_offset_reset="earliest", max_poll_records=1)
    assert [each.value for each in next(iter(consumer.poll(20_000).values()))] == [b"1"]

    def child() -> None:
        with pytest.raises(InvalidRequest, match="forked"):
            consumer.poll(0)
        consumer.close()

    assert in_child(child) == 0
    assert [each.value for each in next(iter(consumer.poll(20_000).values()))] == [b"2"]
    consumer.close()
    assert log.consumer(group_id="g").committed(spark_log.TopicPartition("orders", 0)) == 2


# Promise: clients.md#python-clients
def test_appends_of_parent_and_forked_child_are_both_in(tmp_path: Path) -> None:
    """A child commits under a new identity: under the parent's, one append would count as a repeat."""
    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"value": b"before"}])
    assert in_child(lambda: log.append("orders", [{"value": b"child"}])) == 0
    log.append("orders", [{"value": b"parent"}])
    assert values(log, "orders") == [b"before", b"child", b"parent"]


def test_a_program_that_ends_without_closing_loses_nothing(tmp_path: Path) -> None:
    """Sent records are written on the way out."""
    url = new_log(tmp_path, orders=1).url
    code = f"import spark_log; p = spark_log.connect({url!r}).producer(linger_ms=60000); p.send('orders', b'1')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    assert values(spark_log.connect(url), "orders") == [b"1"]


def test_what_is_sent_to_a_bucket_on_the_way_out_is_acknowledged(tmp_path: Path) -> None:
    """Embedded, on a storage whose requests run in threads: these are still there."""
    new_log(tmp_path, orders=1)
    store = f"SlowStore(LocalStore({str(tmp_path / 'log')!r}, 'os'))"
    code = (
        "from spark_log.journal.journal import Journal; from spark_log.client.log import Log; "
        "from spark_log.store.local import LocalStore; from simulation.harness.slow_store import SlowStore; "
        f"producer = Log(Journal.open({store}, create=False)).producer(linger_ms=60000); "
        "producer.send('orders', b'1').add_callback(lambda place: print(place.offset))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
