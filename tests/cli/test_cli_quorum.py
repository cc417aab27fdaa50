"""`pylog quorum init`, `pylog storage info`, `pylog metadata dump PATH`: the directories of a quorum's nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import spark_log
from spark_log.cli.commands.quorum_founding import what_it_does
from spark_log.journal.storage.log_format import parse_format
from spark_log.positions import format_timestamp_ms
from spark_log.quorum.messages import Entry, Kind, Position
from spark_log.quorum.node.directory import open_directory, parse_voters
from spark_log.quorum.ready import Persist
from spark_log.quorum.voters import encode_voters
from spark_log.rpc.messages import Health
from spark_log.server.quorum.root_snapshots import put_snapshot
from spark_log.server.quorum.state import Content
from spark_log.store.object_names import FORMAT_KEY
from spark_log.store.open import open_store
from tests.cli.commands import Pylog
from tests.processes import free_port

VOTERS = parse_voters("1@aa,2@bb")


@pytest.fixture
def pylog() -> Pylog:
    return Pylog("")


@pytest.fixture
def directory(pylog: Pylog, tmp_path: Path) -> Path:
    """Of a node that has written something."""
    path = tmp_path / "node"
    init(pylog, path, "--initial-voters", "1@aa,2@bb")
    with open_directory(str(path), cluster_id="c", node_id=1) as found:
        found.disk.load()
        entries = (Entry(0, 3, Kind.LEADER, b""), Entry(1, 3, Kind.VOTERS, encode_voters(VOTERS)))
        found.disk.write(Persist(number=1, epoch=3, voted=VOTERS[1], entries=entries))
        more = (Entry(2, 3, Kind.DATA, b"red"), Entry(3, 3, Kind.DATA, b"\xff"))
        found.disk.write(Persist(number=2, epoch=3, voted=VOTERS[1], entries=more, high_watermark=2))
        found.disk.write_snapshot(Position(3, 2), VOTERS, [b"state"])
    return path


def init(pylog: Pylog, path: Path, *flags: str) -> str:
    return pylog.ok("quorum", "init", str(path), "--cluster-id", "c", "--node", "1", *flags)


# Promise: cli.md#pylog-quorum-init, cli.md#pylog-quorum-random-id, quorum.md#set-up-three-nodes
def test_a_directory_is_formatted_in_three_ways(pylog: Pylog, tmp_path: Path) -> None:
    """As the first voter, as one of the first voters with the id that it has there, or to join; once."""
    assert "formatted" in init(pylog, tmp_path / "a", "--standalone")
    assert "with the directory id aa" in init(pylog, tmp_path / "b", "--initial-voters", "2@bb,1@aa")
    init(pylog, tmp_path / "c")
    voters = [info(pylog, tmp_path / name)["voters"] for name in "abc"]
    assert voters == [f"1@{info(pylog, tmp_path / 'a')['directory_id']}", "1@aa, 2@bb", None]
    again = ("quorum", "init", str(tmp_path / "a"), "--cluster-id", "c", "--node", "1")
    assert "is formatted already, for node 1" in pylog.refused(*again)
    other = ("quorum", "init", str(tmp_path / "d"), "--cluster-id", "c", "--node", "3", "--initial-voters", "1@aa")
    assert "node 3 is not among them" in pylog.refused(*other)
    assert len(pylog.ok("quorum", "random-id").strip()) == 22


def info(pylog: Pylog, path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(pylog.ok("storage", "info", str(path), "-o", "json"))
    return found


# Promise: cli.md#pylog-storage-info
def test_storage_info_shows_identity_and_content(pylog: Pylog, directory: Path) -> None:
    found = info(pylog, directory)
    assert (found["cluster_id"], found["node_id"], found["directory_id"]) == ("c", 1, "aa")
    assert (found["epoch"], found["voted"], found["voters"]) == (3, "2@bb", "1@aa, 2@bb")
    assert (found["log_start"], found["log_end"], found["high_watermark"]) == (0, 4, 2)
    assert found["snapshot"] == "00000000000000000002-0000000003.checkpoint"
    says = "is not the directory of a node of a quorum, which has a file meta.properties: give the one that"
    assert says in pylog.refused("storage", "info", str(directory.parent))
    assert says in pylog.refused("metadata", "shell", "--snapshot", str(directory.parent), "ls")
    assert "is not formatted: run `pylog quorum init`" in pylog.refused("storage", "info", str(directory / "nothing"))


# Promise: cli.md#pylog-metadata-dump
def test_a_dump_shows_writes_and_snapshots(pylog: Pylog, directory: Path) -> None:
    """Of a directory or a file; entries with -o json."""
    table = pylog.ok("metadata", "dump", str(directory))
    assert "BASE_OFFSET  LAST_OFFSET  COUNT  EPOCH  POSITION" in table and "END_OFFSET  EPOCH" in table
    (log,) = json.loads(pylog.ok("metadata", "dump", str(directory / "0000000001.log"), "-o", "json"))
    first, second = log["content"]
    assert first["entries"][1] == {"offset": 1, "epoch": 3, "kind": "voters", "voters": ["1@aa", "2@bb"]}
    assert [entry.get("data", entry.get("hex")) for entry in second["entries"]] == ["red", "ff"]
    assert "neither" in pylog.refused("metadata", "dump", str(directory / "quorum-state"))


# Promise: cli.md#pylog-metadata-dump
def test_damage_is_shown_behind_what_is_whole(pylog: Pylog, directory: Path) -> None:
    """With file and position, and exit status 1; a last write that is not finished is not damage."""
    verify = ("metadata", "dump", str(directory), "--verify")
    assert "3 files with 2 writes of the log: all are whole\n" in pylog.ok(*verify)
    log = directory / "0000000001.log"
    whole = log.read_bytes()
    log.write_bytes(whole[:-1])
    assert "bytes of an unfinished write" in pylog.ok(*verify)
    log.write_bytes(whole.replace(b"PQU1", b"PQU0", 1))
    assert "0000000001.log is damaged at position 0, and a unit follows" in pylog.refused(*verify)
    log.rename(directory / "0000000002.log")
    assert "damaged at position 0" in pylog.refused("metadata", "dump", str(directory))


def test_a_node_that_follows_shows_that_its_quorum_is_not_lost() -> None:
    """The one that leads may have another address than those that are known."""
    node = Health(cluster_id="c", leading=False, epoch=2, version=3)
    assert what_it_does(node, "c") == "follows a leader" and what_it_does(replace(node, leading=True), "c") == "leads"
    assert what_it_does(node, "another") == what_it_does(replace(node, healthy=False), "c") == ""


# Promise: cli.md#pylog-quorum-adopt, cli.md#pylog-quorum-restore
def test_a_directory_adopts_a_log_or_restores_it(tmp_path: Path) -> None:
    """Nothing happens without --yes; each says what it has done, and may be repeated."""
    with spark_log.connect(tmp_path / "log", create=True) as log:
        log.append("t", [{"value": "x"}])
        cluster, state = log.journal.cluster_id, log.journal.state
    pylog, first, second = Pylog(tmp_path / "log"), str(tmp_path / "first"), str(tmp_path / "second")
    for path in (first, second):
        pylog.ok("quorum", "init", path, "--cluster-id", cluster, "--node", "1")
    url = f"pylog://127.0.0.1:{free_port()}"
    adopt = ("quorum", "adopt", first, "--voters", "2@bb", "--to", url)
    restore = ("quorum", "restore", second, "--voters", "2@bb")
    assert f"would close file://{tmp_path}/log, and move its metadata to {url}" in pylog.run(*adopt, "--dry-run").stderr
    assert "this would close" in pylog.refused(*adopt)
    assert "no quorum of it was lost" in pylog.refused(*restore, "--yes")
    for _ in range(2):
        assert f"which is closed: start the nodes of {url}" in pylog.ok(*adopt, "--yes")
    assert str(info(pylog, tmp_path / "first")["voters"]).endswith(", 2@bb")
    assert "give the URL of the storage" in Pylog(url).wrong(*adopt, "--yes")

    store = open_store(str(tmp_path / "log"))
    form = parse_format(store.get(FORMAT_KEY), store.url).of_quorum(url, "an-id")
    store.put(FORMAT_KEY, (form.encode(),))
    assert "has no copy of the metadata: give the directory of a lost node" in pylog.refused(*restore, "--yes")
    put_snapshot(store, Content(state), "u")
    lost = f"and lose its changes after version {state.version}, of {format_timestamp_ms(state.time)}, which"
    voters = f"by 1@{info(pylog, tmp_path / 'second')['directory_id']}, 2@bb, {lost} the newest copy has"
    assert voters in pylog.refused(*restore)
    of_node = pylog.run(*restore, "--from", first, "--dry-run").stderr
    assert f"after version {state.version + 1}, of 20" in of_node and f"which {first} has" in of_node
    for _ in range(2):
        said = pylog.ok(*restore, "--yes")
        assert f"has version {state.version} of the log, of 20" in said and "changes are lost; if records" in said
    assert f"{lost} {second} has" in pylog.run(*restore, "--dry-run").stderr
    third = str(tmp_path / "third")
    pylog.ok("quorum", "init", third, "--cluster-id", cluster, "--node", "1")
    done = pylog.ok("quorum", "restore", third, "--from", first, "--yes")
    assert "has version" in done
    assert "if records were erased after this copy was made, they are there again: erase them again" in done
    assert "belongs to a quorum that was replaced" in pylog.refused(*restore, "--yes")
