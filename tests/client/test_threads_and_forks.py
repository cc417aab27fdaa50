"""One handle, many threads and forked children."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from simulation.harness.stores import Wrapper
from spark_log.errors import CommitUnknown
from spark_log.metadata.decision import Decision
from spark_log.metadata.groups.decide_groups import decide_join_group
from spark_log.metadata.state import State
from spark_log.model import TopicPartition
from spark_log.store.base import ObjectStore
from tests.client.logs import in_child, log_on, new_log, quick_store, values


def test_a_change_that_breaks_off_is_not_taken_for_done_by_others(tmp_path: Path) -> None:
    """Changes that share a put: each one without a reply gets an error."""
    log = new_log(tmp_path)
    replies: list[object] = []

    def broken(state: State, now_ms: int) -> Decision[int]:
        raise ZeroDivisionError

    def join(group: str, member: str, state: State, now_ms: int) -> Decision[int]:
        return decide_join_group(state, group, member)

    def work(thread: int) -> None:
        for n in range(20):
            try:
                if thread == 0:
                    log.journal.propose(broken)
                else:
                    replies.append(log.journal.propose(partial(join, f"g{thread}", f"m{n}")))
            except (ZeroDivisionError, CommitUnknown):
                continue

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies and None not in replies


class _Interrupted(Wrapper):
    """A store on which somebody presses Ctrl-C when the next commit has just been put."""

    armed = False

    def put_new(self, key: str, data: bytes) -> bool:
        created = self.inner.put_new(key, data)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return created


def test_what_is_appended_after_an_interrupt_is_no_repeat_of_what_was_interrupted(tmp_path: Path) -> None:
    """The append that was broken off is in, and so is the one after it."""
    store = _Interrupted(quick_store(tmp_path))
    log = log_on(store)
    log.append("orders", [{"value": "1"}])
    store.armed = True
    with pytest.raises(KeyboardInterrupt):
        log.append("orders", [{"value": "2"}])
    assert log.append("orders", [{"value": "3"}]) == {TopicPartition("orders", 0): range(2, 3)}
    assert values(log, "orders") == [b"1", b"2", b"3"]


# Promise: clients.md#python-clients
def test_a_child_forked_while_others_commit_can_commit(tmp_path: Path) -> None:
    """Locks that threads of the parent hold at the fork are not held in the child."""
    log = new_log(tmp_path, orders=1)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            log.append("orders", [{"value": "parent"}])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            assert in_child(lambda: log.append("orders", [{"value": "child"}])) == 0
    finally:
        stop.set()
        thread.join()
    assert log.read("orders").column("value").to_pylist().count(b"child") == 5


class _Gate(Wrapper):
    """Counts the records of the metadata log.  While it is closed, none is written."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.open, self.reached = threading.Event(), threading.Event()
        self.open.set()
        self.records = 0

    def put_new(self, key: str, data: bytes) -> bool:
        self.reached.set()
        self.open.wait()
        self.records += 1
        return self.inner.put_new(key, data)


def test_appends_of_several_threads_share_a_record(tmp_path: Path) -> None:
    """All that come while a record is being written are in the next one; each is in the log once."""
    store = _Gate(quick_store(tmp_path))
    log = log_on(store)
    log.append("orders", [{"value": "first"}])
    store.open.clear()
    store.reached.clear()
    store.records = 0
    threads = [threading.Thread(target=log.append, args=("orders", [{"value": f"{n}"}])) for n in range(8)]
    threads[0].start()
    store.reached.wait()
    for thread in threads[1:]:
        thread.start()
    while len(log.journal._proposals.waiting) < len(threads) - 1:
        time.sleep(0.005)
    store.open.set()
    for thread in threads:
        thread.join()
    assert sorted(values(log, "orders")) == sorted([b"first", *(b"%d" % n for n in range(8))])
    assert store.records == 2


def test_appends_of_one_thread_keep_one_identity(tmp_path: Path) -> None:
    """The log remembers each writer for a day."""
    log = new_log(tmp_path, orders=1)
    for number in range(5):
        log.append("orders", [{"value": f"{number}"}])
    assert len(log.journal.state.producers) == 1
