"""How much does a standby save readers while no leader answers?

A coordinator and a standby have one log on a local disk, and consumers wait for records.  The leader is killed.  Then,
for consumers that know the standby, and for others that know the storage alone and poll it: CPU of the process of all
consumers in a while without news.  By hand: a consumer at the standby asks again after some seconds, and
one without it looks into a folder 4 times a second or more.  Also the seconds until all of them wait at the standby,
and its own CPU.

Before that, in turn, the time in which the leader and the standby answer for the versions that a reader lacks.  By
hand: both answer from memory, so the two are equal.

    --rows N       consumers (50)
    --seconds N    a while without news (10)
    --rounds N     answers of each that count (20)
"""

from __future__ import annotations

import argparse
import threading
import time
import urllib.request
from collections.abc import Callable

import common
from coordinator import cpu_s, serving

import spark_log
from spark_log.rpc.messages import ChangesReply, ChangesRequest, decode, encode

TAKEOVER = ("--takeover-after", "10m")
"""The standby does not lead during the benchmark."""
VERSIONS = 40
"""Those that a reader lacks.  One that lacks more than a hundred reads a checkpoint first."""
PATIENCE_S = 120.0


def waiting_at(address: str) -> int:
    """Requests that wait for news at a coordinator."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("pylog_long_polls "))))


def changes(address: str, cluster_id: str, since: int) -> ChangesReply:
    """The versions after `since` that a coordinator has."""
    asked = ChangesRequest(cluster_id=cluster_id, since=since, wait_ms=0, standby=True)
    post = urllib.request.Request(f"http://{address}/v1/changes", encode(asked), method="POST")
    with urllib.request.urlopen(post, timeout=20) as answer:
        return decode(answer.read(), ChangesReply, "the reply")


class Waiting:
    """Consumers of one topic that wait for records, a thread each."""

    def __init__(self, url: str, consumers: int) -> None:
        self._log, self._done = spark_log.connect(url), threading.Event()
        self._threads = [threading.Thread(target=self._poll) for _ in range(consumers)]
        for thread in self._threads:
            thread.start()

    def _poll(self) -> None:
        with self._log.consumer("t", auto_offset_reset="latest") as consumer:
            while not self._done.is_set():
                assert not consumer.poll(1000)

    def cpu_s(self, seconds: float) -> float:
        """CPU seconds of this process in a while."""
        begun = time.process_time()
        time.sleep(seconds)
        return time.process_time() - begun

    def close(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        self._log.close()


def until(done: Callable[[], bool]) -> float:
    """Seconds until it is true."""
    begun = time.perf_counter()
    while not done():
        assert time.perf_counter() - begun < PATIENCE_S, "this takes too long"
        time.sleep(0.01)
    return time.perf_counter() - begun


def catching_up(log: spark_log.Log, leader: str, standby: str, given: argparse.Namespace) -> common.Pair:
    """Seconds in which the standby and the leader answer for the same versions."""
    since = log.journal.refresh().version
    for _ in range(VERSIONS):
        log.append("t", [{"value": b"x"}])
    version = log.journal.refresh().version

    def ask(address: str) -> None:
        reply = changes(address, log.cluster_id, since)
        assert (reply.version, len(reply.batches)) == (version, version - since)

    until(lambda: changes(standby, log.cluster_id, since).version == version)
    return common.pairs(lambda: ask(standby), lambda: ask(leader), rounds=given.rounds, warm=given.warm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50, help="consumers (50)")
    parser.add_argument("--seconds", type=float, default=10, help="a while without news (10)")
    parser.add_argument("--rounds", type=int, default=20, help="answers of each that count (20)")
    parser.add_argument("--warm", type=int, default=3, help="answers before them (3)")
    given = parser.parse_args()
    with (
        common.folder() as url,
        serving(url, *TAKEOVER) as (leader, first),
        serving(url, *TAKEOVER) as (standby, second),
        spark_log.connect(f"pylog://{first}") as log,
    ):
        log.create_topic(spark_log.NewTopic("t", 1))
        answers = catching_up(log, first, second, given)
        crowd = Waiting(f"pylog://{first},{second}", given.rows)
        until(lambda: waiting_at(first) == given.rows)
        leader.kill()
        gathered = until(lambda: waiting_at(second) == given.rows)
        before, readers = cpu_s(standby.pid), crowd.cpu_s(given.seconds)
        taken = cpu_s(standby.pid) - before
        crowd.close()
        crowd = Waiting(url, given.rows)
        time.sleep(given.seconds / 2)
        polling = crowd.cpu_s(given.seconds)
        crowd.close()
    each = 1000 / given.rows / given.seconds
    common.report(
        "standby_reads",
        consumers=given.rows,
        gathered_s=gathered,
        reader_cpu_ms_a_second=readers * each,
        standby_cpu_ms_a_second=taken * each,
        polling_reader_cpu_ms_a_second=polling * each,
        catch_up_ms=answers.ours * 1000,
        catch_up_of_leader=1 / answers.ratio,
    )


if __name__ == "__main__":
    main()
