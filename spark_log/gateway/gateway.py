"""The process `pylog gateway`, from its addresses to its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import NamedTuple

from spark_log.client.log import Log
from spark_log.errors import InvalidRequest
from spark_log.gateway.api import (
    ALTER_CONFIGS,
    COMMIT_POSITIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DELETE_POSITIONS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    FETCH,
    FETCH_POSITIONS,
    FIND_COORDINATOR,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SYNC_GROUP,
    Api,
    Handler,
)
from spark_log.gateway.fetch import Fetcher
from spark_log.gateway.followed_state import FollowedState
from spark_log.gateway.groups.committed_offsets import GroupPositions
from spark_log.gateway.groups.group_admin import GroupAdmin
from spark_log.gateway.groups.group_machine import GroupMachine
from spark_log.gateway.groups.member_requests import MemberRequests
from spark_log.gateway.groups.served_groups import ServedGroups
from spark_log.gateway.list_offsets import list_offsets, offsets_for_leader_epochs
from spark_log.gateway.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from spark_log.gateway.no_writes import refuse_writes
from spark_log.gateway.port import LIMITS, GatewayPort
from spark_log.gateway.produce import ProduceRequests
from spark_log.gateway.storage_reads import StorageReads
from spark_log.gateway.stored_batches import StoredBatches
from spark_log.gateway.topic_changes import TopicChanges
from spark_log.gateway.topics import ServedTopics, metadata
from spark_log.groups.group import GroupConfig
from spark_log.http.address import is_loopback, split_address
from spark_log.http.connection_limits import ConnectionLimits

ANY_ADDRESS = ("0.0.0.0", "[::]")
GROUPS = GroupConfig()


class Addresses(NamedTuple):
    """Where a gateway listens, and where its clients find it."""

    host: str
    port: int
    advertised_host: str
    advertised_port: int
    """0: the port that it listens on."""


def parse_addresses(listen: str, advertise: str | None, *, insecure: bool) -> Addresses:
    """Raises InvalidRequest."""
    full = f"127.0.0.1:{listen}" if listen.isdigit() else listen
    host, port = split_address(full, "--listen")
    if not is_loopback(full) and not insecure:
        raise InvalidRequest(
            f"--listen {listen}: other machines could read and write the topics, since clients do not authenticate; give "
            "--insecure to allow it, with --prefix for the topics to serve"
        )
    if advertise is None and host in ANY_ADDRESS:
        raise InvalidRequest(f"--listen {listen}: clients need one address; name it with --advertise HOST:PORT")
    advertised = (host, port) if advertise is None else split_address(advertise, "--advertise")
    return Addresses(host, port, *advertised)


class Gateway:
    """A running gateway of one log.  Make it on the event loop that runs it."""

    def __init__(
        self,
        log: Log,
        addresses: Addresses,
        prefixes: tuple[str, ...] = (),
        limits: ConnectionLimits = LIMITS,
        *,
        read_only: bool = False,
        groups: GroupConfig = GROUPS,
    ) -> None:
        """groups:  for a log without a coordinator."""
        self._journal = log.journal
        self._addresses = addresses
        self._served = ServedTopics(prefixes)
        self._followed = FollowedState(self._journal)
        batches = StoredBatches(self._journal)
        self._fetcher = Fetcher(self._followed, batches, self._served, lambda: self._port.unsent)
        self._reads = StorageReads("pylog-gateway-times")
        self._produce = ProduceRequests(self._journal, self._followed, self._served, batches)
        self._changes = TopicChanges(self._journal, self._followed, self._served, read_only=read_only)
        self._groups = GroupMachine(self._journal, self._followed, groups)
        self._port = GatewayPort(
            {
                FETCH: self._fetcher.fetch,
                LIST_OFFSETS: self._list_offsets,
                METADATA: self._metadata,
                OFFSET_FOR_LEADER_EPOCH: self._offsets_for_leader_epochs,
                PRODUCE: refuse_writes if read_only else self._produce.produce,
                INIT_PRODUCER_ID: self._produce.init_producer_id,
                CREATE_TOPICS: self._changes.create_topics,
                DELETE_TOPICS: self._changes.delete_topics,
                DESCRIBE_CONFIGS: self._changes.describe_configs,
                CREATE_PARTITIONS: self._changes.create_partitions,
                ALTER_CONFIGS: self._changes.alter_configs,
                **self._group_handlers(ServedGroups(self._served, read_only)),
            },
            limits,
        )

    def _group_handlers(self, served: ServedGroups) -> dict[Api, Handler]:
        members = MemberRequests(self._groups, self._followed, served)
        positions = GroupPositions(self._groups, members, self._followed, served)
        admin = GroupAdmin(self._groups, self._followed, served, self._advertised)
        return {
            FIND_COORDINATOR: admin.find_coordinator,
            JOIN_GROUP: members.join,
            SYNC_GROUP: members.sync,
            HEARTBEAT: members.heartbeat,
            LEAVE_GROUP: members.leave,
            COMMIT_POSITIONS: positions.commit,
            FETCH_POSITIONS: positions.fetch,
            DELETE_POSITIONS: positions.delete,
            LIST_GROUPS: admin.list_groups,
            DESCRIBE_GROUPS: admin.describe_groups,
            DELETE_GROUPS: admin.delete_groups,
        }

    def _advertised(self) -> tuple[str, int]:
        """Host and port for clients."""
        return self._addresses.advertised_host.strip("[]"), self._addresses.advertised_port

    async def start(self) -> str:
        """Returns the address for clients.  Raises InvalidRequest if it cannot listen."""
        at = self._addresses
        port = await self._port.start(at.host, at.port)
        self._addresses = at._replace(advertised_port=at.advertised_port or port)
        return f"{self._addresses.advertised_host}:{self._addresses.advertised_port}"

    async def failed(self) -> None:
        """Raises LogMoved or LogRestored when this process cannot serve the log any more."""
        await asyncio.shield(self._followed.failed)

    async def drain(self) -> None:
        """Answer the writes that have begun, and accept nothing more.  `stop` follows."""
        await self._port.drain()

    async def stop(self) -> None:
        await self._port.stop()
        self._produce.close()
        self._changes.close()
        self._groups.close()
        await self._followed.close()
        self._fetcher.close()
        self._reads.close()

    async def _metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        state = await self._followed.newest()
        return metadata(self._served, state, request, version, self._journal.cluster_id, *self._advertised())

    async def _list_offsets(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        state = await self._followed.newest()
        return await list_offsets(self._journal, self._reads, self._served, state, request)

    async def _offsets_for_leader_epochs(
        self, request: OffsetForLeaderEpochRequest, version: int
    ) -> OffsetForLeaderEpochResponse:
        return offsets_for_leader_epochs(self._served, await self._followed.newest(), request)


async def serve_gateway(
    log: Log, addresses: Addresses, prefixes: tuple[str, ...], say: Callable[[str], object], *, read_only: bool = False
) -> None:
    """Serve until SIGTERM or SIGINT, and answer the writes that have begun; a second signal ends that.

    say:  called with the address for clients.
    Raises InvalidRequest if it cannot listen; LogMoved or LogRestored if the log ends under it.
    """
    stopping, ending = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (ending if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
    gateway = Gateway(log, addresses, prefixes, read_only=read_only)
    say(await gateway.start())
    ends = [asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(gateway.failed())]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if ends[1].done():
            ends[1].result()
        ends += [asyncio.ensure_future(gateway.drain()), asyncio.ensure_future(ending.wait())]
        await asyncio.wait(ends[2:], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        await gateway.stop()
