"""The configs of topics and of the log: names, types, ranges, defaults and meaning, as data.  Pure.

`TOPIC_CONFIGS` has Kafka's topic configs under their names, `CLUSTER_CONFIGS` the settings of a whole log.  Configs are
stored as text, in one canonical spelling (`validate_*`), and read as typed values (`topic_config`, `cluster_config`).
`docs/topic_configs.py` makes the page `docs/topic-configs.md` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from spark_log.bounds import INT_MAX, LONG_MAX
from spark_log.configs.config_types import (
    Choice,
    ConfigKind,
    ConfigSpec,
    Effect,
    Flag,
    Fraction,
    FreeText,
    Names,
    Several,
    Value,
    Whole,
    format_value,
)
from spark_log.errors import InvalidConfig
from spark_log.text import texts_by_heading

THROTTLE = "follower.replication.throttled.rate"


# --------------------------------------------------------------------------------------------------------------- tables

_FLAG = Flag()
_TEXT = FreeText()


def _ms(minimum: int, maximum: int = LONG_MAX) -> Whole:
    return Whole(minimum, maximum, "milliseconds")


def _bytes(minimum: int, maximum: int = LONG_MAX) -> Whole:
    return Whole(minimum, maximum, "bytes")


def _without_effect(name: str, default: Value, kind: ConfigKind) -> ConfigSpec:
    return ConfigSpec(name, default, kind, effect=Effect.NONE)


def _refused(name: str, default: Value, kind: ConfigKind) -> ConfigSpec:
    return ConfigSpec(name, default, kind, effect=Effect.REFUSED)


def _table(docs: str, *specs: ConfigSpec) -> dict[str, ConfigSpec]:
    """Configs by name, with the doc of each from a text."""
    said = texts_by_heading(docs)
    return {spec.name: replace(spec, doc=said[spec.name]) for spec in specs}


TOPIC_CONFIGS: Mapping[str, ConfigSpec] = _table(
    """
cleanup.policy
    `delete`: retention removes old records. `compact`: compaction removes records that a newer record with the same
    key follows, and records need keys. Without both, all records are kept.
compression.lz4.level
    Level of lz4 in new segments, whether the topic or the writer chooses lz4. 1 and 2 are fast; 3 and above search
    longer; above 12 as 12. Kafka's default is 9.
compression.type
    Compression of new segments. `producer`: the writer chooses; its default is zstd. `uncompressed` is `none`.
compression.zstd.level
    Level of zstd in new segments, whether the topic or the writer chooses zstd. Below 0 it is faster and larger; 0
    is 3. Kafka's default is 3.
delete.retention.ms
    How long compaction keeps a tombstone after the first pass over it.
max.compaction.lag.ms
    A partition with an uncompacted record that is older is compacted, whatever its dirty ratio is.
max.message.bytes
    A record with a larger key, value and headers is rejected.
message.timestamp.after.max.ms
    A record whose timestamp is further ahead of the log's clock is rejected.
message.timestamp.before.max.ms
    A record whose timestamp is further behind the log's clock is rejected.
message.timestamp.type
    Timestamps of records: the producer's, or the log's time at their commit.
min.cleanable.dirty.ratio
    A partition is compacted when more than this share of its bytes has not been in a pass of compaction.
min.compaction.lag.ms
    Compaction leaves segments alone whose newest record is younger. At most `max.compaction.lag.ms`.
min.insync.replicas
    A commit succeeds only if this many in-sync replicas have its records; at most the replication factor.
retention.bytes
    Maximum size of a partition; `pylog maintain` removes older records. -1: no limit.
retention.ms
    Maximum age of records; `pylog maintain` removes older ones, whole segments at a time. -1: no limit.
schema.auto
    `true`: if the topic has no schema, the first write of a frame without a column `value` sets it, from the
    frame's columns, all of them nullable.
segment.bytes
    Maximum size of a merged segment.
segment.ms
    Maximum time span of the records of a merged segment, because retention removes whole segments. An eighth of
    `retention.ms` if that is less.
sort.columns
    Data columns by which the rows of a frame are sorted, in portions of about 32 MiB, so that reads with a
    condition skip more: up to 8 names, joined by commas. Offsets follow the sorted order. Not with
    `cleanup.policy=compact`.
stats.columns
    Data columns whose least and greatest values are kept for each commit and batch, so that a read with a condition
    skips those that cannot match: up to 8 names, joined by commas; empty: none. `auto`: the first 8 columns of
    numbers and times, then those of text. Applies to new segments.
file.delete.delay.ms
    `gc.fence.age.ms` of the log decides when files are deleted.
flush.messages
    Each commit is synced, unless its writer has `durability=os`.
flush.ms
    Each commit is synced, unless its writer has `durability=os`.
follower.replication.throttled.replicas
    `follower.replication.throttled.rate` of the log limits all copying.
index.interval.bytes
    An index has an entry for every batch.
leader.replication.throttled.replicas
    `follower.replication.throttled.rate` of the log limits all copying.
local.retention.bytes
    There is one storage, to which `retention.bytes` applies.
local.retention.ms
    There is one storage, to which `retention.ms` applies.
preallocate
    Objects are written once, with their size.
remote.log.copy.disable
    There is one storage, so nothing is copied.
remote.log.delete.on.disable
    There is one storage, so it cannot be disabled.
segment.index.bytes
    An index is as large as its segment needs.
segment.jitter.ms
    Maintenance merges partitions one after another: no peak.
unclean.leader.election.enable
    Only `pylog elect unclean` makes such an election.
compression.gzip.level
    Arrow does not support gzip; use `compression.zstd.level`.
remote.storage.enable
    Topics have one storage, the one of the log; a log in a bucket keeps all its data there.
""",
    ConfigSpec("cleanup.policy", "delete", Several(("delete", "compact"))),
    ConfigSpec("compression.lz4.level", 1, Whole(1, 17)),
    ConfigSpec(
        "compression.type",
        "producer",
        Choice(
            ("producer", "lz4", "zstd", "none"),
            synonyms=(("uncompressed", "none"),),
            why_not_others=" (Arrow does not support gzip or snappy; zstd is the nearest to gzip, lz4 to snappy)",
        ),
    ),
    ConfigSpec("compression.zstd.level", 1, Whole(-131072, 22)),
    ConfigSpec("delete.retention.ms", 86400000, _ms(0)),
    ConfigSpec("max.compaction.lag.ms", LONG_MAX, _ms(1)),
    ConfigSpec("max.message.bytes", 1048588, _bytes(0, INT_MAX)),
    ConfigSpec("message.timestamp.after.max.ms", 3600000, _ms(0)),
    ConfigSpec("message.timestamp.before.max.ms", LONG_MAX, _ms(0)),
    ConfigSpec("message.timestamp.type", "CreateTime", Choice(("CreateTime", "LogAppendTime"))),
    ConfigSpec("min.cleanable.dirty.ratio", 0.5, Fraction()),
    ConfigSpec("min.compaction.lag.ms", 0, _ms(0)),
    ConfigSpec("min.insync.replicas", 1, Whole(1, INT_MAX, "replicas")),
    ConfigSpec("retention.bytes", -1, _bytes(-1)),
    ConfigSpec("retention.ms", 604800000, _ms(-1)),
    ConfigSpec("schema.auto", False, Flag()),
    ConfigSpec("segment.bytes", 1073741824, _bytes(1 << 20, INT_MAX)),
    ConfigSpec("segment.ms", 604800000, _ms(1)),
    ConfigSpec("sort.columns", "", Names(8)),
    ConfigSpec("stats.columns", "auto", Names(8)),
    _without_effect("file.delete.delay.ms", 60000, _ms(0)),
    _without_effect("flush.messages", LONG_MAX, Whole(1, LONG_MAX, "records")),
    _without_effect("flush.ms", LONG_MAX, _ms(0)),
    _without_effect("follower.replication.throttled.replicas", "", _TEXT),
    _without_effect("index.interval.bytes", 4096, _bytes(0, INT_MAX)),
    _without_effect("leader.replication.throttled.replicas", "", _TEXT),
    _without_effect("local.retention.bytes", -2, _bytes(-2)),
    _without_effect("local.retention.ms", -2, _ms(-2)),
    _without_effect("preallocate", False, _FLAG),
    _without_effect("remote.log.copy.disable", False, _FLAG),
    _without_effect("remote.log.delete.on.disable", False, _FLAG),
    _without_effect("segment.index.bytes", 10485760, _bytes(4, INT_MAX)),
    _without_effect("segment.jitter.ms", 0, _ms(0)),
    _without_effect("unclean.leader.election.enable", False, _FLAG),
    _refused("compression.gzip.level", -1, Whole(-1, 9)),
    _refused("remote.storage.enable", False, _FLAG),
)
"""Kafka's topic configs by name: those in force first."""

CLUSTER_CONFIGS: Mapping[str, ConfigSpec] = _table(
    """
auto.create.topics.enable
    Appending to a topic that does not exist creates it.
auto.leader.rebalance.enable
    The first replica of each partition leads again when it is in sync: see
    `leader.imbalance.check.interval.seconds`.
broker.heartbeat.interval.ms
    How often the coordinator and `pylog replicate --every` check that the root of each broker can be written and
    read.
broker.session.timeout.ms
    A broker whose root has failed all checks for this long is fenced.
default.replication.factor
    Replication factor of a topic that is created without one. 1: the log's own root alone.
delete.topic.enable
    Topics can be deleted.
follower.replication.throttled.rate
    Bytes per second that each process copies and moves between brokers at most. `pylog reassign execute FILE
    --throttle RATE` sets it.
gc.fence.age.ms
    How long a write or a read may take. A change also applies to those in progress. Older uploads are void, and
    objects without a reference are deleted after this time.
leader.imbalance.check.interval.seconds
    How often the coordinator and `pylog replicate --every` look for brokers that do not lead the partitions whose
    first replica they are. `pylog maintain` does so in each run.
leader.imbalance.per.broker.percentage
    A broker leads again if others lead more than this share of the partitions whose first replica it is.
log.clock.skew.max.ms
    A commit is rejected if its writer's clock differs from the storage's clock by more than this. The storage's
    clock is checked only if the writer's clock differs this much from the log's newest commit. -1: no check.
metadata.checkpoint.interval
    A checkpoint is written after this many versions since the newest one.
metadata.log.max.snapshot.interval.ms
    How often the leader of a quorum copies the metadata to the storage of the records, if something has changed. If
    all nodes are lost, changes since the last copy are lost with them.
num.partitions
    Partitions of a topic that is created by appending.
offsets.retention.minutes
    A group's committed offset expires after this long without a member or a commit. Bookmarks, and groups that
    never had a member, are kept for `streaming.identity.retention.ms`.
producer.id.expiration.ms
    A producer that commits nothing for this long expires.
replica.lag.time.max.ms
    A replica that missed a write may join its ISR again this long after the write, and when it lacks no record that
    is older than this. The time after the write doubles with each further miss within an hour. An in-sync replica
    leaves the ISR if it has lacked records that were written with acks 0 or 1 for this long.
replica.lost.after.ms
    Records that were written with acks 0 or 1, or after such ones, and that only fenced brokers have whose roots
    cannot be read, are given up after this time if readers have never seen them: their offsets have no records
    then.
streaming.identity.retention.ms
    An idle streaming query, named producer or application is remembered for this long: a replay is recognised.
transaction.max.timeout.ms
    A transaction with a larger `transaction_timeout_ms` is rejected when it begins.
""",
    ConfigSpec("auto.create.topics.enable", True, _FLAG),
    ConfigSpec("auto.leader.rebalance.enable", True, _FLAG),
    ConfigSpec("broker.heartbeat.interval.ms", 2000, _ms(1, INT_MAX)),
    ConfigSpec("broker.session.timeout.ms", 9000, _ms(1, INT_MAX)),
    ConfigSpec("default.replication.factor", 1, Whole(1, 1000, "replicas")),
    ConfigSpec("delete.topic.enable", True, _FLAG),
    ConfigSpec(THROTTLE, LONG_MAX, _bytes(1)),
    ConfigSpec("gc.fence.age.ms", 86400000, _ms(1)),
    ConfigSpec("leader.imbalance.check.interval.seconds", 300, Whole(1, INT_MAX, "seconds")),
    ConfigSpec("leader.imbalance.per.broker.percentage", 10, Whole(0, 100, "percent")),
    ConfigSpec("log.clock.skew.max.ms", 600000, _ms(-1)),
    ConfigSpec("metadata.checkpoint.interval", 100, Whole(1, INT_MAX, "versions")),
    ConfigSpec("metadata.log.max.snapshot.interval.ms", 300000, _ms(1)),
    ConfigSpec("num.partitions", 1, Whole(1, INT_MAX, "partitions")),
    ConfigSpec("offsets.retention.minutes", 10080, Whole(1, INT_MAX, "minutes")),
    ConfigSpec("producer.id.expiration.ms", 86400000, _ms(1, INT_MAX)),
    ConfigSpec("replica.lag.time.max.ms", 30000, _ms(1)),
    ConfigSpec("replica.lost.after.ms", 60000, _ms(1)),
    ConfigSpec("streaming.identity.retention.ms", 7776000000, _ms(1)),
    ConfigSpec("transaction.max.timeout.ms", 900000, _ms(1, INT_MAX)),
)
"""Configs of a whole log by name."""


# ------------------------------------------------------------------------------------------------------------ functions


def validate_topic_configs(configs: Mapping[str, object]) -> tuple[dict[str, str], list[str]]:
    """(configs in their canonical spelling, warnings about configs without effect), in the order given.

    Raises InvalidConfig for an unknown name, with the nearest one, and for a value out of its range.
    """
    return _validate(TOPIC_CONFIGS, configs, "topic")


def validate_cluster_configs(configs: Mapping[str, object]) -> tuple[dict[str, str], list[str]]:
    """Does what `validate_topic_configs` does, for the configs of a log."""
    return _validate(CLUSTER_CONFIGS, configs, "cluster")


def check_config_names(names: Iterable[str], *, cluster: bool) -> None:
    """Raises InvalidConfig for a name that is not a config of a topic, or of a log."""
    for name in names:
        _spec(*((CLUSTER_CONFIGS, name, "cluster") if cluster else (TOPIC_CONFIGS, name, "topic")))


def topic_config(configs: Mapping[str, str], name: str) -> Any:
    """The value in effect, typed like its default: the value set, or the default.  KeyError for an unknown name."""
    text = configs.get(name)
    return TOPIC_CONFIGS[name].default if text is None else _topic_value(name, text)


def has_cleanup_policy(configs: Mapping[str, str], policy: str) -> bool:
    """Whether a topic's `cleanup.policy` includes a policy: delete or compact."""
    return policy in topic_config(configs, "cleanup.policy").split(",")


def cluster_config(configs: Mapping[str, str], name: str) -> Any:
    """The value in effect, as `topic_config` gives it, for the configs of a log."""
    text = configs.get(name)
    return CLUSTER_CONFIGS[name].default if text is None else _cluster_value(name, text)


@lru_cache(maxsize=1000)
def _topic_value(name: str, text: str) -> Value:
    """Each commit asks for the same ones several times."""
    return TOPIC_CONFIGS[name].parse(text)


@lru_cache(maxsize=1000)
def _cluster_value(name: str, text: str) -> Value:
    return CLUSTER_CONFIGS[name].parse(text)


def _validate(
    table: Mapping[str, ConfigSpec], configs: Mapping[str, object], scope: str
) -> tuple[dict[str, str], list[str]]:
    values = {name: _spec(table, name, scope).parse(given) for name, given in configs.items()}
    warnings = [warning for name, value in values.items() for warning in table[name].warnings(value)]
    return {name: format_value(value) for name, value in values.items()}, warnings


def _spec(table: Mapping[str, ConfigSpec], name: str, scope: str) -> ConfigSpec:
    if name in table:
        return table[name]
    if not isinstance(name, str):
        raise InvalidConfig(f"{scope} config {name!r} is not a name; give a text, such as 'retention.ms'")
    # Kafka's brokers call the default of retention.ms log.retention.ms, and so on.
    near = get_close_matches(name.removeprefix("log."), table, n=1, cutoff=0.5)
    if name in TOPIC_CONFIGS:
        hint = "it is a config of topics; `pylog config alter --topic TOPIC` sets it"
    elif name in CLUSTER_CONFIGS:
        hint = "it is a config of the log; `pylog config alter` sets it without `--topic`"
    elif near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"there are {', '.join(sorted(table))}"
    raise InvalidConfig(f"unknown {scope} config {name!r}; {hint}")


def check_together(configs: Mapping[str, str]) -> None:
    """Raises InvalidConfig for configs of a topic that contradict each other."""
    least, most = (int(topic_config(configs, f"{which}.compaction.lag.ms")) for which in ("min", "max"))
    if least > most:
        raise InvalidConfig(
            f"min.compaction.lag.ms={least} is greater than max.compaction.lag.ms={most}: records would have to stay "
            "and to be compacted; raise the second, or lower the first"
        )
    if topic_config(configs, "sort.columns") and has_cleanup_policy(configs, "compact"):
        raise InvalidConfig(
            "sort.columns and cleanup.policy=compact exclude each other: sorted rows are not in the order in which they were "
            "written, and compaction would keep another record of a key than the newest one"
        )
