"""Requests for news at the coordinator's port: its metrics, and long polls."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import spark_log
from spark_log.journal.store_operations import AskChanges
from spark_log.rpc.messages import ChangesRequest, encode
from spark_log.serve.serve import Running
from spark_log.server.change_replies import CHANGES_BYTES_MAX
from tests.services import Services


# Promise: monitoring.md#metrics-of-a-coordinator
def test_metrics_are_prometheus_text(small: Running) -> None:
    """Its own parser reads them."""
    with urllib.request.urlopen(f"http://{small.coordinator.address}/metrics", timeout=20) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    assert families["pylog_leading"].samples[0].value == 1
    assert families["pylog_commit_seconds"].type == "histogram"
    assert families["pylog_topic_records"].samples[0].labels == {"topic": "t"}
    page = (
        (Path(__file__).parents[2] / "docs" / "monitoring.md")
        .read_text()
        .partition("| metric |")[2]
        .partition("\n\n")[0]
    )
    told = {name.removesuffix("_total") for name in re.findall(r"`(pylog_\w+)", page)}
    assert told == set(families), "docs/monitoring.md tells all of them"


# Promise: monitoring.md#metrics-of-a-coordinator
def test_metrics_count_what_is_there(services: Services, tmp_path: Path) -> None:
    """Records, what groups have not read, and who waits."""
    running = services.start(tmp_path / "log")
    url = f"pylog://{running.coordinator.address}"
    with spark_log.connect(url) as log, spark_log.connect(url) as other:
        log.append("t", [{"value": b"x"}] * 5)
        log.admin.alter_consumer_group_offsets("g", {spark_log.TopicPartition("t", 0): 2})
        waiting = threading.Thread(target=other.consumer("t").poll, args=(20_000,))
        waiting.start()
        deadline = time.monotonic() + 20
        while (found := samples(running.coordinator.address))["pylog_long_polls"] != 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert (found["pylog_topic_records{topic=t}"], found["pylog_group_lag{group=g,topic=t}"]) == (5, 3)
        assert found["pylog_objects"] == 1 and found["pylog_objects_bytes"] > 0
        log.append("t", [{"value": b"x"}])
        waiting.join(20)
        found = samples(running.coordinator.address)
        assert (found["pylog_long_polls"], found["pylog_group_lag{group=g,topic=t}"]) == (0, 4)
    services.stop(running)


# Promise: monitoring.md#watch-a-coordinator
def test_metrics_say_what_retention_removed(services: Services, tmp_path: Path) -> None:
    """Records, bytes and time by topic in the coordinator's maintenance; nothing of a deleted topic."""
    running = services.start(tmp_path / "log", maintain_ms=100)
    address = running.coordinator.address
    with spark_log.connect(f"pylog://{address}") as log:
        began = time.time()
        for topic in ("t", "gone"):
            log.create_topic(spark_log.NewTopic(topic, 1, {"retention.ms": "1"}))
            log.append(topic, [{"value": b"x", "timestamp": 1}] * 5)
            wait_for_metric(address, f"pylog_topic_expired_records_total{{topic={topic}}}", 5)
        log.admin.delete_topics(["gone"])
        found = samples(address)
    assert found["pylog_topic_expired_bytes_total{topic=t}"] > 0
    assert began - 1 <= found["pylog_topic_expired_timestamp_seconds{topic=t}"] <= time.time()
    assert found["pylog_maintenance_timestamp_seconds"] >= found["pylog_topic_expired_timestamp_seconds{topic=t}"]
    assert not any("topic=gone" in name for name in found)
    services.stop(running)


def test_the_bytes_that_compaction_removed_never_fall(services: Services, tmp_path: Path) -> None:
    """Also when a segment of a few records grows by its column of offsets: the metric is a counter."""
    running = services.start(tmp_path / "log", maintain_ms=100)
    address = running.coordinator.address
    with spark_log.connect(f"pylog://{address}") as log:
        log.create_topic(spark_log.NewTopic("t", 1, {"cleanup.policy": "compact", "segment.ms": "1"}))
        log.append("t", [{"key": key, "value": b"x", "timestamp": 1} for key in "aba"])
        wait_for_metric(address, "pylog_compaction_removed_records_total", 1)
        assert samples(address)["pylog_compaction_removed_bytes_total"] == 0
    services.stop(running)


# Promise: monitoring.md#watch-a-coordinator
def test_metrics_say_what_compaction_removed(services: Services, tmp_path: Path) -> None:
    """And how much of a topic is not compacted: here a tenth, which is not enough for a pass."""
    running = services.start(tmp_path / "log", maintain_ms=100)
    address = running.coordinator.address
    configs = {"cleanup.policy": "compact", "segment.ms": "1", "message.timestamp.before.max.ms": str(2**62)}
    with spark_log.connect(f"pylog://{address}") as log:
        began = time.time()
        log.create_topic(spark_log.NewTopic("t", 1, configs))
        log.append(
            "t", [{"key": f"{number % 10}".encode(), "value": b"x" * 999, "timestamp": 1} for number in range(90)]
        )
        wait_for_metric(address, "pylog_compaction_removed_records_total", 80)
        wait_for_metric(address, "pylog_topic_dirty_ratio{topic=t}", 0)
        log.append("t", [{"key": b"new", "value": b"x", "timestamp": 5}])
        wait_for_ratio(address, "pylog_topic_dirty_ratio{topic=t}")
        found = samples(address)
    assert found["pylog_compaction_passes_total"] == 1 and found["pylog_uncleanable_partitions"] == 0
    assert found["pylog_compaction_removed_bytes_total"] > 0
    assert began - 1 <= found["pylog_topic_cleaned_timestamp_seconds{topic=t}"] <= time.time()
    services.stop(running)


def wait_for_ratio(address: str, name: str) -> None:
    """Until the metric is between 0 and a half."""
    deadline = time.monotonic() + 20
    while not 0 < samples(address).get(name, 0) < 0.5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert 0 < samples(address)[name] < 0.5


def samples(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        return {
            sample.name
            + ("{" + ",".join(f"{k}={v}" for k, v in sample.labels.items()) + "}" if sample.labels else ""): (
                sample.value
            )
            for family in text_string_to_metric_families(answer.read().decode())
            for sample in family.samples
        }


def test_a_commit_s_time_is_that_of_a_record(services: Services, tmp_path: Path) -> None:
    """A change that writes nothing, such as maintenance every second, does not lower it."""
    running = services.start(tmp_path / "log")
    with spark_log.connect(f"pylog://{running.coordinator.address}") as log:
        log.append("t", [{"value": b"x"}])
        before = samples(running.coordinator.address)
        for _ in range(5):
            log.admin.alter_consumer_group_offsets("g", {spark_log.TopicPartition("t", 0): 1})
        after = samples(running.coordinator.address)
    assert after["pylog_commit_seconds_count"] == before["pylog_commit_seconds_count"] + 1
    assert after["pylog_commands_total"] >= before["pylog_commands_total"] + 5
    services.stop(running)


def test_who_waits_is_woken_by_a_commit(small: Running) -> None:
    """Long before the time that it asked for is over, and with the records of the commit."""
    with spark_log.connect(f"pylog://{small.coordinator.address}") as log, spark_log.connect(log.url) as other:
        log.append("t", [{"value": b"x"}])
        known = log.journal.refresh()
        link = log.journal.link
        assert link is not None
        threading.Timer(0.3, other.append, ("t", [{"value": b"news"}])).start()
        began = time.monotonic()
        changes = link.changes(AskChanges(known.coordinator, known.version, wait_ms=30_000))
        assert time.monotonic() - began < 15
        assert changes.version == known.version + 1 and b'"type":"commit"' in changes.batches[0]


# Promise: monitoring.md#watch-a-coordinator
def test_who_waits_for_a_topic_is_not_woken_by_records_of_others(small: Running) -> None:
    """Nor by positions; a record of the topic is sent immediately, with everything that was skipped."""
    with spark_log.connect(f"pylog://{small.coordinator.address}") as log, spark_log.connect(log.url) as other:
        for topic in ("mine", "theirs"):
            log.append(topic, [{"value": b"x"}])
        known = log.journal.refresh()
        link = log.journal.link
        assert link is not None
        began = time.monotonic()
        threading.Timer(0.2, other.append, ("theirs", [{"value": b"news"}])).start()
        threading.Timer(1.0, other.append, ("mine", [{"value": b"news"}])).start()
        changes = link.changes(
            AskChanges(known.coordinator, known.version, wait_ms=30_000, topics=[known.names["mine"]])
        )
        assert 0.9 < time.monotonic() - began < 15
        assert changes.version == known.version + 2 and len(changes.batches) == 2


def test_no_wake_up_is_lost(services: Services, tmp_path: Path) -> None:
    """Clients that wait for one topic each, and ask again while others append, hear of every append to it, soon."""
    topics, appends, waiting = 3, 60, 24
    with spark_log.connect(services.url(tmp_path / "log")) as log:
        for number in range(topics):
            log.create_topic(spark_log.NewTopic(f"t{number}"))
        known, link = log.journal.refresh(), log.journal.link
        assert link is not None
        longest: list[float] = []

        def hear(number: int) -> None:
            topic_id, version, heard = known.names[f"t{number % topics}"], known.version, 0
            while heard < appends // topics:
                began = time.monotonic()
                changes = link.changes(AskChanges(known.coordinator, version, wait_ms=30_000, topics=[topic_id]))
                longest.append(time.monotonic() - began)
                heard += sum(topic_id.encode() in batch for batch in changes.batches)
                version = changes.version

        threads = [threading.Thread(target=hear, args=(number,)) for number in range(waiting)]
        for thread in threads:
            thread.start()
        for number in range(appends):
            log.append(f"t{number % topics}", [{"value": b"x"}])
            time.sleep(random.Random(number).random() / 100)
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert max(longest) < 20, "somebody was not woken, and heard of it when the wait was over"


def test_a_client_that_hangs_up_while_it_waits_is_noticed(services: Services, tmp_path: Path) -> None:
    """Its connection counts no longer."""
    coordinator = services.start(tmp_path / "log").coordinator
    wait_for_metric(coordinator.address, "pylog_leading", 1)  # before, nobody is let wait
    host, _, port = coordinator.address.partition(":")
    # For a version that is far off: a record that the coordinator writes after its start would be an immediate answer.
    since = coordinator.state.version + 1000
    body = encode(ChangesRequest(cluster_id=coordinator.cluster_id, since=since, wait_ms=60_000))
    head = f"POST /v1/changes HTTP/1.1\r\nHost: {coordinator.address}\r\nContent-Length: {len(body)}\r\n\r\n"
    with closing(socket.create_connection((host, int(port)))) as client:
        client.sendall(head.encode() + body)
        wait_for_metric(coordinator.address, "pylog_long_polls", 1)
        assert samples(coordinator.address)["pylog_connections"] > 1
    wait_for_metric(coordinator.address, "pylog_connections", 1)


def wait_for_metric(address: str, name: str, value: float) -> None:
    deadline = time.monotonic() + 20
    while samples(address).get(name) != value and time.monotonic() < deadline:
        time.sleep(0.05)
    assert samples(address).get(name) == value


def test_an_old_version_is_answered_at_once_only_if_there_is_news_for_who_asks(small: Running) -> None:
    """Records of other topics are sent when the wait is over."""
    with spark_log.connect(f"pylog://{small.coordinator.address}") as log:
        for topic in ("quiet", "busy"):
            log.append(topic, [{"value": b"x"}])
        known, link = log.journal.refresh(), log.journal.link
        assert link is not None
        log.append("busy", [{"value": b"x"}])
        began = time.monotonic()
        changes = link.changes(
            AskChanges(known.coordinator, known.version, wait_ms=30_000, topics=[known.names["busy"]])
        )
        assert changes.version == known.version + 1 and time.monotonic() - began < 15
        began = time.monotonic()
        changes = link.changes(AskChanges(known.coordinator, known.version, wait_ms=400, topics=[known.names["quiet"]]))
        assert changes.version == known.version + 1 and 0.3 < time.monotonic() - began < 15


def test_who_waits_while_much_comes_to_others_is_told_with_its_own_news(services: Services, tmp_path: Path) -> None:
    """Not in between: its waits end, and it stays where it is; then it reads from the storage what no answer holds."""
    with (
        spark_log.connect(services.url(tmp_path / "log")) as log,
        spark_log.connect(services.url(tmp_path / "log")) as other,
    ):
        log.create_topic(spark_log.NewTopic("mine"))
        log.create_topic(spark_log.NewTopic("wide", 500))
        known = log.journal.refresh()
        wide = [{"value": b"x", "partition": number} for number in range(500)]
        for _ in range(CHANGES_BYTES_MAX // 20_000):
            other.append("wide", wide)
        mine = [known.names["mine"]]
        assert log.journal.wait(0, 200, topics=mine).version == known.version
        other.append("mine", [{"value": b"x"}])
        assert log.journal.wait(0, 30_000, topics=mine).version == other.journal.state.version
