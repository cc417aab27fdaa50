"""Start and end of a read, from its options: one position for all partitions, and exceptions.  Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_pylog.options.option_table import spelt
from pyspark_pylog.options.values import DIGITS_MAX
from spark_log.errors import InvalidRequest
from spark_log.model import TopicPartition
from spark_log.positions import (
    At,
    AtTime,
    Earliest,
    Latest,
    LatestMinus,
    Position,
    SinceNow,
    format_position,
    parse_position,
    parse_timestamp_ms,
)

LATEST_PER_KEY = "latest-per-key"
"""A start of streams only."""


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """Start or end of each partition."""

    default: Position
    topics: Mapping[str, Position] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, Position] = field(default_factory=dict)
    option: str = "startingOffsets"
    """The name of the option, for messages."""
    latest_per_key: bool = False
    """Whether a stream begins with the latest record of each key."""

    def of(self, tp: TopicPartition) -> Position:
        return self.partitions.get(tp) or self.of_topic(tp.topic)

    def of_topic(self, topic: str) -> Position:
        """The position of the topic's other partitions."""
        return self.topics.get(topic) or self.default

    @property
    def named(self) -> set[str]:
        """The topics that the option names."""
        return {*self.topics, *(tp.topic for tp in self.partitions)}

    @property
    def positions(self) -> list[Position]:
        return [self.default, *self.topics.values(), *self.partitions.values()]


def parse_bounds(options: Mapping[str, str], side: str, default: Position) -> ReadBounds:
    """Parse `starting` or `ending`: `…Timestamp` takes precedence over `…OffsetsByTimestamp`, and that over `…Offsets`,
    as in Kafka's connector.  `latest-per-key` cannot be combined with a time.  Raises InvalidRequest."""
    if side == "starting":
        _check_alone(options)
    name = f"{side}timestamp"
    if name in options:
        return ReadBounds(_time(options[name], f"option {spelt(name)}"), option=spelt(name))
    name = f"{side}offsetsbytimestamp"
    if name in options:
        return _parse_map(options[name], spelt(name), default, '{"topicA":{"0":1769853600000}}', _time)
    name = f"{side}offsets"
    if name not in options:
        return ReadBounds(default, option=spelt(name))
    text = options[name].strip()
    if side == "starting" and text.lower() == LATEST_PER_KEY:
        return ReadBounds(Earliest(), option=spelt(name), latest_per_key=True)
    if not text.startswith("{"):
        return ReadBounds(parse_position(text, f"option {spelt(name)}"), option=spelt(name))
    return _parse_map(text, spelt(name), default, '{"topicA":{"0":23,"1":-2},"topicB":"latest"}', parse_position)


def _check_alone(options: Mapping[str, str]) -> None:
    if options.get("startingoffsets", "").strip().lower() != LATEST_PER_KEY:
        return
    for name in ("startingtimestamp", "startingoffsetsbytimestamp"):
        if name in options:
            raise InvalidRequest(
                f"option {spelt(name)}: {options[name]!r} contradicts startingOffsets={LATEST_PER_KEY}, which begins "
                "with the latest record of each key in the whole topic; remove one of the two"
            )


def _time(given: object, what: str) -> Position:
    """A number below 0 is refused, as by Kafka's connector: -1 and -2 are the end and the start by offset."""
    found = parse_timestamp_ms(given, what)
    if found < 0 and (isinstance(given, int) or str(given).strip().startswith("-")):
        raise InvalidRequest(
            f"{what}: {given!r} is below 0: give the end and the start with {spelt('startingoffsets')}, as latest and "
            "earliest, and a time before 1970 in ISO-8601, as 1969-12-31T00:00:00Z"
        )
    return AtTime(found)


def _parse_map(
    text: str, option: str, default: Position, shape: str, parse: Callable[[object, str], Position]
) -> ReadBounds:
    topics: dict[str, Position] = {}
    partitions: dict[TopicPartition, Position] = {}
    for topic, given in parse_json(text, option, shape).items():
        if not isinstance(given, dict):
            topics[topic] = parse(given, f"option {option}, topic {topic!r}")
            continue
        for number, position in given.items():
            if not number.isdecimal() or len(number) > DIGITS_MAX:
                raise InvalidRequest(f"option {option}: {number!r} is not a partition number; the shape is {shape}")
            partitions[TopicPartition(topic, int(number))] = parse(position, f"option {option}, {topic}-{number}")
    return ReadBounds(default, topics, partitions, option)


def parse_json(text: str, option: str, shape: str) -> dict[str, Any]:
    """Parse the JSON object of an option.  Raises InvalidRequest that shows the shape."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits
        raise InvalidRequest(f"option {option}: not JSON ({error}); the shape is {shape}, found {text!r}") from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"option {option}: the shape is {shape}, found {text!r}")
    return found


def check_batch(start: ReadBounds, end: ReadBounds) -> None:
    """Reject a batch that starts as only a stream can, or ends at earliest.  Raises InvalidRequest."""
    if start.latest_per_key:
        raise InvalidRequest(
            f"option {start.option}: {LATEST_PER_KEY} is for streams; for a batch of the latest record of each key use "
            "view=latest"
        )
    if any(isinstance(position, Latest) for position in start.positions):
        raise InvalidRequest(
            f"option {start.option}: a batch cannot start at latest, there would be nothing to read; "
            "for the last 100 of each partition use latest-100"
        )
    if any(isinstance(position, Earliest) for position in end.positions):
        raise InvalidRequest(f"option {end.option}: a batch cannot end at earliest, there would be nothing to read")


def check_order(start: ReadBounds, end: ReadBounds) -> None:
    """Reject a start beyond its end, if that is certain without the log.  Raises InvalidRequest."""
    for what, low, high in _pairs(start, end):
        if _is_beyond(low, high):
            raise InvalidRequest(
                f"option {start.option}: {what} would start at {format_position(low)}, beyond its end by {end.option}, "
                f"{format_position(high)}; give a start at or before the end"
            )


def _pairs(start: ReadBounds, end: ReadBounds) -> Iterator[tuple[str, Position, Position]]:
    for tp in sorted({*start.partitions, *end.partitions}):
        yield f"{tp.topic}-{tp.partition}", start.of(tp), end.of(tp)
    for topic in sorted({*start.topics, *end.topics}):
        yield f"topic {topic!r}", start.of_topic(topic), end.of_topic(topic)
    yield "every partition", start.default, end.default


def _is_beyond(low: Position, high: Position) -> bool:
    match low, high:
        case (At(a), At(b)) | (AtTime(a), AtTime(b)):
            return a > b
        case (LatestMinus(a), LatestMinus(b)) | (SinceNow(a), SinceNow(b)):
            return a < b
    return False


def check_named(wanted: Mapping[str, set[int] | None], start: ReadBounds, end: ReadBounds) -> None:
    """Reject positions of topics or partitions that are not read; None means all partitions.  Raises InvalidRequest."""
    for bounds in (start, end):
        for topic in sorted(bounds.named - set(wanted)):
            raise InvalidRequest(
                f"option {bounds.option} names {topic!r}, which is not "
                f"read: {', '.join(sorted(wanted)) or 'no topic'} is"
            )
        for tp in sorted(bounds.partitions):
            numbers = wanted[tp.topic]
            if numbers is not None and tp.partition not in numbers:
                raise InvalidRequest(f"option {bounds.option} names {tp.topic}-{tp.partition}, which is not assigned")
