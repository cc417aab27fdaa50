"""Kafka's clients send JSON to topics with a schema, and the log gets columns."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaProducer
from kafka.errors import InvalidRecordError

import spark_log
from spark_log import NewTopic
from spark_log.client.topic_creation import set_schema
from spark_log.gateway.api import INIT_PRODUCER_ID, PRODUCE
from spark_log.gateway.error_codes import INVALID_RECORD, MESSAGE_TOO_LARGE, NONE
from spark_log.gateway.messages import InitProducerIdRequest, ProducedPartition, ProducedTopic, ProduceRequest
from spark_log.gateway.produced_columns import CELLS_MAX
from spark_log.schema.topic_schema import as_schema
from tests.blocks import blocks
from tests.cli.commands import ROOT, Pylog
from tests.gateway.running import DEADLINE_S, Running, consumed, frame, received
from tests.gateway.test_gateway_produce import batch, produce

Serve = Callable[..., Running]
SCHEMA = "id BIGINT NOT NULL, amount DECIMAL(20,2), country STRING, at TIMESTAMP"


@pytest.fixture
def typed(log: spark_log.Log) -> spark_log.Log:
    """With the topic `typed`, of two partitions."""
    log.create_topic(NewTopic("typed", 2, schema=SCHEMA))
    return log


def sent(n: int) -> bytes:
    """The n-th record as JSON."""
    row = f'{{"country": "c{n % 7}", "id": {n}, "amount": {n}00000000000000.25, "at": "2026-01-31T10:00:{n % 60:02}Z"}}'
    return row.encode() if n % 3 else f'{{"id": {n}, "country": null}}'.encode()


def decoded(text: bytes) -> Any:
    """JSON without fields that are null, with all digits."""
    found = json.loads(text, parse_float=Decimal)
    return {name: value for name, value in found.items() if value is not None}


# Promise: gateway.md#topics-with-a-schema
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_librdkafka_writes_columns(typed: spark_log.Log, serve: Serve, codec: str) -> None:
    """A consumer gets the values that were sent."""
    gateway, offsets = serve(), dict[int, tuple[int, int]]()
    settings = {"compression.type": codec, "linger.ms": 5, "enable.idempotence": codec == "zstd", "log_level": 0}
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, **settings})

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        offsets[json.loads(message.value())["id"]] = message.partition(), message.offset()

    for n in range(1000):
        producer.produce("typed", sent(n), b"k%d" % n, n % 2, on_delivery=delivered, headers=[("h", b"%d" % n)])
    assert producer.flush(DEADLINE_S) == 0
    rows = typed.read("typed").to_pylist()
    assert {row["id"]: (row["partition"], row["offset"]) for row in rows} == offsets and len(rows) == 1000
    for row in rows:
        n = row["id"]
        assert (row["key"], row["headers"]) == (b"k%d" % n, [{"key": "h", "value": b"%d" % n}])
        assert row["country"] == (f"c{n % 7}" if n % 3 else None)
        assert row["amount"] == (Decimal(f"{n}00000000000000.25") if n % 3 else None)
        assert n % 3 == 0 or row["at"] == datetime.datetime(2026, 1, 31, 10, 0, n % 60, tzinfo=datetime.timezone.utc)
    for one in consumed(gateway.address, "typed", {0: 0, 1: 0}, {0: 500, 1: 500}):
        n = int(one.key()[1:])
        assert decoded(one.value()) == decoded(sent(n)) and one.headers() == [("h", b"%d" % n)]


# Promise: gateway.md#topics-with-a-schema
@pytest.mark.parametrize("acks", [0, "all"])
def test_kafka_python_writes_columns(
    log: spark_log.Log, serve: Serve, python_client: Callable[..., Any], acks: int | str
) -> None:
    """Records without a value delete their keys from a compacted topic."""
    log.create_topic(NewTopic("latest", 1, {"cleanup.policy": "compact"}, schema="id BIGINT, s STRUCT<a: ARRAY<INT>>"))
    settings = {"acks": acks, "enable_idempotence": acks == "all", "compression_type": "gzip"}
    producer = python_client(KafkaProducer, serve().address, **settings)
    for n in range(100):
        value = None if n % 5 == 0 else json.dumps({"id": n, "s": {"a": [n]}}).encode()
        producer.send("latest", value, key=b"%d" % n)
    producer.flush(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while log.read("latest", columns=["offset"]).num_rows < 100 and time.monotonic() < deadline:
        time.sleep(0.05)
    rows = log.read("latest", value_format="struct").to_pylist()
    expected = [None if n % 5 == 0 else {"id": n, "s": {"a": [n]}} for n in range(100)]
    assert [row["value"] for row in rows] == expected and [row["key"] for row in rows] == [
        b"%d" % n for n in range(100)
    ]


# Promise: gateway.md#topics-with-a-schema
def test_records_that_do_not_fit_are_named_and_harm_no_other_batch(typed: spark_log.Log, serve: Serve) -> None:
    """Nothing of their batch is written, as in Kafka."""
    typed.create_topic(NewTopic("wide", 1, schema="id INT, m MAP<STRING, INT>"))
    good, wide = [sent(n) for n in range(1, 50)], b'{"id": 1, "m": {"a": 1}}'
    bad = [*good, b'{"id": 1.5}', b"{}", b'{"id": 1, "x": 2}', b"\0\0\0\0\1{}", b"{", None, sent(51), b'{"id": null}']
    found = produce(
        serve(),
        ("typed", 0, batch(*bad)),
        ("typed", 0, batch(*good)),
        ("typed", 1, batch(b"[]")),
        ("orders", 0, batch(b"x", b"\0y")),
        ("wide", 0, batch(wide, b'{"m": {"a": "b"}}')),
        ("wide", 0, batch(wide, wide)),
    )
    assert [one.error_code for one in found] == [INVALID_RECORD, NONE, INVALID_RECORD, NONE, INVALID_RECORD, NONE]
    assert [one.base_offset for one in found] == [-1, 0, -1, 0, -1, 0]
    said = {one.batch_index: one.message for one in found[0].record_errors}
    assert list(said) == [49, 50, 51, 52, 53, 56]
    assert said[49] == "the value does not fit the schema: field 'id': 1.5 does not fit BIGINT"
    assert said[50] == said[56] == "column 'id' (BIGINT) is null, and the schema has it NOT NULL"
    assert said[51] == "the value does not fit the schema: the schema has no field 'x' there"
    assert said[52].startswith("the value begins with byte 0, as Confluent's serializers write it")
    assert said[53].startswith("the value is not JSON: ") and found[0].error_message == said[49]
    assert [one.batch_index for one in found[4].record_errors] == [1]
    assert typed.read("typed", 0)["id"].to_pylist() == list(range(1, 50)) and typed.read("typed", 1).num_rows == 0
    assert typed.read("wide")["m"].to_pylist() == [[("a", 1)]] * 2
    assert typed.read("orders")["value"].to_pylist() == [b"x", b"\0y"]


# Promise: gateway.md#topics-with-a-schema
def test_many_records_that_do_not_fit_are_read_only_until_enough_are_named(typed: spark_log.Log, serve: Serve) -> None:
    (found,) = produce(serve(), ("typed", 0, batch(*[b"{}"] * 5000)))
    assert [one.batch_index for one in found.record_errors] == list(range(100))
    (found,) = produce(serve(), ("typed", 0, batch(*[b"x"] * 5000)))
    assert [one.batch_index for one in found.record_errors] == list(range(100))


# Promise: gateway.md#topics-with-a-schema
def test_clients_get_the_reason(typed: spark_log.Log, serve: Serve, python_client: Callable[..., Any]) -> None:
    """Producers continue after it.  kafka-python's do so unless they are idempotent."""
    address, failed = serve().address, list[Any]()
    settings = {"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0}
    librdkafka = confluent_kafka.Producer(settings)
    python = python_client(KafkaProducer, address, enable_idempotence=False)
    for value in (sent(1), b'{"id": "x"}', sent(2)):
        librdkafka.produce("typed", value, partition=0, on_delivery=lambda error, _: failed.append(error))
        assert librdkafka.flush(DEADLINE_S) == 0
    assert failed[0] is failed[2] is None and failed[1].code() == confluent_kafka.KafkaError.INVALID_RECORD
    python.send("typed", sent(3), partition=0).get(DEADLINE_S)
    with pytest.raises(InvalidRecordError, match="the value begins with byte 0"):
        python.send("typed", b"\0\0\0\0\1", partition=0).get(DEADLINE_S)
    python.send("typed", sent(4), partition=0).get(DEADLINE_S)
    assert typed.read("typed")["id"].to_pylist() == [1, 2, 3, 4]


# Promise: gateway.md#topics-with-a-schema
def test_a_batch_of_columns_that_is_sent_again_is_written_once(typed: spark_log.Log, serve: Serve) -> None:
    gateway = serve()
    producer = gateway.ask(INIT_PRODUCER_ID, 4, InitProducerIdRequest()).producer_id
    found = []
    for sequence, n in ((0, 1), (0, 1), (1, 2), (1, 2)):
        found += produce(gateway, ("typed", 0, batch(sent(n), producer=producer, sequence=sequence)))
    assert [(one.error_code, one.base_offset) for one in found] == [(NONE, 0), (NONE, 0), (NONE, 1), (NONE, 1)]
    assert typed.read("typed")["id"].to_pylist() == [1, 2]


# Promise: gateway.md#topics-with-a-schema
def test_an_error_without_an_answer_closes_the_connection(typed: spark_log.Log, serve: Serve) -> None:
    with serve().connection() as opened:
        for value in (sent(1), b"x"):
            topics = [ProducedTopic(name="typed", partitions=[ProducedPartition(index=0, records=batch(value))])]
            opened.sendall(frame(PRODUCE, 9, ProduceRequest(acks=0, timeout_ms=5000, topics=topics)))
        assert received(opened) == b""
    assert typed.read("typed")["id"].to_pylist() == [1]


# Promise: gateway.md#topics-with-a-schema
def test_a_schema_that_changes_while_producers_run(typed: spark_log.Log, serve: Serve) -> None:
    """The gateway looks at the log before it refuses a record by the schema that it knows."""
    gateway = serve()
    (first,) = produce(gateway, ("typed", 0, batch(sent(1))))
    with spark_log.connect(typed.url, durability="os") as other:
        set_schema(other.journal, "typed", as_schema(f"{SCHEMA}, city STRING"))
        (second,) = produce(gateway, ("typed", 0, batch(b'{"id": 2, "city": "Kyiv"}')))
        set_schema(other.journal, "orders", as_schema("id BIGINT"))
        third = produce(gateway, ("orders", 0, batch(b'{"id": 3}')), ("orders", 1, batch(b"x")))
        assert other.read("orders", 0)["id"].to_pylist() == [3]
    assert [one.error_code for one in (first, second, *third)] == [NONE, NONE, NONE, INVALID_RECORD]
    assert typed.read("typed", columns=["id", "city"]).to_pylist() == [
        {"id": 1, "city": None},
        {"id": 2, "city": "Kyiv"},
    ]


# Promise: gateway.md#topics-with-a-schema
def test_a_single_record_sets_no_schema(log: spark_log.Log, serve: Serve) -> None:
    """Config `schema.auto` waits for a frame."""
    log.create_topic(NewTopic("auto", 1, {"schema.auto": "true"}))
    (found,) = produce(serve(), ("auto", 0, batch(b'{"id": 1}')))
    assert found.error_code == NONE and log.read("auto")["value"].to_pylist() == [b'{"id": 1}']


# Promise: gateway.md#topics-with-a-schema
def test_bombs_of_json_are_refused(log: spark_log.Log, serve: Serve) -> None:
    """Deep, long and large values, each beside a batch that is written."""
    log.create_topic(
        NewTopic("t", 1, {"max.message.bytes": "1000000"}, schema="i INT, d DECIMAL(38,0), x DOUBLE, s STRING")
    )
    size, gateway = 900_000, serve()
    bombs = [
        *[b'{"%s": %s}' % (name, b"9" * size) for name in (b"i", b"d", b"y")],
        *[b'{"%s": 1e%s}' % (name, b"9" * digits) for name in (b"i", b"d") for digits in (5, 18)],
        *[b'{"%s": %s' % (name, b"[" * size) for name in (b"i", b"s", b"y")],
        b'{"s":' * (size // 6),
        b'{"%s": 1}' % (b"n" * size),
        b"{" + b'"y":0,' * (size // 6) + b'"i":1}',
    ]
    good = [b'{"i": 1}'] * 100
    found = produce(gateway, *[("t", 0, batch(*good, bomb)) for bomb in bombs], ("t", 0, batch(*good)))
    assert [one.error_code for one in found] == [*[INVALID_RECORD] * len(bombs), NONE]
    assert [[one.batch_index for one in result.record_errors] for result in found[:-1]] == [[100]] * len(bombs)
    assert all(len(result.error_message) <= 1000 for result in found[:-1])
    (large,) = produce(gateway, ("t", 0, batch(b'{"s": "%s"}' % (b"x" * 1_000_000))))
    assert large.error_code == MESSAGE_TOO_LARGE and log.read("t").num_rows == 100


# Promise: gateway.md#limits
@pytest.mark.parametrize(
    "inside", ["{}", "a STRUCT<{}>", "l ARRAY<STRUCT<{}>>", "m MAP<STRING, STRUCT<x: STRUCT<{}>>>"]
)
def test_more_values_than_memory_are_refused(log: spark_log.Log, serve: Serve, inside: str) -> None:
    """Few bytes may be many values, since a record, or an item of a list, may leave all its fields out."""
    columns, sign = 400, ":" if "STRUCT" in inside else ""
    log.create_topic(NewTopic("t", 1, schema=inside.format(", ".join(f"c{n}{sign} BIGINT" for n in range(columns)))))
    size = CELLS_MAX // columns + 1
    items = {"l": b'{"l": [%s]}' % b",".join([b"null"] * size), "m": b'{"m": {%s}}' % (b'"a":{},' * size)[:-1]}
    bomb = items.get(inside[0] if " " in inside else "")
    sent = batch(bomb or b"{}", *[b"{}"] * (0 if bomb else size - 1), codec=1)
    large, good = produce(serve(), ("t", 0, sent), ("t", 0, batch(b"{}", b"{}")))
    assert large.error_code == MESSAGE_TOO_LARGE and "send smaller batches" in large.error_message
    assert good.error_code == NONE and log.read("t", columns=["offset"]).num_rows == 2


WIDE = (
    "b BOOLEAN, y TINYINT, i INT, l BIGINT, f FLOAT, d DOUBLE, p DECIMAL(10,2), s STRING, x BINARY, day DATE, "
    "t TIMESTAMP, n TIMESTAMP_NTZ, st STRUCT<a: INT, b: STRUCT<c: STRING>>, ar ARRAY<INT>, m MAP<STRING, BIGINT>"
)
EACH = [
    *[
        '{"b": true, "i": 1}',
        "{}",
        "null",
        "",
        "[]",
        '{"i": 1} ',
        '{"i": 1}{}',
        '{"i": 1, "i": 2}',
        '{"I": 1}',
        '{"z": 1}',
    ],
    *[
        '{"y": 127}',
        '{"y": 128}',
        '{"l": 9223372036854775807}',
        '{"l": 9223372036854775808}',
        '{"i": "1"}',
        '{"i": 1.0}',
    ],
    *['{"f": 0.1}', '{"f": 1e39}', '{"d": 1e400}', '{"d": "NaN"}', '{"d": NaN}', '{"f": "-Infinity"}', '{"d": -0.0}'],
    *['{"d": true}', '{"d": "1"}', '{"p": "1_0"}', '{"p": 1e-999999999}', '{"t": "2026-01-31T10:00:00.1234567Z"}'],
    *['{"p": 12345678.90}', '{"p": 1.234}', '{"p": "1.5"}', '{"p": 123456789}', '{"p": 1e2}', '{"p": NaN}'],
    *['{"s": "\\ud83d\\ude00"}', '{"s": "\\ud800"}', '{"s": "\\udc00"}', '{"s": "\\u0000"}', '{"s": 5}', '{"s": null}'],
    *['{"x": "YQ=="}', '{"x": "YQ"}', '{"x": ""}', '{"day": "2026-02-28"}', '{"day": "2026-02-30"}', '{"day": 5}'],
    *['{"t": "2026-01-31T10:00:00.123456Z"}', '{"t": "2026-01-31T10:00:00+02:00"}', '{"t": "2026-01-31T10:00:00"}'],
    *['{"n": "2026-01-31T10:00:00"}', '{"n": "2026-01-31T10:00:00Z"}', '{"t": 1}', '{"st": {"a": 1, "b": {"c": "x"}}}'],
    *['{"st": {}}', '{"st": {"b": {"z": 1}}}', '{"st": []}', '{"ar": [1, null]}', '{"ar": {}}', '{"ar": []}'],
    *['{"m": {"a": 1, "b": null}}', '{"m": {}}', '{"m": {"a": "x"}}', '{"m": [["a", 1]]}', '{"m": {"a": 1, "a": 2}}'],
]


# Promise: gateway.md#topics-with-a-schema
@pytest.mark.parametrize("ddl", [WIDE, WIDE.partition(", m MAP")[0]])
def test_json_is_judged_as_by_pylog_produce(log: spark_log.Log, serve: Serve, ddl: str) -> None:
    """Both refuse equal records, and give the others equal values, also when these are read and sent again."""
    log.create_topic(NewTopic("ours", 1, schema=ddl))
    log.create_topic(NewTopic("theirs", 1, schema=ddl))
    gateway = serve()
    found = produce(gateway, *[("theirs", 0, batch(*[b"{}"] * 99, text.encode())) for text in EACH])
    fits = [text for text, one in zip(EACH, found, strict=True) if one.error_code == NONE]
    refused = [text for text in EACH if text not in fits]
    pylog = Pylog(log.url)
    pylog.ok("produce", "ours", stdin="\n".join(fits) + "\n")
    assert all(pylog.refused("produce", "ours", stdin=f"{text}\n") for text in refused)
    assert 20 < len(fits) < len(EACH) - 20 and {one.error_code for one in found} == {NONE, INVALID_RECORD}

    def rows(topic: str) -> list[str]:
        read = [row["value"] for row in log.read(topic, value_format="struct").to_pylist()]
        return [repr(value) for value in read if any(part is not None for part in value.values())]

    ours = rows("ours")
    assert rows("theirs") == ours
    end = log.read("theirs").num_rows
    again = [message.value() for message in consumed(gateway.address, "theirs", {0: 0}, {0: end})]
    assert [one.error_code for one in produce(gateway, ("theirs", 0, batch(*again)))] == [NONE]
    assert rows("theirs") == ours * 2


# Promise: gateway.md#topics-with-a-schema
def test_the_example_of_the_page(log: spark_log.Log, serve: Serve) -> None:
    """With the address of this gateway, and after the command above it."""
    page = ROOT / "docs" / "gateway.md"
    (code,) = [one.code for one in blocks(page) if "readings" in one.code]
    ddl = "sensor STRING NOT NULL, celsius DOUBLE, at TIMESTAMP"
    assert f'pylog topic create readings --schema "{ddl}"' in page.read_text(encoding="utf-8")
    log.create_topic(NewTopic("readings", 1, schema=ddl))
    exec(code.replace("127.0.0.1:9092", serve().address), {})
    assert log.read("readings", columns=["sensor", "celsius"]).to_pylist() == [{"sensor": "a7", "celsius": 21.5}]
