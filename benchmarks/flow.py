"""How long does a record take through a flow, and how many records a second does a task process?

A flow of one task runs in another process, on a local disk with fsync, first without a coordinator and then through
one.  A writer appends one record every 20, 100 and 500 ms, and then 1,000 records a second with a producer.  The time
of a record is from before its `append`, or its `send`, until the consumer's `poll` of the target has returned it.  For
comparison, a consumer reads a topic directly.  Then a flow processes records that are there already, and one counts
them by key.  That one is started again, to measure how long it takes to restore the state of as many keys.

By hand, without a coordinator: two writes, each an object and a commit of some syncs of 1 ms, and two readers that look
every 2 to 10 ms: about 10 ms.  A coordinator notifies readers, and adds two requests.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable

import common
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from coordinator import serving

import spark_log
from spark_log import NewTopic

LATENCIES = 200
"""Records of each interval, at most."""
INTERVALS_MS = (20, 100, 500)
PER_SECOND, SECONDS = 1_000, 5
TARGETS = {"p50": 10, "p99": 30, "p99_at_1000": 60, "records_per_second": 100_000, "restore_s": 20}
SAMPLE = 50_000
"""Rows in one append of the records that are there already."""


def main() -> None:
    given = common.arguments(
        __doc__, rows=1_000_000, of="records; fewer than 1,000 also limit the rest", rounds=None, warm=None
    )
    with common.folder() as folder:
        measure("embedded", folder, given.rows)
        restore(folder, given.rows)
    with common.folder() as folder, serving(folder) as (_, address):
        measure("coordinator", f"pylog://{address}", given.rows)


def measure(way: str, url: str, rows: int) -> None:
    log = spark_log.connect(url)
    log.admin.create_topics([NewTopic(name, 1) for name in ("direct", "in", "out", "many-in", "many-out")])
    count = min(LATENCIES, rows)
    direct = latencies(url, "direct", count, lambda: one_by_one(log, count, 0.1, "direct"))
    with Process(url, "in", "out") as process:
        process.wait()
        log.append("in", [{"value": "0"}])
        while not log.read("out", columns=["offset"]).num_rows:
            time.sleep(0.05)
        figures: dict[str, float] = {}
        for interval_ms in INTERVALS_MS:
            count = min(LATENCIES, rows, 20_000 // interval_ms + 1)
            times = latencies(
                url, "out", count, lambda count=count, pause=interval_ms / 1000: one_by_one(log, count, pause)
            )
            figures |= {f"p50_ms_every_{interval_ms}_ms": times[0], f"p99_ms_every_{interval_ms}_ms": times[1]}
        count = min(PER_SECOND * SECONDS, rows)
        times = latencies(url, "out", count, lambda: in_a_stream(log, count))
    common.report(
        "flow",
        part="latency",
        way=way,
        **figures,
        p50_ms_without_a_flow=direct[0],
        p99_ms_without_a_flow=direct[1],
        p50_target_ms=TARGETS["p50"],
        p99_target_ms=TARGETS["p99"],
        p50_ms_at_1000_a_second=times[0],
        p99_ms_at_1000_a_second=times[1],
        p99_target_ms_at_1000_a_second=TARGETS["p99_at_1000"],
    )
    common.report(
        "flow",
        part="throughput",
        way=way,
        records=rows,
        records_per_second=throughput(url, log, rows),
        target=TARGETS["records_per_second"],
    )


class Process:
    """A flow in another process."""

    def __init__(self, url: str, source: str, target: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._ready, self._stop = context.Event(), context.Event()
        self._process = context.Process(target=run, args=(url, source, target, self._ready, self._stop))

    def __enter__(self) -> Process:
        self._process.start()
        return self

    def wait(self) -> None:
        assert self._ready.wait(60)

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._process.join(60)


def run(url: str, source: str, target: str, ready: threading.Event, stop: threading.Event) -> None:
    with spark_log.flow(url, name=f"bench-{source}", source=source, target=target, function=upper):
        ready.set()
        stop.wait()


def upper(table: pa.Table) -> pa.Table:
    place = table.column_names.index("value")
    return table.set_column(place, "value", pc.ascii_upper(table["value"].cast(pa.string())))


def latencies(url: str, topic: str, count: int, write: Callable[[], None]) -> tuple[float, float]:
    """Median and 99th percentile, in milliseconds."""
    times: list[float] = []
    consumer = spark_log.connect(url).consumer(topic, fetch_max_wait_ms=10)
    consumer.poll(0)

    def read() -> None:
        until_s = time.monotonic() + 120
        while len(times) < count and time.monotonic() < until_s:
            for records in consumer.poll(500, max_records=10_000).values():
                now = time.time()
                times.extend((now - float(record.value)) * 1000 for record in records)

    reader = threading.Thread(target=read)
    reader.start()
    write()
    reader.join()
    consumer.close()
    assert len(times) == count, f"{len(times)} of {count} records came"
    p50, p99 = np.percentile(times, [50, 99]).tolist()
    return p50, p99


def one_by_one(log: spark_log.Log, count: int, pause_s: float, topic: str = "in") -> None:
    for _ in range(count):
        time.sleep(pause_s)
        log.append(topic, [{"value": f"{time.time():.6f}"}])


def in_a_stream(log: spark_log.Log, count: int) -> None:
    begun = time.perf_counter()
    with log.producer(linger_ms=1) as producer:
        for number in range(count):
            if (ahead := begun + number / PER_SECOND - time.perf_counter()) > 0:
                time.sleep(ahead)
            producer.send("in", f"{time.time():.6f}".encode())


def throughput(url: str, log: spark_log.Log, rows: int) -> float:
    """Records a second of one task, from its first batch."""
    for at in range(0, rows, SAMPLE):
        size = min(SAMPLE, rows - at)
        log.append(
            "many-in",
            pa.table({"key": [f"k{n}" for n in range(size)], "value": [f"value {n} of many" for n in range(size)]}),
        )
    begun: list[float] = []

    def timed(table: pa.Table) -> pa.Table:
        begun.append(time.perf_counter())
        return upper(table)

    with spark_log.flow(url, name="bench-many", source="many-in", target="many-out", function=timed) as flow:
        flow.process_all_available(600)
    return rows / (time.perf_counter() - begun[0])


def restore(url: str, keys: int) -> None:
    """State by key: the first batches, one that restores it, and the next one."""
    log = spark_log.connect(url)
    log.create_topic(NewTopic("keyed-in", 1))
    for at in range(0, keys, SAMPLE):
        size = min(SAMPLE, keys - at)
        names = [f"customer-{number}" for number in range(at, at + size)]
        log.append("keyed-in", pa.table({"key": names, "value": [""] * size}))
    state = spark_log.keyed("counts", pa.schema([("n", pa.int64())]))

    def timed() -> tuple[float, float]:
        """Seconds until all is processed, and then for one more record."""
        with spark_log.flow(url, name="count", source="keyed-in", function=counted, state=state) as flow:
            times = []
            for key in (None, "customer-1"):
                if key is not None:
                    log.append("keyed-in", [{"key": key, "value": ""}])
                begun = time.perf_counter()
                flow.process_all_available(600)
                times.append(time.perf_counter() - begun)
            assert flow.progress.state_keys == keys
        return times[0], times[1]

    all_s, _ = timed()
    log.append("keyed-in", [{"key": "customer-0", "value": ""}])
    restored_s, next_s = timed()
    common.report(
        "flow",
        part="state",
        keys=keys,
        records_per_second=keys / all_s,
        restore_s=restored_s,
        restore_target_s=TARGETS["restore_s"],
        next_record_ms=next_s * 1000,
    )


def counted(records: pa.Table, counts: pa.Table) -> tuple[None, pa.Table]:
    new = records.group_by("key").aggregate([([], "count_all")]).rename_columns(["key", "n"])
    return None, pa.concat_tables([new, counts]).group_by("key").aggregate([("n", "sum")]).rename_columns(["key", "n"])


if __name__ == "__main__":
    main()
