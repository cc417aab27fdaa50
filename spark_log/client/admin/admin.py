"""`log.admin`: the operations of Kafka's Admin client, with and without a coordinator.

A mapping as an argument gives a result with the same keys.  An operation on several things is atomic: it changes all of
them or none, in one record of the metadata log, except that `erase_records` rewrites objects and `elect_leaders`
chooses each leader separately.  A method returns when the operation is done, and raises an error if it fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from spark_log.client.admin import broker_views, brokers
from spark_log.client.admin.broker_views import LogDir, describe_brokers
from spark_log.client.admin.descriptions import (
    ClusterDescription,
    ConfigEntry,
    GroupListing,
    ProducerDescription,
    TopicDescription,
    config_entries,
    describe_quorum,
    describe_topic,
    producers_of,
)
from spark_log.client.admin.erasure import ErasureReport, Progress, erase_records
from spark_log.client.admin.erasure_nodes import quorum_to_erase
from spark_log.client.admin.erasure_status import ErasureListing, open_erasures
from spark_log.client.admin.group_listing import GroupDescription, describe_groups
from spark_log.client.admin.keyless import keyless_warnings
from spark_log.client.admin.shared_members import remove_shared_members
from spark_log.client.admin.transactional_ids import (
    TransactionDescription,
    TransactionListing,
    describe_transactions,
    list_transactions,
)
from spark_log.client.arguments import refuses_odd_arguments
from spark_log.client.reader.positions_to_offsets import group_entries, offsets_for_times, partition_of, resolve
from spark_log.client.representations import HtmlDict, log_facts, one_line
from spark_log.client.topic_creation import create_command, new_topic_id, set_schema
from spark_log.client.validate import checked_id, new_topics, partition_count, partition_keys, several, times_ms
from spark_log.configs.settings import CLUSTER_CONFIGS, TOPIC_CONFIGS, validate_cluster_configs, validate_topic_configs
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import (
    TRANSACTIONAL,
    WHOLE,
    AbortTransaction,
    AddPartitions,
    DeleteTopic,
    InitProducer,
    ResetClock,
    SetConfigs,
    SeveralCommands,
    Single,
    Start,
    Trim,
    UpdateFeature,
)
from spark_log.metadata.groups.group_commands import UNFENCED, CommitOffsets, DeleteOffsets, RemoveMember, known_group
from spark_log.metadata.groups.shared_groups import members_in_force
from spark_log.metadata.lines import check_plan, plan_of
from spark_log.metadata.records import GroupCommit
from spark_log.metadata.replicas.reassignments import PartitionReassignment
from spark_log.metadata.restores import history_of
from spark_log.metadata.set_backs import lineage_of
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.metadata.topics.schemas import schemas_of
from spark_log.model import EARLIEST, LATEST, NewTopic, OffsetAndMetadata, TopicPartition
from spark_log.positions import At, Latest, parse_position
from spark_log.rpc.client import HttpLink
from spark_log.rpc.messages import QuorumInfo
from spark_log.schema.topic_schema import TopicSchema, as_schema
from spark_log.text import printable_lines


@refuses_odd_arguments()
class Admin:
    """Kafka's Admin operations on one log: topics, configs, offsets, groups, brokers, producers and transactions.

    A broker is not a server here but a place for replicas: a folder, or a prefix of a bucket, with an id.

    Each call changes either everything that it names or nothing, and returns when the operation is done.  Exceptions:
    if `erase_records` or `elect_leaders` fails, a part of its work may be done; `alter_partition_reassignments` and
    `replace_broker` return before the records are copied.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __repr__(self) -> str:
        return one_line(self, lambda: log_facts(self._journal))

    # ---------------------------------------------------------------------------------------------------------- topics

    def create_topics(self, topics: Iterable[NewTopic], validate_only: bool = False) -> dict[str, str]:
        """Create topics.  Returns their ids by name.

        Gives a UserWarning for configs that are accepted but have no effect.

        validate_only:  check the topics without creating them.  The returned ids are placeholders: the topics get other
                        ids when they are created.
        Raises TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidConfig, InvalidReplicationFactor,
        InvalidReplicaAssignment, InvalidSchema; InvalidRequest if a topic is named twice.
        """
        wanted = [(topic, new_topic_id(self._journal)) for topic in new_topics("create_topics", topics)]
        for topic, _ in wanted:
            self._warn(validate_topic_configs(topic.configs)[1])

        commands = {topic.name: create_command(topic, topic_id) for topic, topic_id in wanted}
        if len(commands) < len(wanted):
            raise InvalidRequest("create_topics: a topic is named twice")
        if validate_only:
            several = SeveralCommands(commands=tuple(commands.values()))
            replies = several(self._journal.refresh(), self._journal.context.clock.now_ms()).reply
            return dict(zip(commands, replies, strict=True))
        return self._carry_out(commands)

    def alter_schema(self, topic: str, schema: object) -> int:
        """Give a topic its first schema, or a new version of its schema.  Returns the version.

        Existing records do not change: values from before the first schema stay bytes.  A new version may add nullable
        columns, widen numbers, and make columns nullable.

        schema:  all columns, as an Arrow schema, DDL (`"id BIGINT NOT NULL, name STRING"`) or a Spark `StructType`.
        Raises InvalidSchema, IncompatibleSchema, UnknownTopicOrPartition.
        """
        return set_schema(self._journal, topic, as_schema(schema)).version

    def describe_schema(self, topic: str) -> list[TopicSchema]:
        """All versions of a topic's schema, oldest first; none if its values are bytes."""
        state = self._journal.refresh()
        return list(schemas_of(state, topic_named(state, topic)[0]))

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Delete topics.  Their names can be used again immediately.  The next maintenance removes their records."""
        names, state = several("delete_topics", topics), self._journal.refresh()
        self._propose({name: DeleteTopic(name=name, topic_id=topic_named(state, name)[0]) for name in names})

    def list_topics(self) -> list[str]:
        """Names of all topics, sorted."""
        return sorted(self._journal.refresh().names)

    def describe_topics(self, topics: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """Describe the given topics; all topics by default.  Raises UnknownTopicOrPartition."""
        state = self._journal.refresh()
        names = sorted(state.names) if topics is None else several("describe_topics", topics)
        return HtmlDict({name: describe_topic(self._journal, state, name) for name in names})

    def create_partitions(self, totals: Mapping[str, int]) -> None:
        """Increase the partition counts of topics to new totals."""
        state = self._journal.refresh()
        known = {name: topic_named(state, name)[1].partitions for name in totals}
        for name, total in totals.items():
            partition_count(name, total)
        self._propose({n: AddPartitions(name=n, total=total, known=known[n]) for n, total in totals.items()})

    # --------------------------------------------------------------------------------------------------------- configs

    def describe_configs(self, topics: Iterable[str | None]) -> dict[str | None, dict[str, ConfigEntry]]:
        """Effective configs of topics, and of the log under the key None."""
        state = self._journal.refresh()
        found: dict[str | None, dict[str, ConfigEntry]] = {}
        for name in several("describe_configs", topics):
            if name is None:
                found[name] = HtmlDict(config_entries(CLUSTER_CONFIGS, state.configs, "log"))
            else:
                entries = config_entries(TOPIC_CONFIGS, topic_named(state, name)[1].configs, "topic")
                found[name] = HtmlDict(entries)
        return found

    def incremental_alter_configs(self, changes: Mapping[str | None, Mapping[str, str | None]]) -> None:
        """Set configs of topics, by topic name, or of the log itself, under the key None.

        A value of None restores the default.  Gives a UserWarning for configs that are accepted but have no effect, and
        for a topic that becomes compacted while its newest records have no key.
        """
        commands = {}
        for name, values in changes.items():
            validate = validate_cluster_configs if name is None else validate_topic_configs
            given, notes = validate({key: value for key, value in values.items() if value is not None})
            self._warn(notes)
            commands[name] = SetConfigs(name=name, changes={**dict.fromkeys(values), **given})
        self._carry_out(commands)
        altered = [name for name, values in changes.items() if name is not None and values.get("cleanup.policy")]
        self._warn([note for name in altered for note in keyless_warnings(self._journal, name)])

    # --------------------------------------------------------------------------------------------------------- offsets

    def list_offsets(
        self, positions: Mapping[TopicPartition, int | str | datetime | timedelta]
    ) -> dict[TopicPartition, int]:
        """The offset of each position: EARLIEST, LATEST, a time in milliseconds, or any other position but an offset.

        A time later than the last record gives -1 if it is in milliseconds, as in Kafka, and the end offset otherwise
        ("now-10m", a datetime, a timedelta).
        """
        partition_keys("list_offsets", positions)
        self._journal.refresh()
        times = {tp: at for tp, at in positions.items() if isinstance(at, int) and at not in (EARLIEST, LATEST)}
        times_ms("list_offsets", times)
        others = {tp: parse_position(at) for tp, at in positions.items() if tp not in times}
        found = resolve(self._journal, others)
        found |= {tp: -1 if at is None else at for tp, at in offsets_for_times(self._journal, times).items()}
        return {tp: found[tp] for tp in positions}

    def delete_records(
        self, before: Mapping[TopicPartition, int | str | datetime | timedelta]
    ) -> dict[TopicPartition, int]:
        """Remove the records before an offset (-1: all records) or another position.  Returns the new starts."""
        partition_keys("delete_records", before)
        state = self._journal.refresh()
        parsed = {tp: parse_position(at) for tp, at in before.items()}
        resolved = resolve(self._journal, {tp: at for tp, at in parsed.items() if not isinstance(at, At | Latest)})
        keys = {tp: partition_of(state, tp)[0] for tp in parsed}
        starts = []
        for tp, at in parsed.items():
            offset = at.offset if isinstance(at, At) else WHOLE if isinstance(at, Latest) else resolved[tp]
            starts.append(Start(*keys[tp], offset))
        plan = plan_of(state)
        reply = self._journal.propose(Trim(starts=tuple(starts), history=plan))
        check_plan(self._journal.state, plan, "delete records")
        return {tp: reply[key] for tp, key in keys.items()}

    def erase_records(
        self,
        topic: str,
        keys: Iterable[bytes | str] | pa.Array,
        before: object = "latest",
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ErasureReport:
        """Remove all records with the given keys from a topic, tombstones included.  The topic need not be compacted.

        The calling process does the work: it reads the keys of the whole topic, and rewrites the objects that contain
        records to be erased.  Offsets do not change.  After the call has returned, reads do not see the records, also
        if they were planned before; maintenance deletes the old objects later.  If the call is interrupted, repeat it.

        topic:     its name; the id of a deleted topic that `list_erasures` has with an incomplete erasure.
        keys:      bytes or str (encoded as UTF-8), in a list or an Arrow array.
        before:    a position; records at or after it are kept.  Default: each partition's end when the call begins.
        dry_run:   count the records, and change nothing.
        progress:  called with (name of the step, amount done, total).
        Raises UnknownTopicOrPartition; InvalidRequest if `keys` is empty or contains a null; OffsetOutOfRange if
        `before` is an offset outside a partition; ConcurrentChange if other processes keep rewriting the same records;
        RequestTimedOut if, after a minute, records written earlier with acks=0 or 1 are not on all in-sync replicas.
        """
        return erase_records(self._journal, topic, keys, before, dry_run=dry_run, progress=progress)

    # ---------------------------------------------------------------------------------------------------------- groups

    def list_consumer_groups(self) -> list[GroupListing]:
        """All groups, by name."""
        found = describe_groups(self._journal)
        return [GroupListing(name, group.state) for name, group in found.items()]

    def describe_consumer_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        """The state, generation and members of groups.  With a coordinator, also the partitions of each member.

        An unknown group has the state Dead.
        """
        return HtmlDict(describe_groups(self._journal, several("describe_consumer_groups", groups)))

    def list_consumer_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group.  Raises GroupIdNotFound."""
        state = self._journal.refresh()
        known = known_group(state, group)
        wanted = None if partitions is None else set(partitions)
        found = {
            TopicPartition(state.topics[topic_id].name, number): OffsetAndMetadata(at.offset, at.metadata)
            for (topic_id, number), at in known.offsets.items()
        }
        return HtmlDict({tp: at for tp, at in sorted(found.items()) if wanted is None or tp in wanted})

    def alter_consumer_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | str | datetime | timedelta | OffsetAndMetadata]
    ) -> None:
        """Commit offsets for a group.

        A consumer that is running without a coordinator may overwrite them.

        offsets:  by partition, an offset, a position such as "now-10m" or a datetime, or an `OffsetAndMetadata`.
        Raises GroupInUse if the group has members that joined through a coordinator, or if a Spark stream (with the
        option `group.id`) publishes its progress to the group.
        """
        partition_keys("alter_consumer_group_offsets", offsets)
        state = self._journal.refresh()
        noted = {tp: at for tp, at in offsets.items() if isinstance(at, OffsetAndMetadata)}
        parsed = {tp: parse_position(at) for tp, at in offsets.items() if tp not in noted}
        found = resolve(self._journal, parsed)
        entries = group_entries(state, {**noted, **{tp: OffsetAndMetadata(at) for tp, at in found.items()}})
        plan, commit = plan_of(state), GroupCommit(group, UNFENCED, entries)
        self._journal.propose(
            CommitOffsets(commit=commit, history=history_of(state)), set_back=lineage_of(state).set_back
        )
        check_plan(self._journal.state, plan, f"alter offsets of group {group}")

    def delete_consumer_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete the committed offsets of a group in some partitions.

        Raises GroupIdNotFound; GroupInUse if a Spark stream publishes its progress to the group, or if a member that
        joined through a coordinator reads one of the topics.
        """
        state = self._journal.refresh()
        known_group(state, group)
        keys = tuple(partition_of(state, tp)[0] for tp in partitions)
        if keys:
            self._journal.propose(DeleteOffsets(group=group, partitions=keys, known=True))

    def delete_consumer_groups(self, groups: Iterable[str]) -> None:
        """Delete groups.

        Raises GroupIdNotFound; GroupInUse if a Spark stream publishes its progress to one of the groups, or if one of
        them has members that joined through a coordinator.
        """
        names, state = several("delete_consumer_groups", groups), self._journal.refresh()
        for name in names:
            known_group(state, name)
        self._propose({name: DeleteOffsets(group=name, known=True) for name in names})

    def remove_members_from_consumer_group(self, group: str) -> None:
        """Remove the members of a group.  Members that joined through a coordinator may rejoin.

        The next commit of a stream, or of a consumer without a coordinator, fails.  Raises GroupIdNotFound.
        """
        state = self._journal.refresh()
        if members_in_force(state, group) and isinstance(self._journal.link, HttpLink):
            remove_shared_members(self._journal, self._journal.link, group)
        else:
            self._carry_out({group: RemoveMember(group=group, member=known_group(state, group).member)})

    # ----------------------------------------------------------------------------------------------- cluster, producers

    def describe_cluster(self) -> ClusterDescription:
        """Id, mode and address of this log, and its brokers."""
        state = self._journal.refresh()
        address = state.coordinator.address
        mode = "coordinator" if address else "embedded"
        url = self._journal.metadata.url
        described = tuple(describe_brokers(state, url))
        return ClusterDescription(self._journal.cluster_id, url, state.version, mode, address, brokers=described)

    def describe_metadata_quorum(self) -> QuorumInfo:
        """The nodes that keep the metadata of this log, as their leader knows them.

        Raises InvalidRequest for a log whose metadata is not in a quorum, CoordinatorNotAvailable if no node leads.
        """
        return describe_quorum(self._journal)

    # --------------------------------------------------------------------------------------------------------- brokers

    def add_broker(
        self,
        broker: int,
        root: str,
        rack: str = "",
        storage_options: Mapping[str, Any] | None = None,
        is_async: bool = False,
        keep_ms: int = 0,
    ) -> None:
        """Register a broker: an empty folder or prefix in which topics can have replicas.

        All clients must reach it under the same URL, `root`.

        rack:             the rack, zone or region of the root.  Replicas of a partition are placed on different racks
                          if possible.
        storage_options:  fsspec options of the root.  They are stored in the log, where every client can read them.
                          Leave secrets out, and give them to each client as storage options `<broker>.<option>`.
        is_async:         no write waits for the broker; its copies are made later.
        keep_ms:          only for an asynchronous broker, such as a fast disk beside the readers: it keeps only the
                          objects that were written within this time.  0: all objects.
        Gives a UserWarning if the root is on the same disk as another root of the log.
        Raises InvalidRequest if the root cannot be used for the broker; StorageError if it cannot be written.
        """
        brokers.add_broker(self._journal, broker, root, rack, storage_options, is_async, keep_ms)

    def alter_broker(self, broker: int, *, rack: str | None = None, drained: bool | None = None) -> bool:
        """Change a broker's rack, or whether it gets replicas.  Returns False if nothing changes.

        Existing replicas stay where they are.

        broker:   may be broker 0, but only its rack can be changed.
        rack:     the new rack; "": no rack; None: unchanged.
        drained:  if True, new topics and automatic plans give it no replicas; a manual assignment still may.  None:
                  unchanged.
        Raises BrokerNotAvailable for an unknown broker; InvalidRequest if broker 0 is to be drained.
        """
        return brokers.alter_broker(self._journal, broker, rack, drained)

    def replace_broker(
        self,
        broker: int,
        root: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        lose_data: bool = False,
    ) -> None:
        """Give a broker an empty root, after its disk was lost.

        A process that replicates (`pylog replicate`, `pylog maintain` or a coordinator) then copies to the root the
        objects that it should have.

        root:       the new URL; None: the URL stays the same, and the root there was emptied.
        lose_data:  replace the root even if it has the only copies of some records.  These records are lost.
        Raises the errors of `add_broker`; BrokerNotAvailable for an unknown broker.
        """
        brokers.replace_broker(self._journal, broker, root, storage_options, lose_data=lose_data)

    def remove_broker(self, broker: int, *, force: bool = False) -> None:
        """Remove a broker that has no replicas.

        force:  remove it even if partitions were moved off it only recently.  Writes that began before the move may
                still put records there: these writes fail, and must be run again.
        Raises InvalidRequest if the broker has replicas; BrokerNotAvailable for an unknown broker.
        """
        brokers.remove_broker(self._journal, broker, force=force)

    def forget_root(self, directory: str) -> None:
        """Record that the files of a root that a broker had before are deleted.  Raises InvalidRequest for another."""
        brokers.forget_root(self._journal, directory)

    def list_erasures(self) -> list[ErasureListing]:
        """The erasures that are not done: roots may still have copies of their records."""
        state = self._journal.refresh()
        quorum = quorum_to_erase(self._journal, state)
        return open_erasures(state, quorum, served=self._journal.metadata_log.is_served)

    def fence_broker(self, broker: int, reason: str = "") -> bool:
        """Take a broker out of all ISRs, until it is unfenced.  False if it is already fenced manually.

        Raises BrokerNotAvailable.
        """
        return brokers.fence_broker(self._journal, broker, reason)

    def unfence_broker(self, broker: int, *, deep: bool = False) -> bool:
        """Return a fenced broker to service, with the copies that its root has now.

        Returns False if it was not fenced.

        deep:  compare the sizes of the copies, too.
        Raises BrokerNotAvailable; StorageError if the root is not the broker's, or cannot be read.
        """
        return brokers.return_broker(self._journal, broker, deep=deep)

    def describe_log_dirs(self) -> dict[int, LogDir]:
        """The bytes that each broker has and lacks, and its partitions, by broker id."""
        return HtmlDict(broker_views.describe_log_dirs(self._journal.refresh(), self._journal.metadata.url))

    def elect_leaders(
        self, election: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Elect leaders of partitions.  Returns, by partition, the new leader (a broker id) where it has changed.

        All partitions with the same list of replicas share one leader.  So partitions that you did not name may get a
        new leader, too; they are not in the result.

        election:    "preferred": the first replica of each partition, if it is in sync.  "unclean": for partitions
                     without a leader, the replica that lacks the fewest bytes among replicas whose broker is not
                     fenced.  Acknowledged records that exist only on fenced brokers cannot be read until one of these
                     brokers is back.
        partitions:  None: all.
        Raises InvalidRequest, UnknownTopicOrPartition.
        """
        return broker_views.elect_leaders(self._journal, election, partitions)

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Iterable[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        replace: bool = True,
    ) -> None:
        """Give partitions new lists of replicas, or cancel such a change.  Returns before records are moved.

        New records are written to the new replicas immediately.  `pylog maintain`, `pylog replicate` or a coordinator
        moves the older records.  A new list for a partition that is still being moved replaces the earlier list, as in
        Kafka.

        reassignments:  by partition, broker ids, the preferred leader first; None: go back to the replicas that the
            partition had before the move.
        allow_replication_factor_change:  if False, reject a list with another number of replicas.
        replace:  if False, reject a new list for a partition that is being moved.
        Raises UnknownTopicOrPartition, InvalidReplicaAssignment, InvalidReplicationFactor, ReassignmentInProgress;
        NoReassignmentInProgress if there is nothing to cancel; InvalidRequest for fewer replicas than
        `min.insync.replicas`.
        """
        broker_views.alter_reassignments(
            self._journal,
            reassignments,
            keeps_factor=not allow_replication_factor_change,
            keeps_moves=not replace,
        )

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The partitions whose records are being moved to other replicas.  Raises UnknownTopicOrPartition.

        partitions:  None: all.
        """
        return broker_views.list_reassignments(self._journal.refresh(), partitions)

    def reset_clock(self, *, force: bool = False) -> int:
        """Set the log's time back to the present, after a clock that was ahead has advanced it.

        Returns the difference in milliseconds; 0 if the time was right.

        force:  reset it even if more than one commit has a time in the future.
        Raises ClockSkewed if there is more than one and `force` is False, or if this process's clock differs too much
        from the storage's clock.
        """
        before = self._journal.refresh().time
        found: int = self._journal.propose(ResetClock(force=force))
        return found or max(0, before - self._journal.state.time)  # 0 if it was sent again, as its answer was lost

    def update_features(self, levels: Mapping[str, int]) -> dict[str, int]:
        """Raise features of the log to new levels, such as `{"metadata.version": 1}`.  Returns the previous levels.

        A pylog that does not support a new level cannot open the log any more, and a level can never be lowered.  A new
        log begins at the highest levels of the pylog that creates it.
        Raises InvalidRequest for an unknown feature, for a level below the current one, and for a level that this pylog
        does not support.
        """
        before = self._journal.refresh().levels  # a command that is sent again finds the new ones
        self._propose({name: UpdateFeature(name=name, level=level) for name, level in levels.items()})
        return {name: before[name] for name in levels}

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """Active producers of each partition: those whose last commit wrote to it.

        A producer without a name (no transactional id, query or application) is listed for 15 minutes at least.
        """
        state = self._journal.refresh()
        return {tp: list(producers_of(state, partition_of(state, tp)[0])) for tp in partitions}

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, int]:
        """Take over transactional ids and return the new epochs.  The current owners can no longer commit."""
        ids = [checked_id("fence_producers", one) for one in several("fence_producers", transactional_ids)]
        return self._carry_out({name: InitProducer(producer=TRANSACTIONAL + name) for name in ids})

    def list_transactions(self) -> list[TransactionListing]:
        """All transactional ids in the log."""
        return list_transactions(self._journal.refresh(), self._journal.context.clock.now_ms())

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """The newest transaction of each id, with the offsets it committed.  Raises InvalidRequest for an unknown
        id."""
        ids = [checked_id("describe_transactions", one) for one in several("describe_transactions", transactional_ids)]
        return describe_transactions(self._journal.refresh(), ids, self._journal.context.clock.now_ms())

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort a hanging transaction.  Its process can no longer commit.

        Raises InvalidRequest for an unknown id, InvalidTxnState if the transaction has committed.
        """
        producer = TRANSACTIONAL + checked_id("abort_transaction", transactional_id)
        state = self._journal.refresh()
        known = state.producers.get(producer)
        epoch = None if known is None else known.epoch  # a newer one is kept, if this is sent again
        plan = plan_of(state)
        self._propose({transactional_id: AbortTransaction(producer=producer, epoch=epoch, history=plan)})
        check_plan(self._journal.state, plan, f"abort transaction {transactional_id}")

    # ---------------------------------------------------------------------------------------------------------- common

    def _carry_out(self, commands: Mapping[Any, Single]) -> dict[Any, Any]:
        self._journal.refresh()  # a rejection is final, so it must not be based on an outdated state
        return self._propose(commands)

    def _propose(self, commands: Mapping[Any, Single]) -> dict[Any, Any]:
        if not commands:
            return {}
        replies = self._journal.propose(SeveralCommands(commands=tuple(commands.values())))
        return dict(zip(commands, replies, strict=True))

    def _warn(self, notes: Sequence[str]) -> None:
        for note in notes:
            warnings.warn(printable_lines(note), stacklevel=4)
