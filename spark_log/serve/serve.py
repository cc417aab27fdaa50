"""`pylog serve`: a coordinator and its server, from the start to the end of the process."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.http.address import is_loopback, this_host
from spark_log.http.listener import within_descriptors
from spark_log.http.tls import tls_context
from spark_log.journal.journal import Journal
from spark_log.journal.storage.seen_log import is_mirror
from spark_log.log_lines import logger
from spark_log.maintenance.lost_end import lost_end
from spark_log.metadata.decide_coordinators import check_is_here, moved_to
from spark_log.metadata.state import Leadership as Holder
from spark_log.quorum.node.node_host import NodeHost
from spark_log.roots.root_options import RootOptions
from spark_log.rpc.health_check import health_of, is_refused
from spark_log.rpc.messages import SERVED
from spark_log.runtime.without_pandas import leave_out_pandas
from spark_log.serve.reloadable_server import Reloadable, listen
from spark_log.serve.serve_config import ServeConfig, check_config, own_hosts
from spark_log.serve.serve_quorum import RunningNode, start_quorum
from spark_log.server.audit import open_audit, reopen_audit
from spark_log.server.coordinator import Coordinator, LeaderStatus
from spark_log.server.group_coordinator import Groups
from spark_log.server.quorum.coordinator import QuorumCoordinator
from spark_log.server.server import Pages, Server
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store

SWITCH_S = 0.0005
"""Thread switch interval for maintenance.  A commit returns from the storage ten times: with Python's default of 5 ms,
it would take 50 ms longer while the log is sealed or checkpointed."""
GARBAGE = (2_000, 10, 1_000)
"""Thresholds of Python's garbage collection.  With the defaults, it visits thousands of connections in each of their
bursts, for 100 ms and without finding garbage: reference counting frees the objects."""
CHECK_S = 0.5
"""Interval of checks that the storage accepts writes."""


class Running(Reloadable):
    """A running coordinator."""

    def __init__(
        self, config: ServeConfig, coordinator: Coordinator, server: Server, port: int, thread: threading.Thread
    ) -> None:
        super().__init__(config, server)
        self.coordinator = coordinator
        self.port = port
        self._thread = thread
        self._checking = asyncio.get_running_loop().create_task(self._check())

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                self.coordinator.check_storage()
            except Exception:
                # Without this task, a coordinator whose storage hangs would lead for ever.
                logger.exception("the check of the storage failed")

    async def ended(self) -> None:
        """It retries after each error."""
        await asyncio.Event().wait()

    async def stop(self) -> bool:
        """Release the log and close; False if the storage hangs, so that the log was not released."""
        self.coordinator.stop()
        await asyncio.to_thread(self._thread.join, self._config.storage_timeout_ms / 1000)
        self._checking.cancel()
        await self._server.stop()
        return not self._thread.is_alive()


def _note_lost_end(journal: Journal) -> None:
    """Before a version is written, which hides a lost one: maintenance then keeps the objects of lost versions."""
    if lost := journal.run(lost_end(journal, journal.view)):
        logger.error("%s: %s", journal.metadata.url, lost)


MakePages = Callable[[Coordinator | QuorumCoordinator, Groups], Pages]


async def start(config: ServeConfig, store: ObjectStore | None = None, pages: MakePages | None = None) -> Running:
    """Open the log, listen, and start a thread that leads or stands by.

    store:  the log's storage, instead of the one in the configuration.
    pages:  makes the web pages that are served on the same port; None: there are none.
    Raises InvalidRequest for an invalid configuration or if it cannot listen, and the errors of opening the log.
    """
    check_config(config)
    tls = tls_context(config.certificate, config.key) if config.certificate else None
    roots = RootOptions.of(config.storage, config.durability)
    if store is None:
        store = open_store(config.url, roots.own(), config.durability)
    coordinator = await asyncio.to_thread(
        Coordinator,
        store,
        host=this_host(),
        ask_leader=lambda holder: leader_status(holder, tls is not None, config.ca or None),
        takeover_ms=config.takeover_ms,
        maintain_ms=config.maintain_ms,
        storage_timeout_ms=config.storage_timeout_ms,
        root_options=roots,
        create=config.create,
    )
    if moved := moved_to(coordinator.journal.state.coordinator):
        raise InvalidRequest(f"the log at {config.url} was moved to {moved}: start the coordinator with that URL")
    check_is_here(coordinator.journal.state.coordinator)
    if is_mirror(coordinator.journal):  # readers would take it for a log that was set back
        raise InvalidRequest(
            f"{config.url} is a mirror, which `pylog mirror run` alone changes: read it by its URL without a coordinator, "
            f"or, if its log is lost, run `pylog recover -u {config.url}`, and then start the coordinator"
        )
    context = coordinator.journal.context
    await asyncio.to_thread(coordinator.storage_health.check_writable, context.unique())
    await asyncio.to_thread(_note_lost_end, coordinator.journal)
    groups = Groups(coordinator, context.clock, context.unique, config.groups)
    coordinator.held = groups.held_positions
    server = Server(
        coordinator,
        groups,
        tokens=config.tokens,
        limits=config.limits,
        quotas=config.quotas,
        hosts=own_hosts(config),
        serves_metadata=config.metadata == SERVED,
        pages=None if pages is None else pages(coordinator, groups),
    )
    port, address = await listen(server, config, tls)
    # From here on, the process that has the port has the address.
    coordinator.address = address
    thread = threading.Thread(target=coordinator.run, name="pylog-coordinator", daemon=True)
    thread.start()
    return Running(config, coordinator, server, port, thread)


async def serve(
    config: ServeConfig,
    say: Callable[[str], None],
    store: ObjectStore | None = None,
    reread: Callable[[], ServeConfig] | None = None,
    pages: MakePages | None = None,
    host: NodeHost | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then release the log.  Raises the errors of `start`.

    say:     called with a message when the server listens.
    store:   as for `start`.
    reread:  reads the configuration again, on SIGHUP; None: SIGHUP changes nothing.
    pages:   as for `start`.
    host:    the machine of a quorum's node; None: this machine.
    """
    leave_out_pandas()
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*GARBAGE)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    try:
        open_audit(config.audit)
    except OSError as error:
        raise InvalidRequest(f"[audit]: file {config.audit} cannot be opened: {error}") from error
    config = replace(config, limits=within_descriptors(config.limits))
    running: Running | RunningNode
    if config.quorum is None:
        running = await start(config, store, pages)
    else:
        running = await start_quorum(config, store, pages, host)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, running, reread or (lambda: config))
    say(f"listening on {running.coordinator.address} for {running.coordinator.storage}")
    await _first([stopping.wait(), running.ended()])
    if not await running.stop():
        logger.error("exiting without a release: an operation of the storage does not return")
        logging.shutdown()
        os._exit(1)  # a normal exit would wait for that operation


async def _first(waits: Sequence[Coroutine[Any, Any, object]]) -> None:
    """Wait for the first to end, and raise its error."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    for task in done:
        task.result()


def _reload(running: Reloadable, reread: Callable[[], ServeConfig]) -> None:
    """On SIGHUP.  An invalid configuration changes nothing."""
    try:
        reopen_audit()
    except OSError as error:
        logger.error("SIGHUP: the audit log continues in its current file: %s", error)
    try:
        new = reread()
        running.replace(new)
    except SparkLogError as error:
        logger.error("SIGHUP: tokens, quotas and certificate are unchanged: %s", error)
    else:
        names = ", ".join(grant.name for grant in new.tokens.grants) if new.tokens else "none"
        logger.info("SIGHUP: tokens (%s), quotas and certificate were reloaded", names)


def leader_status(holder: Holder, tls: bool, ca: str | None) -> LeaderStatus:
    """The state of the leader, as it reports itself."""
    if is_loopback(holder.address) and holder.host != this_host():
        return LeaderStatus.SILENT  # it cannot be reached from here
    health = health_of(holder.address, tls=tls, ca=ca)
    if health is None:
        return LeaderStatus.REFUSES if is_refused(holder.address) else LeaderStatus.SILENT
    if health.stepped_down == holder.epoch:
        return LeaderStatus.STEPPED_DOWN
    return LeaderStatus.LEADS if health.leading and health.epoch == holder.epoch else LeaderStatus.SILENT
