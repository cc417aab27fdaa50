"""Descriptions that `log.admin` returns: topics, configs, groups, producers and the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from spark_log.client.admin.broker_views import BrokerDescription, ReplicaDescription, describe_replicas
from spark_log.client.representations import described
from spark_log.configs.config_types import ConfigSpec, format_value
from spark_log.errors import InvalidRequest
from spark_log.journal.index_reads import read_known
from spark_log.journal.journal import Journal
from spark_log.metadata.commits.pending_commits import lost_ranges
from spark_log.metadata.maintenance.swaps import resolve
from spark_log.metadata.state import LostRange, Partition, State, TopicKey
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.rpc.client import HttpLink
from spark_log.rpc.messages import QuorumInfo, ReplicaState


@described
class PartitionDescription(NamedTuple):
    """A partition, its offsets and its size."""

    partition: int
    start: int
    high_watermark: int
    """Readers see the records before it."""
    end: int
    """The next record gets this offset.  Records from `high_watermark` on were written with acks=0 or 1, or after such
    ones, and are not on all in-sync replicas yet."""
    lost: tuple[tuple[int, int], ...]
    """Ranges of offsets whose records were lost before readers saw them; the second offset is not in it."""
    bytes: int
    """Size of the segments that hold its records."""
    objects: int
    """Number of files that hold its records."""
    leader: int
    """Broker id; -1: no in-sync replica is active, so nothing can be appended."""
    leader_epoch: int
    """Grows with each change of the leader."""
    replicas: tuple[int, ...]
    """Broker ids; the first is the preferred leader."""
    isr: tuple[int, ...]
    """Those that have all records."""
    under_replicated: bool
    """A replica that writers wait for is not in sync."""
    under_min_isr: bool
    """The ISR has fewer members than `min.insync.replicas`: writes are refused."""
    adding: tuple[int, ...]
    """While the partition moves: new replicas."""
    removing: tuple[int, ...]
    """While the partition moves: replicas that still have some of its records, and get no new ones."""

    @property
    def rows(self) -> int:
        return self.high_watermark - self.start

    @property
    def unavailable(self) -> bool:
        """Nothing can be appended: no replica leads."""
        return self.leader < 0


@described
class TopicDescription(NamedTuple):
    """A topic and its partitions."""

    name: str
    topic_id: str
    created_ms: int
    partitions: list[PartitionDescription]
    configs: dict[str, str]
    """The configs that were set on the topic, without defaults."""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.partitions)

    @property
    def objects(self) -> int:
        """The sum over the partitions.  A file with several partitions counts once for each."""
        return sum(part.objects for part in self.partitions)


@described
class TopicListing(NamedTuple):
    """A topic, as the log's metadata has it: nothing else is read for it."""

    partitions: int
    records: int
    """Records that can be read.  Offsets that compaction has left without a record are included."""
    created_ms: int
    configs: dict[str, str]
    """The configs that were set on the topic, without defaults."""


def list_topics(state: State) -> dict[str, TopicListing]:
    """All topics, by name, sorted."""
    found = {}
    for name, topic_id in sorted(state.names.items()):
        topic, parts = state.topics[topic_id], [part for _, part in state.topic_partitions(topic_id)]
        records = sum(part.readable_end - part.start for part in parts)
        found[name] = TopicListing(len(parts), records, topic.created_ms, dict(sorted(topic.configs.items())))
    return found


@described
class ConfigEntry(NamedTuple):
    """The effective value of a config."""

    value: str
    default: str
    source: str
    """Where the value comes from: "topic" or "log" if it was set there, else "default", which is pylog's."""
    in_force: bool
    """False: the value is stored and has no effect, or no effect yet."""
    doc: str

    @property
    def is_default(self) -> bool:
        """Whether it was not set."""
        return self.source == "default"


def config_entries(table: Mapping[str, ConfigSpec], configs: Mapping[str, str], owner: str) -> dict[str, ConfigEntry]:
    """All configs of a table, by name: those that are set, and the defaults of the others.

    owner:  `source` of those that are set.
    """
    found = {}
    for name, spec in table.items():
        default = format_value(spec.default)
        source = owner if name in configs else "default"
        value = configs.get(name, default)
        found[name] = ConfigEntry(value, default, source, spec.in_force, spec.doc)
    return found


@described
class GroupListing(NamedTuple):
    """A consumer group and its state."""

    group_id: str
    state: str
    """One of the states of GroupDescription."""


@described
class ProducerDescription(NamedTuple):
    """A producer that recently wrote to a partition."""

    producer_id: str
    producer_epoch: int
    last_sequence: int
    """Incremented with each commit."""
    last_timestamp: int
    """Time of its last commit, in milliseconds."""
    last_offset: int
    """Offset of its last record in the partition."""


@described
class ClusterDescription(NamedTuple):
    """A log, and the coordinator that writes it."""

    cluster_id: str
    url: str
    version: int
    """Version of the metadata log."""
    mode: str = "embedded"
    """"embedded" if clients write the log themselves, "coordinator" if a coordinator does."""
    coordinator: str = ""
    """Address of the coordinator; empty if there is none."""
    controller: int | None = None
    nodes: tuple[int, ...] = ()
    brokers: tuple[BrokerDescription, ...] = ()
    """The roots that have copies of objects; broker 0 is the log's own root."""


def describe_topic(journal: Journal, state: State, name: str) -> TopicDescription:
    """Describe a topic.  Raises UnknownTopicOrPartition."""
    topic_id, topic = topic_named(state, name)
    parts = [
        _partition(
            journal,
            number,
            part,
            lost_ranges(state, (topic_id, number)),
            describe_replicas(state, (topic_id, number)),
        )
        for number, part in state.topic_partitions(topic_id)
    ]
    return TopicDescription(name, topic_id, topic.created_ms, parts, dict(sorted(topic.configs.items())))


def _partition(
    journal: Journal, number: int, part: Partition, lost: Sequence[LostRange], replicas: ReplicaDescription
) -> PartitionDescription:
    """If a slice index cannot be read, `objects` does not count its files.  `bytes` is still exact."""
    found, unread = journal.run(read_known(part.entries))
    live = [piece for piece in resolve(part.entries, found) if piece.end > part.start]
    size = sum(piece.length for piece in live)
    objects = len({piece.object for piece in live} - {piece.object for piece in unread})
    ranges = tuple((one.start, one.end) for one in lost)
    return PartitionDescription(number, part.start, part.readable_end, part.end, ranges, size, objects, *replicas)


def producers_of(state: State, key: TopicKey) -> Iterable[ProducerDescription]:
    for name, known in sorted(state.producers.items()):
        span = known.last_commit.ranges.get(key) if known.last_commit else None
        if span is not None:
            yield ProducerDescription(name, known.epoch, known.last, known.time, span.stop - 1)


described(ReplicaState)
described(QuorumInfo)


def describe_quorum(journal: Journal) -> QuorumInfo:
    """Raises InvalidRequest for a log whose metadata is not in a quorum, CoordinatorNotAvailable if no node leads."""
    if not isinstance(journal.link, HttpLink) or not journal.metadata_log.is_served:
        raise InvalidRequest("the metadata of this log is on its storage, not in a quorum")
    found: QuorumInfo = journal.link.get(journal.state.coordinator, "/v1/quorum", QuorumInfo)
    return found
