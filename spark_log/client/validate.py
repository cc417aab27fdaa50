"""Validation of arguments, with clear messages instead of errors from deep inside."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from numbers import Real
from typing import TypeVar

from spark_log.errors import InvalidPartitions, InvalidRequest
from spark_log.model import NewTopic, TopicPartition
from spark_log.positions import AtTime, parse_position
from spark_log.text import is_name, shown

Item = TypeVar("Item")


def several(what: str, given: Iterable[Item]) -> list[Item]:
    """The argument as a list.  A string is rejected: iterating over "abc" would delete topics a, b and c."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidRequest(f"{what}: {given!r} is not a list; give [{given!r}]")
    return list(given)


def checked_id(what: str, given: object) -> str:
    """Check a transactional id, which may be an old one with any characters."""
    if not isinstance(given, str):
        raise InvalidRequest(f"{what}: {given!r} is not a transactional id; give a name, such as 'etl-1'")
    if not given:
        raise InvalidRequest(f"{what}: the id is empty; give a name that is the same on every run")
    return given


def check_new_id(what: str, given: object) -> None:
    """Check the transactional id of a transaction that begins."""
    if not is_name(checked_id(what, given)):
        raise InvalidRequest(f"{what}: {given!r} has characters that cannot be printed; give a name, such as 'etl-1'")


def one_topic(given: object) -> None:
    """Check the name of a topic where only one can be given."""
    if not isinstance(given, str):
        raise InvalidRequest(f"topic: {given!r} is not the name of a topic; read one topic at a time")


def new_topics(what: str, given: Iterable[NewTopic]) -> list[NewTopic]:
    """Check topics to be created."""
    topics = several(what, given)
    for topic in topics:
        if not isinstance(topic, NewTopic):
            name = topic if isinstance(topic, str) else "orders"
            raise InvalidRequest(
                f"{what}: {shown(topic)} is not a NewTopic, which has a name, a number of partitions and configs; give "
                f"spark_log.NewTopic({name!r}, num_partitions=3)"
            )
        partition_count(topic.name, topic.num_partitions)
    return topics


def partition_count(topic: str, given: object) -> None:
    """Check that it is a number; the log decides which numbers are valid."""
    if not isinstance(given, int):
        raise InvalidPartitions(f"topic {topic!r}: {given!r} is not a number of partitions")


def partition_keys(what: str, given: Iterable[object]) -> None:
    """Check keys of arguments by partition."""
    for tp in given:
        if not hasattr(tp, "topic") or not hasattr(tp, "partition"):
            raise InvalidRequest(f"{what}: {tp!r} is not a TopicPartition; give spark_log.TopicPartition('orders', 0)")


def times_ms(what: str, given: Mapping[TopicPartition, object]) -> dict[TopicPartition, int]:
    """Times by partition, in milliseconds since 1970, from numbers and datetimes; a datetime without a zone is UTC."""
    partition_keys(what, given)
    found = {}
    for tp, time in given.items():
        parsed = parse_position(time, what) if isinstance(time, datetime) else None
        ms = parsed.ms if isinstance(parsed, AtTime) else time
        if not isinstance(ms, int) or ms < 0:
            raise InvalidRequest(
                f"{what}: {time!r} for {tp.topic}-{tp.partition} is not a time in milliseconds since 1970"
            )
        found[tp] = ms
    return found


def url_text(given: object) -> str:
    """A URL, from a string or a path object."""
    found = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(found, str):
        raise InvalidRequest(f"url: {given!r} is not a URL; give a path, as /data/log, or s3://bucket/folder")
    return found


def timeout(given: object) -> float:
    """The timeout of a call in ms.  Raises InvalidRequest for anything but a number."""
    if isinstance(given, bool) or not isinstance(given, Real) or math.isnan(given):
        raise InvalidRequest(f"invalid value {given!r} for timeout_ms: expected a number of milliseconds")
    return float(given)
