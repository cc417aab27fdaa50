"""Options of the data source: parsed once, checked where Spark reports errors best, carried to tasks as values.

Names are case-insensitive; Spark hands them over in lower case.  The meaning is that of Kafka's connector where it has
the option.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pyspark_pylog.option_table import INTERNAL, REFUSED, SPARKS, SPELLING, names, spelt
from pyspark_pylog.where import condition_of
from spark_log.conditions import Condition
from spark_log.errors import InvalidRequest
from spark_log.model import PROGRESS_TOPIC, TopicPartition
from spark_log.positions import At, AtTime, Earliest, Latest, Position, parse_position, parse_timestamp_ms
from spark_log.segment.partitioners import make_partitioner
from spark_log.segment.schema import COMPRESSIONS
from spark_log.settings import check_topic_name

Options = Mapping[str, str]

STRATEGIES = ("subscribe", "subscribepattern", "assign")
OF_OBJECTS = (
    "group.id",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "maxbytespertrigger",
    "minpartitions",
    "maxrecordsperpartition",
    "maxbytesperpartition",
)
"""Options for topics whose records lie in objects."""
DEFAULT_BYTES_PER_TRIGGER = 1 << 30
DEFAULT_BYTES_PER_PARTITION = 32 << 20
DEFAULT_TRIGGER_DELAY_MS = 900_000
DURATIONS_MS = {
    unit: ms
    for units, ms in (
        (("", "ms", "millisecond", "milliseconds"), 1),
        (("s", "sec", "second", "seconds"), 1000),
        (("m", "min", "minute", "minutes"), 60_000),
        (("h", "hour", "hours"), 3_600_000),
        (("d", "day", "days"), 86_400_000),
    )
    for unit in units
}
UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where each partition starts or ends: one position for all, and those that differ."""

    default: Position
    topics: Mapping[str, Position] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, Position] = field(default_factory=dict)

    def of(self, tp: TopicPartition) -> Position:
        return self.partitions.get(tp) or self.topics.get(tp.topic) or self.default

    @property
    def named(self) -> set[str]:
        """Topics that are named."""
        return {*self.topics, *(tp.topic for tp in self.partitions)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where the log is."""

    url: str
    storage: Mapping[str, str]
    durability: str = "disk"
    token: str | None = None
    """For a coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    location: Location
    subscribe: tuple[str, ...] = ()
    pattern: str = ""
    assign: tuple[TopicPartition, ...] = ()
    start: Bounds
    end: Bounds
    where: Condition
    """Records that are wanted."""
    no_match_is_error: bool
    """For starting timestamps beyond the last record."""
    fail_on_data_loss: bool
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    """A batch below `min_offsets` waits no longer after the one before."""
    max_bytes: int | None
    max_bytes_asked: bool
    """Whether it is more than the default."""
    min_partitions: int | None
    max_records: int | None
    bytes_per_partition: int
    group: str | None = None
    """To which a stream publishes its progress."""

    @property
    def of_progress(self) -> bool:
        """Whether what is read is where groups stand."""
        return PROGRESS_TOPIC in self.subscribe or any(tp.topic == PROGRESS_TOPIC for tp in self.assign)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    location: Location
    topic: str | None
    partitioner: str
    compression: str
    txn_app_id: str | None
    txn_version: int | None
    txn_from_query: bool
    query_id: str | None
    """Of the streaming query, where tasks do not know it."""
    producer_id: str | None
    dead_letters: str | None
    """The topic for rows that cannot be written; None: they fail the write."""


# --------------------------------------------------------------------------------------------------------------- reading


def read_options(options: Options, *, streaming: bool | None) -> ReadOptions:
    """Checked options of a read; None where it is not known what kind.  Raises InvalidRequest, which names the option."""
    _check_names(options, "BS")
    if streaming:
        for name in ("endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp"):
            if name in options:
                raise InvalidRequest(f"option {spelt(name)}: a stream has no end; leave it out")
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise InvalidRequest(f"option startingOffsetsByTimestampStrategy: {strategy!r} is not 'error' or 'latest'")
    subscribe, pattern, assign = _strategy(options)
    _check_progress_topic(options, {*subscribe, *(tp.topic for tp in assign)})
    if options.get("kafka.isolation.level", "read_committed") not in ("read_committed", "read_uncommitted"):
        raise InvalidRequest(
            f"option kafka.isolation.level: {options['kafka.isolation.level']!r} is not read_committed or read_uncommitted"
        )
    start = _bounds(options, "starting", Latest() if streaming else Earliest())
    end = _bounds(options, "ending", Latest())
    if streaming is False:
        _check_batch_bounds(start, end)
    least, most = _positive(options, "minoffsetspertrigger"), _positive(options, "maxoffsetspertrigger")
    if least is not None and most is not None and least > most:
        raise InvalidRequest(f"option minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}")
    if not pattern:
        all_of: dict[str, set[int] | None] = dict.fromkeys(subscribe)
        _check_named(all_of | {t: {tp.partition for tp in assign if tp.topic == t} for t, _ in assign}, start, end)
    return ReadOptions(
        location=_location(options),
        subscribe=subscribe,
        pattern=pattern,
        assign=assign,
        start=start,
        end=end,
        where=condition_of(options),
        no_match_is_error=strategy == "error" and _by_timestamp(options),
        fail_on_data_loss=flag(options, "failondataloss", True),
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=_duration_ms(options, "maxtriggerdelay", DEFAULT_TRIGGER_DELAY_MS),
        max_bytes=_bytes_per_trigger(options),
        max_bytes_asked="maxbytespertrigger" in options,
        min_partitions=_positive(options, "minpartitions"),
        max_records=_positive(options, "maxrecordsperpartition"),
        bytes_per_partition=_size(options, "maxbytesperpartition") or DEFAULT_BYTES_PER_PARTITION,
        group=_group(options, streaming),
    )


def _group(options: Options, streaming: bool | None) -> str | None:
    if "group.id" not in options:
        return None
    if streaming is False:
        raise InvalidRequest(
            "option group.id is for streams; for a batch use log.bookmark, or startingOffsets=group:NAME"
        )
    name = options["group.id"].strip()
    if not name:
        raise InvalidRequest("option group.id: is empty; give the group a name")
    return name


def _check_progress_topic(options: Options, topics: set[str]) -> None:
    """Where groups stand is made of the log's state: read alone, whole, by one task."""
    if PROGRESS_TOPIC not in topics:
        return
    if topics != {PROGRESS_TOPIC}:
        raise InvalidRequest(
            f"{PROGRESS_TOPIC} is read alone: leave out {', '.join(sorted(topics - {PROGRESS_TOPIC}))}, and union the frames"
        )
    for name in OF_OBJECTS:
        if name in options:
            raise InvalidRequest(
                f"option {spelt(name)} has no meaning for {PROGRESS_TOPIC}, which is small and read whole: leave it out"
            )


def check_load(options: Options) -> None:
    """What can be said at `load()`, before it is known whether the read is a batch or a stream.

    `CREATE TABLE` comes here with options of its own and is let through: its reads bring their options with them.  So is
    a view to insert into.  Raises InvalidRequest.
    """
    to_insert = any(name in names("WT") - names("BS") for name in options) and not any(
        name in STRATEGIES for name in options
    )
    if "provider" not in options and not to_insert:
        read_options(options, streaming=None)


def _by_timestamp(options: Options) -> bool:
    return "startingtimestamp" in options or "startingoffsetsbytimestamp" in options


def _strategy(options: Options) -> tuple[tuple[str, ...], str, tuple[TopicPartition, ...]]:
    given = [name for name in STRATEGIES if name in options]
    if len(given) != 1:
        found = "none" if not given else " and ".join(spelt(name) for name in given)
        raise InvalidRequest(f"give exactly one of the options subscribe, subscribePattern and assign; found {found}")
    text = options[given[0]].strip()
    match given[0]:
        case "subscribe":
            topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
            if not topics:
                raise InvalidRequest("option subscribe: names no topic; give one or more, separated by commas")
            for topic in topics:
                check_topic_name(topic)
            return topics, "", ()
        case "subscribepattern":
            return (), _pattern(text), ()
        case _:
            return (), "", _assign(text)


def _pattern(text: str) -> str:
    if not text:
        raise InvalidRequest("option subscribePattern: is empty; give a regular expression")
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidRequest(
            f"option subscribePattern: {text!r} is not a Python regular expression: {error}"
        ) from error
    return text


def _assign(text: str) -> tuple[TopicPartition, ...]:
    shape = '{"topicA":[0,1],"topicB":[2,4]}'
    found = _json(text, "assign", shape)
    for topic, numbers in found.items():
        if not isinstance(numbers, list) or not all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers
        ):
            raise InvalidRequest(f"option assign: {topic!r} must map to a list of partitions, as in {shape}")
    assigned = tuple(sorted({TopicPartition(topic, n) for topic, numbers in found.items() for n in numbers}))
    if not assigned:
        raise InvalidRequest(f"option assign: names no partition; the shape is {shape}")
    return assigned


def _bounds(options: Options, side: str, default: Position) -> Bounds:
    """`…Timestamp` before `…OffsetsByTimestamp` before `…Offsets`: one that comes later is ignored, as Kafka's does."""
    name = f"{side}timestamp"
    if name in options:
        return Bounds(AtTime(parse_timestamp_ms(options[name], f"option {spelt(name)}")))
    name = f"{side}offsetsbytimestamp"
    if name in options:
        return _parse_map(options[name], spelt(name), default, '{"topicA":{"0":1769853600000}}', _time)
    name = f"{side}offsets"
    if name not in options:
        return Bounds(default)
    text = options[name].strip()
    if not text.startswith("{"):
        return Bounds(parse_position(text, f"option {spelt(name)}"))
    return _parse_map(text, spelt(name), default, '{"topicA":{"0":23,"1":-2},"topicB":"latest"}', parse_position)


def _time(given: object, what: str) -> Position:
    return AtTime(parse_timestamp_ms(given, what))


def _parse_map(
    text: str, option: str, default: Position, shape: str, parse: Callable[[object, str], Position]
) -> Bounds:
    topics: dict[str, Position] = {}
    partitions: dict[TopicPartition, Position] = {}
    for topic, given in _json(text, option, shape).items():
        if not isinstance(given, dict):
            topics[topic] = parse(given, f"option {option}, topic {topic!r}")
            continue
        for number, position in given.items():
            if not number.isdecimal():
                raise InvalidRequest(f"option {option}: {number!r} is not a partition number; the shape is {shape}")
            partitions[TopicPartition(topic, int(number))] = parse(position, f"option {option}, {topic}-{number}")
    return Bounds(default, topics, partitions)


def _json(text: str, option: str, shape: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"option {option}: not JSON ({error}); the shape is {shape}, found {text!r}") from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"option {option}: the shape is {shape}, found {text!r}")
    return found


def _check_batch_bounds(start: Bounds, end: Bounds) -> None:
    for side, bounds, refused in (("starting", start, Latest), ("ending", end, Earliest)):
        for position in (bounds.default, *bounds.topics.values(), *bounds.partitions.values()):
            if isinstance(position, refused):
                raise InvalidRequest(
                    f"option {side}Offsets: a batch cannot {'start at latest' if refused is Latest else 'end at earliest'}"
                )
    for tp in sorted(set(start.partitions) & set(end.partitions)):
        low, high = start.partitions[tp], end.partitions[tp]
        if isinstance(low, At) and isinstance(high, At) and low.offset > high.offset:
            raise InvalidRequest(
                f"startingOffsets of {tp.topic}-{tp.partition} is {low.offset}, beyond endingOffsets {high.offset}"
            )


def _check_named(wanted: Mapping[str, set[int] | None], start: Bounds, end: Bounds) -> None:
    """Positions are for what is read: by topic, its partitions, or None for all."""
    for side, bounds in (("starting", start), ("ending", end)):
        for topic in sorted(bounds.named - set(wanted)):
            raise InvalidRequest(f"option {side}Offsets names {topic!r}, which is not read")
        for tp in sorted(bounds.partitions):
            numbers = wanted[tp.topic]
            if numbers is not None and tp.partition not in numbers:
                raise InvalidRequest(f"option {side}Offsets names {tp.topic}-{tp.partition}, which is not assigned")


def _bytes_per_trigger(options: Options) -> int | None:
    if options.get("maxbytespertrigger", "").strip().lower() == "none":
        return None
    return _size(options, "maxbytespertrigger") or DEFAULT_BYTES_PER_TRIGGER


# --------------------------------------------------------------------------------------------------------------- writing


def write_options(options: Options, *, streaming: bool) -> WriteOptions:
    """Checked options of a write.  Raises InvalidRequest, which names the option."""
    _check_names(options, "WT")
    topic = options.get("topic", "").strip() or None
    if topic is not None:
        check_topic_name(topic)
    compression = options.get("compression", "lz4").strip().lower()
    if compression not in COMPRESSIONS:
        raise InvalidRequest(f"option compression: {compression!r} is not one of {', '.join(COMPRESSIONS)}")
    if options.get("acks", "all").strip() not in ("0", "1", "-1", "all"):
        raise InvalidRequest(f"option acks: {options['acks']!r} is not 0, 1 or all")
    if streaming:
        _only(
            options,
            ("txnappid", "txnversion"),
            "batch writes; a stream is exactly once by its checkpoint (see producerId)",
        )
    else:
        _only(options, ("producerid",), "streams; for a batch use txnAppId and txnVersion")
    if ("txnappid" in options) != ("txnversion" in options) and "pylog.txnfromquery" not in options:
        raise InvalidRequest("options txnAppId and txnVersion go together: give both or neither")
    return WriteOptions(
        location=_location(options),
        topic=topic,
        partitioner=_partitioner(options),
        compression=compression,
        txn_app_id=options.get("txnappid"),
        txn_version=_whole(options, "txnversion"),
        txn_from_query=flag(options, "pylog.txnfromquery", False),
        query_id=options.get("pylog.queryid"),
        producer_id=options.get("producerid"),
        dead_letters=_dead_letters(options, topic),
    )


def _dead_letters(options: Options, topic: str | None) -> str | None:
    text = options.get("badrecords", "fail").strip()
    kind, _, name = (part.strip() for part in text.partition(":"))
    if text.lower() == "fail":
        return None
    if kind.lower() != "topic":
        raise InvalidRequest(f"option badRecords: {text!r} is not 'fail' or 'topic:NAME'")
    check_topic_name(name)
    if name == topic:
        raise InvalidRequest(f"option badRecords: {name!r} is the topic that is written; give bad records another one")
    return name


def _partitioner(options: Options) -> str:
    name = options.get("partitioner", "default").strip()
    if ":" not in name:  # a user's class may be there for the tasks only
        try:
            make_partitioner(name, random.Random(0))
        except InvalidRequest as error:
            raise InvalidRequest(f"option partitioner: {error}") from error
    return name


def _only(options: Options, names: tuple[str, ...], where: str) -> None:
    for name in names:
        if name in options:
            raise InvalidRequest(f"option {spelt(name)} is for {where}")


# ---------------------------------------------------------------------------------------------------------------- shared


def _location(options: Options) -> Location:
    url = options.get("path") or options.get("kafka.bootstrap.servers") or ""
    if not url.strip():
        raise InvalidRequest(
            "where is the log? give its URL: .load(URL), .save(URL), .start(URL) or .option('path', URL)"
        )
    if "path" not in options and "://" not in url:
        url = f"pylog://{url}"
    durability = options.get("durability", "disk").strip().lower()
    if durability not in ("disk", "os"):
        raise InvalidRequest(f"option durability: {durability!r} is not 'disk' or 'os'")
    storage = {name.removeprefix("storage."): options[name] for name in options if name.startswith("storage.")}
    return Location(url=url.strip(), storage=storage, durability=durability, token=options.get("token"))


def _check_names(options: Options, uses: str) -> None:
    if not options:
        raise InvalidRequest(
            "no options came; those of a catalog table Spark does not hand over, so name them in the statement: "
            "SELECT … FROM t WITH (path '…', subscribe '…'), INSERT INTO t WITH (path '…', topic '…') …"
        )
    known = names(uses) | {name.lower() for name in (*SPARKS, *INTERNAL)}
    for name in options:
        if name in known or name.startswith("storage."):
            continue
        if name in REFUSED:
            raise InvalidRequest(f"option {name} is not supported: {REFUSED[name]}")
        if name in SPELLING:
            raise InvalidRequest(f"option {spelt(name)} is for {'reads' if uses == 'WT' else 'writes'}")
        if name.startswith("kafka."):
            raise InvalidRequest(f"option {name} has no meaning for pylog, which has no Kafka client: leave it out")
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {spelt(near[0])}?" if near else ""
        raise InvalidRequest(f"option {name} is not known{hint}")


def flag(options: Options, name: str, default: bool) -> bool:
    """A boolean option."""
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidRequest(f"option {spelt(name)}: {text!r} is not true or false")
    return text == "true"


def _whole(options: Options, name: str) -> int | None:
    if name not in options:
        return None
    text = options[name].strip()
    if not text.isdecimal():
        raise InvalidRequest(f"option {spelt(name)}: {text!r} is not a whole number")
    return int(text)


def _positive(options: Options, name: str) -> int | None:
    number = _whole(options, name)
    if number == 0:
        raise InvalidRequest(f"option {spelt(name)}: must be positive")
    return number


def _size(options: Options, name: str) -> int | None:
    if name not in options:
        return None
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", options[name].strip().lower())
    if not found or found[2] not in UNITS or int(found[1]) == 0:
        raise InvalidRequest(f"option {spelt(name)}: {options[name]!r} is not a size, such as 500000, 64m or 1g")
    return int(found[1]) * UNITS[found[2]]


def _duration_ms(options: Options, name: str, default: int) -> int:
    if name not in options:
        return default
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", options[name].strip().lower())
    if not found or found[2] not in DURATIONS_MS:
        raise InvalidRequest(
            f"option {spelt(name)}: {options[name]!r} is not a duration, such as 5s, 15m, 1 minute or 500 (milliseconds)"
        )
    return int(found[1]) * DURATIONS_MS[found[2]]
