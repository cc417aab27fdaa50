"""Copies topics of another system into a log, once and in order, with the positions of consumer groups.

A mirror has a query for each topic, which copies what is there when a run begins.  The sink writes a micro-batch once,
records and map of offsets in one commit.  If Spark or a new checkpoint repeats it, the map shows where to continue.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_pylog.jobs.typed_mirror import TypedCopy, spark_columns_of, with_typed_map
from spark_log.bounds import UNREADABLE
from spark_log.client.log import Log
from spark_log.client.mirror_map import Copied, MirroredTopic, MirrorMap, with_map
from spark_log.client.topic_creation import DEAD_LETTER_CONFIGS
from spark_log.configs.settings import TOPIC_CONFIGS, has_cleanup_policy, validate_topic_configs
from spark_log.configs.topic_names import file_part
from spark_log.errors import GroupIdNotFound, GroupInUse, InvalidConfig, InvalidRequest, SparkLogError
from spark_log.metadata.restores import history_of
from spark_log.model import NewTopic, OffsetAndMetadata, TopicPartition
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store
from spark_log.text import counted

RECORD = "topic string, partition int, key binary, value binary, timestamp timestamp, headers array<struct<key: string, value: binary>>"
COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "headers")
OWN_TIME = "message.timestamp.type"
MIN_INSYNC = "min.insync.replicas"
"""Not copied: the copy keeps the timestamps of the records, and has other replicas."""

Positions = Mapping[str, Mapping[TopicPartition, int]]
"""Committed positions of groups, as offsets of the source."""


class SourceTopic(NamedTuple):
    """A topic in the source."""

    id: str
    partitions: int
    configs: Mapping[str, str]
    """The configs that differ from the source's defaults."""
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    """At the beginning of the run, which copies up to here."""
    schema: object = None
    """The schema that the copy is to have; None: values are bytes, or the copy has a schema already."""
    history: str = ""
    """The history of the source, another one after it was restored from a copy."""
    same_until: Callable[[str, int], int | None] = lambda history, partition: None
    """The offset up to which a partition has the records that it had in a history; None: all of them."""
    check_schema: Callable[[], None] | None = None
    """In a task: raises an error if the schema is another one by now; None: it is that of the user."""

    def end(self, tp: TopicPartition) -> int:
        """0 for a new partition: all of it is to be copied."""
        return self.ends[tp.partition] if 0 <= tp.partition < self.partitions else 0


class MirrorSource(Protocol):
    """From where topics are copied."""

    @property
    def name(self) -> str:
        """In messages."""

    @property
    def note(self) -> str:
        """The metadata of positions that a mirror has set begins with this.  It leaves others alone."""

    def topics(self) -> dict[str, SourceTopic]:
        """The topics to copy, as they are now.  Raises InvalidRequest for one that is missing."""

    def positions(self) -> Positions:
        """The positions of the groups to copy, in any topics."""

    def records(self, topic: str, starts: Mapping[str, int]) -> DataFrame:
        """A stream of a topic with `COLUMNS`.

        starts:  where it begins, by the number of each partition; -2: at the first record.
        """


class MirrorSettings(NamedTuple):
    """How a mirror copies."""

    url: str
    """The URL of the log."""
    storage: Mapping[str, str]
    checkpoint: str
    map: str
    """The topic for the map of offsets."""
    parallel: int
    """Topics that are copied at a time."""
    bad_records: str = ""
    """The topic for records that do not fit the schema of theirs; empty: they stop the run."""
    drop_fields: bool = False
    token: str | None = None
    """For the coordinator of the log."""


class TopicMirror:
    """Copies from a source to a log, in runs."""

    def __init__(
        self,
        spark: SparkSession,
        log: Log,
        source: MirrorSource,
        settings: MirrorSettings,
        tell: Callable[[str], None],
    ) -> None:
        self._spark, self._log, self._source, self._settings, self._tell = spark, log, source, settings, tell
        self._map = MirrorMap(log, settings.map)

    def run(self) -> tuple[dict[str, int], bool]:
        """Copy all records that are in the source when the run begins, and the groups.

        Returns the number of copied records of each topic, and whether every group could be copied.
        """
        groups = self._source.positions()  # before the ends: a group that moves meanwhile would be beyond them
        before = self._map.copied()  # also before the ends, which it must not be beyond
        self._check_reached()
        topics, log = self._source.topics(), self._log
        check_sources(topics, before, self._source.name)
        check_names(self._settings, topics)
        check_dead_letters(log, self._settings.bad_records)
        prepare(log, topics, self._tell)
        create_dead_letters(log, self._settings.bad_records)
        self._map.create()
        copied = self._map.check(topics)
        self._copy({name: one for name, one in topics.items() if left(name, one, copied)}, copied)
        after, records = self._map.check(topics), dict[str, int]()
        for name in topics:
            records[name] = records_of(name, after) - records_of(name, copied)
            self._tell(f"{name}: {counted(records[name], 'record')} copied, {records_of(name, after):,} in all")
        note_reached(self._settings, self._log_id, Reached(*self._map.end))
        return records, seed_groups(log, self._map, self._source, topics, groups, self._tell)

    @property
    def _log_id(self) -> str:
        """The log and its history.  After a restore, the map says where to continue, and a checkpoint may be ahead."""
        return "-".join(filter(None, (self._log.cluster_id, history_of(self._log.journal.state))))

    def _check_reached(self) -> None:
        """Raises InvalidRequest if the map ends before the end that a run has noted: then the queries' checkpoints are
        ahead of the log, and would leave out the records between them."""
        noted = read_reached(self._settings, self._log_id)
        topic_id, end = self._map.end
        if noted is not None and noted.map_id == topic_id and end < noted.end:
            raise InvalidRequest(
                f"the map {self._map.name!r} ends at offset {end}, and a run has copied up to {noted.end}: the log at "
                f"{self._settings.url} was set back to an older copy of itself. Delete the folder "
                f"{self._settings.checkpoint} and run this again: it continues where the map ends, and nothing is lost "
                "or copied twice"
            )

    def _copy(self, topics: Mapping[str, SourceTopic], copied: Mapping[TopicPartition, Copied]) -> None:
        """Copy topics, some at a time.  If one fails, the others are stopped, and the next run continues them all."""
        running: deque[StreamingQuery] = deque()
        try:
            for name, one in topics.items():
                if len(running) == self._settings.parallel:
                    running[0].awaitTermination()
                    running.popleft()
                running.append(self._start(name, one, copied))
            for query in running:
                query.awaitTermination()
        finally:
            for query in running:
                query.stop()

    def _start(self, topic: str, source: SourceTopic, copied: Mapping[TopicPartition, Copied]) -> StreamingQuery:
        """The query that copies a topic up to its current end.  The producer's name fences other copiers of it.

        A log that was restored has another checkpoint: the former one may be ahead of it.
        """
        settings, log_id, known = self._settings, self._log_id, self._log.admin.describe_topics([topic])[topic]
        starts = {str(n): reached(copied, topic, n) or -2 for n in range(source.partitions)}
        token = {} if settings.token is None else {"token": settings.token}
        copy = MirroredTopic(
            topic,
            known.topic_id,
            source.id,
            settings.map,
            has_cleanup_policy(known.configs, "compact"),
            source.history,
        )
        folder = f"{file_part(topic)}-{known.topic_id}-{log_id}"
        return (
            self._rows(copy, source, self._source.records(topic, starts).select(*COLUMNS))
            .options(**token, **{f"storage.{name}": value for name, value in settings.storage.items()})
            .option("producerId", f"{settings.map}/{topic}")
            .option("checkpointLocation", f"{settings.checkpoint.rstrip('/')}/{folder}")
            .queryName(f"mirror of {topic}")
            .trigger(availableNow=True)
            .start(settings.url)
        )

    def _rows(self, copy: MirroredTopic, source: SourceTopic, records: DataFrame) -> DataStreamWriter:
        """The write of records with their map entries: as they are, or parsed if the topic has a schema."""
        schemas = self._log.admin.describe_schema(copy.topic)
        if not schemas:
            return records.mapInArrow(partial(with_map, copy), RECORD).writeStream.format("pylog")
        letters, drop_fields = self._settings.bad_records, self._settings.drop_fields
        typed = TypedCopy(copy, schemas[-1], letters, drop_fields, self._source.name, source.check_schema)
        rows = records.mapInArrow(partial(with_typed_map, typed), spark_columns_of(typed.schema))
        return rows.writeStream.format("pylog").option("topic", copy.topic).option("pylog.beside", True)


class Reached(msgspec.Struct, frozen=True):
    """The end of the map after a run, kept beside the checkpoints: no later run may find it at an earlier one."""

    map_id: str
    """The id of its topic."""
    end: int


def read_reached(settings: MirrorSettings, log_id: str) -> Reached | None:
    """None if no run has noted it, or the folder of the checkpoints cannot be read here."""
    try:
        return msgspec.json.decode(_checkpoints(settings).get(_reached_name(settings, log_id)), type=Reached)
    except (SparkLogError, OSError, ImportError, *UNREADABLE):
        return None


def note_reached(settings: MirrorSettings, log_id: str, reached: Reached) -> None:
    """Without effect if the folder of the checkpoints is of a kind that only Spark can write, such as HDFS."""
    with suppress(SparkLogError, OSError, ImportError):
        _checkpoints(settings).put(_reached_name(settings, log_id), [msgspec.json.encode(reached)])


def _reached_name(settings: MirrorSettings, log_id: str) -> str:
    return f"reached-{file_part(settings.map)}-{log_id}.json"


def _checkpoints(settings: MirrorSettings) -> ObjectStore:
    is_remote = ":" in settings.checkpoint and not settings.checkpoint.startswith("file:")
    return open_store(settings.checkpoint, settings.storage if is_remote else {})


# -------------------------------------------------------------------------------------------------------------- topics


def left(topic: str, source: SourceTopic, copied: Mapping[TopicPartition, Copied]) -> int:
    """Offsets between the copied part and the end; not all of them need be records."""
    ends = enumerate(source.ends)
    return sum(max(end - max(reached(copied, topic, n), source.starts[n]), 0) for n, end in ends)


def reached(copied: Mapping[TopicPartition, Copied], topic: str, partition: int) -> int:
    """The offset in the source up to which a partition was copied."""
    known = copied.get(TopicPartition(topic, partition))
    return known.end if known else 0


def records_of(topic: str, copied: Mapping[TopicPartition, Copied]) -> int:
    """The number of copied records of a topic."""
    return sum(one.records for tp, one in copied.items() if tp.topic == topic)


def check_names(settings: MirrorSettings, topics: Iterable[str]) -> None:
    """Raises InvalidRequest for a topic of the mirror that is one of those to copy."""
    for option, topic in (("--map", settings.map), ("--bad-records", settings.bad_records)):
        if topic in topics:
            raise InvalidRequest(f"{option}: {topic!r} is one of the topics to copy; give another name")
    if settings.bad_records == settings.map:
        raise InvalidRequest(f"--bad-records: {settings.map!r} is the topic of --map; give another name")


def check_sources(topics: Mapping[str, SourceTopic], copied: Mapping[TopicPartition, Copied], where: str) -> None:
    """Raises InvalidRequest for a topic that is not the one that was copied, or ends before the copied records.

    A source that was restored from an older copy gives the same offsets to other records.
    """
    for tp, one in copied.items():
        if tp.topic not in topics:
            continue
        here = (
            f"delete {tp.topic!r} in the copy (`pylog topic delete {tp.topic}`), so that it is copied again from its start, "
            "or leave it out"
        )
        if topics[tp.topic].id != one.source:
            raise InvalidRequest(
                f"topic {tp.topic!r} was deleted and created again in {where} since it was copied, or {where} was restored "
                f"from a backup: {here}"
            )
        same = topics[tp.topic].same_until(one.history, tp.partition)
        if same is not None and same < one.end:
            raise InvalidRequest(
                f"{tp.topic}-{tp.partition} was copied up to {one.end}, and {where} was restored from a copy that ended at "
                f"{same}: other records have these offsets now: {here}"
            )
        if topics[tp.topic].end(tp) < one.end:
            raise InvalidRequest(
                f"{tp.topic}-{tp.partition} ends at {topics[tp.topic].end(tp)} in {where}, and was copied up to {one.end}: "
                f"{where} is an older copy, or has lost records: {here}"
            )


def prepare(log: Log, topics: Mapping[str, SourceTopic], tell: Callable[[str], None]) -> None:
    """Create missing topics, and partitions that were added in the source, and set schemas."""
    known = log.admin.list_topics()
    for name, source in topics.items():
        if name not in known:
            configs, notes = carried(source.configs)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                log.admin.create_topics([NewTopic(name, source.partitions, configs)])
            for note in (*notes, *(str(one.message) for one in said)):
                tell(f"{name}: {note}")
        elif len(log.admin.describe_topics([name])[name].partitions) < source.partitions:
            log.admin.create_partitions({name: source.partitions})
        if source.schema is not None:
            log.admin.alter_schema(name, source.schema)


def check_dead_letters(log: Log, topic: str) -> None:
    """Raises InvalidRequest if the topic for records that do not fit exists, and has a schema or is compacted.

    topic:  empty if no topic is given.
    """
    if topic not in log.admin.list_topics():
        return
    if log.admin.describe_schema(topic):
        raise InvalidRequest(
            f"--bad-records: topic {topic!r} has a schema, and bad records are bytes: name another one"
        )
    if has_cleanup_policy(log.admin.describe_topics([topic])[topic].configs, "compact"):
        raise InvalidRequest(
            f"--bad-records: topic {topic!r} is compacted, so it refuses bad records without a key, and keeps only the last "
            f"one of each key: name another topic, or run `pylog topic alter {topic} -c cleanup.policy=delete`"
        )


def create_dead_letters(log: Log, topic: str) -> None:
    """Create the topic for records that do not fit, if one is given and does not exist."""
    if topic and topic not in log.admin.list_topics():
        log.admin.create_topics([NewTopic(topic, configs=DEAD_LETTER_CONFIGS)])


def carried(configs: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The source's configs that mean the same here, and messages about the others."""
    taken: dict[str, str] = {}
    notes: list[str] = []
    for name, value in sorted(configs.items()):
        if name == OWN_TIME:
            notes.append(
                f"{name}={value} is left out: the copy keeps the records' timestamps; set it after the cut-over"
            )
        elif name == MIN_INSYNC:
            if value != "1":
                notes.append(f"{name}={value} is left out: the copy has other replicas; set it after the cut-over")
        elif name in TOPIC_CONFIGS:
            try:
                validate_topic_configs({name: value})
                taken[name] = value
            except InvalidConfig as error:
                notes.append(f"{name}={value} is left out: {error}")
        else:
            notes.append(f"{name}={value} is left out: unknown config")
    return taken, notes


# -------------------------------------------------------------------------------------------------------------- groups


def seed_groups(
    log: Log,
    offsets: MirrorMap,
    source: MirrorSource,
    topics: Mapping[str, SourceTopic],
    groups: Positions,
    tell: Callable[[str], None],
) -> bool:
    """Set groups here to the records of their positions in the source; whether all could be set."""
    wanted = {(group, tp): at for group, known in groups.items() for tp, at in known.items() if tp.topic in topics}
    beyond = {key: at for key, at in wanted.items() if at > topics[key[1].topic].end(key[1])}
    found = offsets.translate((tp, at) for (group, tp), at in wanted.items() if (group, tp) not in beyond)
    done = not beyond
    for group in groups:
        mine = positions_here(log, group)
        new = {
            tp: OffsetAndMetadata(found[tp, at], f"{source.note}{at}")
            for (one, tp), at in wanted.items()
            if one == group and (tp, at) in found
        }
        theirs = sorted(tp for tp in new if tp in mine and not mine[tp].metadata.startswith(source.note))
        changed = {tp: at for tp, at in new.items() if tp not in theirs and mine.get(tp) != at}
        try:
            if changed:
                log.admin.alter_consumer_group_offsets(group, changed)
        except GroupInUse as error:
            tell(f"group {group}: its positions are not set: {error}")
            done = False
            continue
        tell(f"group {group}: {len(new) - len(theirs)} positions, {len(changed)} of them new")
        for tp in theirs:
            tell(
                f"group {group}: {tp.topic}-{tp.partition} is left at {mine[tp].offset}, which a consumer here "
                "committed"
            )
    for (group, tp), at in beyond.items():
        tell(
            f"group {group}: {tp.topic}-{tp.partition} is at {at} in {source.name}, beyond what was copied; run this "
            "once more"
        )
    return done


def positions_here(log: Log, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """The positions of a group in the log; none if it is unknown."""
    try:
        return log.admin.list_consumer_group_offsets(group)
    except GroupIdNotFound:
        return {}


# ------------------------------------------------------------------------------------------------------------ a dry run


def plan(source: MirrorSource, copied: Mapping[TopicPartition, Copied], tell: Callable[[str], None]) -> dict[str, int]:
    """Say what a run would do.  Returns the number of offsets to copy of each topic."""
    topics, offsets = source.topics(), dict[str, int]()
    check_sources(topics, copied, source.name)
    for name, one in topics.items():
        offsets[name] = left(name, one, copied)
        tell(
            f"{name}: {counted(one.partitions, 'partition')}, {counted(offsets[name], 'offset')} to copy, "
            f"{counted(records_of(name, copied), 'record')} copied before"
        )
        for note in carried(one.configs)[1]:
            tell(f"{name}: {note}")
    for group, known in source.positions().items():
        tell(f"group {group}: {sum(tp.topic in topics for tp in known)} positions")
    return offsets
