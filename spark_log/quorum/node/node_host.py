"""A node's way to its machine: time, chance, threads, the directory, and the connections to other nodes.

The simulation of coordinators has another host, in which a seed decides everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from random import Random, SystemRandom

from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.directory import DataDirectory, open_directory
from spark_log.quorum.node.file_operations import LocalFiles
from spark_log.quorum.node.handshake import NodeIdentity
from spark_log.quorum.node.links import Connect, QuorumLinks, Tls
from spark_log.quorum.node.node_config import NodeConfig
from spark_log.quorum.node.port import QuorumPort, Tools
from spark_log.quorum.voters import Voters
from spark_log.quorum.wire import Received
from spark_log.runtime.clock import Clock, SystemClock
from spark_log.runtime.daemon_threads import DaemonThreads
from spark_log.runtime.threads import SYSTEM_THREADS, Threads


class NodeHost:
    """The machine on which this process runs."""

    threads: Threads = SYSTEM_THREADS
    """For work that waits, such as maintenance."""

    def __init__(self, open_files: Callable[[str], LocalFiles] = LocalFiles, clock: Clock | None = None) -> None:
        """
        open_files:  makes the operations on the files of a directory.
        clock:       None: the system's.
        """
        self.clock: Clock = clock or SystemClock()
        self._open_files = open_files

    def monotonic_s(self) -> float:
        return time.monotonic()

    def random(self) -> Random:
        """For timeouts."""
        return Random()

    def ids(self) -> Random:
        """For names that nobody can guess."""
        return SystemRandom()

    def daemon_threads(self, count: int, name: str) -> DaemonThreads:
        return DaemonThreads(count, name)

    def open_directory(self, config: NodeConfig) -> DataDirectory:
        """Raises as `open_directory` does."""
        return open_directory(
            config.directory, cluster_id=config.cluster_id, node_id=config.node_id, open_files=self._open_files
        )

    def port(
        self,
        me: NodeIdentity,
        secret: str,
        receive: Callable[[Received], None],
        *,
        connected: Callable[[NodeIdentity], None],
        voters: Callable[[], Voters],
        tools: Tools,
    ) -> QuorumPort:
        return QuorumPort(me, secret, receive, connected=connected, voters=voters, tools=tools)

    def links(
        self,
        me: NodeIdentity,
        secret: str,
        tls: Tls,
        peers: Mapping[int, str],
        *,
        refused: Callable[[int], None],
        accepted: Callable[[ReplicaKey, Voters], None],
    ) -> QuorumLinks:
        return QuorumLinks(Connect(me, secret, tls, refused=refused, accepted=accepted), peers)
