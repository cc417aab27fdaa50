"""A dictionary on three nodes of a quorum: three processes, each with a directory.  No log is needed.

Kills the leader with SIGKILL, continues on the others, and starts it again.  docs/raft.md explains the parts.

Prints:
    three nodes: {'colour': 'red', 'count': '1'}
    the leader was killed: {'colour': 'blue', 'count': '2'}
    the killed node is back: {'colour': 'blue', 'count': '2'}
"""

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator

from spark_log.errors import NotLeaderOrFollower
from spark_log.quorum.node.directory import format_directory, parse_voters
from spark_log.quorum.node.node import Node
from spark_log.quorum.node.node_config import NodeConfig
from spark_log.quorum.node.vote_and_identity import Meta

VOTERS = parse_voters("1@disk-a,2@disk-b,3@disk-c")


class Dictionary:
    """The application: every node applies the same entries in the same order."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def apply(self, index: int, data: bytes) -> None:
        self.values |= json.loads(data)

    def snapshot(self) -> Iterable[bytes]:
        return [json.dumps(self.values).encode()]

    def restore(self, pieces: Iterator[bytes]) -> None:
        self.values = json.loads(b"".join(pieces))


async def serve(folder: str, node_id: int, addresses: dict[int, str]) -> None:
    """One node.  It answers lines on standard input: an entry to append, or `show`."""
    state = Dictionary()
    peers = {other: address for other, address in addresses.items() if other != node_id}
    config = NodeConfig(
        directory=f"{folder}/{node_id}",
        cluster_id="example",
        node_id=node_id,
        listen=addresses[node_id],
        peers=peers,
        secret="only-the-nodes-know-this",
    )
    node = Node(config, state)
    await node.start()
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip("\n"):
        try:
            answer = {"index": await node.append(line.encode())} if line != "show" else {"values": state.values}
        except NotLeaderOrFollower as error:
            answer = {"leader": error.leader}
        print(json.dumps(answer), flush=True)
    await node.stop()


class Process:
    def __init__(self, folder: str, node_id: int, addresses: dict[int, str]) -> None:
        command = [sys.executable, __file__, folder, str(node_id), json.dumps(addresses)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str) -> dict:
        print(line, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def append(nodes: dict[int, Process], **entry: str) -> int:
    """Try the nodes until one of them leads; its id.  To set a value twice does no harm, so entries have no ids."""
    while True:
        for node_id, node in nodes.items():
            if "index" in node.ask(json.dumps(entry)):
                return node_id
        time.sleep(0.1)


def show(title: str, nodes: dict[int, Process], expected: dict[str, str]) -> None:
    """Wait until all nodes have applied everything."""
    while any(node.ask("show")["values"] != expected for node in nodes.values()):
        time.sleep(0.1)
    print(f"{title}: {dict(sorted(expected.items()))}")


def main(folder: str) -> None:
    ports = [socket.create_server(("127.0.0.1", 0)) for _ in VOTERS]
    addresses = {key.id: f"127.0.0.1:{port.getsockname()[1]}" for key, port in zip(VOTERS, ports, strict=True)}
    for key, port in zip(VOTERS, ports, strict=True):
        port.close()
        meta = Meta(cluster_id="example", node_id=key.id, directory_id=key.directory)
        format_directory(f"{folder}/{key.id}", meta, VOTERS)  # as `pylog quorum init` does
    nodes = {key.id: Process(folder, key.id, addresses) for key in VOTERS}
    try:
        leader = append(nodes, colour="red", count="1")
        show("three nodes", nodes, {"colour": "red", "count": "1"})

        nodes.pop(leader).process.kill()
        append(nodes, colour="blue", count="2")
        show("the leader was killed", nodes, {"colour": "blue", "count": "2"})

        nodes[leader] = Process(folder, leader, addresses)
        show("the killed node is back", nodes, {"colour": "blue", "count": "2"})
    finally:
        for node in nodes.values():
            node.process.communicate()  # the end of the input: the node hands over, and stops


if __name__ == "__main__":
    if len(sys.argv) == 4:
        found = {int(node): address for node, address in json.loads(sys.argv[3]).items()}
        asyncio.run(serve(sys.argv[1], int(sys.argv[2]), found))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
