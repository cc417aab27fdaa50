"""The promises about replicas, checked after every change of the log and of a root.

claimed     the state names no copy that is not there whole, unless a fault took it and nobody has noticed yet
in sync     a replica that lags leaves an active member in the ISR
enough      a commit rests on `min.insync.replicas` members of each ISR, and all members that stay have its objects
kept        a record is found by its readers if one of the copies that ever counted is still there
lost        only a commit that readers never saw, and that no active broker has; `replica.lost.after.ms` after that was
            first so, unless somebody has replaced a broker that had it
referenced  no live copy is deleted, and nothing that a reader may still need
visible     readers see a commit when all in-sync replicas have it; it is acknowledged with acks=all when they see it
weaker      a swap leaves no fewer copies than there were; that of a move has all synchronous replicas
whole       a copy of the log has each commit that readers saw at its version, with its positions and its identity; of
            each other one it has all of that, or nothing

All promises of `log_sim/promises/oracle.py` hold as well: offsets, contents, repeats, states, and the rules of
`metadata/invariants` for ISRs, leaders, high watermarks and moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from simulation.log_sim.constants import Constants
from simulation.log_sim.content import PlainCodec, Row
from simulation.log_sim.memoized_functions import MemoizedFunctions
from simulation.log_sim.promises.oracle import Oracle
from simulation.replica_sim.roots import Roots
from simulation.verdict import Violation
from spark_log.metadata import records as r
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.commits.pending_commits import is_given_up, is_lost, lost_entries
from spark_log.metadata.replicas.reassignments import is_moving
from spark_log.metadata.replicas.replica_state import OWN_BROKER, OWN_GROUP
from spark_log.metadata.replicas.replicas import (
    copies_of,
    group_at,
    group_number,
    holders,
    is_active,
    keeps,
    min_insync,
)
from spark_log.metadata.state import PendingCommit, State, TopicKey
from spark_log.model import ACKS_ALL, Slice
from spark_log.roots.broker_roots import BROKER_KEY
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG

OWN_DIRECTORY = ""
Place = tuple[str, str]
"""(directory, object)."""


def directory_of(state: State, broker: int) -> str:
    """The directory of a broker's copies."""
    return OWN_DIRECTORY if broker == OWN_BROKER else state.brokers[broker].directory


def _is_known(state: State, broker: int) -> bool:
    return broker == OWN_BROKER or broker in state.brokers


def key_in(directory: str, name: str) -> str:
    """Where a directory has an object."""
    return f"{directory}/{name}" if directory else name


def _place(key: str) -> Place:
    directory, _, name = key.partition(f"/{DATA}")
    return directory, DATA + name


def _is_lost_at(state: State, key: TopicKey, offset: int) -> bool:
    return any(one.start <= offset < one.end for one in state.lost.get(key, ()))


class ReplicaOracle(Oracle):
    """Knows each disk, and what each object should have."""

    def __init__(
        self, grace: int, constants: Constants, waited_ms: int, lost_ms: int, memoized: MemoizedFunctions
    ) -> None:
        """
        waited_ms:  how long a swap waits for a fenced replica.
        lost_ms:    how long a commit without copies on active brokers is not given up.
        """
        super().__init__(PlainCodec(), grace, constants, 0, memoized)
        self._waited_ms, self._lost_ms = waited_ms, lost_ms
        self._now = 0
        """When the record under way is written."""
        self._away_since: dict[tuple[str, ...], int] = {}
        """By pending commit: when it was first on no active broker."""
        self.contents: dict[str, Any] = {}
        """By object, what was put first."""
        self.spoiled: set[Place] = set()
        """Copies that a fault took, and nobody has noticed."""
        self.collected: set[Place] = set()
        self._lost: dict[TopicKey, set[int]] = {}
        """Offsets of lost commits."""
        self._promised: dict[str, set[Place]] = {}
        """By live object, all copies that have counted."""
        self._looks: dict[tuple[int, int, tuple[str, ...]], set[Place]] = {}
        self.roots: Roots

    def watch(self, roots: Roots) -> None:
        """Begin: these are the disks."""
        self.roots = roots
        self.files = {CHECKPOINTS: roots.files[CHECKPOINTS], LOG: roots.files[LOG], DATA: self.contents}

    # ---------------------------------------------------------------------------------------------- what the stores do

    def written(self, key: str, content: Any, decided: State | None, now: int) -> None:
        if key.startswith(DATA):
            self.contents.setdefault(key, content)
            return
        before, self._now = self.state, now
        super().written(key, content, decided, now)
        if self.state is not before:
            self._note_version(before)
            self.check()

    def copied(self, key: str, content: Any, files: Mapping[str, Any]) -> None:
        """A copy was put on a disk with these files, perhaps not on the one that should be there."""
        place = _place(key)
        self.contents.setdefault(place[1], content)
        if place[0].encode() in files.get(BROKER_KEY, b""):
            self.spoiled.discard(place)
            self.collected.discard(place)

    def deleted(self, key: str, now: int) -> None:
        if key.startswith(DATA):
            self._check_removed((OWN_DIRECTORY, key))
        else:
            super().deleted(key, now)

    def removed(self, key: str) -> None:
        """A collector deleted a copy."""
        if f"/{DATA}" in key:
            self._check_removed(_place(key))

    def _check_removed(self, place: Place) -> None:
        row = self.state.objects.get(place[1])
        self.collected.add(place)
        self.seen["copies deleted"] += 1
        if row is None:
            return
        known = copies_of(self.state, row)
        brokers = (OWN_BROKER,) if known is None else self.state.placement_groups[known.group].replicas
        if any(directory_of(self.state, broker) == place[0] and self._needs(broker, place[1]) for broker in brokers):
            raise Violation(f"referenced: {place} is deleted, and version {self.state.version} has the object")

    def _needs(self, broker: int, name: str) -> bool:
        """Whether a broker has dropped no copy of an object because it is old, or has the last one."""
        known = copies_of(self.state, self.state.objects[name])
        return keeps(self.state, broker, name) or (known is not None and broker in known.brokers)

    # -------------------------------------------------------------------------------------------------------- what faults do

    def spoil(self, places: Iterable[Place]) -> None:
        """A fault took these copies."""
        self.spoiled.update(places)

    def looked(self, broker: int, epoch: int, missing: tuple[str, ...], names: Iterable[str]) -> None:
        """A root was listed for the return of its broker: what is not in the listing has no excuse after it."""
        directory, there = directory_of(self.state, broker), set(names)
        lost = {place for place in self.spoiled if place[0] == directory and place[1] not in there}
        self._looks[broker, epoch, missing] = lost

    def is_intact(self, directory: str, name: str) -> bool:
        """Whether a disk has a good copy in a directory."""
        key, content = key_in(directory, name), self.contents.get(name)
        return content is not None and any(disk.files.get(key) == content for disk in self.roots.disks())

    def has_copy(self, state: State, broker: int, name: str) -> bool:
        """Whether the current directory of a broker has a good copy."""
        return _is_known(state, broker) and self.is_intact(directory_of(state, broker), name)

    # ------------------------------------------------------------------------------------------------------- what records do

    def _note(self, record: r.AnyRecord, before: State, after: State) -> None:
        super()._note(record, before, after)
        for commit in before.pending:
            if commit not in after.pending and not isinstance(record, r.LostRecord):
                self._check_shown(commit, after)
        match record:
            case r.CommitRecord():
                self._check_commit(record, before, after)
            case r.LostRecord():
                self._check_lost(record, before)
            case r.LagRecord():
                for number, group in after.placement_groups.items():
                    if not any(is_active(after, one) for one in group.isr) and before.placement_groups[number] != group:
                        raise Violation(f"in sync: {record} left nobody in the ISR of {number}")
            case r.SwapRecord():
                self._check_swap(record, before, after)
            case r.ReturnBrokerRecord():
                self.spoiled -= self._looks.pop((record.broker, record.epoch, record.missing), set())

    def _check_commit(self, commit: r.CommitRecord, before: State, after: State) -> None:
        least: dict[int, int] = {}
        for at, run in commit.slices:
            number, needed = commit.placed[at].group if commit.placed else OWN_GROUP, min_insync(before, run.topic_id)
            if number != group_number(before, (run.topic_id, run.partition)):  # uploaded before the partition moved
                replicas = group_at(before, number).replicas
                needed = min(needed, sum(not self._is_async(before, broker) for broker in replicas))
                self.seen["late commits"] += 1
            least[number] = max(least.get(number, 1), needed)
        for made in commit.objects:
            known = copies_of(after, after.objects[made.name])
            if known is None:
                continue
            isr = after.placement_groups[known.group].isr
            was = before.placement_groups[known.group].isr
            if any(made.name in one.objects for one in after.pending):
                if commit.acks != ACKS_ALL and not set(was) & set(known.brokers):
                    raise Violation(f"enough: {made.name} is on {known.brokers}, and the ISR was {was}")
                continue
            if not set(isr) <= set(known.brokers):
                raise Violation(f"enough: {made.name} is on {known.brokers}, and the ISR is {isr}")
            if len(set(was) & set(known.brokers)) < least[known.group]:
                raise Violation(f"enough: {made.name} is on {known.brokers} of the ISR {was}, {least} are needed")

    def _check_shown(self, commit: PendingCommit, after: State) -> None:
        """Readers see a commit now that was pending."""
        for name in commit.objects:
            known = copies_of(after, after.objects[name])
            isr = after.placement_groups[known.group].isr if known is not None else ()
            if known is not None and (not isr or not set(isr) <= set(known.brokers)):
                raise Violation(f"visible: {name} is on {known.brokers}, and the ISR is {isr}")
        for topic_id, number, piece in commit.slices:
            known = copies_of(after, after.objects[piece.object])
            least, group = min_insync(after, topic_id), group_at(after, OWN_GROUP if known is None else known.group)
            least = min(least, sum(not self._is_async(after, broker) for broker in group.replicas))
            if len(group.isr) < least:
                raise Violation(f"visible: {topic_id}-{number} has new records with an ISR of {group.isr}")
        self.seen["shown"] += 1

    def ack(self, commit: r.CommitRecord, reply: Committed) -> None:
        super().ack(commit, reply)
        for key, span in reply.ranges.items():
            if commit.acks == ACKS_ALL and self.state.partitions[key].readable_end < span.stop:
                raise Violation(f"visible: {span} of {key} is acknowledged, and readers do not see it")

    def check_slice(self, key: TopicKey, piece: Slice, rows: Iterable[tuple[int, Row]]) -> None:
        """A reader got these rows of a slice, with their offsets.  Only lost commits leave holes."""
        found = dict(rows)
        for offset, row in found.items():
            self.check_read(key, offset, [row])
        absent = set(range(piece.start, piece.end)) - found.keys() - self._lost.get(key, set())
        if absent:
            raise Violation(f"lost: offsets {sorted(absent)} of {key} are not in {piece.object}")

    def _check_lost(self, record: r.LostRecord, before: State) -> None:
        """Readers have never seen the records, and no active broker has them."""
        (commit,) = [one for one in before.pending if one.objects == record.commit]
        known = [copies_of(before, before.objects[name]) for name in commit.objects]
        if all(one is None or any(is_active(before, broker) for broker in one.brokers) for one in known):
            raise Violation(f"lost: {record.commit} is on active brokers")
        waited_ms = self._now - self._away_since.get(commit.objects, self._now)
        if waited_ms < self._lost_ms and not is_given_up(before, commit):
            raise Violation(f"lost: {record.commit} was given up after {waited_ms} ms")
        for key, entries in lost_entries(before, commit).items():
            self._lost.setdefault(key, set()).update(range(entries[0].start, entries[-1].end))
        self.seen["commits lost"] += 1

    def _check_swap(self, swap: r.SwapRecord, before: State, after: State) -> None:
        for change in swap.changes:
            if is_moving(before, (change.topic_id, change.partition)):
                self._check_moved(change, before, after)
        new = {
            known.group: set(known.brokers)
            for made in swap.objects
            if made.name in after.objects and (known := copies_of(after, after.objects[made.name])) is not None
        }
        for name in swap.removed:
            known = copies_of(before, before.objects[name]) if name in before.objects else None
            if known is None or known.group not in new:
                continue
            for broker in set(known.brokers) - new[known.group]:
                row = before.brokers.get(broker)
                late = row is not None and row.fenced and before.time - row.since > self._waited_ms
                if not late and not (row is not None and row.is_async):
                    raise Violation(f"weaker: {name} was on {known.brokers}, what replaces it on {new[known.group]}")

    def _check_moved(self, change: r.Change, before: State, after: State) -> None:
        """New objects of a partition that moves are on all replicas that are synchronous, and not fenced for long."""
        for name in {piece.object for piece in change.slices}.difference(before.objects):
            known = copies_of(after, after.objects[name])
            if known is None:
                continue
            replicas = {b for b in after.placement_groups[known.group].replicas if not self._is_async(before, b)}
            late = {b for b in replicas if (row := before.brokers.get(b)) is not None and row.fenced}
            late = {b for b in late if before.time - before.brokers[b].since > self._waited_ms}
            least = min(min_insync(before, change.topic_id), len(replicas))
            if not replicas - late <= set(known.brokers) or len(known.brokers) < least:
                raise Violation(f"weaker: {name} was moved to {known.brokers}, the replicas are {replicas}")

    # ----------------------------------------------------------------------------------------------------------- copies

    def check_copy(self, version: int, copy: State, there: Collection[str]) -> None:
        """A log was made of a copy of a version, and has these objects."""
        was = self.states[version]
        assert was.version == version
        for who, (at, spans) in self.committed.items():
            known = {
                key: [offset for offset in span if not _is_lost_at(was, key, offset)] for key, span in spans.items()
            }
            if at > version or not any(known.values()):
                continue
            has = [self._has(copy, there, key, offset) for key, offsets in known.items() for offset in offsets]
            shown = all(span.stop <= was.partitions[key].readable_end for key, span in spans.items())
            if not all(has) and (shown or any(has)):
                raise Violation(f"whole: {sum(has)} of {len(has)} records of {who} are in a copy of version {version}")
            is_named = [who[0] in named for named in (copy.groups, copy.producers)]
            if who[0] in was.groups and is_named != [all(has), all(has) and who[0] in was.producers]:
                raise Violation(f"whole: a copy of version {version} has {sum(has)} records of {who}, and {is_named}")
            self.seen["copied whole" if all(has) else "left out of copies"] += 1

    def _has(self, copy: State, there: Collection[str], key: TopicKey, offset: int) -> bool:
        """Whether readers of a copy find a record.  Raises Violation if they find another one, or an error."""
        part = copy.partitions[key]
        piece = next((one for one in part.entries if isinstance(one, Slice) and one.start <= offset < one.end), None)
        if piece is None or piece.object not in there:
            raise Violation(f"whole: offset {offset} of {key} cannot be read in a copy of version {copy.version}")
        if piece.object not in self.contents:  # holes, which the copy has put there
            return False
        rows = self.contents[piece.object][piece.position]
        found = dict(self._codec.decode((rows,), piece, key))
        if (row := found.get(offset - piece.start)) not in (None, self.rows[key][offset]):
            raise Violation(f"whole: offset {offset} of {key} is {row} in a copy")
        return offset - piece.start in found

    # ----------------------------------------------------------------------------------------------------------- checks

    def _note_version(self, before: State) -> None:
        state, earlier = self.state, self.memoized.objects(before)
        for name, row in self.memoized.objects(state).items():
            old = earlier.get(name)
            if old is not None and old.copies == row.copies and before.brokers is state.brokers:
                continue
            known = copies_of(state, row)
            brokers = (OWN_BROKER,) if known is None else known.brokers
            found = self._promised.setdefault(name, set())
            found |= {(directory_of(state, broker), name) for broker in brokers}
        for name in self.memoized.objects(before).keys() - self.memoized.objects(state).keys():
            self._promised.pop(name, None)
        since = self._away_since
        away = [one.objects for one in state.pending if one.objects in since or is_lost(state, one)]
        self._away_since = {objects: since.get(objects, self._now) for objects in away}

    def check(self) -> None:
        """All promises about the newest version."""
        state, together = self.state, dict[int, list[str]]()
        for name, row in self.memoized.objects(state).items():
            together.setdefault(row.copies, []).append(name)
        for alike in together.values():
            self._check_copies(state, alike)

    def _check_copies(self, state: State, names: Iterable[str]) -> None:
        """All promises about objects that have copies on the same brokers."""
        first = state.objects[next(iter(names))]
        known, readers_try = copies_of(state, first), holders(state, first)
        brokers = (OWN_BROKER,) if known is None else known.brokers
        claimed = {broker: directory_of(state, broker) for broker in brokers}
        readable = [directory_of(state, broker) for broker in readers_try if _is_known(state, broker)]
        for name in names:
            for broker, directory in claimed.items():
                if (directory, name) not in self.spoiled and not self.is_intact(directory, name):
                    raise Violation(f"claimed: version {state.version} has {name} on broker {broker}, which lacks it")
            if not any(self.is_intact(directory, name) for directory in readable) and self.survivors(state, name):
                raise Violation(f"kept: {name} is on {self.survivors(state, name)}, readers try {readers_try}")

    @staticmethod
    def _is_async(state: State, broker: int) -> bool:
        known = state.brokers.get(broker)
        return known is not None and known.is_async

    def is_readable(self, state: State, name: str) -> bool:
        """Whether one of the brokers that a reader tries has an object."""
        return any(self.has_copy(state, broker, name) for broker in holders(state, state.objects[name]))

    def unnoticed(self, state: State) -> list[str]:
        """Copies that the state has and no disk."""
        return [
            f"{name} on broker {broker}"
            for name, row in self.memoized.objects(state).items()
            if (known := copies_of(state, row)) is not None
            for broker in known.brokers
            if not self.has_copy(state, broker, name)
        ]

    def survivors(self, state: State, name: str) -> list[str]:
        """Current directories that have had an object, and still have it."""
        current = {OWN_DIRECTORY, *(known.directory for known in state.brokers.values())}
        return [
            where
            for where, _ in sorted(self._promised.get(name, ()))
            if where in current and self.is_intact(where, name)
        ]
