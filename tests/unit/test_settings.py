"""The tables of configs, and Kafka's rules for topic names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.topic_configs import reference_markdown
from spark_log.configs.config_types import ConfigSpec, format_value
from spark_log.configs.settings import (
    CLUSTER_CONFIGS,
    LONG_MAX,
    TOPIC_CONFIGS,
    check_together,
    cluster_config,
    topic_config,
    validate_cluster_configs,
    validate_topic_configs,
)
from spark_log.configs.topic_names import check_topic_name, collision_key
from spark_log.errors import InvalidConfig, InvalidTopic

PAGE = Path(__file__).parents[2] / "docs" / "topic-configs.md"
ALL = [*TOPIC_CONFIGS.values(), *CLUSTER_CONFIGS.values()]


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_every_default_is_a_possible_value(spec: ConfigSpec) -> None:
    """A default, written as text and given back, is the same value of the same type."""
    value = spec.parse(format_value(spec.default))
    assert value == spec.default
    assert type(value) is type(spec.default)


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_every_config_has_a_line_of_documentation(spec: ConfigSpec) -> None:
    """A config without a meaning is not one."""
    assert spec.doc.endswith(".")
    assert "\n" not in spec.doc


# Promise: topic-configs.md#topics
def test_defaults_are_kafkas() -> None:
    """A topic without configs behaves as a topic of Kafka 4 without configs."""
    expected = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": 1048588,
        "message.timestamp.after.max.ms": 3600000,
        "message.timestamp.before.max.ms": LONG_MAX,
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": 1,
        "retention.bytes": -1,
        "retention.ms": 604800000,
        "segment.bytes": 1073741824,
    }
    assert {name: topic_config({}, name) for name in expected} == expected


# Promise: ../README.md#spark, topic-configs.md#the-log
def test_defaults_of_a_log() -> None:
    """Kafka brokers' defaults, and pylog's own."""
    assert {name: cluster_config({}, name) for name in CLUSTER_CONFIGS} == {
        "auto.create.topics.enable": True,
        "auto.leader.rebalance.enable": True,
        "broker.heartbeat.interval.ms": 2000,
        "broker.session.timeout.ms": 9000,
        "default.replication.factor": 1,
        "delete.topic.enable": True,
        "follower.replication.throttled.rate": 2**63 - 1,
        "gc.fence.age.ms": 24 * 3600 * 1000,
        "leader.imbalance.check.interval.seconds": 300,
        "leader.imbalance.per.broker.percentage": 10,
        "log.clock.skew.max.ms": 10 * 60 * 1000,
        "metadata.checkpoint.interval": 100,
        "metadata.log.max.snapshot.interval.ms": 300_000,
        "num.partitions": 1,
        "offsets.retention.minutes": 10080,
        "producer.id.expiration.ms": 86400000,
        "replica.lag.time.max.ms": 30000,
        "replica.lost.after.ms": 60 * 1000,
        "streaming.identity.retention.ms": 90 * 24 * 3600 * 1000,
        "transaction.max.timeout.ms": 15 * 60 * 1000,
    }


def test_what_is_set_comes_before_the_default() -> None:
    """Values are typed: numbers are numbers and flags are flags."""
    assert topic_config({"retention.ms": "-1"}, "retention.ms") == -1
    assert topic_config({"compression.type": "zstd"}, "compression.type") == "zstd"
    assert cluster_config({"auto.create.topics.enable": "false"}, "auto.create.topics.enable") is False


def test_values_get_one_spelling() -> None:
    """Two ways to write a value make one config: blanks, case of flags, signs, synonyms, order of a list."""
    given = {
        "retention.ms": " +3600000 ",
        "preallocate": "TRUE",
        "compression.type": "uncompressed",
        "cleanup.policy": "compact, delete",
    }
    values, _ = validate_topic_configs(given)
    assert values == {
        "retention.ms": "3600000",
        "preallocate": "true",
        "compression.type": "none",
        "cleanup.policy": "delete,compact",
    }


def test_numbers_and_bools_stand_for_their_text() -> None:
    """Python's users write 3600000 and True."""
    assert validate_topic_configs({"retention.ms": 3600000, "preallocate": True})[0] == {
        "retention.ms": "3600000",
        "preallocate": "true",
    }


# Promise: topic-configs.md#topics
@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("retention.msec", "retention.ms"),
        ("log.retention.ms", "retention.ms"),
        ("message.max.bytes", "max.message.bytes"),
        ("Retention.MS", "retention.ms"),
        ("cleanup_policy", "cleanup.policy"),
    ],
)
def test_an_unknown_topic_config_is_refused_with_the_nearest_name(wrong: str, nearest: str) -> None:
    """A mistyped name is never stored without notice."""
    with pytest.raises(InvalidConfig, match=f"unknown topic config '{wrong}'; did you mean {nearest}\\?"):
        validate_topic_configs({wrong: "1"})


def test_a_name_like_no_other_is_refused_with_all_names() -> None:
    """Where nothing is near, the message lists what there is."""
    with pytest.raises(InvalidConfig, match=r"unknown topic config 'xyz'; there are cleanup\.policy, "):
        validate_topic_configs({"xyz": "1"})


def test_an_unknown_config_of_the_log_is_refused_with_the_nearest_name() -> None:
    """The same for the configs of a whole log."""
    with pytest.raises(InvalidConfig, match=r"unknown cluster config 'num\.partition'; did you mean num\.partitions\?"):
        validate_cluster_configs({"num.partition": "1"})


# Promise: topic-configs.md#topics
@pytest.mark.parametrize(
    ("name", "value", "cure"),
    [
        ("retention.ms", "7days", "from -1 to 9223372036854775807, or with a unit, as in 7d$"),
        ("retention.ms", "1GiB", "from -1 to 9223372036854775807, or with a unit, as in 7d$"),
        ("retention.ms", "300000000000y", "a whole number"),
        ("retention.ms", "99999999999999w", "a whole number"),
        ("segment.bytes", "1d", "from 1048576 to 2147483647, or with a unit, as in 64m$"),
        ("segment.bytes", "4gb", "from 1048576 to 2147483647"),
        ("min.insync.replicas", "1k", "a whole number of replicas from 1 to 2147483647$"),
        ("retention.ms", "-2", "from -1"),
        ("retention.ms", "9223372036854775808", "to 9223372036854775807"),
        ("retention.ms", "1_000", "a whole number"),
        ("retention.ms", "", "a whole number"),
        ("segment.bytes", "1048575", "from 1048576 to 2147483647"),
        ("max.message.bytes", "2147483648", "bytes from 0 to 2147483647"),
        ("min.cleanable.dirty.ratio", "1.1", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "a number from 0 to 1"),
        ("message.timestamp.type", "createtime", "one of CreateTime, LogAppendTime"),
        ("preallocate", "yes", "true or false"),
        ("cleanup.policy", "delete,shrink", "any of delete, compact, joined by commas, or empty"),
    ],
)
def test_a_bad_value_is_refused_with_its_range(name: str, value: str, cure: str) -> None:
    """The message names the config, the value found and what is possible."""
    with pytest.raises(InvalidConfig, match=f"config {name}: {value!r} is invalid; expected .*{cure}"):
        validate_topic_configs({name: value})


@pytest.mark.parametrize("value", [None, b"1", ["delete"]])
def test_a_value_that_is_no_text_is_refused(value: object) -> None:
    """A value without an obvious text is an error."""
    with pytest.raises(InvalidConfig, match="config retention.ms: .* is invalid"):
        validate_topic_configs({"retention.ms": value})


# Promise: topic-configs.md#topics
@pytest.mark.parametrize("codec", ["gzip", "snappy"])
def test_kafkas_codecs_that_arrow_lacks_are_refused_with_the_nearest(codec: str) -> None:
    """Nothing is compressed in another way than was asked for."""
    with pytest.raises(InvalidConfig, match=f"{codec}.*one of producer, lz4, zstd, none.*zstd is the nearest to gzip"):
        validate_topic_configs({"compression.type": codec})


# Promise: topic-configs.md#accepted-without-effect
def test_a_config_without_a_meaning_is_kept_with_a_warning_that_says_why() -> None:
    """It describes how Kafka's brokers handle their files: the records that are kept are the same."""
    values, warnings = validate_topic_configs({"preallocate": "true", "flush.messages": "1"})
    assert values == {"preallocate": "true", "flush.messages": "1"}
    assert warnings == [
        "config preallocate is kept, and has no effect in pylog: Objects are written once, with their size.",
        "config flush.messages is kept, and has no effect in pylog: "
        "Each commit is synced, unless its writer has `durability=os`.",
    ]


# Promise: topic-configs.md#refused
@pytest.mark.parametrize(
    ("name", "value", "cure"),
    [
        ("compression.gzip.level", "6", "use `compression.zstd.level`"),
        ("remote.storage.enable", "true", "Topics have one storage, the one of the log"),
    ],
)
def test_what_pylog_does_not_do_is_refused_with_the_reason(name: str, value: str, cure: str) -> None:
    """A value that asks for something else than what happens is an error, and not a warning."""
    with pytest.raises(InvalidConfig, match=f"config {name}: '{value}' is refused: .*{cure}"):
        validate_topic_configs({name: value})


# Promise: topic-configs.md#accepted-without-effect
@pytest.mark.parametrize("spec", TOPIC_CONFIGS.values(), ids=lambda spec: spec.name)
def test_a_default_is_accepted_without_a_warning(spec: ConfigSpec) -> None:
    """A script that sets what is the case anyway runs without noise, whatever the config."""
    text = format_value(spec.default)
    assert validate_topic_configs({spec.name: text}) == ({spec.name: text}, [])


# Promise: topic-configs.md#when-records-are-compacted
def test_configs_of_compaction_are_in_force() -> None:
    """Without a warning."""
    configs = {
        "cleanup.policy": "compact,delete",
        "delete.retention.ms": "0",
        "max.compaction.lag.ms": "5",
        "min.cleanable.dirty.ratio": "0.1",
        "min.compaction.lag.ms": "1",
    }
    assert validate_topic_configs(configs) == ({**configs, "cleanup.policy": "delete,compact"}, [])


def test_lags_of_compaction_that_contradict_each_other_are_refused() -> None:
    """As Kafka does; equal ones can be kept, and the default has no maximum."""
    check_together({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    check_together({"min.compaction.lag.ms": str(LONG_MAX)})
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms=6 is greater than max\.compaction\.lag\.ms=5"):
        check_together({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


@pytest.mark.parametrize("policy", ["", "delete", "compact", "delete,compact"])
def test_each_cleanup_policy_is_in_force(policy: str) -> None:
    """Also none, and both."""
    assert validate_topic_configs({"cleanup.policy": policy}) == ({"cleanup.policy": policy}, [])


def test_a_config_of_the_log_is_not_one_of_a_topic_and_the_error_says_where_it_is_set() -> None:
    """And the other way round."""
    with pytest.raises(InvalidConfig, match="unknown topic config 'num.partitions'; it is a config of the log"):
        validate_topic_configs({"num.partitions": "2"})
    with pytest.raises(
        InvalidConfig, match="unknown cluster config 'preallocate'; .* `pylog config alter --topic TOPIC`"
    ):
        validate_cluster_configs({"preallocate": "true"})


@given(st.integers(min_value=-1, max_value=LONG_MAX))
def test_a_valid_value_is_read_back_as_it_was_set(retention: int) -> None:
    """Set, kept as text, read: the same number."""
    values, _ = validate_topic_configs({"retention.ms": str(retention)})
    assert topic_config(values, "retention.ms") == retention


@pytest.mark.parametrize("name", ["orders", "a", "A.b_c-9", "...", "_", "x" * 249])
def test_good_topic_names_pass(name: str) -> None:
    """Kafka's rule: 1 to 249 of [a-zA-Z0-9._-], not '.' or '..'."""
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("", "is empty"),
        (".", "is a directory's name"),
        ("..", "is a directory's name"),
        ("../orders", "has '/'"),
        ("a b/c", "has a space '/'"),
        ("größe", "has 'ß' 'ö'"),
        ("orders\n", r"has '\\n'"),
        ("x" * 250, "has 250 characters; expected at most 249"),
    ],
)
def test_bad_topic_names_are_refused_with_what_is_wrong(name: str, wrong: str) -> None:
    """No path, no blank, no foreign letter, no overlong name; the message says which."""
    with pytest.raises(InvalidTopic, match=wrong):
        check_topic_name(name)


def test_names_that_differ_only_in_dots_and_underscores_collide() -> None:
    """Kafka makes one metric of the two."""
    assert collision_key("a.b_c") == collision_key("a_b.c")
    assert collision_key("a.b") != collision_key("a-b")


# Promise: topic-configs.md#configs
def test_the_reference_page_is_what_the_tables_say() -> None:
    """The page is generated: `make docs` after a change of a table."""
    assert PAGE.read_text() == reference_markdown()


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("retention.ms", "7d", "604800000"),
        ("retention.ms", "90 m", "5400000"),
        ("retention.ms", "500MS", "500"),
        ("retention.ms", "-1", "-1"),
        ("segment.bytes", "1gb", "1073741824"),
        ("segment.bytes", "1GiB", "1073741824"),
        ("segment.bytes", "64m", "67108864"),
        ("segment.bytes", "1048576b", "1048576"),
    ],
)
def test_durations_and_sizes_have_units(name: str, given: str, stored: str) -> None:
    """They are stored as Kafka's numbers; a kilobyte has 1024 bytes, as in Spark's settings."""
    assert validate_topic_configs({name: given}) == ({name: stored}, [])


def test_minutes_have_units() -> None:
    assert validate_cluster_configs({"offsets.retention.minutes": "7d"})[0] == {"offsets.retention.minutes": "10080"}
