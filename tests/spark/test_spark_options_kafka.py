"""`kafka.*`: which options apply, which have no effect and are reported, and which are refused with the cure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType
from pyspark_pylog import DefaultSource
from pyspark_pylog.options.kafka_client_settings import PARTITIONERS, READS, REFUSED, TUNING, WRITES
from pyspark_pylog.options.option_table import ALL
from pyspark_pylog.options.parse import WriteOptions, read_options, write_options

from spark_log.errors import InvalidRequest
from tests.spark.builders import asked


def written(**options: Any) -> WriteOptions:
    """Options of a batch write."""
    return write_options(asked("/log", None, **{"topic": "t", **options}), streaming=False)


def example(name: str) -> str:
    """A name that a rule is about."""
    return name.replace("*", "protocol")


REFUSED_READS = [setting for setting in REFUSED if set(READS) & set(setting.used)]
REFUSED_WRITES = [setting for setting in REFUSED if set(WRITES) & set(setting.used)]


# Promise: options.md#refused
@pytest.mark.parametrize("setting", REFUSED_READS, ids=[setting.name for setting in REFUSED_READS])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_read_refuses_by_name_and_says_the_way_round(setting: Any, streaming: bool) -> None:
    """Whatever the value."""
    name = example(setting.name)
    with pytest.raises(InvalidRequest) as error:
        read_options(asked(**{name: "any"}), streaming=streaming)
    assert str(error.value) == f"option {name} is not supported: {setting.instead}"


# Promise: options.md#refused
@pytest.mark.parametrize("setting", REFUSED_WRITES, ids=[setting.name for setting in REFUSED_WRITES])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_write_refuses_by_name_and_says_the_way_round(setting: Any, streaming: bool) -> None:
    """Whatever the value."""
    name = example(setting.name)
    with pytest.raises(InvalidRequest) as error:
        write_options(asked("/log", None, topic="t", **{name: "any"}), streaming=streaming)
    assert str(error.value) == f"option {name} is not supported: {setting.instead}"


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("kafka.auto.offset.reset", "use startingOffsets"),
        ("kafka.key.deserializer", "cast them in the query"),
        ("kafka.value.deserializer", "cast them in the query"),
        ("kafka.enable.auto.commit", "in its checkpoint"),
        ("kafka.interceptor.classes", "there are no interceptors"),
        ("kafka.security.protocol", "storage.*"),
        ("kafka.sasl.jaas.config", "storage.*"),
        ("kafka.ssl.truststore.location", "storage.*"),
    ],
)
def test_what_kafkas_connector_refuses_is_refused_and_so_is_security(name: str, cure: str) -> None:
    """A read."""
    with pytest.raises(InvalidRequest) as error:
        read_options(asked(**{name: "any"}), streaming=True)
    assert cure in str(error.value)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("kafka.key.serializer", "cast the column"),
        ("kafka.value.serializer", "cast the column"),
        ("kafka.transactional.id", "producerId identifies a stream, txnAppId and txnVersion a batch"),
        ("kafka.max.request.size", "max.message.bytes"),
    ],
)
def test_what_would_change_a_write_is_refused(name: str, cure: str) -> None:
    """Transactions and sizes are set otherwise here."""
    with pytest.raises(InvalidRequest) as error:
        written(**{name: "any"})
    assert cure in str(error.value)


# Promise: options.md#accepted-without-effect
@pytest.mark.parametrize("name", sorted(TUNING))
def test_tuning_of_clients_is_accepted_and_told_on_both_sides(name: str) -> None:
    """With the reason, once."""
    expected = (f"{name}: without effect, {TUNING[name]}",)
    assert read_options(asked(**{name: "1"}), streaming=False).notes == expected
    assert read_options(asked(**{name: "1"}), streaming=True).notes == expected
    assert written(**{name: "1"}).notes == expected


# Promise: options.md#accepted-without-effect
def test_settings_with_one_reason_are_told_in_one_line() -> None:
    """Twenty settings are not twenty warnings."""
    notes = read_options(asked(**{"kafka.fetch.min.bytes": 1, "kafka.max.poll.records": 5}), streaming=True).notes
    assert notes == (
        "kafka.fetch.min.bytes, kafka.max.poll.records: without effect, there are no fetches from brokers",
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kafka.max.poll.record", "did you mean kafka.max.poll.records?"),
        ("kafka.something.else.again", "leave it out"),
        ("kafka.ack", "did you mean kafka.acks?"),
    ],
)
def test_a_setting_that_kafka_does_not_have_is_refused(name: str, expected: str) -> None:
    """With the nearest that it has."""
    for ask in (lambda options: read_options(asked(**options), streaming=False), lambda options: written(**options)):
        with pytest.raises(InvalidRequest) as error:
            ask({name: "1"})
        assert str(error.value) == f"option {name} is not a setting of Kafka's that pylog knows: {expected}"


def test_a_setting_of_the_other_side_has_no_effect_and_is_told() -> None:
    """Jobs share one set of options for their source and their sink."""
    (note,) = read_options(asked(**{"kafka.acks": "all", "kafka.key.serializer": "x"}), streaming=True).notes
    assert note == "kafka.acks, kafka.key.serializer: without effect, it is a setting of the other side"
    (note,) = written(**{"kafka.auto.offset.reset": "latest"}).notes
    assert note == "kafka.auto.offset.reset: without effect, it is a setting of the other side"


# ------------------------------------------------------------------------------------------------------------- honoured


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted", " READ_COMMITTED"])
def test_both_isolation_levels_are_taken(level: str) -> None:
    """And mean the same: there is nothing uncommitted to read."""
    assert read_options(asked(**{"kafka.isolation.level": level}), streaming=False).notes == ()


def test_another_isolation_level_is_refused() -> None:
    """As Kafka's client does."""
    with pytest.raises(InvalidRequest, match="option kafka.isolation.level: 'serializable' is not one of read_com"):
        read_options(asked(**{"kafka.isolation.level": "serializable"}), streaming=False)


@pytest.mark.parametrize("name", ["acks", "kafka.acks"])
def test_acks_are_those_of_kafka(name: str) -> None:
    """all, -1, 0 and 1."""
    for value in ("all", "-1", "0", "1"):
        options = written(**{name: value})
        assert (options.notes, options.acks) == ((), -1 if value in ("all", "-1") else 1)
    with pytest.raises(InvalidRequest, match=f"option {name}: '2' is not one of all, -1, 0, 1"):
        written(**{name: "2"})


# Promise: replicas.md#wait-for-the-leader-only
def test_exactly_once_writes_need_acks_all() -> None:
    """As Kafka's idempotence does: streams, and batches with a version."""
    for options in ({"txnAppId": "a", "txnVersion": "1"}, {"pylog.txnFromQuery": "true"}):
        with pytest.raises(InvalidRequest, match="option kafka.acks: '1' is for batch writes"):
            written(**{"kafka.acks": "1", **options})
    with pytest.raises(InvalidRequest, match="option acks: '0' is for batch writes"):
        write_options(asked("/log", None, topic="t", acks="0"), streaming=True)
    assert write_options(asked("/log", None, topic="t", acks="-1"), streaming=True).acks == -1


@pytest.mark.parametrize("value", ["lz4", "zstd", "none"])
def test_kafkas_compression_is_taken(value: str) -> None:
    """Where Arrow has it."""
    assert written(**{"kafka.compression.type": value}).compression == value


@pytest.mark.parametrize("name", ["compression", "kafka.compression.type"])
@pytest.mark.parametrize("value", ["gzip", "snappy"])
def test_a_compression_that_arrow_has_not_is_refused(name: str, value: str) -> None:
    """No other codec replaces it."""
    with pytest.raises(InvalidRequest, match=f"option {name}: '{value}' is unsupported, .* use zstd or lz4"):
        written(**{name: value})


@pytest.mark.parametrize(("name", "ours"), PARTITIONERS.items())
def test_kafkas_partitioners_are_taken_by_their_class(name: str, ours: str) -> None:
    """Where there is one here that does the same."""
    assert written(**{"kafka.partitioner.class": f" {name} "}).partitioner == ours


def test_another_partitioner_of_the_jvm_is_refused() -> None:
    """With those that are possible, and how to bring one in Python."""
    with pytest.raises(
        InvalidRequest, match="'com.acme.Mine' is a JVM class without an equivalent .* partitioner=module:Class"
    ):
        written(**{"kafka.partitioner.class": "com.acme.Mine"})


def test_ignoring_keys_is_the_sticky_partitioner() -> None:
    """kafka.partitioner.ignore.keys."""
    assert written(**{"kafka.partitioner.ignore.keys": "true"}).partitioner == "sticky"
    assert written(**{"kafka.partitioner.ignore.keys": "false"}).partitioner == "default"


def test_idempotence_cannot_be_switched_off_and_that_is_told() -> None:
    """Writes are exactly once either way."""
    assert written(**{"kafka.enable.idempotence": "true"}).notes == ()
    (note,) = written(**{"kafka.enable.idempotence": "false"}).notes
    assert note == "kafka.enable.idempotence=false: without effect, a retry never writes twice"


def test_our_option_goes_before_kafkas() -> None:
    """A message reports that the other one has no effect."""
    options = written(**{"compression": "zstd", "kafka.compression.type": "lz4"})
    assert options.compression == "zstd"
    assert options.notes == ("kafka.compression.type: without effect, the option compression takes precedence",)


# Promise: options.md#both
def test_the_path_goes_before_kafkas_bootstrap_servers() -> None:
    """A pipeline that comes from Kafka may leave its brokers in, and gets a message."""
    options = read_options(asked(**{"kafka.bootstrap.servers": "broker:9092"}), streaming=False)
    assert options.location.url == "/log"
    assert options.notes == ("kafka.bootstrap.servers: without effect, the log is where the path says",)


def test_kafkas_bootstrap_servers_may_be_where_the_log_is() -> None:
    """A URL, a path, or the address of a coordinator."""
    given = {"subscribe": "t", "kafka.bootstrap.servers": " s3://bucket/log "}
    assert read_options(given, streaming=False).location.url == "s3://bucket/log"
    given["kafka.bootstrap.servers"] = "/data/log"
    assert read_options(given, streaming=False).location.url == "/data/log"
    given["kafka.bootstrap.servers"] = "host:9550"
    assert read_options(given, streaming=False).location.url == "pylog://host:9550"


# Promise: options.md#settings-of-kafkas-clients
def test_no_setting_is_in_two_places() -> None:
    """It is honoured, without effect or refused."""
    honoured = [option.name for option in ALL if option.name.startswith("kafka.")]
    everything = [*honoured, *TUNING, *(setting.name for setting in REFUSED)]
    assert sorted(everything) == sorted(set(everything))


def test_a_refused_setting_creates_no_topic(url: str) -> None:
    """Nothing is written before all options are checked."""
    given = asked(url, None, topic="t", **{"kafka.transactional.id": "x"})
    with pytest.raises(InvalidRequest):
        DefaultSource(given).writer(StructType().add("value", "string"), overwrite=False)
    assert not Path(url).exists()
