"""Run cases of the assignors.  An exact case is compared with its assignment; any other by the properties that it
names.

A property is a sentence.  If the runner cannot read a property, the case passes only when the assignment equals the
case's reference assignment, which is a valid answer.  Otherwise the case fails, and the failure names the property.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulation.vectors.vector_case import Case
from spark_log.groups.assignors import BUILT_IN, Assignor
from spark_log.groups.racks import Cluster
from spark_log.groups.range_and_round_robin import Assigned
from spark_log.groups.sticky import StickyAssignor
from spark_log.groups.subscription import Subscriber
from spark_log.model import TopicPartition

ROUNDS_MAX = 4
"""A cooperative assignment is stable after at most this many rounds."""


def assignor_cases(vectors: Mapping[str, Any]) -> Iterator[Case]:
    """Run every case and yield its result."""
    for vector in vectors.get("cases", ()):
        yield run_case(vector)


def run_case(vector: Mapping[str, Any]) -> Case:
    work = _Work(vector)
    wanted = vector["expected"]
    name = f"{vector['id']} ({vector['assignor']})"
    if wanted["kind"] == "exact":
        found, expected = _listed(work.assigned), _listed(wanted["assignment"])
        if not wanted.get("ordered"):
            found, expected = _sorted(found), _sorted(expected)
        case = Case(name, expected, found)
    else:
        failed = [sentence for sentence in wanted["properties"] if not work.holds(sentence)]
        must = _sorted(_listed(wanted.get("must_equal", {})))
        given = _sorted(_listed({member_id: work.assigned.get(member_id, ()) for member_id in must}))
        case = Case(name, (must, []), (given, failed))
    if not case.passed or "rack_mismatches" not in wanted:
        return case
    return Case(f"{name}: partitions far from their member", wanted["rack_mismatches"], work.far())


def _listed(assignment: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, list[list[Any]]]:
    return {member_id: [list(tp) for tp in partitions] for member_id, partitions in assignment.items()}


def _sorted(assignment: dict[str, list[list[Any]]]) -> dict[str, list[list[Any]]]:
    return {member_id: sorted(partitions) for member_id, partitions in assignment.items()}


def _assignor(vector: Mapping[str, Any]) -> Assignor:
    kind = BUILT_IN[vector["assignor"]]
    if not issubclass(kind, StickyAssignor):
        return kind()
    assignor = kind(vector.get("member_order", ()))
    assignor.max_generation = vector.get("leader_max_generation_seen", -1)
    return assignor


class _Work:
    """Run one case: its assignment, and the stable assignment after members revoke what they lost and join again."""

    def __init__(self, vector: Mapping[str, Any]) -> None:
        self.assignor = _assignor(vector)
        self.cluster = Cluster(vector["topics"], vector.get("partition_replica_racks") or {})
        self.members = [
            Subscriber(
                member_id=member["id"],
                topics=tuple(member["topics"]),
                group_instance_id=member.get("instance_id"),
                owned=tuple(TopicPartition(*tp) for tp in member.get("owned") or ()),
                generation=-1 if member.get("generation") is None else member["generation"],
                rack=member.get("rack"),
            )
            for member in vector["members"]
        ]
        self.had = {member.member_id: frozenset(member.owned) for member in self.members}
        self.reads = {member.member_id: frozenset(member.topics) for member in self.members}
        self.assigned = self.assignor.assign(self.cluster, self.members)
        self.reference = vector["expected"].get("reference_assignment")
        self.withholds = True
        """In no round did one member get a partition that another member still had."""
        self.settled = self._settle()

    def _settle(self) -> Assigned:
        """The assignment when no member has to revoke anything any more."""
        assigned, members = self.assigned, self.members
        if not self.assignor.cooperative:
            return assigned
        for generation in range(1, ROUNDS_MAX):
            had: dict[TopicPartition, set[str]] = defaultdict(set)
            for member in members:
                for tp in member.owned:
                    had[tp].add(member.member_id)
            self.withholds &= all(
                tp not in had or member_id in had[tp] for member_id, partitions in assigned.items() for tp in partitions
            )
            newest = max(member.generation for member in members) + generation
            again = [replace(member, owned=tuple(assigned[member.member_id]), generation=newest) for member in members]
            following = self.assignor.assign(self.cluster, again)
            if _sorted(_listed(following)) == _sorted(_listed(assigned)):
                return following
            assigned, members = following, again
        return assigned

    def far(self) -> int:
        """How many partitions are assigned to a member that has a rack, although the partition has no replica in that
        rack.
        """
        topics = self.cluster.known(topic for read in self.reads.values() for topic in read)
        racks = {topic: self.cluster.racks.get(topic, ()) for topic in topics}
        of_members = {member.member_id: member.rack for member in self.members if member.rack}
        return sum(
            member_id in of_members and of_members[member_id] not in racks[tp.topic][tp.partition]
            for member_id, partitions in self.assigned.items()
            for tp in partitions
        )

    # ------------------------------------------------------------------------------------------------------- properties

    def holds(self, sentence: str) -> bool:
        for pattern, check in _PROPERTIES:
            found = re.fullmatch(pattern, sentence)
            if found is not None:
                return check(self, *found.groups())
        return self.reference is not None and _sorted(_listed(self.assigned)) == _sorted(_listed(self.reference))

    @property
    def sizes(self) -> list[int]:
        return sorted(len(partitions) for partitions in self.settled.values())

    def valid(self) -> bool:
        """Each assigned partition exists, its topic is subscribed by the member, and it has one owner."""
        given = [tp for partitions in self.assigned.values() for tp in partitions]
        return (
            len(given) == len(set(given))
            and all(map(self.cluster.has, given))
            and all(tp.topic in self.reads[name] for name, partitions in self.assigned.items() for tp in partitions)
        )

    def balanced(self) -> bool:
        """If one member has two partitions more than another, the two share no topic."""
        topics = {name: {tp.topic for tp in partitions} for name, partitions in self.settled.items()}
        return not any(
            len(self.settled[more]) > len(self.settled[less]) + 1 and topics[more] & topics[less]
            for more in topics
            for less in topics
        )

    def even(self) -> bool:
        return not self.sizes or self.sizes[-1] - self.sizes[0] <= 1

    def all_given(self) -> bool:
        wanted = {
            TopicPartition(topic, number)
            for topic in self.cluster.known(topic for read in self.reads.values() for topic in read)
            for number in range(self.cluster.partitions[topic])
        }
        return {tp for partitions in self.settled.values() for tp in partitions} == wanted

    def each_has(self, count: str) -> bool:
        return set(self.sizes) == {int(count)}

    def of_topics(self, count: str, topic: str, other_count: str, other: str) -> bool:
        def has(partitions: Sequence[TopicPartition], name: str) -> int:
            return sum(tp.topic == name for tp in partitions)

        return all(
            has(partitions, topic) == int(count) and has(partitions, other) == int(other_count)
            for partitions in self.settled.values()
        )

    def keeps(self, *names: str) -> bool:
        """Members keep every partition that they had."""
        return all(self.had[name] <= set(self.settled[name]) for name in names or self.had)

    def gets_only_own(self, *names: str) -> bool:
        """Members get no partition that they did not have."""
        return all(set(self.settled[name]) <= self.had[name] for name in names or self.had)

    def no_exchange(self) -> bool:
        """No two members exchange partitions of the same topic."""
        before = {tp: name for name, partitions in self.had.items() for tp in partitions}
        moves = {
            (tp.topic, before[tp], name)
            for name, partitions in self.settled.items()
            for tp in partitions
            if before.get(tp, name) != name
        }
        return not any((topic, to, source) in moves for topic, source, to in moves)

    def swapped_withheld(self) -> bool:
        """While two partitions change places, neither has an owner in this round."""
        given = {tp for partitions in self.assigned.values() for tp in partitions}
        withheld = {tp for partitions in self.had.values() for tp in partitions} - given
        return len(withheld) == 2 and len({name for name, had in self.had.items() if had & withheld}) == 2


def _members_kept(work: _Work, first: str, last: str) -> bool:
    return work.keeps(*(f"consumer{n}" for n in range(int(first), int(last) + 1)))


def _gets_all(work: _Work, name: str, count: str) -> bool:
    return len(work.settled[name]) == int(count) and work.all_given() and work.keeps(name)


def _from_gone(work: _Work, name: str) -> bool:
    """The member gets a partition that nobody owned."""
    return bool(set(work.settled[name]) - set().union(*work.had.values()))


_PROPERTIES: Sequence[tuple[str, Callable[..., bool]]] = (
    (r"valid: .*", _Work.valid),
    (r"no partition assigned twice", _Work.valid),
    (r"balanced: .*", _Work.balanced),
    (r"fully balanced: .*", _Work.even),
    (r"cooperative: .*", lambda work: work.withholds),
    (r"sticky: no two members exchange partitions of the same topic.*", _Work.no_exchange),
    (r"(\d+) partitions each(?:, disjoint)?", _Work.each_has),
    (r"both members have (\d+) partitions", _Work.each_has),
    (r"each member gets exactly one partition", lambda work: work.each_has("1")),
    (r"nobody gets more than one partition", lambda work: work.sizes[-1] <= 1),
    (r"every member gets 1 or 2 partitions", lambda work: set(work.sizes) <= {1, 2}),
    (r"sizes are 1 and 2 in some order", lambda work: work.sizes == [1, 2]),
    (r"every member ends with exactly (\d+) partitions of (\S+) and (\d+) of (\S+)", _Work.of_topics),
    (r"each member keeps everything it owned", _Work.keeps),
    (r"a member that owned a partition keeps it", _Work.keeps),
    (r"each member's result is a subset of what it owned", _Work.gets_only_own),
    (r"members (\d)-(\d) keep all they owned although their generations differ", _members_kept),
    (r"(\S+) and (\S+) \(newer generation\) only get partitions they owned", _Work.gets_only_own),
    (r"(\S+) keeps all it owned", _Work.keeps),
    (r"(\S+) gets all (\d+) and keeps what it owned", _gets_all),
    (r"all \d+ partitions go to the one member.*", _Work.all_given),
    (r"(\S+) receives at least one partition formerly of \S+", _from_gone),
    (r"exactly two partitions are transferring ownership \(one in each direction\).*", _Work.swapped_withheld),
)
