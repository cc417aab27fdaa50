"""One handle, many threads and forked children."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from spark_log.errors import CommitUnknown
from spark_log.metadata.decide import Decision, decide_join_group
from spark_log.metadata.state import State
from tests.client.logs import in_child, new_log


def test_a_change_that_breaks_off_is_not_taken_for_done_by_others(tmp_path: Path) -> None:
    """Changes that share a put: whoever does not get a reply gets an error."""
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
