"""Types of the settings in `client_settings.py`, for editors and type checkers.

The tables there have the defaults and the checks; a test compares the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from spark_log.client.client_settings import ClientSetting

Call = TypeVar("Call", bound=Callable[..., object])


class Serializer(Protocol):
    """Converts keys or values to bytes."""

    def serialize(self, value: Any, /) -> Any: ...


class Deserializer(Protocol):
    """Converts bytes to keys or values."""

    def deserialize(self, data: Any, /) -> Any: ...


class ConnectionSettings(TypedDict, total=False):
    """Settings of producers and consumers."""

    client_id: str | None
    client_rack: str | None
    connections_max_idle_ms: Literal[540_000]
    metadata_max_age_ms: int
    receive_buffer_bytes: Literal[65_536]
    reconnect_backoff_max_ms: Literal[1_000]
    reconnect_backoff_ms: Literal[50]
    request_timeout_ms: Literal[30_000]
    send_buffer_bytes: Literal[131_072]


class ProducerSettings(ConnectionSettings, total=False):
    """Settings of `log.producer`."""

    acks: Literal["all", -1, 0, 1, "-1", "0", "1"]
    batch_size: int
    buffer_memory: int
    compression_type: Literal["zstd", "lz4", "none"]
    delivery_timeout_ms: int
    enable_idempotence: Literal[True]
    key_serializer: Callable[[Any], Any] | Serializer | None
    linger_ms: int
    max_block_ms: int
    max_in_flight_requests_per_connection: int
    max_request_size: int
    partitioner: str | Callable[[Any, Any, Any], int]
    retries: int
    retry_backoff_max_ms: int
    retry_backoff_ms: int
    value_serializer: Callable[[Any], Any] | Serializer | None


class ConsumerSettings(ConnectionSettings, total=False):
    """Settings of `log.consumer`."""

    allow_auto_create_topics: Literal[False]
    auto_commit_interval_ms: int
    auto_offset_reset: Literal["latest", "earliest", "none"]
    check_crcs: Literal[True]
    consumer_timeout_ms: float
    default_api_timeout_ms: int
    enable_auto_commit: bool
    exclude_internal_topics: Literal[True]
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    group_id: str | None
    group_instance_id: str | None
    group_protocol: Literal["classic"]
    heartbeat_interval_ms: int | None
    isolation_level: Literal["read_uncommitted", "read_committed"]
    key_deserializer: Callable[[Any], Any] | Deserializer | None
    max_partition_fetch_bytes: int
    max_poll_interval_ms: int
    max_poll_records: int
    partition_assignment_strategy: str | list[str] | tuple[str, ...]
    retry_backoff_max_ms: Literal[1_000]
    retry_backoff_ms: Literal[100]
    session_timeout_ms: int
    value_deserializer: Callable[[Any], Any] | Deserializer | None
    value_format: Literal["columns", "struct", "json"] | None
    value_parse: Literal["json"] | None


class TransactionSettings(TypedDict, total=False):
    """Settings of `log.transaction`."""

    acks: Literal["all", -1, "-1"]
    compression_type: Literal["zstd", "lz4", "none"]
    key_serializer: Callable[[Any], Any] | Serializer | None
    partitioner: str
    transaction_timeout_ms: int
    value_serializer: Callable[[Any], Any] | Serializer | None


def takes_settings(table: Mapping[str, ClientSetting], types: Mapping[str, Any]) -> Callable[[Call], Call]:
    """Let `help()` and completion at a prompt show each setting of a function that has them as `**settings`.

    types:  annotations by name.
    """

    def mark(call: Call) -> Call:
        signature = inspect.signature(call)
        given = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        named = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=one.default,
                annotation=getattr(types[name], "__forward_arg__", types[name]),
            )
            for name, one in sorted(table.items())
        ]
        call.__signature__ = signature.replace(parameters=[*given, *named])  # type: ignore[attr-defined]
        return call

    return mark
