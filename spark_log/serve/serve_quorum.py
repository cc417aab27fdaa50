"""`pylog serve --quorum`: a node of the quorum that has the metadata log, with the server for clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spark_log.errors import InvalidRequest
from spark_log.http.tls import node_contexts, tls_context
from spark_log.quorum.node.node_host import NodeHost
from spark_log.roots.root_options import RootOptions
from spark_log.serve.reloadable_server import Reloadable, listen
from spark_log.serve.serve_config import ServeConfig, check_config, own_hosts
from spark_log.server.group_coordinator import Groups
from spark_log.server.quorum.coordinator import QuorumCoordinator
from spark_log.server.quorum.root import Claimant, QuorumRoot
from spark_log.server.server import Pages, Server
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store


class RunningNode(Reloadable):
    """A running node of a quorum."""

    def __init__(self, config: ServeConfig, coordinator: QuorumCoordinator, server: Server, port: int) -> None:
        super().__init__(config, server)
        self.coordinator = coordinator
        self.port = port

    def replace(self, new: ServeConfig) -> None:
        """Also the certificates of the node."""
        before = self._config.quorum
        if before is None or new.quorum is None or bool(before.certificate) != bool(new.quorum.certificate):
            raise InvalidRequest("[quorum]: enabling or disabling TLS requires a restart")
        contexts = node_contexts(new.quorum.certificate, new.quorum.key, new.quorum.ca)
        super().replace(new)
        self.coordinator.node.use_tls(*contexts)

    async def ended(self) -> None:
        """Raises the error that ended the node."""
        await self.coordinator.node.run()

    async def stop(self) -> bool:
        """Hand over, and close."""
        await self.coordinator.stop()
        await self._server.stop()
        return True


async def start_quorum(
    config: ServeConfig,
    store: ObjectStore | None = None,
    pages: Callable[[QuorumCoordinator, Groups], Pages] | None = None,
    host: NodeHost | None = None,
) -> RunningNode:
    """Listen, and take part in the quorum.

    store:  the storage of the objects, instead of the one in the configuration.
    pages:  makes the web pages that are served on the same port; None: there are none.
    host:   the node's machine; None: this machine.
    Raises InvalidRequest for an invalid configuration or if it cannot listen, and the errors of the directory and of
    the storage.
    """
    check_config(config)
    assert config.quorum is not None, "the caller has looked"
    tls = tls_context(config.certificate, config.key) if config.certificate else None
    roots = RootOptions.of(config.storage, config.durability)
    if store is None:
        store = open_store(config.url, roots.own(), config.durability)
    root = QuorumRoot(store, config.quorum.cluster_id)
    await asyncio.to_thread(root.check)

    def leader() -> Claimant:
        return Claimant(state=coordinator.state, founding=coordinator.founding, address=coordinator.address)

    async def prepare() -> None:
        await asyncio.to_thread(root.claim, leader(), coordinator.unique())

    coordinator = QuorumCoordinator(
        config.quorum,
        store,
        prepare=prepare,
        keep_folder=lambda: root.keep(leader()),
        maintain_ms=config.maintain_ms,
        root_options=roots,
        host=host,
    )
    groups = Groups(coordinator, coordinator.clock, coordinator.unique, config.groups)
    coordinator.held = groups.held_positions
    server = Server(
        coordinator,
        groups,
        tokens=config.tokens,
        limits=config.limits,
        quotas=config.quotas,
        hosts=own_hosts(config),
        serves_metadata=True,
        pages=None if pages is None else pages(coordinator, groups),
        describe_quorum=coordinator.describe_quorum,
    )
    port, address = await listen(server, config, tls)
    coordinator.address = address
    try:
        await coordinator.start()
    except BaseException:
        await server.stop()
        raise
    return RunningNode(config, coordinator, server, port)
