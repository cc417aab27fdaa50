"""Messages of a node to another one, which may be slow or away."""

from __future__ import annotations

from spark_log.quorum.messages import BeginQuorumEpoch, FetchSnapshotResponse, Message, Position, ReplicaKey
from spark_log.quorum.node.handshake import NodeIdentity
from spark_log.quorum.node.links import LARGE_BYTES, Connect, QuorumLinks
from spark_log.quorum.node.port import QuorumPort
from spark_log.quorum.wire import Received
from tests.processes import free_port
from tests.quorum.node.quorum_nodes import SECRET, run, until

ONE, TWO = ReplicaKey(1, "d1"), ReplicaKey(2, "d2")


def identity(key: ReplicaKey) -> NodeIdentity:
    return NodeIdentity(cluster_id="c", key=key, address="127.0.0.1:1", process=key.directory)


def chunk(start: int, size: int = LARGE_BYTES) -> FetchSnapshotResponse:
    return FetchSnapshotResponse(
        source=ONE,
        target=TWO,
        epoch=1,
        snapshot=Position(1, 9),
        start=start,
        size=9 * size,
        data=bytes(size),
        voters=(),
    )


# Promise: raft.md#between-nodes
def test_one_large_message_waits_for_a_slow_node() -> None:
    """The node asks again for what has not arrived.  If all copies were sent, each next one would arrive later."""

    async def test() -> None:
        port, received = free_port(), list[Message]()
        links = QuorumLinks(
            Connect(identity(ONE), SECRET, None, refused=lambda node: None, accepted=lambda other, voters: None),
            {2: f"127.0.0.1:{port}"},
        )
        epochs = [BeginQuorumEpoch(source=ONE, target=TWO, epoch=epoch) for epoch in (1, 2, 3)]
        for message in (chunk(0), epochs[0], chunk(0), epochs[1], chunk(LARGE_BYTES), chunk(7, size=1), epochs[2]):
            links.send(Received(0, message))
        server = QuorumPort(
            identity(TWO),
            SECRET,
            lambda one: received.append(one.message),
            connected=lambda other: None,
            voters=lambda: (),
            tools={},
        )
        await server.start("127.0.0.1", port, None)
        await until(lambda: epochs[2] in received, "the messages arrive")
        assert received == [epochs[0], epochs[1], chunk(LARGE_BYTES), chunk(7, size=1), epochs[2]]
        await links.close()
        await server.stop()

    run(test)
