"""Whether the replicas of a quorum have made the same state of the same entries.  Pure.

Each replica computes a digest of its state at some versions, the same ones on all, and sends it with its messages, with
those of others that it has heard: followers talk to the leader only.  A replica whose digest is another one than that
of a majority of the voters has a wrong state.  Without such a majority, nobody can say which state is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.voters import Voters
from spark_log.quorum.wire import NodeDigest

KEPT = 4
"""Versions.  A follower that is behind sends older ones."""
WRONG = (
    "its state at version {version} is not that of the other nodes: restart this node, and if its state differs again, "
    "give it a new directory (`pylog quorum init`, `remove-voter`, `add-voter`)"
)
UNCLEAR = (
    "the states at version {version} differ, and no majority agrees: those of nodes {nodes}; start the other nodes, "
    "and `pylog cluster health` says which state is wrong"
)
Known = Mapping[ReplicaKey, str]
"""The digests at one version."""


class StateDigests:
    """The digests of states that one replica knows."""

    def __init__(self) -> None:
        self.is_wrong = False
        """This replica's state is, at the last version at which that was decided."""
        self.do_differ = False
        """Replicas do, at the last version at which this one was compared."""
        self.problem = ""
        """For people: of this replica, or of all; empty: none was found."""
        self.compared = 0
        """The last version at which a majority agreed, or this replica and another one differed."""
        self.to_send: tuple[NodeDigest, ...] = ()
        """Those of the last version of which this replica has one."""
        self._known: dict[tuple[int, int], dict[ReplicaKey, str]] = {}
        """By form and version."""

    def note(self, own: ReplicaKey, voters: Voters, source: ReplicaKey, digests: Iterable[NodeDigest]) -> bool:
        """Take in digests that a replica, which may be this one, has sent; whether the result changed.

        A digest that its own replica sends replaces what others have said of it: it may have been restarted.
        """
        is_new = False
        for one in digests:
            known = self._known.setdefault((one.form, one.version), {})
            if one.replica not in known or (one.replica == source and known[one.replica] != one.digest):
                known[one.replica], is_new = one.digest, True
        if not is_new:
            return False
        self._known = {at: known for form in {at[0] for at in self._known} for at, known in self._last(form)}
        self.to_send = tuple(self._newest(own))
        before = self._result
        self._judge(own, voters)
        return before != self._result

    @property
    def _result(self) -> tuple[bool, bool, str]:
        return self.is_wrong, self.do_differ, self.problem

    def _last(self, form: int) -> list[tuple[tuple[int, int], dict[ReplicaKey, str]]]:
        """The last versions of a form: nodes of another release must not displace what this one compares."""
        return sorted((at, known) for at, known in self._known.items() if at[0] == form)[-KEPT:]

    def _newest(self, own: ReplicaKey) -> Iterator[NodeDigest]:
        found = [at for at, known in self._known.items() if own in known]
        for form, version in sorted(found)[-1:]:
            for key, digest in sorted(self._known[form, version].items()):
                yield NodeDigest(key, form, version, digest)

    def _judge(self, own: ReplicaKey, voters: Voters) -> None:
        for (_, version), known in sorted(self._known.items(), reverse=True):
            if own in known and (right := right_digest(known, voters)) is not None:
                self.compared, self.is_wrong = version, known[own] != right
                self.do_differ = any(known.get(key, right) != right for key in voters)
                self.problem = WRONG.format(version=version) if self.is_wrong else ""
                return
            if own in known and len(set(known.values())) > 1:
                self.compared, self.do_differ, nodes = version, True, " and ".join(sorted(str(key.id) for key in known))
                if not self.is_wrong:
                    self.problem = UNCLEAR.format(version=version, nodes=nodes)
                return


def right_digest(known: Known, voters: Voters) -> str | None:
    """The one that a majority of the voters has; None: no majority is known, or agrees."""
    counts = Counter(known[key] for key in voters if key in known)
    digest, count = counts.most_common(1)[0] if counts else ("", 0)
    return digest if count > len(voters) // 2 else None
