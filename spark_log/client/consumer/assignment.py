"""A consumer's partitions: assigned by hand, or reconciled with its subscription and its membership in a group."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from spark_log.client.consumer.auto_commit import AutoCommit
from spark_log.client.consumer.fetch_positions import FetchPosition, FetchPositions
from spark_log.client.consumer.membership import Membership
from spark_log.client.consumer.subscribed_topics import SubscribedTopics, Wanted
from spark_log.client.reader.positions_to_offsets import group_entries
from spark_log.errors import IllegalGeneration, SparkLogError, UnknownTopicOrPartition
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.records import OffsetEntry
from spark_log.metadata.renewed_ids import later_ids
from spark_log.metadata.set_backs import CommonEnd, Lineage, beyond
from spark_log.metadata.state import State, TopicKey
from spark_log.model import OffsetAndMetadata, TopicPartition
from spark_log.store.bounded_waits import Waiter

AGAIN = "topic {!r} was deleted and created again"
LOSS = "`pylog repair --accept-loss` gave up lost records, and topic {!r} may have others at their offsets"


class Assignment:
    """The partitions of one consumer, with its position in each.

    on_removed:  called after partitions were removed.  Their records in memory must not be returned any more.
    """

    def __init__(
        self,
        journal: Journal,
        membership: Membership | None,
        auto_commit: AutoCommit,
        waiter: Waiter,
        on_removed: Callable[[], None],
    ) -> None:
        self.positions = FetchPositions()
        self.subscribed: SubscribedTopics | None = None
        self.is_known = False
        """The partitions of the subscription are known, and the listener has been called for them."""
        self._journal = journal
        self._membership = membership
        self._auto_commit = auto_commit
        self._waiter = waiter
        self._on_removed = on_removed
        self._former: dict[TopicPartition, TopicKey] = {}
        """Partitions that it has read, and that were removed."""
        self._rebalance = 0
        """The group's rebalance that the listener was last called for."""
        self._reconciled: Wanted | None = None
        """The partitions that the assignment was last reconciled with."""

    # ------------------------------------------------------------------------------------------------- by the caller

    def subscribe(self, subscribed: SubscribedTopics) -> None:
        """Replace the subscription; `reconcile` assigns its partitions."""
        self.subscribed, self.is_known = subscribed, False

    def assign(self, wanted: Wanted) -> None:
        """Read exactly these partitions; those that stay keep their position."""
        self.auto_commit(force=True)
        self._remove([tp for tp, at in self.positions.items() if wanted.get(tp) != at.key])
        new = {tp: key for tp, key in wanted.items() if tp not in self.positions}
        for tp, key in new.items():
            self.positions.add(tp, FetchPosition(key, new=self._is_renewed(tp, key)))
        self._say_renewed(new)

    def end(self) -> None:
        """End a subscription or an assignment: commit, call the listener, leave the group."""
        try:
            self.auto_commit(force=True)
        except IllegalGeneration as error:
            logger.warning("positions were not committed: %s", error)
        finally:  # others need not wait for a consumer that cannot commit, such as to a full disk
            self._release()

    def _release(self) -> None:
        if self.positions:
            self._notify("on_partitions_revoked", tuple(self.positions))
        if self._membership is not None and self._membership.joined:
            self._leave(self._membership)
        self._remove(tuple(self.positions))
        self.subscribed, self.is_known = None, False
        self._on_removed()

    def _leave(self, membership: Membership) -> None:
        try:
            membership.leave()
        except SparkLogError as error:
            logger.warning("group %s still lists this consumer, which has left: %s", membership.group, error)

    # --------------------------------------------------------------------------------------- by the group and the log

    def join(self) -> None:
        """Join the group, if there is one, and give up partitions that were lost.  May update the journal's state."""
        membership = self._membership
        if membership is None:
            return
        if not membership.joined:
            membership.join()
        if membership.lost_by_restore(self._journal.state):
            logger.warning(
                "group %s: an older copy of the log lacks this consumer, which joins again", membership.group
            )
            membership.join()
        state = self._journal.state
        if membership.lost(state):
            self.lose(membership.acknowledge_loss(state))

    def lose(self, error: SparkLogError | None) -> None:
        """Call the listener once about lost partitions.  With an error, later calls raise it."""
        gone = tuple(self.positions)
        self._remove(gone)
        self.is_known = False
        self._on_removed()
        if gone:
            self._notify("on_partitions_lost", gone)
        if error is not None:
            raise error

    def check_live(self, state: State) -> None:
        """Raises UnknownTopicOrPartition as long as a partition is assigned by hand that was deleted."""
        self.is_known = False
        for tp, at in self.positions.items():
            if not _is_live(state, tp, at.key):
                raise UnknownTopicOrPartition(
                    f"{tp.topic}-{tp.partition} is assigned, but was deleted; assign() others"
                )
        self.is_known = True

    def reconcile(self, state: State, subscribed: SubscribedTopics) -> None:
        """Reconcile the assignment with the topics that exist, and with this member's assignment in the group."""
        membership, wanted = self._membership, subscribed.wanted(state)
        for sentence in subscribed.missing(state):
            logger.warning("%s", sentence)
        if membership is not None:
            assigned = membership.assigned_partitions(state, subscribed.names(wanted))
            wanted = subscribed.owned(state, assigned)
        new: list[TopicPartition] = []
        if wanted is not self._reconciled or not self.is_known:
            new = self._replace(wanted, subscribed)
        if membership is None or membership.is_assigned:
            self._notify_assigned(new, 0 if membership is None else membership.rebalances)
        if membership is not None:
            membership.confirm_owned(wanted)
        self._reconciled = wanted
        self.is_known |= membership is None or membership.is_assigned

    def _replace(self, wanted: Wanted, subscribed: SubscribedTopics) -> list[TopicPartition]:
        """Revoke partitions that are not `wanted`, and add new ones; returns the new ones."""
        known = self.positions.get
        differing = subscribed.differing(self._reconciled, wanted) if self.is_known else None
        gone = [
            tp
            for tp in (self.positions if differing is None else differing)
            if (at := known(tp)) is not None and wanted.get(tp) != at.key
        ]
        if gone:
            self._revoke(gone)
        new = sorted(tp for tp in (wanted if differing is None else differing) if tp in wanted and known(tp) is None)
        for tp in new:
            self.positions.add(tp, FetchPosition(wanted[tp], new=subscribed.is_new(tp)))
        self._say_renewed({tp: wanted[tp] for tp in new})
        return new

    def _is_renewed(self, tp: TopicPartition, key: TopicKey) -> bool:
        """Whether this consumer has read another topic of that name."""
        former = self._former.get(tp, key)[0]
        return bool(former) and former != key[0]

    def _say_renewed(self, new: Wanted) -> None:
        """Say that topics are not those that were read, once for each."""
        renewed = {tp.topic: (self._former[tp][0], key[0]) for tp, key in new.items() if self._is_renewed(tp, key)}
        where = "its first record" if self._membership is None else "the group's position in it, or its first record"
        for name, (former, now) in sorted(renewed.items()):
            accepted = now in later_ids(former, self._journal.state.version)
            logger.warning("%s: reading continues at %s", (LOSS if accepted else AGAIN).format(name), where)

    def _revoke(self, gone: Collection[TopicPartition]) -> None:
        self.auto_commit(force=True)
        self._notify("on_partitions_revoked", gone)
        self._remove(gone)
        self._on_removed()
        self.positions.discard_all()

    def _notify_assigned(self, new: Sequence[TopicPartition], number: int) -> None:
        """number:  of the group's rebalance."""
        if new or not self.is_known or number != self._rebalance:
            self._rebalance, self.is_known = number, True  # the listener may seek
            self._notify("on_partitions_assigned", new)

    def _notify(self, what: str, partitions: Collection[TopicPartition]) -> None:
        if self.subscribed is not None:
            with self._waiter.within(math.inf):  # Unfinished must not pass through the listener
                self.subscribed.notify(what, partitions)

    def keep_group_in_use(self, state: State) -> None:
        """Mark the group as in use, so that its positions do not expire."""
        if self._membership is None:
            return
        try:
            self._membership.keep_in_use(state)
        except SparkLogError as error:
            logger.warning("group %s could not be marked as in use: %s", self._membership.group, error)

    # ------------------------------------------------------------------------------------------------------ positions

    def returned(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions after the returned records.  Leaves out deleted topics, even if a new topic has the same name."""
        state = self._journal.state
        return {
            tp: OffsetAndMetadata(at.position)
            for tp, at in self.positions.items()
            if at.position is not None and _is_live(state, tp, at.key)
        }

    def follow_restore(self, state: State, before: Lineage) -> dict[TopicPartition, tuple[int, CommonEnd]]:
        """Set positions back to where the records end that the log has in common with the one before.

        Returns the former position of each partition that was beyond.
        """
        known = {tp: (at.key, at.position) for tp, at in self.positions.items() if at.position is not None}
        found = beyond(state, before, known)
        for tp, (_, end) in found.items():
            at = self.positions[tp]
            at.position, at.cursor = end.offset, None
            self._former[tp] = "", tp.partition  # of no topic
        self._on_removed()
        self.positions.discard_all()
        return found

    def entries(self, state: State, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> tuple[OffsetEntry, ...]:
        """Positions in the topics that the consumer has read, which may be deleted, and created again, by now."""
        read = {tp: key for tp, at in offsets.items() if (key := self._read(tp, at.offset)) is not None}
        for tp, key in read.items():
            if not _is_live(state, tp, key):
                logger.warning(
                    "position %d of %s-%d was not committed: this consumer read it before the topic was deleted or "
                    "the log was restored; to commit an offset of the present topic, seek() to it first",
                    offsets[tp].offset,
                    *tp,
                )
        return group_entries(state, offsets, read)

    def _read(self, tp: TopicPartition, offset: int) -> TopicKey | None:
        """The partition in which the consumer was at an offset; None if it has never read one of this name.

        After its topic was created again, offsets beyond the position are those of the former one.
        """
        at, former = self.positions.get(tp), self._former.get(tp)
        if at is None or (former is not None and (at.position or 0) < offset):
            return former
        return at.key

    def _remove(self, gone: Iterable[TopicPartition]) -> None:
        gone = tuple(gone)
        self._former |= {tp: self.positions[tp].key for tp in gone if self.positions[tp].position is not None}
        self.positions.remove(gone)

    def auto_commit(self, force: bool = False) -> None:
        """Commit the positions of returned records, if the interval has passed."""
        if (
            self._auto_commit.is_due(force)
            and (error := self._auto_commit.commit(self.entries(self._journal.state, self.returned()))) is not None
        ):
            if self._membership is not None and self._membership.lost_by_restore(self._journal.state):
                logger.warning("positions were not committed: %s", error)
            else:
                self.lose(error)


def _is_live(state: State, tp: TopicPartition, key: TopicKey) -> bool:
    return state.names.get(tp.topic) == key[0]
