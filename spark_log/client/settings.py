"""Settings of producers and consumers: Kafka's names with underscores, Kafka's defaults, and a check of what is given.

A setting that means something only where there are brokers, connections or a coordinator is accepted and changes nothing,
so that a client's settings can be carried over as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from spark_log.errors import InvalidRequest
from spark_log.segment.schema import COMPRESSIONS

INT_MAX = 2**31 - 1


class Setting(NamedTuple):
    """A default, what else can be given, and how that is told."""

    default: Any
    accepts: Callable[[Any], bool]
    possible: str


def _whole(default: int, minimum: int = 0, maximum: int = INT_MAX) -> Setting:
    def accepts(given: Any) -> bool:
        return isinstance(given, int) and not isinstance(given, bool) and minimum <= given <= maximum

    return Setting(default, accepts, f"a whole number from {minimum} to {maximum}")


def _flag(default: bool) -> Setting:
    return Setting(default, lambda given: isinstance(given, bool), "True or False")


def _one_of(default: str | int, *others: str | int) -> Setting:
    words = (default, *others)
    return Setting(
        default, lambda given: type(given) is not bool and given in words, f"one of {', '.join(map(repr, words))}"
    )


def _text(default: str | None = None) -> Setting:
    return Setting(default, lambda given: given is None or isinstance(given, str), "a text")


def _function(what: str) -> Setting:
    return Setting(None, lambda given: given is None or callable(given) or hasattr(given, "serialize"), what)


def _names(default: Sequence[str]) -> Setting:
    return Setting(default, lambda given: isinstance(given, str | list | tuple), "a name or a list of names")


_PARTITIONER = Setting(
    "default",
    lambda given: isinstance(given, str) or callable(given),
    "a partitioner's name, or a function of (key, all partitions, available partitions)",
)

_CONNECTION: Mapping[str, Setting] = {
    "client_id": _text(),
    "client_rack": _text(""),
    "connections_max_idle_ms": _whole(540_000),
    "metadata_max_age_ms": _whole(300_000),
    "receive_buffer_bytes": _whole(65_536, -1),
    "reconnect_backoff_max_ms": _whole(1_000),
    "reconnect_backoff_ms": _whole(50),
    "request_timeout_ms": _whole(30_000),
    "retry_backoff_max_ms": _whole(1_000),
    "retry_backoff_ms": _whole(100),
    "send_buffer_bytes": _whole(131_072, -1),
}

PRODUCER: Mapping[str, Setting] = {
    **_CONNECTION,
    "acks": _one_of("all", -1, 0, 1, "-1", "0", "1"),
    "batch_size": _whole(16_384),
    "buffer_memory": _whole(33_554_432, 1, 1 << 30),
    "compression_type": _one_of(*COMPRESSIONS),
    "delivery_timeout_ms": _whole(120_000),
    "enable_idempotence": _flag(True),
    "key_serializer": _function("a function from a key to bytes"),
    "linger_ms": _whole(5),
    "max_block_ms": _whole(60_000),
    "max_in_flight_requests_per_connection": _whole(5, 1),
    "max_request_size": _whole(1_048_576),
    "partitioner": _PARTITIONER,
    "retries": _whole(INT_MAX),
    "value_serializer": _function("a function from a value to bytes"),
}
"""Where the default is not Kafka's: `compression_type` is zstd, as for all that pylog writes."""

CONSUMER: Mapping[str, Setting] = {
    **_CONNECTION,
    "allow_auto_create_topics": _flag(True),
    "auto_commit_interval_ms": _whole(5_000),
    "auto_offset_reset": _one_of("latest", "earliest", "none"),
    "check_crcs": _flag(True),
    "consumer_timeout_ms": Setting(
        math.inf,
        lambda given: isinstance(given, int | float) and not isinstance(given, bool) and given >= 0,
        "milliseconds, or math.inf for no limit",
    ),
    "default_api_timeout_ms": _whole(60_000),
    "enable_auto_commit": _flag(True),
    "exclude_internal_topics": _flag(True),
    "fetch_max_bytes": _whole(52_428_800, 1),
    "fetch_max_wait_ms": _whole(500),
    "fetch_min_bytes": _whole(1),
    "group_id": _text(),
    "group_instance_id": _text(),
    "group_protocol": _one_of("classic", "consumer"),
    "heartbeat_interval_ms": _whole(3_000, 1),
    "isolation_level": _one_of("read_uncommitted", "read_committed"),
    "key_deserializer": _function("a function from bytes to a key"),
    "max_partition_fetch_bytes": _whole(1_048_576, 1),
    "max_poll_interval_ms": _whole(300_000, 1),
    "max_poll_records": _whole(500, 1),
    "partition_assignment_strategy": _names(("range", "cooperative-sticky")),
    "session_timeout_ms": _whole(45_000, 1),
    "value_deserializer": _function("a function from bytes to a value"),
}

TRANSACTION: Mapping[str, Setting] = {
    name: PRODUCER[name] for name in ("compression_type", "key_serializer", "value_serializer")
} | {
    "acks": _one_of("all", -1, "-1"),
    "partitioner": Setting("default", lambda given: isinstance(given, str), "a partitioner's name"),
    "transaction_timeout_ms": _whole(60_000, 1),
}

_ELSEWHERE = {
    "bootstrap_servers": "the address is the log's: spark_log.connect(URL)",
    "transactional_id": "transactions are log.transaction(ID)",
}


def resolve_settings(who: str, table: Mapping[str, Setting], given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of `table`, those given and the defaults of the others.

    Raises InvalidRequest for one that is unknown, with the nearest, or has a value that is not possible.
    """
    for name, value in given.items():
        if name not in table:
            raise InvalidRequest(f"unknown {who} setting {name!r}; {_hint(table, name)}")
        if not table[name].accepts(value):
            raise InvalidRequest(f"{name}: {value!r} is not possible; give {table[name].possible}")
    return {name: given.get(name, setting.default) for name, setting in table.items()}


def _hint(table: Mapping[str, Setting], name: str) -> str:
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    near = get_close_matches(name.replace(".", "_"), table, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(table))}"


def coder(function: Any, method: str) -> Callable[[Any], Any] | None:
    """A serializer as a function of one argument, from a function or an object with the method; None for none."""
    return getattr(function, method, function)
