"""The arguments of a flow, checked, and the settings of its consumers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from spark_log.client.reader.typed import check_formats
from spark_log.configs.topic_names import check_topic_name
from spark_log.errors import InvalidRequest
from spark_log.flows.keyed_state import Keyed
from spark_log.groups.member_share import MEMBERS_MAX
from spark_log.metadata.groups.decide_groups import check_group_name
from spark_log.metadata.state import State
from spark_log.positions import Position, parse_position
from spark_log.schema.names import is_reserved
from spark_log.text import shown

SESSION_MS = 10_000
"""A coordinator gives the partitions of a task that died to others after this time."""
BATCH_MS_MAX = 1_800_000
"""Kafka's max.poll.interval.ms: a task whose function takes longer loses its partitions."""
IDLE_POLL_MS = 10
"""Longest interval between two looks at a local disk for new records; a look costs about 0.2 ms of CPU."""
FAIL, SKIP, TOPIC = "fail", "skip", "topic:"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowOptions:
    """The arguments of `spark_log.flow`, checked."""

    name: str
    topics: tuple[str, ...]
    """The sources by name; empty: `pattern` selects them."""
    pattern: str | None
    target: str | None
    function: Callable[..., object]
    lookups: tuple[str, ...]
    """Topics whose tables the function gets, too."""
    state: Keyed | None
    """The function gets and returns the state of its keys."""
    tasks: int
    numbers: tuple[int, ...]
    """The numbers of the tasks that run in this process."""
    start: Position
    """Where the first start of the flow begins."""
    bad_records: str
    batch_bytes: int
    linger_ms: int
    value_format: str | None

    @property
    def dead_letters(self) -> str | None:
        """The topic for records at which the function fails."""
        return self.bad_records.removeprefix(TOPIC) if self.bad_records.startswith(TOPIC) else None

    def sources(self, state: State) -> list[str]:
        """The source topics that exist."""
        if self.pattern is None:
            return [name for name in self.topics if name in state.names]
        return sorted(name for name in state.names if re.fullmatch(self.pattern, name))

    def consumer_settings(self, *, local: bool) -> dict[str, Any]:
        """Settings of a task's consumer.  local: the metadata log is on a local disk."""
        return {
            "group_id": self.name,
            "client_id": "flow",
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "fetch_max_bytes": self.batch_bytes,
            "fetch_min_bytes": self.batch_bytes if self.linger_ms else 1,
            "fetch_max_wait_ms": self.linger_ms or (IDLE_POLL_MS if local else 500),
            "partition_assignment_strategy": ("cooperative-sticky",),
            "session_timeout_ms": SESSION_MS,
            "max_poll_interval_ms": BATCH_MS_MAX,
            "value_format": self.value_format,
        }


def flow_options(
    *,
    name: str,
    source: str | re.Pattern[str] | Iterable[str],
    function: Callable[..., object],
    lookup: str | Iterable[str],
    state: Keyed | None,
    target: str | None,
    tasks: int,
    task_numbers: Iterable[int] | None,
    start: object,
    bad_records: str,
    batch_bytes: int,
    linger_ms: int,
    value_format: str | None,
) -> FlowOptions:
    """The options of a flow.  Raises InvalidRequest."""
    check_group_name(name)
    if not callable(function):
        raise InvalidRequest(f"flow {name!r}: function: expected a function of a pyarrow Table, not {shown(function)}")
    pattern = source.pattern if isinstance(source, re.Pattern) else None
    topics = () if isinstance(source, re.Pattern) else (source,) if isinstance(source, str) else tuple(source)
    if pattern is None and not topics:
        raise InvalidRequest(f"flow {name!r}: source: no topic is given; expected a name, names, or re.compile(…)")
    lookups = (lookup,) if isinstance(lookup, str) else tuple(lookup)
    for topic in (*topics, *lookups, *(() if target is None else (target,))):
        check_topic_name(topic)
    _check_numbers(
        tasks=(tasks, 1, MEMBERS_MAX), batch_bytes=(batch_bytes, 1, 2**31 - 1), linger_ms=(linger_ms, 0, 60_000)
    )
    check_formats(value_format, None)
    options = FlowOptions(
        name=name,
        topics=topics,
        pattern=pattern,
        target=target,
        function=function,
        lookups=lookups,
        state=_state(name, state, topics),
        tasks=tasks,
        numbers=_task_numbers(tasks, task_numbers),
        start=parse_position(start, "start"),
        bad_records=_bad_records(bad_records),
        batch_bytes=batch_bytes,
        linger_ms=linger_ms,
        value_format=value_format,
    )
    for topic in filter(None, (target, options.dead_letters, "" if state is None else state.topic)):
        if topic in topics or (pattern is not None and re.fullmatch(pattern, topic)):
            raise InvalidRequest(f"flow {name!r}: topic {topic!r} is a source, too: the flow would never end")
    if state is not None and state.topic in (target, options.dead_letters):
        raise InvalidRequest(f"flow {name!r}: topic {state.topic!r} has the state: choose another one for outputs")
    return options


def _state(name: str, given: object, topics: tuple[str, ...]) -> Keyed | None:
    if given is None:
        return None
    if not isinstance(given, Keyed):
        raise InvalidRequest(f"flow {name!r}: invalid value {shown(given)} for state: expected spark_log.keyed(TOPIC)")
    check_topic_name(given.topic)
    names = () if given.schema is None else given.schema.names
    for taken in filter(is_reserved, names):
        raise InvalidRequest(
            f"flow {name!r}: state: the schema has a column {taken!r}, which each record has: give only the columns beside "
            "the key, with other names"
        )
    if len(topics) != 1:
        raise InvalidRequest(
            f"flow {name!r}: a flow with state has one source, given by its name: it has {len(topics)}"
        )
    return given


def _check_numbers(**numbers: tuple[object, int, int]) -> None:
    for name, (given, least, most) in numbers.items():
        if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= most:
            raise InvalidRequest(
                f"invalid value {shown(given)} for {name}: expected a whole number from {least} to {most}"
            )


def _task_numbers(tasks: int, given: Iterable[int] | None) -> tuple[int, ...]:
    numbers = tuple(range(tasks)) if given is None else tuple(given)
    if not numbers or len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(tasks)):
        raise InvalidRequest(
            f"invalid value {shown(numbers)} for task_numbers: expected different numbers from 0 to {tasks - 1}"
        )
    return numbers


def _bad_records(given: str) -> str:
    if isinstance(given, str) and given.startswith(TOPIC):
        check_topic_name(given.removeprefix(TOPIC))
    elif given not in (FAIL, SKIP):
        raise InvalidRequest(f"invalid value {shown(given)} for bad_records: expected fail, skip or topic:NAME")
    return given
