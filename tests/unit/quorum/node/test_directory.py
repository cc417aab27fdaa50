"""A data directory: formatted once, for one node of one cluster, and used by one process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_log.errors import CorruptObject, InconsistentClusterId, InvalidRequest, StorageError, UnsupportedVersion
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.directory import (
    format_directory,
    open_directory,
    parents_to_sync,
    parse_voters,
    read_meta,
)
from spark_log.quorum.node.file_operations import LocalFiles
from spark_log.quorum.node.inspection import files_of, read_beside
from spark_log.quorum.node.vote_and_identity import Meta

META = Meta(cluster_id="c1", node_id=1, directory_id="dir-1")
VOTERS = (META.key, ReplicaKey(2, "dir-2"))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "data" / "quorum")


def test_a_formatted_directory_is_a_replica_that_has_nothing(path: str) -> None:
    """With the voters that it was formatted with, in files named as Kafka's."""
    format_directory(path, META, VOTERS)
    with open_directory(path, cluster_id="c1", node_id=1) as directory:
        restored = directory.disk.load()
        assert (restored.epoch, restored.voted, restored.entries, restored.voters) == (0, None, (), VOTERS)
        assert directory.meta == META
    assert "directory.id=dir-1\n" in (Path(path) / "meta.properties").read_text()


class Noting(LocalFiles):
    """Files that note what is done first."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.done: list[str] = []

    def forget_cached(self) -> None:
        self.done.append("forget")
        super().forget_cached()

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.done.append("read")
        return super().read(name, start, length)


# Promise: storage-failures.md#when-a-sync-to-the-disk-fails
def test_a_directory_is_read_from_the_disk(path: str) -> None:
    """Not from the cache, in which a process whose fsync failed has left what the disk lacks."""
    format_directory(path, META, VOTERS)
    made = list[Noting]()

    def noting(path: str) -> Noting:
        made.append(Noting(path))
        return made[-1]

    with open_directory(path, cluster_id="c1", node_id=1, open_files=noting) as directory:
        assert directory.disk.load().voters == VOTERS
    assert made[0].done[:2] == ["forget", "read"] and made[0].done.count("forget") == 1


# Promise: cli.md#pylog-quorum-init
def test_a_directory_is_formatted_once(path: str) -> None:
    """Formatting it again would forget votes and entries."""
    format_directory(path, META, VOTERS)
    with pytest.raises(InvalidRequest, match="is formatted already, for node 1 of the cluster c1"):
        format_directory(path, META, VOTERS)


def test_formatting_that_was_interrupted_is_repeated(path: str) -> None:
    """Without the file that is written last, the directory is not formatted."""
    format_directory(path, META, VOTERS)
    (Path(path) / "meta.properties").rename(Path(path) / "meta.properties.new")
    with pytest.raises(InvalidRequest, match="is not formatted: run `pylog quorum init`"):
        open_directory(path, cluster_id="c1", node_id=1)
    format_directory(path, META, VOTERS)
    assert read_meta(path) == META


def test_a_directory_with_other_files_is_not_formatted(path: str) -> None:
    os.makedirs(path)
    (Path(path) / "photo.jpg").write_bytes(b"x")
    with pytest.raises(InvalidRequest, match=r"is not empty: it has photo.jpg"):
        format_directory(path, META, VOTERS)


# Promise: raft.md#the-data-directory
def test_a_directory_of_another_cluster_or_node_is_refused(path: str) -> None:
    """Its content would be wrong here, and its vote is not this node's."""
    format_directory(path, META, VOTERS)
    with pytest.raises(InconsistentClusterId, match="belongs to the cluster c1, not to c2"):
        open_directory(path, cluster_id="c2", node_id=1)
    with pytest.raises(InvalidRequest, match="is the directory of node 1, not of node 2"):
        open_directory(path, cluster_id="c1", node_id=2)


# Promise: quorum.md#drills, raft.md#the-data-directory
def test_two_processes_do_not_use_one_directory(path: str) -> None:
    """The second one is refused, with the process that uses it."""
    format_directory(path, META, VOTERS)
    first = open_directory(path, cluster_id="c1", node_id=1)
    with pytest.raises(InvalidRequest, match=rf"is used by process {os.getpid()} on \S+, or by a child of it"):
        open_directory(path, cluster_id="c1", node_id=1)
    first.close()
    open_directory(path, cluster_id="c1", node_id=1).close()


def test_a_directory_that_cannot_be_locked_is_refused(path: str) -> None:
    """Most often it belongs to another user, whom root, as which tests may run, does not notice."""
    os.makedirs(f"{path}/.lock")
    with pytest.raises(InvalidRequest, match=r"\.lock cannot be opened: Is a directory; .* have to belong to the user"):
        format_directory(path, META, VOTERS)


def test_damage_of_the_identity_is_refused(path: str) -> None:
    format_directory(path, META, VOTERS)
    (Path(path) / "meta.properties").write_text("version=1\ncluster.id=c1\n")
    with pytest.raises(CorruptObject, match=r"meta.properties is not understood \('node.id'\)"):
        open_directory(path, cluster_id="c1", node_id=1)


# Promise: quorum.md#set-up-three-nodes
@pytest.mark.parametrize(
    ("meta", "voters", "message"),
    [
        (Meta(cluster_id="a b", node_id=1, directory_id="d"), (), "cluster id: 'a b'"),
        (Meta(cluster_id="c", node_id=1, directory_id="x/y"), (), "directory id: 'x/y'"),
        (Meta(cluster_id="CLUSTER_ID", node_id=1, directory_id="d"), (), "cluster id: 'CLUSTER_ID' stands for an id"),
        (Meta(cluster_id="<ID>", node_id=1, directory_id="d"), (), "`pylog quorum random-id` makes one"),
        (Meta(cluster_id="my-cluster", node_id=1, directory_id="d"), (), "cluster id: 'my-cluster' stands for"),
        (Meta(cluster_id="c", node_id=1, directory_id="DIR1"), (), "directory id: 'DIR1' stands for an id"),
        (Meta(cluster_id="c", node_id=2**64, directory_id="d"), (), "node id: 18446744073709551616 is not between"),
        (Meta(cluster_id="c", node_id=1, directory_id="d"), VOTERS, "1@d is not among them"),
    ],
)
def test_an_invalid_identity_is_named(path: str, meta: Meta, voters: tuple[ReplicaKey, ...], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        format_directory(path, meta, voters)
    assert not os.path.exists(path)


def test_the_names_of_all_new_directories_become_durable(tmp_path: Path) -> None:
    """Also that of a directory which exists, as nobody knows who has made it."""
    deep = tmp_path / "a" / "b" / "c"
    assert parents_to_sync(str(deep)) == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    deep.mkdir(parents=True)
    assert parents_to_sync(str(deep)) == [str(tmp_path / "a" / "b")]
    assert parents_to_sync("/") == ["/"]


# Promise: quorum.md#set-up-three-nodes
def test_voters_are_parsed() -> None:
    assert parse_voters("2@b,1@a") == (ReplicaKey(1, "a"), ReplicaKey(2, "b"))
    for text in ("", "1", "x@a", "1@", "1@a,1@b", "2147483648@a", "9" * 5000 + "@a", "1@a,2@DIR2"):
        with pytest.raises(InvalidRequest, match="voters: "):
            parse_voters(text)


def test_directories_with_names_of_the_nodes_files_are_passed_over(path: str) -> None:
    """Also pipes, for whose writer nobody waits.  An append to such a name says what to do."""
    format_directory(path, META, VOTERS)
    unfinished, snapshot = "quorum-state.new", f"{9:020}-{1:010}.checkpoint"
    for name in (unfinished, snapshot, f"{1:010}.log", f"{3:010}.log"):
        (Path(path) / name).mkdir()
        (Path(path) / name / "sub").touch()
    os.mkfifo(Path(path) / f"{5:010}.log")
    with open_directory(path, cluster_id="c1", node_id=1) as directory:
        assert directory.disk.load().voters == VOTERS
        with pytest.raises(StorageError, match=r"Is a directory; a file of the node has this name: move the directory"):
            LocalFiles(path).append(f"{1:010}.log", b"x")
    assert [Path(one).name for one in files_of(path)] == [f"{0:020}-{0:010}.checkpoint"]
    assert (Path(path) / unfinished / "sub").exists()


# Promise: quorum.md#stop-restart-and-update-nodes, raft.md#the-data-directory
def test_a_directory_of_a_newer_pylog_is_refused(path: str) -> None:
    format_directory(path, META, VOTERS)
    meta = Path(path) / "meta.properties"
    meta.write_text(meta.read_text().replace("version=1", "version=2"))
    with pytest.raises(UnsupportedVersion, match="has version 2, and this pylog knows version 1: update pylog"):
        open_directory(path, cluster_id="c1", node_id=1)


def test_a_directory_whose_node_deletes_files_is_read_again() -> None:
    """A snapshot is replaced while a tool reads it.  If that never ends, the error says what to do."""
    listed = iter(["old", "old", "new"])

    def read() -> str:
        if (name := next(listed, "old")) == "old":
            raise FileNotFoundError(name)
        return name

    assert read_beside("/data", read) == "new"
    with pytest.raises(InvalidRequest, match="files of /data were deleted while they were read: run the command again"):
        read_beside("/data", read)
