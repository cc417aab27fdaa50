"""Clients reach three nodes of a quorum through proxies: exactly-once producers, transactions, a group, and a query.

The check needs no search, as in `test_quorum_coordinators.py`.  `make chaos` runs more faults, with a Spark query.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import spark_log
from simulation.harness.quorum_process import wait_until
from simulation.harness.serving_nodes import ServingNodes
from simulation.harness.tcp_proxy import TcpProxies
from simulation.levels import TODAY, TOMORROW, supporting
from spark_log.errors import InvalidRequest
from spark_log.metadata.features import METADATA_VERSION
from tests.chaos.riders import Copier, Producing, Rider, check_copies, check_order, values_of
from tests.processes import free_port

ROUNDS = int(os.environ.get("QUORUM_ROUNDS", "0"))
CLIENTS = "clients"
MUTE_S = 2.5
"""Longer than a client waits for a node that has taken its request, and does not answer."""


class Setting:
    def __init__(self, folder: Path, proxies: TcpProxies) -> None:
        self.proxies = proxies
        self.nodes = ServingNodes(
            folder,
            [free_port() for _ in range(6)],
            for_clients=lambda node, address: proxies.between(CLIENTS, node, address),
            level=TODAY,
        )
        self.nodes.start()
        with spark_log.connect(self.nodes.url) as log:
            for topic in ("orders", "copies", "queried"):
                log.admin.create_topics([spark_log.NewTopic(topic, num_partitions=1)])
        self.producers = [Producing(self.nodes.url, name) for name in ("a", "b")]
        self.riders: list[Rider] = [*self.producers, Copier(self.nodes.url, "the copier")]

    def wait_for(self, more: int = 2) -> None:
        for rider in self.riders:
            rider.wait_for(more)

    # ----------------------------------------------------------------------------------------------------------- faults

    def mute_leader(self) -> None:
        """It gets the requests of clients, and they get no answers; the other nodes notice nothing."""
        leader = self.nodes.leader()
        self.proxies.set(CLIENTS, leader, is_mute=True)
        time.sleep(MUTE_S)
        self.proxies.set(CLIENTS, leader)

    def hang_leader(self) -> None:
        leader = self.nodes.leader()
        self.nodes.signal(leader, signal.SIGSTOP)
        try:
            self.wait_for()
        finally:
            self.nodes.signal(leader, signal.SIGCONT)
        self._wait_until_caught_up(leader)

    def cut_node(self, node: int) -> None:
        """From clients alone."""
        self.proxies.set(CLIENTS, node, is_cut=True)
        time.sleep(MUTE_S)
        self.proxies.set(CLIENTS, node)

    def update_all(self) -> None:
        """To the newest pylog, one after another.  The level is raised when all are updated, and not before."""
        self.nodes.level = TOMORROW
        for node in self.nodes.addresses:
            assert not self._raises_level()
            self._restart(node)
        wait_until(self._raises_level, "all nodes are connected")

    def _raises_level(self) -> bool:
        with spark_log.connect(self.nodes.url) as log:
            try:
                log.admin.update_features({METADATA_VERSION: TOMORROW})
            except InvalidRequest:
                return False
        return True

    def start_former_pylog(self) -> None:
        """It ends, because it does not know the level of the log."""
        leader = self.nodes.leader()
        node = next(node for node in self.nodes.addresses if node != leader)
        self.nodes.kill(node)
        self.nodes.level = TODAY
        with suppress(EOFError):
            self.nodes.start(node)
        assert self.nodes.wait(node) and f"this pylog supports up to {TODAY}" in self.nodes.log(node)

    def restart_all(self) -> None:
        for node in self.nodes.addresses:
            self._restart(node)

    def _restart(self, node: int) -> None:
        self.nodes.signal(node, signal.SIGTERM)
        self.nodes.wait(node)
        self.nodes.start(node)
        self._wait_until_caught_up(node)

    def kill_leader(self) -> None:
        leader = self.nodes.leader()
        self.nodes.kill(leader)
        self.wait_for(1)
        self.nodes.start(leader)
        self._wait_until_caught_up(leader)

    def _wait_until_caught_up(self, node: int) -> None:
        leader = self.nodes.health(self.nodes.leader())
        version = 0 if leader is None else leader.version
        wait_until(
            lambda: (health := self.nodes.health(node)) is not None and health.healthy and health.version >= version,
            f"node {node} has caught up",
        )

    # ------------------------------------------------------------------------------------------------------------ checks

    def check(self, *queried: str) -> None:
        """
        queried:  topics with copies that queries have made.
        """
        for producer in self.producers:
            producer.stop()
        with spark_log.connect(self.nodes.url) as log:
            values = values_of(log, "orders")
            check_order([one for producer in self.producers for one in producer.found], values)
            wait_until(lambda: len(values_of(log, "copies")) >= len(values), "everything is copied")
            self.riders[-1].stop()
            for topic in ("copies", *queried):
                check_copies(values, values_of(log, topic))
            assert log.admin.list_consumer_group_offsets("copiers")[("orders", 0)].offset == len(values)


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with TcpProxies() as proxies, supporting(TOMORROW):  # clients are updated before the nodes
        setting = Setting(tmp_path, proxies)
        try:
            yield setting
        finally:
            for rider in setting.riders:
                rider.end()
            setting.nodes.kill_all()


# Promise: quorum.md#stop-restart-and-update-nodes
def test_clients_ride_through_lost_answers_and_a_rolling_update(setting: Setting) -> None:
    """A change without an answer is not made again, and a group continues in transactions, from the former level of the
    log to the newest one.  A node of the former pylog does not start with that.
    """
    setting.wait_for()
    setting.mute_leader()
    setting.wait_for()
    setting.update_all()
    setting.wait_for()
    setting.check()
    setting.start_former_pylog()


@pytest.mark.skipif(not ROUNDS, reason="make chaos")
def test_random_faults_between_clients_and_nodes(setting: Setting, tmp_path: Path) -> None:
    """With a query, which continues from its checkpoint if it ends."""
    rng = Random(ROUNDS)
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "1").getOrCreate()

    def start() -> StreamingQuery:
        stream = spark.readStream.format("pylog").option("subscribe", "orders").option("startingOffsets", "earliest")
        write = stream.load(setting.nodes.url).select("value").writeStream.format("pylog").option("topic", "queried")
        return write.option("checkpointLocation", str(tmp_path / "checkpoint")).start(setting.nodes.url)

    query = start()
    faults: list[Callable[[], None]] = [
        setting.mute_leader,
        setting.hang_leader,
        lambda: setting.cut_node(rng.choice(sorted(setting.nodes.addresses))),
        setting.restart_all,
        setting.kill_leader,
    ]
    for _ in range(ROUNDS):
        setting.wait_for()
        rng.choice(faults)()
        query = query if query.isActive else start()
    for producer in setting.producers:
        producer.stop()
    query = query if query.isActive else start()
    query.processAllAvailable()
    query.stop()
    setting.check("queried")
