"""Nodes of a quorum that are killed while they delete what they have of erased records: the erasure ends no earlier.

`make chaos` runs more rounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import spark_log
from simulation.harness.quorum_process import wait_until
from simulation.harness.serving_nodes import ServingNodes
from spark_log import Log, NewTopic
from spark_log.client.admin.erasure_status import ErasureListing
from spark_log.errors import SparkLogError
from tests.hidden_bytes import files_with
from tests.processes import free_port

ROUNDS = int(os.environ.get("QUORUM_ROUNDS", "0"))
SETTINGS = "maintain.every = 1s"
KILLED_S = 4.0
"""About how long nodes are busy with an erasure."""
RECORDS = 200


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ServingNodes]:
    found = ServingNodes(tmp_path, [free_port() for _ in range(6)], settings=SETTINGS)
    try:
        found.start()
        with spark_log.connect(found.url) as log:
            log.create_topic(NewTopic("people", 1, schema="name STRING"))
            log.admin.incremental_alter_configs(
                {None: {"gc.fence.age.ms": "1", "metadata.log.max.snapshot.interval.ms": "1000"}}
            )
        yield found
    finally:
        found.kill_all()


def have(nodes: ServingNodes, text: str) -> list[str]:
    """The nodes, and the copies beside the records, that have a text in a file."""
    folders = [*map(nodes.directory, nodes.addresses), nodes.folder / "records"]
    return [folder.name for folder in folders if files_with(folder, text.encode())]


def put(log: Log, person: str) -> None:
    """Its name is the least one of its slice."""
    log.append("people", [{"key": person.encode(), "name": f"aaa-{person}"}, {"key": b"other", "name": "zzz"}])
    log.append("people", [{"key": b"other", "name": f"n{number}"} for number in range(RECORDS)])


def erasures(log: Log) -> list[ErasureListing] | None:
    """None if no node answers for the log."""
    with suppress(SparkLogError):
        log.append("people", [{"key": b"other", "name": "more"}])  # so that the fence moves
        return log.admin.list_erasures()
    return None


def kill_some(nodes: ServingNodes, rng: Random) -> None:
    """At random moments, one at a time.  Most often no leader: the next one begins with the copies after a while."""
    leader, is_killed, ends_s = nodes.leader(), rng.random() < 0.3, time.monotonic() + KILLED_S
    while time.monotonic() < ends_s:
        time.sleep(rng.uniform(0, KILLED_S / 3))
        victim = rng.choice([node for node in nodes.addresses if node != leader])
        if is_killed:
            victim, is_killed = leader, False
        nodes.kill(victim)
        time.sleep(rng.uniform(0, 0.3))
        nodes.start(victim)


# Promise: quorum.md#when-records-are-erased
def test_nodes_that_are_killed_while_they_forget(nodes: ServingNodes) -> None:
    """When the list says that the erasure is done, no disk has the name, nor has any when all are started again."""
    rng = Random(ROUNDS)
    with spark_log.connect(nodes.url) as log:
        for number in range(max(ROUNDS // 4, 2)):
            person = f"person-{number}-{rng.randrange(1 << 30)}"
            put(log, person)
            assert len(have(nodes, f"aaa-{person}"[:16])) >= 3
            assert log.admin.erase_records("people", [person]).records == 1
            kill_some(nodes, rng)
            wait_until(lambda: erasures(log) == [], "the erasure is done")
            assert have(nodes, f"aaa-{person}"[:16]) == [], person
            for node in nodes.addresses:
                nodes.kill(node)
            nodes.start()
            assert have(nodes, f"aaa-{person}"[:16]) == [], person
            assert log.read("people").num_rows > RECORDS
