"""Appending, fetching, what is committed, and what is truncated."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from spark_log.quorum.machine import Machine
from spark_log.quorum.messages import (
    EMPTY,
    Entry,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Kind,
    Message,
    Position,
    ReplicaKey,
)
from spark_log.quorum.ready import Config, Kept, ReadChunk
from spark_log.quorum.voters import Voters
from tests.unit.quorum.replicas import (
    CONFIG,
    LATER_MS,
    ONE,
    THREE,
    TWO,
    VOTERS,
    begin,
    data,
    fetch,
    fetched,
    give,
    leader,
    replica,
    sent,
    vote,
    work,
)

FIRST = Position(1, 2)
"""The end of a new leader's log: its first entry, and the voters."""


def committed(machine: object, now_ms: int = LATER_MS) -> list[int]:
    return [entry.offset for ready in work(machine, now_ms) for entry in ready.committed]  # type: ignore[arg-type]


# Promise: quorum.md#operate-a-quorum, raft.md#differences-from-kafka
def test_the_leader_counts_itself_when_its_disk_has_reported() -> None:
    """Kafka's leader counts what it has appended."""
    machine = leader()
    give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS)
    assert machine.append([b"x"], LATER_MS) == 2
    ready = machine.ready()
    machine.step(fetch(TWO, ONE, 1, Position(1, 3)), LATER_MS)
    assert machine.high_watermark == 2 and ready.persist is not None
    machine.persisted(ready.persist.number, LATER_MS)
    assert machine.high_watermark == 3 and committed(machine) == [2]


# Promise: quorum.md#choose-the-number-of-nodes
def test_the_leader_need_not_be_among_the_majority() -> None:
    """Two followers have the entry: it is committed, however slow the leader's disk is."""
    machine = leader()
    machine.append([b"x"], LATER_MS)
    machine.ready()
    for follower in (TWO, THREE):
        machine.step(fetch(follower, ONE, 1, Position(1, 3)), LATER_MS)
    assert machine.high_watermark == 3 and machine.durable_end == 2


def test_entries_of_earlier_epochs_are_committed_with_one_of_the_present() -> None:
    """Raft 5.4.2."""
    machine = leader(1, 1, epoch=1)
    give(machine, fetch(TWO, ONE, 2, Position(1, 2)), LATER_MS)
    assert machine.high_watermark == 0
    give(machine, fetch(TWO, ONE, 2, Position(2, 3)), LATER_MS)
    assert machine.high_watermark == 3


# Promise: raft.md#write-the-loop
def test_a_follower_fetches_again_when_its_disk_has_reported() -> None:
    """The fetch is the acknowledgement."""
    machine = replica()
    (first,) = give(machine, begin(TWO, ONE, 1))
    assert isinstance(first, FetchRequest) and first.end == EMPTY
    machine.step(fetched(TWO, ONE, 1, EMPTY, entries=data(1, 1), high_watermark=1), 0)
    ready = machine.ready()
    assert ready.send == () and ready.persist is not None and ready.persist.entries == data(1, 1)
    assert machine.ready().send == ()
    machine.persisted(ready.persist.number, 0)
    (second,) = machine.ready().send
    assert isinstance(second, FetchRequest) and second.end == Position(1, 2) and second.high_watermark == 1


# Promise: raft.md#write-the-loop
def test_a_late_or_doubled_answer_is_ignored() -> None:
    """It is to another end of the log."""
    machine = replica()
    give(machine, begin(TWO, ONE, 1))
    answer = fetched(TWO, ONE, 1, EMPTY, entries=data(1), high_watermark=1)
    give(machine, answer)
    assert give(machine, answer) == [] and machine.log.end == 1
    assert give(machine, fetched(TWO, ONE, 1, EMPTY, diverging=EMPTY)) == [] and machine.log.end == 1


@pytest.mark.parametrize(
    ("own", "leaders", "expected"),
    [
        ((1, 1, 1), (1, 2), [1]),
        ((1, 1, 3, 3), (1, 2, 2, 2, 4), [2, 1]),
        ((1, 2, 2, 2), (1, 3), [1]),
        ((2, 2), (1, 1, 1), [0]),
    ],
)
def test_a_log_is_truncated_to_where_it_agrees(
    own: tuple[int, ...], leaders: tuple[int, ...], expected: list[int]
) -> None:
    """KIP-101: by epochs and their ends, each time to the shorter of the two."""
    machine, other = replica(TWO, *own, epoch=4), leader(*leaders, epoch=4)
    ends = []
    (request,) = give(machine, begin(ONE, TWO, other.epoch))
    while True:
        answer = next(one for one in give(other, request, LATER_MS) if isinstance(one, FetchResponse))
        (request,) = give(machine, answer)
        if answer.diverging is None:
            break
        ends.append(machine.log.end)
    assert ends == expected
    assert machine.log.read(0, machine.log.end) == other.log.read(0, other.log.end)


def test_nothing_below_the_high_watermark_is_truncated() -> None:
    """A leader without committed entries shows that a majority lost them: the node stops."""
    machine = replica(ONE, 1, 1, high_watermark=2)
    give(machine, begin(TWO, ONE, 2))
    with pytest.raises(AssertionError, match="below its high watermark 2"):
        machine.step(fetched(TWO, ONE, 2, Position(1, 2), diverging=Position(1, 1)), 0)


def test_the_high_watermark_never_falls() -> None:
    """An answer may have been sent before another one."""
    machine = replica(ONE, 1, 1)
    give(machine, begin(TWO, ONE, 1))
    for high_watermark in (2, 1):
        give(machine, fetched(TWO, ONE, 1, Position(1, 2), high_watermark=high_watermark))
        assert machine.high_watermark == 2


def test_a_fetch_waits_for_news() -> None:
    """For an entry, for a higher high watermark, or for the end of its time."""
    machine = leader()
    sent(machine, LATER_MS)
    assert give(machine, fetch(THREE, ONE, 1, FIRST), LATER_MS)
    assert give(machine, fetch(THREE, ONE, 1, FIRST, high_watermark=2), LATER_MS) == []
    machine.append([b"x"], LATER_MS)
    (answer,) = sent(machine, LATER_MS)
    assert isinstance(answer, FetchResponse) and len(answer.entries) == 1
    assert give(machine, fetch(THREE, ONE, 1, Position(1, 3), high_watermark=3), LATER_MS) == []
    machine.tick(LATER_MS + CONFIG.fetch_wait_ms)
    (answer,) = sent(machine, LATER_MS + CONFIG.fetch_wait_ms)
    assert isinstance(answer, FetchResponse) and answer.entries == ()


def test_a_high_watermark_alone_waits_a_little_for_entries() -> None:
    """That go with it in one answer; without any, it is sent then.  The commit itself waits for nothing."""
    machine = leader(config=replace(CONFIG, high_watermark_wait_ms=10))
    sent(machine, LATER_MS)
    assert give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS) == [] and machine.high_watermark == 2
    assert machine.next_deadline() == LATER_MS + 10
    machine.append([b"x"], LATER_MS + 5)
    (answer,) = sent(machine, LATER_MS + 5)
    assert isinstance(answer, FetchResponse) and (len(answer.entries), answer.high_watermark) == (1, 2)
    assert give(machine, fetch(TWO, ONE, 1, Position(1, 3), high_watermark=2), LATER_MS + 6) == []
    machine.tick(LATER_MS + 16)
    (answer,) = sent(machine, LATER_MS + 16)
    assert isinstance(answer, FetchResponse) and (answer.entries, answer.high_watermark) == ((), 3)


def test_a_late_copy_of_a_fetch_does_not_replace_the_one_that_waits() -> None:
    """The follower waits for the answer to the newest one."""
    machine = leader()
    give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS)
    assert give(machine, fetch(TWO, ONE, 1, FIRST, high_watermark=2), LATER_MS) == []
    assert give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS) == []
    machine.append([b"x"], LATER_MS)
    (answer,) = sent(machine, LATER_MS)
    assert isinstance(answer, FetchResponse) and answer.end == FIRST


def test_a_fetch_that_has_no_answer_is_repeated() -> None:
    machine = replica()
    (first,) = give(machine, begin(TWO, ONE, 1))
    machine.tick(CONFIG.retry_ms)
    assert sent(machine) == [first]


# Promise: raft.md#stop-a-node
def test_a_hand_over_waits_until_everything_is_committed() -> None:
    """And then names the voters by what they have."""
    machine = leader()
    give(machine, fetch(THREE, ONE, 1, FIRST), LATER_MS)
    machine.append([b"x"], LATER_MS)
    sent(machine, LATER_MS)
    assert machine.hand_over(LATER_MS) and machine.is_leader
    assert machine.append([b"y"], LATER_MS) is None
    ends = give(machine, fetch(THREE, ONE, 1, Position(1, 3)), LATER_MS)
    assert [getattr(message, "successors", None) for message in ends] == [(THREE, TWO), (THREE, TWO)]
    assert machine.role == "unattached"


# Promise: raft.md#tools-of-operators
def test_a_hand_over_to_one_voter_waits_for_its_disk() -> None:
    """It is named first, though another voter has as much."""
    machine = leader()
    machine.append([b"x"], LATER_MS)
    give(machine, fetch(TWO, ONE, 1, Position(1, 3)), LATER_MS)
    assert machine.high_watermark == 3
    assert not machine.hand_over(LATER_MS, ONE) and not machine.hand_over(LATER_MS, ReplicaKey(9, "x"))
    assert machine.hand_over(LATER_MS, THREE) and machine.is_leader
    ends = give(machine, fetch(THREE, ONE, 1, Position(1, 3)), LATER_MS)
    assert [getattr(message, "successors", None) for message in ends] == [(THREE, TWO), (THREE, TWO)]


def test_the_leader_knows_when_a_follower_had_everything() -> None:
    """Kafka's LastCaughtUpTimestamp: one that is always one fetch behind has caught up at the fetch before."""
    machine = leader()
    give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS)
    assert machine.replication()[TWO] == (2, LATER_MS, LATER_MS, True)
    machine.append([b"x"], LATER_MS + 10)
    give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS + 20)
    assert machine.replication()[TWO].caught_up_ms == LATER_MS
    machine.append([b"y"], LATER_MS + 30)
    give(machine, fetch(TWO, ONE, 1, Position(1, 3)), LATER_MS + 40)
    assert machine.replication()[TWO] == (3, LATER_MS + 40, LATER_MS + 20, True)
    assert machine.replication()[THREE].caught_up_ms is None and not machine.replication()[THREE].has_fetched


def test_a_hand_over_does_not_wait_for_ever() -> None:
    """A leader whose disk is full cannot commit anything."""
    machine = leader()
    assert machine.hand_over(LATER_MS)
    machine.tick(LATER_MS + CONFIG.election_timeout_ms)
    assert not machine.is_leader
    alone = replica(voters=(ONE,))
    alone.tick(0)
    work(alone)
    assert alone.is_leader and not alone.hand_over(0)


# Promise: raft.md#read
def test_a_read_is_confirmed_by_a_majority_that_fetches_again() -> None:
    """Not by the fetches from before."""
    machine = leader()
    assert machine.confirm(LATER_MS) is None
    give(machine, fetch(TWO, ONE, 1, FIRST, 2), LATER_MS)
    number = machine.confirm(LATER_MS)
    assert number == 1 and machine.ready().confirmed == ()
    give(machine, fetch(TWO, ONE, 1, FIRST, 2), LATER_MS)
    machine.step(fetch(TWO, ONE, 1, FIRST, 2, confirms=1), LATER_MS)
    assert machine.ready().confirmed == (1,)


# Promise: raft.md#make-snapshots
def test_a_snapshot_is_fetched_in_chunks() -> None:
    """A chunk that is not the next one is ignored; the log begins behind the whole."""
    machine = replica(ONE, 1)
    give(machine, begin(TWO, ONE, 3))
    snapshot, voters = Position(2, 9), VOTERS[:2]
    (request,) = give(machine, fetched(TWO, ONE, 3, Position(1, 1), snapshot=snapshot))
    assert isinstance(request, FetchSnapshotRequest) and (request.snapshot, request.start) == (snapshot, 0)

    def chunk(start: int, content: bytes) -> FetchSnapshotResponse:
        return FetchSnapshotResponse(
            source=TWO, target=ONE, epoch=3, snapshot=snapshot, start=start, size=5, data=content, voters=voters
        )

    (request,) = give(machine, chunk(0, b"abc"))
    assert isinstance(request, FetchSnapshotRequest) and request.start == 3
    assert give(machine, chunk(0, b"abc")) == [] and machine.log.end == 1
    machine.step(chunk(3, b"de"), 0)
    first, second, *_ = work(machine)
    assert first.persist is not None and first.persist.chunk is not None and first.persist.chunk.is_last
    assert second.restore == snapshot and second.persist is not None and second.persist.reset_to == snapshot
    assert (machine.log.position, machine.high_watermark, machine.voters) == (snapshot, 9, voters)


def test_a_download_continues_after_a_time_without_the_leader() -> None:
    """The network was slow for longer than the fetch timeout, and the leader leads still."""
    snapshot = Position(2, 9)
    machine = replica(ONE, 1)
    give(machine, begin(TWO, ONE, 3))
    give(machine, fetched(TWO, ONE, 3, Position(1, 1), snapshot=snapshot))
    part = FetchSnapshotResponse(
        source=TWO, target=ONE, epoch=3, snapshot=snapshot, start=0, size=5, data=b"abc", voters=VOTERS
    )
    give(machine, part)
    machine.tick(LATER_MS)
    sent(machine, LATER_MS)
    assert machine.role == "prospective"
    (request,) = give(machine, begin(TWO, ONE, 3), LATER_MS)
    assert isinstance(request, FetchSnapshotRequest) and (request.snapshot, request.start) == (snapshot, 3)


@pytest.mark.parametrize(("voters", "waits_as"), [(VOTERS, "prospective"), ((TWO, THREE), "unattached")])
def test_an_answer_that_needs_longer_than_the_fetch_timeout_is_taken_in(voters: Voters, waits_as: str) -> None:
    """A large one, on a slow network: the next one would be as late.  A replica without a vote began its download again
    and again, and came never to its end.
    """
    snapshot, machine = Position(2, 9), replica(ONE, voters=voters)
    give(machine, begin(TWO, ONE, 3))
    give(machine, fetched(TWO, ONE, 3, EMPTY, snapshot=snapshot))
    for time, start in enumerate(range(0, 9, 3), 1):
        machine.tick(time * LATER_MS)
        sent(machine, time * LATER_MS)
        assert machine.role == waits_as
        part = FetchSnapshotResponse(
            source=TWO, target=ONE, epoch=3, snapshot=snapshot, start=start, size=9, data=b"abc", voters=voters
        )
        (request,) = give(machine, part, time * LATER_MS)
    assert request == fetch(ONE, TWO, 3, snapshot, 9)
    machine.tick(4 * LATER_MS)
    sent(machine, 4 * LATER_MS)
    late = fetched(TWO, ONE, 3, snapshot, entries=(Entry(9, 3, Kind.DATA, b"x"),))
    assert give(machine, late, 4 * LATER_MS) == [fetch(ONE, TWO, 3, Position(3, 10), 9)]


def test_a_snapshot_that_was_received_replaces_the_log_whoever_leads_by_then() -> None:
    """The disk took long to write the last part.  It has no older snapshot now, and the next leader's may be older."""
    snapshot = Position(2, 9)
    machine = replica(ONE, 1)
    give(machine, begin(TWO, ONE, 3))
    give(machine, fetched(TWO, ONE, 3, Position(1, 1), snapshot=snapshot))
    whole = FetchSnapshotResponse(
        source=TWO, target=ONE, epoch=3, snapshot=snapshot, start=0, size=5, data=b"state", voters=VOTERS
    )
    machine.step(whole, 0)
    last = machine.ready().persist
    assert last is not None and last.chunk is not None and last.chunk.is_last
    machine.step(begin(THREE, ONE, 4), 0)
    machine.persisted(last.number, 0)
    found = work(machine)
    assert [ready.restore for ready in found if ready.restore] == [snapshot]
    assert [message for ready in found for message in ready.send] == [fetch(ONE, THREE, 4, snapshot, 9)]


def test_entries_that_arrive_late_do_not_change_the_log_during_a_download() -> None:
    """They were sent before the leader forgot them.  The application would go back when the snapshot replaces them."""
    machine = replica(ONE, 1)
    give(machine, begin(TWO, ONE, 3))
    give(machine, fetched(TWO, ONE, 3, Position(1, 1), snapshot=Position(1, 2)))
    assert give(machine, fetched(TWO, ONE, 3, Position(1, 1), entries=data(1, 1, 1)[1:], high_watermark=3)) == []
    assert (machine.log.end, machine.high_watermark) == (1, 0)


def test_a_snapshot_that_the_leader_has_no_longer_is_asked_for_again() -> None:
    """The next fetch names the newer one."""
    machine = replica(ONE, 1)
    give(machine, begin(TWO, ONE, 3))
    give(machine, fetched(TWO, ONE, 3, Position(1, 1), snapshot=Position(2, 9)))
    gone = FetchSnapshotResponse(
        source=TWO, target=ONE, epoch=3, snapshot=Position(2, 9), start=0, size=None, data=b"", voters=()
    )
    (request,) = give(machine, gone)
    assert isinstance(request, FetchRequest) and request.end == Position(1, 1)


def test_the_leader_lets_the_shell_read_its_snapshot() -> None:
    """The machine has no snapshot: it says what to read, and for whom."""
    machine = leader()
    give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS)
    machine.snapshotted(2, 2, LATER_MS)
    (answer,) = give(machine, fetch(THREE, ONE, 1, EMPTY), LATER_MS)
    assert isinstance(answer, FetchResponse) and answer.snapshot == FIRST
    request = FetchSnapshotRequest(source=THREE, target=ONE, epoch=1, snapshot=FIRST, start=4)
    machine.step(request, LATER_MS)
    (read,) = machine.ready().read
    response = read.answer(b"rest", 8)
    assert (response.target, response.start, response.size, response.voters) == (THREE, 4, 8, VOTERS)


def times_of_answers(machine: Machine, request: Message, start_ms: int = LATER_MS) -> list[int]:
    """When the leader answers node 3, which asks for the same every half second."""
    found = []
    for after_ms in range(0, 20_000, CONFIG.retry_ms):
        machine.step(fetch(TWO, ONE, 1, machine.log.position), start_ms + after_ms)
        machine.step(request, start_ms + after_ms)
        for ready in work(machine, start_ms + after_ms):
            found += [after_ms for answer in [*ready.read, *ready.send] if to_three(answer)]
    return sorted(set(found))


def to_three(answer: ReadChunk | Message) -> bool:
    return isinstance(answer, ReadChunk) or (isinstance(answer, FetchResponse) and answer.target == THREE)


def test_a_large_answer_is_repeated_less_and_less() -> None:
    """A slow network carries it still.  Small ones are repeated each time."""
    machine, often = leader(), list(range(0, 20_000, CONFIG.retry_ms))
    give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS)
    assert times_of_answers(machine, fetch(THREE, ONE, 1, EMPTY)) == often
    machine = leader()
    machine.append([bytes(CONFIG.large_bytes + 1)], LATER_MS)
    seldom = [0, 500, 1000, 2000, 4000, 8000, 16_000]
    assert times_of_answers(machine, fetch(THREE, ONE, 1, FIRST)) == seldom
    machine = leader()
    give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS)
    machine.snapshotted(2, 2, LATER_MS)
    part = FetchSnapshotRequest(source=THREE, target=ONE, epoch=1, snapshot=FIRST, start=4)
    assert times_of_answers(machine, part) == seldom


@pytest.mark.parametrize(
    ("needed", "times"),
    [
        ([3000], [0, 6000, 12_000]),
        ([60_000], [0, 8000, 16_000]),
        ([60_000, 100], [0, 500, 1000, 2000, 4000, 8000, 16_000]),
    ],
)
def test_a_large_answer_is_repeated_after_twice_the_time_that_the_last_one_needed(
    needed: list[int], times: list[int]
) -> None:
    """So a network that is slow carries one copy of each, and one that was slow is asked sooner again."""
    machine, now_ms = leader(config=Config(fetch_bytes=1)), LATER_MS
    machine.append([bytes(CONFIG.large_bytes + 1)] * 3, now_ms)
    for offset, one_ms in enumerate(needed, 2):
        give(machine, fetch(THREE, ONE, 1, Position(1, offset)), now_ms)
        for after_ms in range(0, one_ms, 1000):
            give(machine, fetch(TWO, ONE, 1, FIRST), now_ms + after_ms)
        now_ms += one_ms
    assert times_of_answers(machine, fetch(THREE, ONE, 1, Position(1, 2 + len(needed))), now_ms) == times


def test_a_large_answer_is_sent_again_over_a_new_connection() -> None:
    """The replica was stopped for long, and the next answer is lost with the connection."""
    machine, request = leader(config=Config(fetch_bytes=1)), fetch(THREE, ONE, 1, Position(1, 3))
    machine.append([bytes(CONFIG.large_bytes + 1)] * 2, LATER_MS)
    give(machine, fetch(THREE, ONE, 1, Position(1, 2)), LATER_MS)
    for after_ms in range(0, 60_000, 1000):
        give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS + after_ms)
    now_ms = LATER_MS + 60_000
    answers = [len([one for one in give(machine, request, now_ms) if to_three(one)]) for _ in range(2)]
    machine.meet(THREE, now_ms)
    answers.append(len([one for one in give(machine, request, now_ms) if to_three(one)]))
    assert answers == [1, 0, 1]


def snapshot_while_one_is_fetched(config: Config, now_ms: int) -> Kept:
    """Node 3 asked for a part of a snapshot; ten bytes of entries and another snapshot follow."""
    machine = leader(config=config)
    give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS)
    machine.snapshotted(2, 2, LATER_MS)
    give(machine, FetchSnapshotRequest(source=THREE, target=ONE, epoch=1, snapshot=FIRST, start=4), LATER_MS)
    machine.append([b"0123456789"], LATER_MS)
    give(machine, fetch(TWO, ONE, 1, Position(1, 3)), LATER_MS)
    give(machine, fetch(TWO, ONE, 1, Position(1, 3)), now_ms)
    return machine.snapshotted(3, 3, now_ms)


# Promise: quorum.md#when-a-node-is-lost, raft.md#make-snapshots
def test_what_is_kept_for_a_slow_follower_has_limits() -> None:
    """Bytes of entries, and a time without a question."""
    assert snapshot_while_one_is_fetched(Config(keep_bytes=10), LATER_MS) == Kept(2, FIRST)
    assert snapshot_while_one_is_fetched(Config(keep_bytes=9), LATER_MS) == Kept(3)
    assert snapshot_while_one_is_fetched(Config(keep_ms=100), LATER_MS + 99) == Kept(2, FIRST)
    assert snapshot_while_one_is_fetched(Config(keep_ms=100), LATER_MS + 100) == Kept(3)


def test_a_snapshot_is_of_committed_entries() -> None:
    machine = leader()
    with pytest.raises(AssertionError, match="a snapshot up to 1"):
        machine.snapshotted(1, 1, LATER_MS)


def test_messages_can_be_encoded() -> None:
    """A transport encodes them with msgspec."""
    entry = Entry(0, 1, Kind.DATA, b"\x00\xff")
    messages = [
        vote(ONE, TWO, 1, EMPTY),
        fetch(ONE, TWO, 1, EMPTY),
        fetched(ONE, TWO, 1, EMPTY, entries=(entry,)),
        fetched(ONE, TWO, 1, EMPTY, diverging=FIRST),
    ]
    for message in messages:
        for codec in (msgspec.json, msgspec.msgpack):
            assert codec.decode(codec.encode(message), type=Message) == message
