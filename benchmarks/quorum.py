"""How fast does a quorum append, and how soon does it continue without its leader?

Three nodes run as processes on this machine, each with a directory on one disk.  Entries have 200 bytes.  First one
client appends one by one, then 50 at a time, on the leader.  Then the leader is killed with SIGKILL, round after round,
while a client tries the nodes in turn: the time from the kill to its next acknowledged append.

By hand: an append waits for two fsyncs that run at the same time on one disk, the leader's and a follower's, and for
three messages.  The followers learn of the dead leader by a connection that is refused, and one of them asks for a
pre-vote and for a vote, with an fsync at each voter: some tens of milliseconds.  Where nothing refuses the connection,
it takes the fetch timeout instead: 1 to 1.5 s, and the election.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import time
from pathlib import Path

import common

from spark_log.testing.quorum_process import QuorumProcesses

CLIENTS = 50


def main() -> None:
    given = common.arguments(
        __doc__, rows=1000, of="appends one by one; five times as many by 50", rounds=20, warm=None
    )
    with common.folder() as folder:
        sync_ms = fdatasync_ms(Path(folder) / "file", min(given.rows, 300))
        quorum = QuorumProcesses(Path(folder), free_ports(3))
        try:
            quorum.start()
            quorum.append("first")
            epoch = quorum.leader().ask("status")["epoch"]
            alone = quorum.leader().ask("load", 600, count=given.rows, clients=1)
            many = quorum.leader().ask("load", 600, count=max(5 * given.rows, CLIENTS), clients=CLIENTS)
            elections = quorum.leader().ask("status")["epoch"] - epoch
            killed = [failover_ms(quorum, signal.SIGKILL, number) for number in range(given.rounds)]
            stopped = [failover_ms(quorum, signal.SIGSTOP, number) for number in range((given.rounds + 3) // 4)]
        finally:
            quorum.kill_all()
    common.report(
        "quorum",
        fdatasync_ms=sync_ms,
        append_p50_ms=statistics.median(alone["times"]),
        append_p99_ms=percentile(alone["times"], 99),
        append_target_fdatasyncs=4,
        appends_per_second=len(alone["times"]) / alone["ms"] * 1000,
        clients=CLIENTS,
        appends_per_second_of_clients=len(many["times"]) / many["ms"] * 1000,
        appends_of_clients_target=1500,
        elections_without_a_fault=elections,
        append_of_clients_p50_ms=statistics.median(many["times"]),
        rounds=given.rounds,
        killed_p50_ms=statistics.median(killed),
        killed_max_ms=max(killed),
        stopped_p50_ms=statistics.median(stopped),
        stopped_max_ms=max(stopped),
        failover_target_ms=3000,
    )


def fdatasync_ms(path: Path, count: int) -> float:
    """The median of appends to one file, each made durable."""
    times = []
    with path.open("ab", buffering=0) as file:
        for _ in range(count):
            file.write(bytes(300))
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - begun) * 1000)
    return statistics.median(times)


def failover_ms(quorum: QuorumProcesses, number: signal.Signals, round_: int) -> float:
    """From the end, or the stop, of the leader to the next append that is acknowledged."""
    leader = quorum.leader()
    begun = time.perf_counter()
    leader.signal(number)
    quorum.append(f"{number.name}-{round_}", try_s=0.2)
    found = (time.perf_counter() - begun) * 1000
    if number is signal.SIGSTOP:
        leader.signal(signal.SIGCONT)
    else:
        quorum.start(leader.node_id)
    quorum.append(f"{number.name}-{round_}-again")
    return found


def percentile(times: list[float], of: int) -> float:
    return sorted(times)[len(times) * of // 100]


def free_ports(count: int) -> list[int]:
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in found]
    for one in found:
        one.close()
    return ports


if __name__ == "__main__":
    main()
