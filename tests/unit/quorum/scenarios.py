"""Runs the scenarios of tests/scenarios/quorum: replicas, their disks and a network that do only what a command says.

    nodes 1 2 3                     voters with empty disks, started, in place of all others
    node 1 epoch=3 log=1,1,3 hw=1   a voter of `voters`, whose disk has data entries of these epochs
    voters 1 2 3                    of the nodes that follow
    join 4                          a replica that is not a voter, and knows those that node 1 knows
    replace 3 b                     node 3 has a new disk with the directory id b
    stop 1 / start 1                what is not durable on its disk is lost
    slow 1 / fast 1                 its disk is busy until `persist 1`
    append 1 x y                    on node 1
    timeout 1                       1.5 fetch timeouts pass at node 1 alone
    advance 100                     so many ms pass at all nodes
    deliver / deliver 1 2           messages that are under way, to all or to these nodes; what they send is under way
    drop / drop 1 2                 lose them
    cut 1 2 / heal                  nothing reaches these nodes or leaves them
    settle                          deliver and persist until nothing is under way
    one-entry                       in each answer of the nodes that follow
    snapshot 1 keep=2               of all that is committed at node 1; the last 2 entries before its end are kept
    hand-over 1, confirm 1, add-voter 1 4, remove-voter 1 3, unreachable 2 1
    status                          of all nodes
    quiet / loud                    leave out what commands do, up to `loud`

A message is shown when it arrives, followed by what the receiver does about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from simulation.quorum_sim.disk import Disk
from spark_log.quorum.machine import Machine
from spark_log.quorum.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Entry,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Kind,
    Message,
    NotLeaderResponse,
    Position,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
)
from spark_log.quorum.ready import Config, Ready
from spark_log.quorum.voters import Voters

CONFIG = Config()
ONE_ENTRY = Config(fetch_bytes=0)
STATE = b"the state of an application"
CHUNK = 10


class Replica:
    """A node with a disk."""

    def __init__(self, key: ReplicaKey, voters: Voters) -> None:
        self.disk = Disk(key, voters)
        self.machine: Machine | None = None
        self.now_ms = 0
        self.is_slow = False
        self.role = ""


class Scenario:
    """Runs commands, each of which gives lines of text."""

    def __init__(self) -> None:
        self.replicas: dict[int, Replica] = {}
        self.voters: Voters = ()
        self.under_way: list[Message] = []
        self.cut: set[int] = set()
        self.lines: list[str] = []
        self.is_quiet = False
        self.config = CONFIG

    def run(self, command: str) -> str:
        """The lines that a command shows."""
        name, *arguments = command.split()
        self.lines = []
        getattr(self, "do_" + name.replace("-", "_"))(*arguments)
        shows = not self.is_quiet or name == "status"
        return "\n".join(self.lines) if shows else ""

    # ------------------------------------------------------------------------------------------------------------ nodes

    def do_voters(self, *ids: str) -> None:
        self.voters = tuple(ReplicaKey(int(node), "a") for node in ids)

    def do_nodes(self, *ids: str) -> None:
        self.replicas, self.under_way, self.cut = {}, [], set()
        self.do_voters(*ids)
        for node in ids:
            self.do_node(node)

    def do_node(self, node: str, *settings: str) -> None:
        values = dict(setting.split("=") for setting in settings)
        replica = self._new(ReplicaKey(int(node), "a"), self.voters)
        epochs = [int(epoch) for epoch in values.get("log", "").split(",") if epoch]
        replica.disk.epoch = int(values.get("epoch", 0))
        replica.disk.log = [Entry(offset, epoch, Kind.DATA, b"%d" % offset) for offset, epoch in enumerate(epochs)]
        replica.disk.high_watermark = int(values.get("hw", 0))
        self.do_start(node)

    def do_one_entry(self) -> None:
        self.config = ONE_ENTRY

    def do_join(self, node: str) -> None:
        self._new(ReplicaKey(int(node), "a"), self._machine("1").voters)
        self.do_start(node)

    def do_replace(self, node: str, directory: str) -> None:
        self._new(ReplicaKey(int(node), directory), self._machine("1").voters)
        self.do_start(node)

    def _new(self, key: ReplicaKey, voters: Voters) -> Replica:
        self.replicas[key.id] = Replica(key, voters)
        return self.replicas[key.id]

    def do_stop(self, node: str) -> None:
        replica = self.replicas[int(node)]
        replica.machine = None
        replica.disk.pending.clear()

    def do_start(self, node: str) -> None:
        replica = self.replicas[int(node)]
        key, restored = replica.disk.key, replica.disk.restored()
        replica.machine = Machine(key, restored, self.config, Random(key.id), replica.now_ms)
        self._after(replica)

    def do_slow(self, node: str) -> None:
        self.replicas[int(node)].is_slow = True

    def do_fast(self, node: str) -> None:
        self.replicas[int(node)].is_slow = False
        self.do_persist(node)

    def do_persist(self, node: str) -> None:
        replica = self.replicas[int(node)]
        while replica.disk.pending and replica.machine is not None:
            replica.machine.persisted(replica.disk.sync(), replica.now_ms)
            self._after(replica)

    # ----------------------------------------------------------------------------------------------------------- inputs

    def _machine(self, node: str) -> Machine:
        machine = self.replicas[int(node)].machine
        assert machine is not None
        return machine

    def do_append(self, node: str, *data: str) -> None:
        replica = self.replicas[int(node)]
        offset = self._machine(node).append([item.encode() for item in data], replica.now_ms)
        self.lines.append("refused" if offset is None else f"appended at {offset}")
        self._after(replica)

    def do_timeout(self, node: str) -> None:
        self._advance(self.replicas[int(node)], CONFIG.fetch_timeout_ms * 3 // 2)

    def do_advance(self, ms: str) -> None:
        for replica in self.replicas.values():
            self._advance(replica, int(ms))

    def _advance(self, replica: Replica, ms: int) -> None:
        replica.now_ms += ms
        if replica.machine is not None:
            replica.machine.tick(replica.now_ms)
            self._after(replica)

    def do_hand_over(self, node: str) -> None:
        self._show(node, self._machine(node).hand_over(self.replicas[int(node)].now_ms))

    def do_confirm(self, node: str) -> None:
        self._show(node, self._machine(node).confirm(self.replicas[int(node)].now_ms))

    def do_add_voter(self, node: str, voter: str) -> None:
        key = self.replicas[int(voter)].disk.key
        self._show(node, self._machine(node).add_voter(key, self.replicas[int(node)].now_ms).value)

    def do_remove_voter(self, node: str, voter: str) -> None:
        key = next((key for key in self._machine(node).voters if key.id == int(voter)), ReplicaKey(int(voter), "a"))
        self._show(node, self._machine(node).remove_voter(key, self.replicas[int(node)].now_ms).value)

    def do_unreachable(self, node: str, other: str) -> None:
        self._machine(node).unreachable(self.replicas[int(other)].disk.key, self.replicas[int(node)].now_ms)
        self._after(self.replicas[int(node)])

    def _show(self, node: str, answer: object) -> None:
        self.lines.append(f"{node} answers {answer}")
        self._after(self.replicas[int(node)])

    def do_snapshot(self, node: str, keep: str) -> None:
        replica, log, end = self.replicas[int(node)], self._machine(node).log, self._machine(node).high_watermark
        keep_from = max(log.start.offset, end - int(keep.removeprefix("keep=")))
        replica.disk.take_snapshot(log.position_at(end), STATE, log.voters_at(end))
        kept = self._machine(node).snapshotted(end, keep_from, replica.now_ms)
        replica.disk.drop(kept)
        older = f" it keeps {show(kept.older)}," if kept.older else ""
        self.lines.append(
            f"{node} has a snapshot {show(log.snapshot)},{older} and its log begins at {log.start.offset}"
        )

    # ---------------------------------------------------------------------------------------------------------- network

    def _taken(self, ids: tuple[str, ...]) -> Iterator[Message]:
        wanted = [int(node) for node in ids] or list(self.replicas)
        waiting = self.under_way
        self.under_way = [message for message in waiting if message.target.id not in wanted]
        yield from (message for message in waiting if message.target.id in wanted)

    def do_deliver(self, *ids: str) -> None:
        for message in self._taken(ids):
            replica = self.replicas[message.target.id]
            if replica.machine is None or {message.source.id, message.target.id} & self.cut:
                self.lines.append(f"{show_message(message)}: lost")
                continue
            self.lines.append(show_message(message))
            replica.machine.step(message, replica.now_ms)
            self._after(replica)

    def do_drop(self, *ids: str) -> None:
        for message in self._taken(ids):
            self.lines.append(f"{show_message(message)}: lost")

    def do_cut(self, *ids: str) -> None:
        self.cut = {int(node) for node in ids}

    def do_heal(self) -> None:
        self.cut = set()

    def do_settle(self) -> None:
        while self.under_way:
            self.do_deliver()
            for node, replica in self.replicas.items():
                if not replica.is_slow:
                    self.do_persist(str(node))

    def do_quiet(self) -> None:
        self.is_quiet = True

    def do_loud(self) -> None:
        self.is_quiet = False

    # ---------------------------------------------------------------------------------------------------------- outputs

    def _after(self, replica: Replica) -> None:
        """Do what a machine says; a slow disk waits for its command."""
        machine, name = replica.machine, f"  {replica.disk.key.id}"
        assert machine is not None
        ready = machine.ready()
        if machine.role != replica.role:
            replica.role = machine.role
            self.lines.append(f"{name} is {machine.role} in epoch {machine.epoch}")
        self._show_ready(name, replica, ready)
        self.under_way += ready.send
        for read in ready.read:
            data, start = replica.disk.snapshots[read.request.snapshot], read.request.start
            self.under_way.append(read.answer(data[start : start + CHUNK], len(data)))
        if ready.persist is not None:
            replica.disk.pending.append(ready.persist)
            if not replica.is_slow:
                self.do_persist(str(replica.disk.key.id))

    def _show_ready(self, name: str, replica: Replica, ready: Ready) -> None:
        persist = ready.persist
        if persist is not None:
            disk = replica.disk
            last = disk.pending[-1] if disk.pending else disk
            if (persist.epoch, persist.voted) != (last.epoch, last.voted):
                vote = f", vote for {persist.voted.id}" if persist.voted else ""
                self.lines.append(f"{name} writes epoch {persist.epoch}{vote}")
            if persist.chunk is not None:
                whole = " and the snapshot is complete" if persist.chunk.is_last else ""
                self.lines.append(f"{name} writes {len(persist.chunk.data)} bytes at {persist.chunk.start}{whole}")
            if persist.reset_to is not None:
                self.lines.append(f"{name} begins its log at {show(persist.reset_to)}")
            if persist.truncate_to is not None:
                self.lines.append(f"{name} truncates its log to {persist.truncate_to}")
            if persist.entries:
                self.lines.append(f"{name} writes {show_entries(persist.entries)}")
        if ready.restore is not None:
            self.lines.append(f"{name} restores the state at {show(ready.restore)}")
        if ready.committed:
            self.lines.append(f"{name} commits {show_entries(ready.committed)}")
        if ready.confirmed:
            self.lines.append(f"{name} confirms {list(ready.confirmed)}")

    def do_status(self) -> None:
        for node, replica in sorted(self.replicas.items()):
            machine = replica.machine
            if machine is None:
                self.lines.append(f"{node}: stopped")
                continue
            leader = f" of {machine.leader.id}" if machine.leader and machine.role == "follower" else ""
            self.lines.append(
                f"{node}: {machine.role}{leader}, epoch {machine.epoch}, end {show(machine.log.position)}, durable "
                f"{machine.durable_end}, high watermark {machine.high_watermark}, voters {show_voters(machine.voters)}"
            )


# -------------------------------------------------------------------------------------------------------------- showing


def show(position: Position) -> str:
    """epoch/offset."""
    return f"{position.epoch}/{position.offset}"


def show_voters(voters: Voters) -> str:
    return " ".join(f"{key.id}" if key.directory == "a" else f"{key.id}{key.directory}" for key in voters)


def show_entries(entries: tuple[Entry, ...]) -> str:
    """offset:epoch and the data, or the kind."""
    texts = [entry.data.decode() if entry.kind is Kind.DATA else entry.kind.value for entry in entries]
    return ", ".join(f"{entry.offset}:{entry.epoch} {text}" for entry, text in zip(entries, texts, strict=True))


def show_message(message: Message) -> str:
    """Sender, receiver, epoch and content."""
    return (
        f"{show_voters((message.source,))}>{show_voters((message.target,))} epoch {message.epoch}: {show_body(message)}"
    )


def show_body(message: Message) -> str:
    match message:
        case VoteRequest(end=end, pre_vote=pre_vote):
            return f"{'pre-vote' if pre_vote else 'vote'}? end {show(end)}"
        case VoteResponse(granted=granted, pre_vote=pre_vote, leader=leader):
            known = f", {leader.id} leads" if leader else ""
            return f"{'pre-vote' if pre_vote else 'vote'} {'granted' if granted else 'rejected'}{known}"
        case BeginQuorumEpoch():
            return "begin"
        case EndQuorumEpoch(successors=successors):
            return f"end, successors {show_voters(successors)}"
        case NotLeaderResponse(leader=leader):
            return f"not leader, {leader.id} leads" if leader else "not leader"
        case FetchRequest(end=end, high_watermark=high_watermark):
            return f"fetch {show(end)}, high watermark {high_watermark}"
        case FetchSnapshotRequest(snapshot=snapshot, start=start):
            return f"fetch snapshot {show(snapshot)} at {start}"
        case FetchSnapshotResponse(snapshot=snapshot, start=start, data=data):
            content = "is gone" if message.size is None else f"{len(data)} bytes at {start}"
            return f"snapshot {show(snapshot)}, {content}"
        case FetchResponse(end=end, snapshot=snapshot, diverging=diverging):
            told = f"fetched {show(end)}, high watermark {message.high_watermark}"
            if snapshot is not None:
                return f"{told}, snapshot {show(snapshot)}"
            if diverging is not None:
                return f"{told}, diverging {show(diverging)}"
            return f"{told}, {show_entries(message.entries)}" if message.entries else told
