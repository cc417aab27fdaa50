"""How often does Spark wait for an object store: in a batch read, a batch write and a micro-batch?

A real Spark with its worker processes, and an S3 server on loopback that takes 50 ms an answer and remembers each
request. Round trips are the longest chain of requests of which each began after the one before had ended.  By hand: a
micro-batch that copies one record finds the commit (2), plans from that state (0), begins the write (1), reads the
record (1), puts the object (1), looks at the log in the process that commits (1), puts the record and reads it back
(2): 8.  A batch read looks at the log (1) to learn the columns of `load()`, and its plan looks at the log again in
another process (1); the first read of a session opens the log in each of them (3 and 3).  A task asks for the query's
pin and the records (2); the task that pins opens the log between them.  A task whose records come more than a second
after its plan or pin also looks for erasures (1), so a busy machine shows one more there and in a micro-batch.

    --rounds N      micro-batches and queries of each kind, the fewest count
    --show          each request of the round that counts
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import common

sys.path.insert(0, str(Path(__file__).parents[1]))

import boto3
from pyspark.sql import DataFrame, SparkSession

import spark_log
from simulation.harness.slow_store import TimedRequest, counts, round_trips
from tests.s3_server import App, s3_server

LATENCY_S = 0.05
"""Longer than what the server and Python add to a request, so that parallel requests overlap."""
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
DEADLINE_S = 60


class Recorder:
    """Makes an S3 server slow, and remembers what it was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: list[TimedRequest] = []

    def wrapped(self, app: App) -> App:
        def slow(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            begun = time.perf_counter()
            time.sleep(LATENCY_S)
            found: list[str] = []
            try:
                return app(environ, lambda status, *rest: (found.append(status), start_response(status, *rest))[1])
            finally:
                key = environ["PATH_INFO"].partition("/log/")[2] or environ["QUERY_STRING"]
                key += " absent" if found and found[0].startswith("404") else ""
                with self._lock:
                    self.requests.append(TimedRequest(_kind(environ), key, begun, time.perf_counter()))

        return slow


def _kind(environ: dict[str, Any]) -> str:
    if environ["REQUEST_METHOD"] == "PUT":
        return "put_new" if "HTTP_IF_NONE_MATCH" in environ else "put"
    if environ["REQUEST_METHOD"] == "GET":
        return "list" if "list-type" in environ["QUERY_STRING"] else "get"
    return {"HEAD": "size"}.get(environ["REQUEST_METHOD"], "delete")


class Store(NamedTuple):
    """A log in a bucket: for Spark through the slow server, for the benchmark itself through another one."""

    url: str
    options: dict[str, str]
    log: spark_log.Log
    recorder: Recorder


@contextmanager
def stores() -> Iterator[Store]:
    recorder, bucket = Recorder(), uuid.uuid4().hex
    with s3_server(recorder) as slow, s3_server() as near:
        boto3.client("s3", endpoint_url=near, **KEYS).create_bucket(Bucket=bucket)
        keys = {"key": "key", "secret": "secret"}
        log = spark_log.connect(f"s3://{bucket}/log", {**keys, "endpoint_url": near})
        for topic in ("t", "copy", "written"):
            log.create_topic(spark_log.NewTopic(topic, 1))
        log.append("t", [{"value": b"%d" % number} for number in range(10)])
        options = {f"storage.{name}": value for name, value in {**keys, "endpoint_url": slow}.items()}
        yield Store(f"s3://{bucket}/log", options, log, recorder)


Requests = list[TimedRequest]


def fewest(found: list[Requests]) -> Requests:
    return min(found, key=round_trips)


def micro_batches(spark: SparkSession, store: Store, checkpoint: str, rounds: int) -> Requests:
    """A stream that copies a record a batch: from the poll that finds it until the read-back of the copy's commit."""
    source = spark.readStream.format("pylog").options(subscribe="t", startingOffsets="latest", **store.options)
    sink = source.load(store.url).select("key", "value").writeStream.format("pylog").options(**store.options)
    query = sink.option("topic", "copy").option("checkpointLocation", checkpoint).start(store.url)
    try:
        _wait(lambda: (Path(checkpoint) / "commits" / "0").exists(), query)
        return fewest([_micro_batch(store, query) for _ in range(rounds)])
    finally:
        query.stop()


def _micro_batch(store: Store, query: Any) -> Requests:
    time.sleep(1)
    copied, since = _end(store, "copy"), len(store.recorder.requests)
    store.log.append("t", [{"value": b"x"}])
    _wait(lambda: _end(store, "copy") > copied, query)
    time.sleep(6 * LATENCY_S)
    requests = sorted(store.recorder.requests[since:], key=lambda request: request.begun)
    begun = next(at for at, request in enumerate(requests) if not request.key.endswith("absent"))
    put = max(at for at, request in enumerate(requests) if request.kind == "put_new" and "meta/log" in request.key)
    record = requests[put].key
    read_back = next(request for request in requests[put + 1 :] if request.key == record)
    return [request for request in requests[begun:] if request.begun < read_back.ended]


def _end(store: Store, topic: str) -> int:
    state = store.log.journal.refresh()
    return state.partitions[state.names[topic], 0].end


def _wait(until: Callable[[], bool], query: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not until():
        assert query.exception() is None and time.monotonic() < deadline, query.exception()
        time.sleep(0.01)


def batch_read(spark: SparkSession, store: Store, rounds: int, **options: object) -> tuple[Requests, Requests]:
    """The driver's plan, and the one task of a query."""
    plans, tasks = [], []
    for _ in range(rounds):
        with recorded(store) as plan:
            frame = load(spark, store, **options)
            assert frame.rdd.getNumPartitions() >= 1
        with recorded(store) as task:
            assert frame.count() >= 10
        plans.append(plan)
        tasks.append(task)
    return fewest(plans), fewest(tasks)


def load(spark: SparkSession, store: Store, **options: object) -> DataFrame:
    read = spark.read.format("pylog").options(subscribe="t", parallelism=1, **store.options, **options)
    return read.load(store.url)


def batch_write(spark: SparkSession, store: Store, rounds: int) -> Requests:
    """One task, one topic: from the driver's look until the read-back."""
    found = []
    for _ in range(rounds):
        frame = spark.range(0, 10, 1, 1).selectExpr("string(id) as value")
        with recorded(store) as requests:
            frame.write.format("pylog").mode("append").options(topic="written", **store.options).save(store.url)
        found.append(requests)
    return fewest(found)


@contextmanager
def recorded(store: Store) -> Iterator[Requests]:
    found: Requests = []
    since = len(store.recorder.requests)
    yield found
    found += store.recorder.requests[since:]


def main() -> None:
    given = arguments()
    spark = common.session()
    figures: dict[str, Requests] = {}
    with stores() as store, common.folder() as checkpoint:
        figures["a batch write"] = batch_write(spark, store, given.rounds)
        figures["plan of the first read"], _ = batch_read(spark, store, 1)
        for name, options in (("with a fixed end", {"endingOffsets": 10}), ("with an open end", {})):
            plan, task = batch_read(spark, store, given.rounds, **options)
            figures[f"plan of a read {name}"] = plan
            figures[f"the task of a read {name}"] = task
        figures["a micro-batch"] = micro_batches(spark, store, checkpoint, given.rounds)
    for name, requests in figures.items():
        print(f"{name}: {round_trips(requests)} round trips; {dict(counts(requests))}")
        for request in sorted(requests, key=lambda one: one.begun) if given.show else ():
            print(f"    {request.begun - requests[0].begun:7.3f} {request.kind:8} {request.key[:100]}")
    common.report("spark_round_trips", **{name: round_trips(requests) for name, requests in figures.items()})


def arguments() -> Any:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=3, help="of each kind; the one with the fewest round trips counts (3)"
    )
    parser.add_argument("--show", action="store_true", help="print each request")
    return parser.parse_args()


if __name__ == "__main__":
    main()
