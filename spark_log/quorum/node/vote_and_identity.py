"""The files `quorum-state`, with the epoch and the vote, and `meta.properties`, with the identity of a directory.

Pure: bytes in, bytes out.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.errors import CorruptObject, UnsupportedVersion
from spark_log.quorum.messages import ReplicaKey

QUORUM_STATE = "quorum-state"
META = "meta.properties"
META_VERSION = 1


class ElectionState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Under the names of Kafka's file."""

    leader_epoch: int
    voted_id: int = -1
    voted_directory_id: str = ""
    crc: int = 0
    """CRC-32 of the other fields."""

    @property
    def voted(self) -> ReplicaKey | None:
        return ReplicaKey(self.voted_id, self.voted_directory_id) if self.voted_id >= 0 else None

    def checksum(self) -> int:
        return zlib.crc32(f"{self.leader_epoch} {self.voted_id} {self.voted_directory_id}".encode())


def encode_state(epoch: int, voted: ReplicaKey | None) -> bytes:
    node, directory = voted or (-1, "")
    state = ElectionState(leader_epoch=epoch, voted_id=node, voted_directory_id=directory)
    return msgspec.json.encode(msgspec.structs.replace(state, crc=state.checksum()))


def decode_state(data: bytes, name: str) -> ElectionState:
    """Raises CorruptObject: without its vote, a replica could vote twice."""
    try:
        state = msgspec.json.decode(data, type=ElectionState)
    except UNREADABLE as error:
        raise CorruptObject(f"{name} is damaged ({error}): replace this replica's directory") from error
    if state.crc != state.checksum():
        raise CorruptObject(f"{name} is damaged (its checksum differs): replace this replica's directory")
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """The identity of a data directory."""

    cluster_id: str
    node_id: int
    directory_id: str

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, self.directory_id)


def encode_meta(meta: Meta) -> bytes:
    return (
        f"version={META_VERSION}\ncluster.id={meta.cluster_id}\nnode.id={meta.node_id}\ndirectory.id={meta.directory_id}\n"
    ).encode()


def decode_meta(data: bytes, name: str) -> Meta:
    """Raises CorruptObject, or UnsupportedVersion for a directory that a newer pylog has formatted."""
    lines = [line for line in data.decode(errors="replace").splitlines() if line and not line.startswith("#")]
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    try:
        if int(values["version"]) > META_VERSION:
            raise UnsupportedVersion(
                f"{name} has version {values['version']}, and this pylog knows version {META_VERSION}: update pylog"
            )
        return Meta(
            cluster_id=values["cluster.id"], node_id=int(values["node.id"]), directory_id=values["directory.id"]
        )
    except (KeyError, ValueError) as error:
        raise CorruptObject(
            f"{name} is not understood ({error}): expected version=1, cluster.id, node.id and directory.id"
        ) from error
