"""Settings of producers and consumers: Kafka's names with underscores, Kafka's defaults, and validation.

If pylog cannot honour a setting of Kafka's, the setting has one allowed value, which describes pylog's behaviour.
Other values are rejected with the reason.  Settings of groups take effect with a coordinator only: embedded, one
consumer owns all partitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from spark_log.errors import InvalidRequest
from spark_log.segment.compression import COMPRESSIONS
from spark_log.text import is_name, is_printable

INT_MAX = 2**31 - 1


class ClientSetting(NamedTuple):
    """A default, a check of other values, and the description of valid values for error messages."""

    default: Any
    accepts: Callable[[Any], bool]
    possible: str


def _whole(default: int, minimum: int = 0, maximum: int = INT_MAX) -> ClientSetting:
    def accepts(given: Any) -> bool:
        return isinstance(given, int) and not isinstance(given, bool) and minimum <= given <= maximum

    return ClientSetting(default, accepts, f"a whole number from {minimum} to {maximum}")


def _whole_or_none(minimum: int) -> ClientSetting:
    whole = _whole(minimum, minimum)
    return ClientSetting(None, lambda given: given is None or whole.accepts(given), f"{whole.possible}, or None")


def _flag(default: bool) -> ClientSetting:
    return ClientSetting(default, lambda given: isinstance(given, bool), "True or False")


def _maybe_one_of(*words: str) -> ClientSetting:
    return ClientSetting(
        None, lambda given: given is None or given in words, f"one of {', '.join(map(repr, words))}, or None"
    )


def _one_of(default: str | int, *others: str | int) -> ClientSetting:
    words = (default, *others)
    return ClientSetting(
        default, lambda given: type(given) is not bool and given in words, f"one of {', '.join(map(repr, words))}"
    )


def _text(default: str | None = None) -> ClientSetting:
    return ClientSetting(
        default, lambda given: given is None or is_printable(given), "a string without control characters"
    )


def _function(what: str, method: str = "serialize") -> ClientSetting:
    return ClientSetting(None, lambda given: given is None or callable(given) or hasattr(given, method), what)


def _names(default: Sequence[str]) -> ClientSetting:
    return ClientSetting(default, lambda given: isinstance(given, str | list | tuple), "a name or a list of names")


def _only(value: Any, reason: str) -> ClientSetting:
    return ClientSetting(
        value, lambda given: type(given) is type(value) and given == value, f"{value!r}, or leave it out: {reason}"
    )


_PARTITIONER = ClientSetting(
    "default",
    lambda given: isinstance(given, str) or callable(given),
    "a partitioner's name, or a function of (key, all partitions, available partitions)",
)

_NO_BROKERS = "pylog reads and writes the storage, and keeps no connections to brokers"
_NO_RETRIES = "the storage layer decides how a consumer retries a read"

_CONNECTION: Mapping[str, ClientSetting] = {
    "client_id": _text(),
    "client_rack": _text(""),
    "connections_max_idle_ms": _only(540_000, _NO_BROKERS),
    "metadata_max_age_ms": _whole(300_000, 300),
    "receive_buffer_bytes": _only(65_536, _NO_BROKERS),
    "reconnect_backoff_max_ms": _only(1_000, _NO_BROKERS),
    "reconnect_backoff_ms": _only(50, _NO_BROKERS),
    "request_timeout_ms": _only(
        30_000, "delivery_timeout_ms bounds a send and default_api_timeout_ms a call, each with all of its requests"
    ),
    "send_buffer_bytes": _only(131_072, _NO_BROKERS),
}
"""`metadata_max_age_ms` has no effect: a waiting client checks the metadata several times a second."""

PRODUCER: Mapping[str, ClientSetting] = {
    **_CONNECTION,
    "acks": _one_of("all", -1, 0, 1, "-1", "0", "1"),
    "batch_size": _whole(16_384),
    "buffer_memory": _whole(33_554_432, 1, 1 << 30),
    "compression_type": _one_of(*COMPRESSIONS),
    "delivery_timeout_ms": _whole(120_000),
    "enable_idempotence": _only(True, "every commit is idempotent"),
    "key_serializer": _function("a function from a key to bytes"),
    "linger_ms": _whole(5),
    "max_block_ms": _whole(60_000),
    "max_in_flight_requests_per_connection": _whole(5, 1),
    "max_request_size": _whole(1_048_576),
    "partitioner": _PARTITIONER,
    "retries": _whole(INT_MAX),
    "retry_backoff_max_ms": _whole(1_000),
    "retry_backoff_ms": _whole(100),
    "value_serializer": _function("a function from a value to bytes"),
}
"""One default differs from Kafka's: `compression_type` is zstd, as everywhere in pylog.

`max_in_flight_requests_per_connection` has no effect: a producer has one commit in flight at a time.
"""

CONSUMER: Mapping[str, ClientSetting] = {
    **_CONNECTION,
    "allow_auto_create_topics": _only(False, "a consumer creates no topics; it reads a topic as soon as it exists"),
    "auto_commit_interval_ms": _whole(5_000),
    "auto_offset_reset": _one_of("latest", "earliest", "none"),
    "check_crcs": _only(True, "each batch is checked against its checksum"),
    "consumer_timeout_ms": ClientSetting(
        math.inf,
        lambda given: isinstance(given, int | float) and not isinstance(given, bool) and given >= 0,
        "milliseconds, or math.inf for no limit",
    ),
    "default_api_timeout_ms": _whole(60_000),
    "enable_auto_commit": _flag(True),
    "exclude_internal_topics": _only(True, "log.read and Spark read __consumer_offsets"),
    "fetch_max_bytes": _whole(52_428_800, 1),
    "fetch_max_wait_ms": _whole(500),
    "fetch_min_bytes": _whole(1),
    "group_id": ClientSetting(
        None, lambda given: given is None or is_name(given), "the name of a group, which can be printed, or None"
    ),
    "group_instance_id": _text(),
    "group_protocol": _only("classic", "the coordinator speaks Kafka's classic group protocol, not KIP-848's"),
    "heartbeat_interval_ms": _whole_or_none(1),
    "isolation_level": _one_of("read_uncommitted", "read_committed"),
    "key_deserializer": _function("a function from bytes to a key", "deserialize"),
    "max_partition_fetch_bytes": _whole(52_428_800, 1),
    "max_poll_interval_ms": _whole(300_000, 1),
    "max_poll_records": _whole(500, 1),
    "partition_assignment_strategy": _names(("range", "cooperative-sticky")),
    "retry_backoff_max_ms": _only(1_000, _NO_RETRIES),
    "retry_backoff_ms": _only(100, _NO_RETRIES),
    "session_timeout_ms": _whole(45_000, 1),
    "value_deserializer": _function("a function from bytes to a value", "deserialize"),
    "value_format": _maybe_one_of("columns", "struct", "json"),
    "value_parse": _maybe_one_of("json"),
}

"""Three defaults differ from Kafka's.  `max_partition_fetch_bytes` is 50 MiB, as `fetch_max_bytes`, for `poll_arrow`.
A consumer creates no topics.  `heartbeat_interval_ms` is a third of `session_timeout_ms`, because the coordinator
answers a waiting heartbeat as soon as the group rebalances.  `isolation_level` has no effect: uncommitted records are
never visible.
"""

TRANSACTION: Mapping[str, ClientSetting] = {
    name: PRODUCER[name] for name in ("compression_type", "key_serializer", "value_serializer")
} | {
    "acks": _one_of("all", -1, "-1"),
    "partitioner": ClientSetting("default", lambda given: isinstance(given, str), "a partitioner's name"),
    "transaction_timeout_ms": _whole(60_000, 1),
}

_OWNERS = {"producer": PRODUCER, "consumer": CONSUMER, "transaction": TRANSACTION}
_ELSEWHERE = {
    "bootstrap_servers": "the address is the log's: spark_log.connect(URL)",
    "transactional_id": "transactions are log.transaction(ID)",
}


def resolve_settings(who: str, table: Mapping[str, ClientSetting], given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of `table`: the given values, and defaults for the others.

    Raises InvalidRequest for an unknown name, with the nearest one, and for an invalid value.
    """
    for name, value in given.items():
        if name not in table:
            raise InvalidRequest(f"unknown {who} setting {name!r}; {_hint(table, name)}")
        if not table[name].accepts(value):
            raise InvalidRequest(f"invalid value {value!r} for {name}: expected {table[name].possible}")
    return {name: given.get(name, setting.default) for name, setting in table.items()}


def _hint(table: Mapping[str, ClientSetting], name: str) -> str:
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    name = name.replace(".", "_")
    for owner, settings in _OWNERS.items():
        if name in settings and name not in table:
            return f"it is a {owner}'s setting"
    near = get_close_matches(name, table, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(table))}"


def coder(function: Any, method: str) -> Callable[[Any], Any] | None:
    """A serializer as a function of one argument.  `function` may also be an object with the method `method`, or
    None."""
    return getattr(function, method, function)
