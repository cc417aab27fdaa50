"""After the faults: the replicas come to rest, and serve as fast as they should.  Times are those of the config."""

from __future__ import annotations

from collections.abc import Callable

from simulation.quorum_sim.node import Node
from simulation.quorum_sim.world import World
from spark_log.quorum.messages import FetchRequest

REST_MS = 6_000
"""For what is late to arrive, elections, and downloads."""
STEP_MS = 100
SOON_MS = 80
"""An entry is durable at a majority, and everybody knows: three times through the network and two fsyncs."""
HANDED_OVER_MS = 100
BUSY_SHARE = 0.3
"""In this share of the seeds, a follower fetches a snapshot, and the leader makes others meanwhile."""
BUSY_MS, SNAPSHOT_EVERY_MS = 1200, 12
"""A download takes some 50 ms."""


class Calm:
    """No more faults, but those that are said; every promise has a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.require = world.oracle.require

    def run(self) -> None:
        self._heal()
        self._rest()
        probes: list[Callable[[], None]] = [
            self._serves,
            self._returning_follower_disturbs_nobody,
            self._hands_over,
            self._stopped_leader_notices,
            self._isolated_leader_resigns,
            self._dead_leader_is_replaced,
            self._lagging_follower_gets_a_snapshot,
        ]
        for probe in self.world.rng.sample(probes, 3):
            self._run(probe)
        if self.world.rng.random() < BUSY_SHARE:
            self._run(self._slow_follower_gets_through_a_snapshot)

    def _run(self, probe: Callable[[], None]) -> None:
        self.world.note(f"probe {probe.__name__}")
        probe()
        self._rest()

    def _heal(self) -> None:
        world = self.world
        world.is_faulty = False
        world.blocked.clear()
        for node in [*world.nodes.values()]:
            if node.paused is not None:
                world.resume(node)
            if node.machine is None:
                world.start(node)

    def _leaders(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node.leads]

    def _followers(self, leader: Node) -> list[Node]:
        """Voters, if each one of them and the leader can be spared: the disks of others are gone."""
        voters = self.world.oracle.voters
        nodes = [node for node in self.world.nodes.values() if node.key in voters]
        return [node for node in nodes if node is not leader] if len(nodes) - 1 > len(voters) // 2 else []

    def _rest(self) -> Node:
        """There is one leader, which all voters follow, and everything is committed everywhere."""
        for _ in range(REST_MS // STEP_MS):
            self.world.run_for(STEP_MS)
            leaders = self._leaders()
            if len(leaders) == 1 and all(self._follows(node, leaders[0]) for node in self.world.nodes.values()):
                self.world.counts["rests"] += 1
                return leaders[0]
        states = [(str(node), node.running.role, node.running.log.position) for node in self.world.nodes.values()]
        self.require(False, f"no rest after {REST_MS} ms: {states}")
        raise AssertionError

    def _follows(self, node: Node, leader: Node) -> bool:
        machine, end = node.running, leader.running.log.end
        knows = machine.high_watermark == machine.log.end == end == node.applied
        return machine.leader == leader.key and knows and machine.durable_end == end

    def _serves(self) -> None:
        """An entry is committed on all replicas soon after it was appended, without the wait of a fetch: also if late
        copies of fetches have arrived meanwhile.
        """
        leader = self._rest()
        for _ in range(3):
            self._send_late_copies(leader)
            self.world.run_for(10)
            self.world.append(leader)
            soon_ms = SOON_MS + leader.config.high_watermark_wait_ms
            self.world.run_for(soon_ms)
            late = [str(node) for node in self.world.nodes.values() if not self._follows(node, leader)]
            self.require(not late, f"{late} do not know after {soon_ms} ms what is committed")

    def _send_late_copies(self, leader: Node) -> None:
        """Send copies of fetches from before the last entry."""
        log = leader.running.log
        for node in self.world.nodes.values():
            if node is not leader and log.end > log.start.offset:
                end = log.position_at(log.end - 1)
                fetch = FetchRequest(
                    source=node.key,
                    target=leader.key,
                    epoch=leader.running.epoch,
                    end=end,
                    high_watermark=end.offset,
                )
                self.world.send(fetch)

    def _returning_follower_disturbs_nobody(self) -> None:
        """A follower that was cut off does not end the epoch when it returns: pre-votes."""
        leader = self._rest()
        followers = self._followers(leader)
        if not followers:
            return
        epoch = leader.running.epoch
        self.world.cut_off = self.world.rng.choice(followers)
        if self.world.rng.random() < 0.5:
            self.world.append(leader)
        self.world.run_for(self.world.rng.randrange(500, 2000))
        self.world.cut_off = None
        self.world.run_for(1500)
        self.require(
            leader.leads and leader.running.epoch == epoch, f"{leader} lost epoch {epoch} to one that returned"
        )

    def _hands_over(self) -> None:
        """A planned hand-over is short, and loses nothing that was appended before."""
        leader = self._rest()
        if not self._followers(leader):
            return
        offset, epoch = self.world.append(leader), leader.running.epoch
        self.world.input(leader, lambda machine, now_ms: machine.hand_over(now_ms))
        self.world.run_for(HANDED_OVER_MS)
        self.require(bool(self._leaders()) and not leader.leads, f"nobody leads {HANDED_OVER_MS} ms after a hand-over")
        committed = [(entry.offset, entry.epoch) for entry in self.world.oracle.committed]
        self.require((offset, epoch) in committed, f"the hand-over lost entry {offset}")

    def _stopped_leader_notices(self) -> None:
        """A leader that was stopped, and is asked to append when it continues, refuses."""
        leader = self._rest()
        if not self._followers(leader):
            return
        leader.paused = []
        self.world.run_for(2000)
        leader.paused = None
        self.require(self.world.append(leader) is None, f"{leader} was stopped, and appends")

    def _isolated_leader_resigns(self) -> None:
        """The others elect another one, and it notices."""
        leader = self._rest()
        if not self._followers(leader):
            return
        self.world.cut_off = leader
        self.world.run_for(leader.config.fetch_timeout_ms * 3 // 2 + 100)
        self.require(not leader.leads, f"{leader} is cut off, and leads")
        self.world.run_for(1500)
        self.require(bool(self._leaders()), "no other leader, after the first one was cut off")
        self.world.cut_off = None

    def _dead_leader_is_replaced(self) -> None:
        leader = self._rest()
        if not self._followers(leader):
            return
        self.world.crash(leader)
        self.world.run_for(2000)
        self.require(bool(self._leaders()), "no other leader, after the first one died")
        self.world.start(leader)

    def _lagging_follower_gets_a_snapshot(self) -> None:
        """It was away while the leader forgot the entries that it lacks."""
        leader = self._rest()
        follower = self._left_behind(leader)
        if follower is None:
            return
        installed = self.world.counts["snapshots installed"]
        self.world.start(follower)
        self._rest()
        self.require(self.world.counts["snapshots installed"] > installed, f"{follower} got no snapshot")

    def _left_behind(self, leader: Node) -> Node | None:
        """A follower that does not run, and lacks entries that the leader has forgotten; None if none can be spared."""
        followers = self._followers(leader)
        if not followers:
            return None
        follower = self.world.rng.choice(followers)
        self.world.crash(follower)
        self.world.append(leader, 20)
        self.world.run_for(1000)
        self.world.take_snapshot(leader, 0)
        self.world.append(leader, 3)
        return follower

    def _slow_follower_gets_through_a_snapshot(self) -> None:
        """Although the leader makes the next ones in less time than the download takes; and then it has all entries."""
        leader = self._rest()
        follower = self._left_behind(leader)
        if follower is None:
            return
        self.world.counts["busy leaders"] += 1
        behind = leader.running.log.end
        self.world.start(follower)
        for _ in range(BUSY_MS // SNAPSHOT_EVERY_MS):
            self.world.append(leader)
            self.world.run_for(SNAPSHOT_EVERY_MS)
            self.world.take_snapshot(leader, 0)
            kept = len(leader.disk.snapshots)
            self.require(kept <= 2, f"{leader} keeps {kept} snapshots")
        end = follower.running.log.end
        self.require(end > behind, f"{follower} has {end} entries, and {behind} were there {BUSY_MS} ms ago")
