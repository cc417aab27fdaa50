"""Quotas at the port: clients of one token get no more, and others notice nothing."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import QuotaExceeded, ThrottlingQuotaExceeded
from spark_log.http.address import parse_target
from spark_log.journal.store_operations import Ask
from spark_log.metadata.commands import InitProducer
from spark_log.rpc.client import HttpLink
from tests.processes import Process, free_port
from tests.server.asking import ADMIN, BILLING, connect

CONF = f"""
[tokens]
boss = admin {ADMIN}
billing = admin {BILLING} billing. group:billing.
[quotas]
billing = topics=2 partitions=5 groups=1 connections=3 commits=10
"""


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[str]:
    """Address of a process with quotas."""
    (tmp_path / "coordinator.ini").write_text(CONF)
    process = Process(tmp_path / "log", free_port(), "--conf", str(tmp_path / "coordinator.ini"))
    yield process.address
    assert process.terminate() == 0


def metric(address: str, name: str, principal: str) -> float:
    asked = urllib.request.Request(f"http://{address}/metrics", headers={"Authorization": f"Bearer {ADMIN}"})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith(f'pylog_principal_{name}{{principal="{principal}"}}')]
    return float(found[0].rpartition(" ")[2])


# Promise: security.md#quotas
def test_what_is_above_a_quota_is_refused_and_named(limited: str) -> None:
    """Topics, partitions, groups; the metrics have what is used and what was refused."""
    with connect(limited, BILLING) as log, connect(limited, ADMIN) as boss:
        log.append("billing.a", [{"value": b"x"}])
        with pytest.raises(QuotaExceeded, match="quota of partitions=5, and would have 6"):
            log.admin.create_topics([spark_log.NewTopic("billing.b", 5)])
        log.admin.create_topics([spark_log.NewTopic("billing.b", 4)])
        with pytest.raises(QuotaExceeded, match="quota of topics=2, and would have 3"):
            log.append("billing.c", [{"value": b"x"}])
        with log.consumer("billing.a", group_id="billing.1", auto_offset_reset="earliest") as consumer:
            assert consumer.poll(5000)
        with (
            pytest.raises(QuotaExceeded, match="quota of groups=1, and would have 2"),
            log.consumer("billing.a", group_id="billing.2") as consumer,
        ):
            consumer.poll(5000)
        boss.append("orders", [{"value": b"x"}])
        boss.append("billing.c", [{"value": b"x"}])
        used = {kind: metric(limited, kind, "billing") for kind in ("topics", "partitions", "groups", "refused_total")}
        assert used == {"topics": 3, "partitions": 6, "groups": 1, "refused_total": 3}
        assert metric(limited, "commits_total", "boss") == 4
        assert metric(limited, "topics", "boss") == 4


# Promise: security.md#quotas
def test_connections_above_a_quota_are_refused(limited: str) -> None:
    """Open connections continue, and so do clients of other tokens."""
    links = [HttpLink(parse_target(f"pylog://{limited}"), BILLING) for _ in range(4)]
    for link in links[:3]:
        link.info()
    with pytest.raises(QuotaExceeded, match="'billing' has a quota of connections=3"):
        links[3].info()
    assert metric(limited, "connections", "billing") == 3
    links[0].info()
    for link in links:
        link.close()


# Promise: security.md#quotas
def test_clients_wait_when_they_commit_too_often(limited: str) -> None:
    """Each commit is in once, in order, and none fails: the client sends it again when the coordinator has said."""
    with connect(limited, BILLING) as log, connect(limited, ADMIN) as boss:
        # Two at a time, because a busy machine may take 100 ms for one, which is what the quota allows.
        beside = threading.Thread(target=lambda: [log.append("billing.b", [{"value": b"x"}]) for _ in range(25)])
        beside.start()
        for number in range(25):
            log.append("billing.a", [{"value": b"%d" % number}])
        beside.join()
        for _ in range(25):
            boss.append("orders", [{"value": b"x"}])
        assert log.read("billing.a").column("value").to_pylist() == [b"%d" % number for number in range(25)]
        assert metric(limited, "refused_total", "billing") > 0
        assert metric(limited, "refused_total", "boss") == 0


# Promise: security.md#quotas
def test_threads_and_producers_wait_as_well(limited: str) -> None:
    """Their commits go together, and those that are refused go again together."""
    with connect(limited, BILLING) as log:
        log.append("billing.a", [{"value": b"first"}])
        threads = [
            threading.Thread(target=lambda: [log.append("billing.a", [{"value": b"x"}]) for _ in range(4)])
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        with log.producer(linger_ms=0) as producer:
            futures = [producer.send("billing.a", b"%d" % number) for number in range(10)]
        for thread in threads:
            thread.join()
        assert all(future.result(60).offset >= 0 for future in futures)
        assert log.read("billing.a").num_rows == 1 + 24 + 10


# Promise: security.md#quotas
def test_the_excess_is_a_retriable_error_that_says_when(limited: str) -> None:
    """For a client of another kind, which asks directly."""
    with connect(limited, BILLING) as log, closing(HttpLink(parse_target(f"pylog://{limited}"), BILLING)) as link:
        link.cluster_id = log.cluster_id
        log.append("billing.a", [{"value": b"x"}])
        many = [InitProducer(producer=f"txn:billing.{number}") for number in range(15)]
        outcomes = link.ask(Ask(log.journal.state.coordinator, many, log.journal.state.version)).outcomes
    throttled = [one for one in outcomes if isinstance(one, ThrottlingQuotaExceeded)]
    assert throttled and not isinstance(outcomes[0], Exception)
    assert all(one.retriable and 0 < one.retry_after_ms <= 1000 and not one.maybe_applied for one in throttled)
