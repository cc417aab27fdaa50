"""How fast does a quorum append, and how soon does it continue without its leader?

Three nodes run as processes on this machine, each with a directory on one disk.  Entries have 200 bytes.  First one
client appends one by one, then 50 at a time, on the leader.  Then the leader is killed with SIGKILL, round after round,
while a client tries the nodes in turn: the time from the kill to its next acknowledged append.

By hand: an append waits for two fsyncs that run at the same time on one disk, the leader's and a follower's, and for
three messages.  The followers learn of the dead leader by a connection that is refused, and one of them asks for a
pre-vote and for a vote, with an fsync at each voter: some tens of milliseconds.  Where nothing refuses the connection,
it takes the fetch timeout instead: 1 to 1.5 s, and the election.

Then the same with coordinators, `pylog serve --quorum`, and clients that append a record to a topic (`served_…`).  An
append puts an object, and its commit waits for the quorum.  50 threads of one process append, which is bound by the CPU
of that process; `served_append_cpu_ms_…` has the CPU of each process for an append.  So 50 clients in 5 processes
commit objects that they only name, as in `coordinator.py`: what the quorum can take, with `served_commit_cpu_ms_…` for
a commit.  A client waits 2 s for a leader that hangs.

Then coordinators with a large state, positions of groups (`large_…`).  One of the nodes was away from the beginning,
and fetches a snapshot while a client appends.  Then 50 threads append, and snapshots are made: how long does the
leader's event loop stall?  Its own process measures that: in wall time, without the time in which other threads and
processes had all cores, and in CPU time of the loop's thread, which is what a step of the loop takes.

Last, a node makes a snapshot, and the digest that nodes compare, of a state with 200 objects for each of `--rows`,
of which half are not in columns yet (`snapshot_…`).  Both run in a thread: an event loop beside it notes its longest
pause, and the most CPU time between two of its turns.  The second one does not grow while other programs have the CPU.

`--nodes 5` has five of them, and `--parts` leaves parts out.  `--parts coordinators,state --rounds 100 --stops 100`
makes the figures of docs/measurements-alone.md in about 12 minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path

import common
from coordinator import commits, cpu_s

import spark_log
from simulation.harness.quorum_process import QuorumProcesses
from simulation.harness.serving_nodes import ServingNodes
from spark_log.metadata.formats.checkpoint_format import folded
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.state import ObjectRow, State
from spark_log.quorum.messages import Position
from spark_log.quorum.node.disk import Disk
from spark_log.quorum.node.file_operations import LocalFiles
from spark_log.server.quorum.state import QuorumState

CLIENTS = 50
SNAPSHOT_BYTES = 1 << 20
"""Bytes of the log between two snapshots of a large state: so that some are made meanwhile."""


def main() -> None:
    given = arguments()
    for part in given.parts:
        PARTS[part](given)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000, help="appends one by one; five times as many by 50 (1,000)")
    parser.add_argument("--rounds", type=int, default=20, help="in which the leader is killed (20)")
    parser.add_argument("--stops", type=int, help="in which it is stopped (a quarter of the rounds)")
    parser.add_argument("--nodes", type=int, default=3, help="(3)")
    parser.add_argument("--positions", type=int, default=1_000_000, help="in the large state (1,000,000)")
    parser.add_argument("--parts", type=common.some_of([*PARTS]), default=(*PARTS,), help=f"some of {','.join(PARTS)}")
    given = parser.parse_args()
    given.stops = (given.rounds + 3) // 4 if given.stops is None else given.stops
    return given


def replicas(given: argparse.Namespace) -> None:
    with common.folder() as folder:
        sync_ms = fdatasync_ms(Path(folder) / "file", min(given.rows, 300))
        quorum = QuorumProcesses(Path(folder), free_ports(given.nodes))
        try:
            quorum.start()
            quorum.append("first")
            epoch = quorum.leader().ask("status")["epoch"]
            alone = quorum.leader().ask("load", 600, count=given.rows, clients=1)
            many = quorum.leader().ask("load", 600, count=max(5 * given.rows, CLIENTS), clients=CLIENTS)
            elections = quorum.leader().ask("status")["epoch"] - epoch
            killed = [failover_ms(quorum, signal.SIGKILL, number) for number in range(given.rounds)]
            stopped = [failover_ms(quorum, signal.SIGSTOP, number) for number in range(given.stops)]
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


def coordinators(given: argparse.Namespace) -> None:
    with common.folder() as folder:
        nodes = ServingNodes(Path(folder), free_ports(2 * given.nodes))
        try:
            nodes.start()
            epoch = nodes.epoch()
            with spark_log.connect(nodes.url) as log:
                sync_ms = fdatasync_ms(Path(folder) / "file", min(given.rows, 300))
                alone = appends(log, given.rows)
                cpu_before = cpu_of_processes(nodes)
                begun = time.perf_counter()
                many = appends_of_clients(log, 5 * given.rows)
                took_s = time.perf_counter() - begun
                cpu = {name: spent - cpu_before[name] for name, spent in cpu_of_processes(nodes).items()}
                log.create_topic(spark_log.NewTopic("t", 8))
                address = ",".join(nodes.addresses.values())
                cpu_before = cpu_of_processes(nodes)
                committed, commits_s = commits(address, min(CLIENTS, given.rows), max(20 * given.rows // CLIENTS, 1))
                commit_cpu = {name: spent - cpu_before[name] for name, spent in cpu_of_processes(nodes).items()}
                elections = nodes.epoch() - epoch
                killed = [served_failover_ms(nodes, log, signal.SIGKILL) for _ in range(given.rounds)]
                stopped = [served_failover_ms(nodes, log, signal.SIGSTOP) for _ in range(given.stops)]
        finally:
            nodes.kill_all()
    common.report(
        "quorum",
        nodes=given.nodes,
        served_fdatasync_ms=sync_ms,
        served_append_p50_ms=statistics.median(alone),
        served_append_p99_ms=percentile(alone, 99),
        served_appends_per_second=len(many) / took_s,
        **{f"served_append_cpu_ms_{name}": spent / len(many) * 1000 for name, spent in cpu.items()},
        served_commits_per_second=len(committed) / commits_s,
        served_commits_target=1500,
        **{f"served_commit_cpu_ms_{name}": spent / len(committed) * 1000 for name, spent in commit_cpu.items()},
        served_elections_without_a_fault=elections,
        rounds=given.rounds,
        served_killed_p50_ms=statistics.median(killed),
        served_killed_p99_ms=percentile(killed, 99),
        stops=given.stops,
        served_stopped_p50_ms=statistics.median(stopped),
        served_stopped_p99_ms=percentile(stopped, 99),
        failover_target_ms=3000,
    )


def appends(log: spark_log.Log, count: int) -> list[float]:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        log.append("orders", [{"value": "x" * 200}])
        times.append((time.perf_counter() - begun) * 1000)
    return times


def cpu_of_processes(nodes: ServingNodes) -> dict[str, float]:
    """Seconds since they began; of clients also in processes that have ended."""
    leader = nodes.leader()
    spent = {node: cpu_s(process.pid) for node, process in nodes.processes.items()}
    return {"client": sum(os.times()[:4]), "leader": spent.pop(leader), "followers": sum(spent.values())}


def appends_of_clients(log: spark_log.Log, count: int) -> list[float]:
    """At the same time."""
    with ThreadPoolExecutor(CLIENTS) as threads:
        return [*chain(*threads.map(appends, [log] * CLIENTS, [max(count // CLIENTS, 1)] * CLIENTS))]


def large_state(given: argparse.Namespace) -> None:
    with common.folder() as folder:
        nodes = ServingNodes(Path(folder), free_ports(2 * given.nodes), snapshot_bytes=SNAPSHOT_BYTES, watches=True)
        away, *others = sorted(nodes.addresses, reverse=True)
        try:
            nodes.start(*others)
            with spark_log.connect(nodes.url) as log:
                fill(log, given.positions)
            with spark_log.connect(nodes.url) as log:  # one that does not have the positions, and collects no garbage
                alone = appends(log, given.rows)
                begun = time.perf_counter()
                nodes.start(away)
                meanwhile = appends_until(log, lambda: has_caught_up(nodes, away))
                caught_up_s = time.perf_counter() - begun
                leader = nodes.leader()
                before = len(nodes.log(leader))
                many = appends_of_clients(log, 5 * given.rows)
                pauses = [(0, 0, 0), *nodes.pauses(leader, before)]
            size = snapshot_bytes(nodes, others[0])
        finally:
            nodes.kill_all()
    common.report(
        "quorum",
        positions=given.positions,
        large_snapshot_mb=size / 1e6,
        large_append_p99_ms=percentile(alone, 99),
        large_catch_up_s=caught_up_s,
        large_append_p99_while_one_catches_up_ms=percentile(meanwhile, 99),
        large_append_while_one_catches_up_target_ms=50,
        large_append_of_clients_p99_ms=percentile(many, 99),
        large_longest_pause_ms=max(wall for wall, _, _ in pauses),
        large_longest_pause_target_ms=50,
        large_longest_pause_without_waits_for_a_core_ms=max(wall - wait for wall, _, wait in pauses),
        large_longest_pause_cpu_ms=max(cpu for _, cpu, _ in pauses),
    )


def fill(log: spark_log.Log, positions: int) -> None:
    """Positions of groups in one topic, and as many groups as there have to be."""
    partitions = min(positions, 10_000)
    log.admin.create_topics([spark_log.NewTopic("wide", num_partitions=partitions)])
    offsets = {spark_log.TopicPartition("wide", number): 0 for number in range(partitions)}
    for group in range(max(positions // partitions, 1)):
        log.admin.alter_consumer_group_offsets(f"group-{group}", offsets)


def appends_until(log: spark_log.Log, is_over: Callable[[], bool]) -> list[float]:
    times = appends(log, 1)
    while not is_over():
        times += appends(log, 10)
    return times


def has_caught_up(nodes: ServingNodes, node: int) -> bool:
    leader, health = nodes.health(nodes.leader()), nodes.health(node)
    return leader is not None and health is not None and health.version + 100 > leader.version


def snapshot_bytes(nodes: ServingNodes, node: int) -> int:
    """Size of the largest snapshot of a node."""
    return max(path.stat().st_size for path in nodes.directory(node).glob("*.checkpoint"))


def served_failover_ms(nodes: ServingNodes, log: spark_log.Log, number: signal.Signals) -> float:
    """From the end, or the stop, of the leader to the next append that is acknowledged."""
    leader = nodes.leader()
    begun = time.perf_counter()
    nodes.signal(leader, number)
    log.append("orders", [{"value": "next"}])
    found = (time.perf_counter() - begun) * 1000
    if number is signal.SIGSTOP:
        nodes.signal(leader, signal.SIGCONT)
        nodes.leader(but=leader)
    else:
        nodes.wait(leader)
        nodes.start(leader)
    return found


def snapshots(given: argparse.Namespace) -> None:
    count = 200 * given.rows
    state = QuorumState(lambda offer: None, lambda: None, lambda work: None)
    objects = [(f"data/{number:016x}/{number * 7:016x}.seg", ObjectRow(1 << 20, 1, 1)) for number in range(count)]
    old = folded(State(objects=LayeredMap(objects[: count // 2])))
    changed = replace(old, objects=old.objects.update(dict(objects[count // 2 :])))
    state.pipeline.state = changed
    with common.folder() as folder:
        disk = Disk(LocalFiles(folder))
        snapshot = asyncio.run(beside_a_loop(lambda: disk.write_snapshot(Position(1, 1), (), state.snapshot())))
        digest = asyncio.run(beside_a_loop(lambda: state.digest(changed)))
        compact = folded(changed)
        of_columns = asyncio.run(beside_a_loop(lambda: state.digest(compact)))
    common.report(
        "quorum",
        objects=count,
        **{f"snapshot_{name}": value for name, value in snapshot.items()},
        **{f"digest_{name}": value for name, value in digest.items()},
        **{f"digest_of_columns_{name}": value for name, value in of_columns.items()},
    )


async def beside_a_loop(work: Callable[[], object]) -> dict[str, float]:
    """The times of work in a thread, and the pauses of an event loop meanwhile, in milliseconds."""
    cpu_begun, pauses, cpu_times = time.process_time(), [0.0], [0.0]
    thread = asyncio.create_task(asyncio.to_thread(work))
    while not thread.done():
        begun, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(0.001)
        pauses.append(time.perf_counter() - begun)
        cpu_times.append(time.process_time() - cpu)
    await thread
    cpu_ms = (time.process_time() - cpu_begun) * 1000
    return {"cpu_ms": cpu_ms, "longest_pause_ms": max(pauses) * 1000, "longest_cpu_ms": max(cpu_times) * 1000}


def percentile(times: list[float], of: int) -> float:
    return sorted(times)[len(times) * of // 100]


def free_ports(count: int) -> list[int]:
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in found]
    for one in found:
        one.close()
    return ports


PARTS = {"replicas": replicas, "coordinators": coordinators, "state": large_state, "snapshots": snapshots}


if __name__ == "__main__":
    main()
