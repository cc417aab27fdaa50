"""Snapshots of the metadata, and their download, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from spark_log.errors import CoordinatorNotAvailable, CorruptObject, NotCoordinator
from spark_log.metadata.commands import CreateTopic
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State
from spark_log.rpc.messages import SnapshotRequest
from spark_log.rpc.snapshot_download import TRIES, download
from spark_log.runtime.daemon_threads import DaemonThreads
from spark_log.server.snapshots import KEPT_MAX, UNUSED_S, Snapshots


class Log:
    """A coordinator's log: a state, and perhaps the changes that lead to it."""

    def __init__(self, topics: int) -> None:
        self.state = next_version(State(), 1)
        for number in range(topics):
            create = CreateTopic(name=f"topic-{number}", partitions=3, topic_id=f"id-{number}")
            self.state = replay_records(self.state, create(self.state, 1).records)
        self.changes: Sequence[bytes] = ()
        self.leading = True

    def not_leading(self) -> NotCoordinator:
        return NotCoordinator("another one leads", address="", epoch=1)

    def published_with_head(self) -> tuple[State, str]:
        return self.state, f"head {self.state.version}"

    def head(self, version: int) -> str:
        return f"head {version}"

    def after(self, since: int, upto: int, limit: int) -> Sequence[bytes]:
        return self.changes

    def ask_log(self, steps: Any) -> State | None:
        return None if self.state.version > 5 else self.state


Ask = Callable[[SnapshotRequest], bytes]
ANY = SnapshotRequest(cluster_id="log")


class Side:
    """The coordinator's side."""

    def __init__(self, threads: DaemonThreads) -> None:
        self.log, self.now_s, self._threads = Log(50), 0.0, threads
        self.restart()

    def restart(self) -> None:
        self.snapshots = Snapshots(self.log, self._threads, self._threads, lambda: self.now_s, 100)  # type: ignore[arg-type]

    def ask(self, asked: SnapshotRequest) -> bytes:
        return asyncio.run(self.snapshots.reply(asked))

    def made(self) -> int:
        text = self.snapshots.metrics_text()
        return int(text.split("pylog_snapshots_total ")[-1].split("\n")[0])


@pytest.fixture
def side() -> Iterator[Side]:
    threads = DaemonThreads(1, "snapshots")
    yield Side(threads)
    threads.close()


def test_a_snapshot_arrives_in_chunks(side: Side) -> None:
    """As the state, with the first line of its record."""
    sizes: list[int] = []

    def ask(asked: SnapshotRequest) -> bytes:
        data = side.ask(asked)
        sizes.append(len(data.partition(b"\n")[2]))
        return data

    found = download(ask, ANY)
    assert found == (side.log.state, b"head 1") and len(sizes) > 5 and max(sizes) == 100


def test_a_snapshot_is_made_again_when_its_changes_are_not_known(side: Side) -> None:
    """Or when nobody has used it for a while."""
    download(side.ask, ANY)
    side.log.state = next_version(side.log.state, 2)
    side.log.changes = [b"a record"]
    download(side.ask, ANY)
    assert side.made() == 1
    side.log.changes = []
    assert download(side.ask, ANY).state == side.log.state and side.made() == 2  # type: ignore[union-attr]
    side.now_s += UNUSED_S
    side.snapshots.forget_unused()
    download(side.ask, ANY)
    assert side.made() == 3


@pytest.mark.parametrize("wanted", [{"at_least": 2}, {"version": 2}])
def test_a_standby_that_is_behind_does_not_answer(side: Side, wanted: dict[str, int]) -> None:
    """A client that has heard of a newer version asks another coordinator."""
    asked = SnapshotRequest(cluster_id="log", **wanted)
    side.log.leading = False
    with pytest.raises(NotCoordinator):
        download(side.ask, asked)
    side.log.state = next_version(side.log.state, 2)
    assert download(side.ask, asked) is not None


def test_a_leader_answers_for_a_log_that_is_shorter(side: Side) -> None:
    """It is a restored one, and the client has to see that."""
    found = download(side.ask, SnapshotRequest(cluster_id="log", at_least=100))
    assert found is not None and found.state.version == 1


def test_a_snapshot_that_is_older_than_a_client_needs_is_made_again(side: Side) -> None:
    """Whatever records this coordinator has after it: another one may lack them."""
    download(side.ask, ANY)
    side.log.state = next_version(side.log.state, 2)
    side.log.changes = [b"a record"]
    found = download(side.ask, SnapshotRequest(cluster_id="log", at_least=2))
    assert found is not None and found.state.version == 2 and side.made() == 2


def test_a_download_begins_again_at_another_coordinator(side: Side) -> None:
    """Chunks of two snapshots are not mixed."""
    asked: list[SnapshotRequest] = []

    def ask(one: SnapshotRequest) -> bytes:
        asked.append(one)
        if len(asked) == 3:
            side.log.state = next_version(side.log.state, 2)
            side.restart()
        return side.ask(one)

    found = download(ask, ANY)
    assert found is not None and found.state == side.log.state and found.state.version == 2


def test_a_download_that_is_always_replaced_ends(side: Side) -> None:
    """With an error that can be retried."""

    def ask(asked: SnapshotRequest) -> bytes:
        side.restart()
        return side.ask(asked)

    with pytest.raises(CoordinatorNotAvailable, match="replaced"):
        download(ask, ANY)


@pytest.mark.parametrize("damaged", [1, TRIES])
def test_a_damaged_chunk_is_asked_for_again(side: Side, damaged: int) -> None:
    """A few times."""
    left = [damaged]

    def ask(asked: SnapshotRequest) -> bytes:
        data = side.ask(asked)
        if asked.at and left[0]:
            left[0] -= 1
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    if damaged < TRIES:
        assert download(ask, ANY) == (side.log.state, b"head 1")
    else:
        with pytest.raises(CorruptObject, match="arrived damaged"):
            download(ask, ANY)


def test_the_state_of_a_version(side: Side) -> None:
    """It is kept for others that ask for it; without it, there is nothing.  Few are kept."""
    for _ in range(2):
        assert download(side.ask, SnapshotRequest(cluster_id="log", version=1)) == (side.log.state, b"head 1")
    assert side.made() == 1
    for version in range(2, KEPT_MAX + 2):
        side.now_s += 1
        side.log.state = next_version(side.log.state, version)
        if version <= 5:
            assert download(side.ask, SnapshotRequest(cluster_id="log", version=version)) is not None
    assert side.made() == KEPT_MAX + 1
    side.log.state = next_version(side.log.state, 9)
    assert download(side.ask, SnapshotRequest(cluster_id="log", version=10)) is None
