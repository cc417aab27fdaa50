"""How fast are the clients, one message at a time, compared with Kafka's?

    python benchmarks/clients.py                                     # pylog alone
    python benchmarks/clients.py --peers librdkafka,kafka-python     # with a real broker, which is downloaded once

Messages have 100 random letters and go to 4 partitions; each side has its defaults, and all messages are acknowledged.
Each message is one call with a future (or a callback, or nothing, as librdkafka's defaults are), and one object when
received.  All sides run in turn; a ratio is the median of the ratios round by round.  Among polls, `librdkafka` is its
consume(500), and `librdkafka, callbacks` its poll(), which returns one message.  pylog syncs its writes, Kafka does
not.

By hand: in CPython a call with a handful of checks takes 0.3 us and an object 0.05 to 0.1.  So one thread can reach a
million a second; in C it can reach about as much with Python's call into it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import statistics
import string
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import pyarrow as pa

from benchmarks import common
from benchmarks._clients import (
    KafkaPython,
    Librdkafka,
    LibrdkafkaCallbacks,
    Pylog,
    Side,
    Waiting,
    Watch,
    coordinator,
    drained,
    latencies,
    rebalance_pauses,
)
from benchmarks.beside_kafka.figures import Round, markdown, number, percentile
from benchmarks.coordinator import free_port
from simulation.harness import kafka

ROOT = Path(__file__).parent.parent
ROWS = 500_000
SIZE = 100
PEERS = {"librdkafka": "confluent_kafka", "kafka-python": "kafka"}
"""Peers and the modules that they need."""
EMBEDDED, SERVED = "pylog, embedded", "pylog, coordinator"
PRODUCE, CONSUME, APPEND, ARROW = "send", "poll", "append of Arrow", "poll_arrow"
Rounds = dict[tuple[str, str], list[tuple[int, Round]]]
"""Messages and seconds of each round, by (work, side)."""


def main() -> None:
    given = arguments()
    alone = not given.peers
    with sides(given.peers, given.replicas) as all_sides:
        rounds = moves(all_sides, given.rows, given.rounds, given.warm)
        waits = waits_of(all_sides, min(300, given.rows))
        pauses = pauses_of(all_sides, 1 if given.rows < 1000 else 5)
    print(table(rounds, alone))
    print("\n" + waits_table(waits, pauses))
    common.report("clients", **figures(rounds, waits, pauses))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"messages a round ({ROWS:,}); kafka-python a twentieth")
    parser.add_argument("--rounds", type=int, default=5, help="of each side that count (5)")
    parser.add_argument("--warm", type=int, default=1, help="rounds before them (1)")
    parser.add_argument(
        "--replicas", type=int, default=1, help="of each topic, on roots and brokers of this machine (1)"
    )
    parser.add_argument("--peers", type=_peers, default=(), help=f"some of {','.join(PEERS)}; none unless told")
    return parser.parse_args()


def _peers(text: str) -> tuple[str, ...]:
    names = common.some_of(tuple(PEERS))(text) if text else ()
    for name in names:
        if importlib.util.find_spec(PEERS[name]) is None:
            raise argparse.ArgumentTypeError(f"{name} is not installed: pip install '.[dev]'")
    return names


@contextmanager
def sides(peers: Sequence[str], replicas: int) -> Iterator[list[Side]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(common.folder()))
        found: list[Side] = []
        roots = {
            side: [folder / f"{side}-{broker}" for broker in range(1, replicas)] for side in ("embedded", "served")
        }
        embedded = Pylog(EMBEDDED, str(folder / "embedded"), roots["embedded"])
        url = stack.enter_context(coordinator(folder / "served", f"127.0.0.1:{free_port()}"))
        found += [embedded, Pylog(SERVED, url, roots["served"])]
        if peers:
            jars = Path(os.environ.get("PYLOG_KAFKA", ROOT / ".pylog" / "kafka"))
            settings = {"log.segment.delete.delay.ms": "1000"}
            broker = stack.enter_context(kafka.broker(jars, free_ports(replicas + 1), settings, replicas))
            librdkafka = Librdkafka(broker)
            if "librdkafka" in peers:
                found += [librdkafka, LibrdkafkaCallbacks(broker)]
            if "kafka-python" in peers:
                found.append(KafkaPython(librdkafka))
        yield found


def free_ports(count: int) -> int:
    """The first of so many free ports side by side."""
    from benchmarks.beside_kafka import sides

    return sides.free_ports(count)


def messages(count: int, rng: random.Random) -> list[bytes]:
    """More distinct messages than a batch has, so that no codec compresses them as repeats."""
    pool = ["".join(rng.choices(string.ascii_letters, k=SIZE)).encode() for _ in range(min(count, 20_000))]
    return [pool[n % len(pool)] for n in range(count)]


# ------------------------------------------------------------------------------------------------------------ measuring


def moves(all_sides: Sequence[Side], rows: int, rounds: int, warm: int) -> Rounds:
    """Send and receive messages, side by side."""
    values, found = messages(rows, random.Random(1)), {}
    for turn in range(warm + rounds):
        for side in all_sides:
            for work, count, one in moved(side, values[: max(1, int(rows * side.share))]):
                if turn >= warm:
                    found.setdefault((work, side.name), []).append((count, one))
    return found


def moved(side: Side, values: Sequence[bytes]) -> Iterator[tuple[str, int, Round]]:
    topic, roots, count = f"t-{time.monotonic_ns()}", (os.getpid(), *side.roots), len(values)
    side.create(topic)
    watch = Watch(roots)
    side.produce(topic, values)
    yield PRODUCE, count, watch.round()
    yield CONSUME, count, drained(side.polls(topic), count, roots)
    if isinstance(side, Pylog):
        arrow = f"{topic}-arrow"
        side.create(arrow)
        data = pa.table({"value": pa.array(values, pa.binary())})
        watch = Watch(roots)
        side.append(arrow, data)
        yield APPEND, count, watch.round()
        watch = Watch(roots)
        left, polls = count, side.arrow_polls(arrow)
        while left > 0:
            left -= next(polls)
        yield ARROW, count, watch.round()
        polls.close()  # type: ignore[attr-defined]
        side.log.admin.delete_topics([topic, arrow])


Waits = dict[str, dict[str, list[float]]]
"""Seconds by work and side."""
ONE_BY_ONE, TO_POLL = "send and wait, one by one", "append → poll of another"


def waits_of(all_sides: Sequence[Side], count: int) -> Waits:
    """In turn, one run of each side at a time."""
    found: Waits = {ONE_BY_ONE: {}, TO_POLL: {}}
    for stretch in range(2):
        for side in all_sides:
            if isinstance(side, LibrdkafkaCallbacks):
                continue
            topic = f"w-{stretch}-{time.monotonic_ns()}"
            side.create(topic)
            times = side.one_by_one(topic, messages(max(2, count // 2), random.Random(stretch)))
            found[ONE_BY_ONE].setdefault(side.name, []).extend(times[1:])
            if isinstance(side, Waiting):
                topic = f"l-{stretch}-{time.monotonic_ns()}"
                side.create(topic)
                found[TO_POLL].setdefault(side.name, []).extend(latencies(side, topic, max(2, count // 3)))
    return found


def pauses_of(all_sides: Sequence[Side], rounds: int) -> dict[str, list[float]]:
    """Seconds of an eager rebalance when a fourth member joins; an embedded log has no shared groups."""
    found = {}
    for side in all_sides:
        if isinstance(side, Waiting) and side.name != EMBEDDED and not isinstance(side, LibrdkafkaCallbacks):
            topic = f"r-{time.monotonic_ns()}"
            side.create(topic)
            # librdkafka's members learn of a rebalance with their next heartbeat, 3 s apart.
            found[side.name] = rebalance_pauses(side, topic, topic, rounds if isinstance(side, Pylog) else 1)
    return found


# -------------------------------------------------------------------------------------------------------------- telling


def rates(rounds: Rounds, work: str, side: str) -> list[float]:
    return [count / one.seconds for count, one in rounds.get((work, side), [])]


def rate(rounds: Rounds, work: str, side: str) -> float:
    """Messages a second."""
    return statistics.median(rates(rounds, work, side))


def cpu(rounds: Rounds, work: str, side: str) -> float:
    """Microseconds per message, of client and server."""
    return statistics.median(one.cpu_seconds / count for count, one in rounds[work, side]) * 1e6


def times_as_fast(rounds: Rounds, work: str, side: str, other: str) -> float:
    """The median of the ratios round by round."""
    both = zip(rates(rounds, work, side), rates(rounds, work, other), strict=True)
    return statistics.median(ours / theirs for ours, theirs in both)


def table(rounds: Rounds, alone: bool) -> str:
    head = ["what", "side", "messages/s", "CPU µs a message", "pylog embedded is", "through a coordinator"]
    lines = []
    for work, side in sorted(rounds, key=lambda one: [PRODUCE, CONSUME, APPEND, ARROW].index(one[0])):
        line = [work, side, number(rate(rounds, work, side)), number(cpu(rounds, work, side))]
        if not side.startswith("pylog"):
            line += [f"{times_as_fast(rounds, work, ours, side):.2f} times as fast" for ours in (EMBEDDED, SERVED)]
        lines.append(line if alone else [*line, "", ""][:6])
    return markdown([head[:4] if alone else head, *lines])


def waits_table(waits: Waits, pauses: dict[str, list[float]]) -> str:
    lines = [
        [what, side, *(number(percentile(times, part) * 1000) for part in (50, 99))]
        for what, of_sides in waits.items()
        for side, times in of_sides.items()
    ]
    lines += [
        [
            "a fourth member joins: nobody has partitions",
            side,
            number(statistics.median(times) * 1000),
            number(max(times) * 1000),
        ]
        for side, times in pauses.items()
    ]
    return markdown([["what", "side", "ms p50", "ms p99 (most)"], *lines])


def figures(rounds: Rounds, waits: Waits, pauses: dict[str, list[float]]) -> dict[str, Any]:
    """The figures that have targets."""
    found: dict[str, Any] = {}
    for short, ours in (("embedded", EMBEDDED), ("coordinator", SERVED)):
        for what, work in (("send", PRODUCE), ("poll", CONSUME), ("append", APPEND), ("poll_arrow", ARROW)):
            found[f"{short}_{what}_per_second"] = round(rate(rounds, work, ours))
        for work, side in rounds:
            if not side.startswith("pylog"):
                found[f"{short}_{work}_times_{side}"] = times_as_fast(rounds, work, ours, side)
        for name, what in (("one_by_one_p50_ms", ONE_BY_ONE), ("append_to_poll_p50_ms", TO_POLL)):
            found[f"{short}_{name}"] = percentile(waits[what][ours], 50) * 1000
    found["rebalance_pause_ms"] = statistics.median(pauses[SERVED]) * 1000
    targets = {"send_times_librdkafka": 1, "send_times_kafka_python": 20, "poll_times_librdkafka": 1}
    waits_targets = {"one_by_one_ms": 5, "append_to_poll_ms": 15, "rebalance_pause_ms": 300}
    return {**found, "targets": {**targets, **waits_targets}}


if __name__ == "__main__":
    main()
