"""Parses the options of the data source, where Spark shows errors best, into values for tasks.

Names are case-insensitive; Spark passes them in lower case.  For options of Kafka's connector, the meaning and the
order of checks, which decides the error for several invalid options, are those of the connector.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from pyspark_pylog.options.group_options import group_of, is_coordinated, share_of
from pyspark_pylog.options.kafka_client_settings import PARTITIONERS, READS, WRITES, refuse_kafkas, why_without_effect
from pyspark_pylog.options.option_table import INTERNAL, SPARKS, SPELLING, names, spelt
from pyspark_pylog.options.patterns import finds, parse_pattern
from pyspark_pylog.options.start_and_end import (
    LATEST_PER_KEY,
    ReadBounds,
    check_batch,
    check_named,
    check_order,
    parse_bounds,
    parse_json,
)
from pyspark_pylog.options.values import Options, duration_ms, flag, one_of, positive, size, whole
from pyspark_pylog.options.where_condition import condition_of
from spark_log.client.open_journal import given_token
from spark_log.conditions import Condition
from spark_log.configs.topic_names import check_topic_name
from spark_log.errors import InvalidRequest
from spark_log.groups.member_share import Share
from spark_log.http.address import is_coordinator
from spark_log.model import ACKS_ALL, ACKS_LEADER, PROGRESS_TOPIC, TopicPartition
from spark_log.positions import Earliest, Latest
from spark_log.segment.compression import COMPRESSIONS

STRATEGIES = ("subscribe", "subscribepattern", "assign")
OF_OBJECTS = (
    "group.id",
    "group.members",
    "group.member",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "maxbytespertrigger",
    "minpartitions",
    "maxrecordsperpartition",
    "maxbytesperpartition",
    "parallelism",
    "view",
    "value.parse",
)
"""Options for topics whose records are stored in objects."""
ENDS = ("endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp")
WITHOUT_VIEW = ("minpartitions", "maxrecordsperpartition", "maxbytesperpartition")
"""Options that divide a read into many tasks: each task of a view reads the keys of all newer records."""
STREAMS_ONLY = ("maxoffsetspertrigger", "maxbytespertrigger", "minoffsetspertrigger", "maxtriggerdelay")
DEFAULT_BYTES_PER_TRIGGER = 1 << 30
DEFAULT_BYTES_PER_PARTITION = 32 << 20
DEFAULT_TRIGGER_DELAY_MS = 900_000
DEFAULT_TRIES = 3
DEFAULT_TRY_WAIT_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The location of the log."""

    url: str
    storage: Mapping[str, str] = field(repr=False)
    durability: str = "disk"
    token: str | None = field(default=None, repr=False)
    """The token for a coordinator."""
    rack: str = ""
    """Brokers in this rack are read from first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    location: Location
    subscribe: tuple[str, ...] = ()
    pattern: str = ""
    assign: tuple[TopicPartition, ...] = ()
    start: ReadBounds
    end: ReadBounds
    where: Condition
    """Which records to return."""
    no_match_is_error: bool
    """If a starting timestamp is beyond the last record."""
    fail_on_data_loss: bool
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    """Maximum wait of a micro-batch below `min_offsets` after the previous one."""
    max_bytes: int | None
    max_bytes_asked: bool
    """Whether the user set it."""
    min_partitions: int | None
    max_records: int | None
    bytes_per_partition: int
    parallelism: int | None
    """Number of parallel tasks, if the user sets it."""
    tries: int
    """Attempts of the driver to read from the log while the storage does not answer."""
    try_wait_ms: int
    group: str | None = None
    """The group to which a stream publishes its progress."""
    share: Share | None = None
    """The share of the group's partitions that the stream reads; None: all."""
    coordinated: bool = False
    """Whether a coordinator assigns the group's partitions to the stream and to others."""
    latest: bool = False
    """Whether to read the latest record of each key only."""
    columns: tuple[str, ...] | None = None
    """The columns of the frame, if the user names them."""
    headers: bool = False
    """Whether the frame has the column `headers`, if the user names no columns."""
    key_format: str = "binary"
    """The type of keys: binary or string."""
    value_format: str = "columns"
    """The form of values: string, or, of topics with a schema, columns, struct or json."""
    parse_json: bool = False
    """Whether to parse records from before the schema."""
    notes: tuple[str, ...] = ()
    """Warnings about options without effect, to be logged once."""

    @property
    def of_progress(self) -> bool:
        """Whether the read is of `__consumer_offsets`."""
        return PROGRESS_TOPIC in self.subscribe or any(tp.topic == PROGRESS_TOPIC for tp in self.assign)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    location: Location
    topic: str | None
    partitioner: str
    compression: str
    txn_app_id: str | None
    txn_version: int | None
    txn_after: int | None
    """The version that the last one in the log must be, -1: there must be none; None: any lower one."""
    txn_from_query: bool
    query_id: str | None
    """Id of the streaming query, if tasks do not know it."""
    producer_id: str | None
    skip_older_batches: bool
    """Skip a micro-batch older than the log's last one, instead of failing."""
    checkpoint: str | None
    """Checkpoint of the streaming query, if known."""
    dead_letters: str | None
    """The topic for rows that cannot be written; None: they fail the write."""
    acks: int
    """The acks of its commits."""
    value_columns: tuple[str, ...] | None
    """The columns of the frame that are data, if the user names them."""
    key_column: str
    """The column with the key, if the user names it; as `timestamp_column`."""
    timestamp_column: str
    create: bool
    """Create the log if the URL has none."""
    beside: bool
    """The frame has rows for other topics beside its typed ones (`sink/other_topics.py`)."""
    notes: tuple[str, ...]
    """Warnings about options without effect, to be logged once."""


# -------------------------------------------------------------------------------------------------------------- reading


def read_options(options: Options, *, streaming: bool) -> ReadOptions:
    """Parse and check the options of a read.  Raises InvalidRequest, which names the option."""
    _check_names(options, READS)
    if streaming:
        for name in ENDS:
            if name in options:
                raise InvalidRequest(f"option {spelt(name)}: a stream has no end; leave it out")
    else:
        start, end = parse_bounds(options, "starting", Earliest()), parse_bounds(options, "ending", Latest())
        check_batch(start, end)
    subscribe, pattern, assign = _strategy(options)
    _check_progress_topic(options, {*subscribe, *(tp.topic for tp in assign)})
    no_match = one_of(options, "startingoffsetsbytimestampstrategy", "error", "latest")
    min_partitions, max_records = positive(options, "minpartitions"), positive(options, "maxrecordsperpartition")
    notes = tuple(_kafkas(options, READS))
    location = _location(options)
    least, most = positive(options, "minoffsetspertrigger"), positive(options, "maxoffsetspertrigger")
    if least is not None and most is not None and least > most:
        raise InvalidRequest(f"option minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}")
    if streaming:
        start, end = parse_bounds(options, "starting", Latest()), ReadBounds(Latest())
        _check_per_key(start, subscribe, assign)
    check_order(start, end)
    _check_named(subscribe, pattern, assign, start, end)
    whole(options, "kafkaconsumer.polltimeoutms")
    for name in ("pushdown", "nativeread"):  # obeyed by native/PylogSource.java
        flag(options, name, True)
    return ReadOptions(
        location=location,
        subscribe=subscribe,
        pattern=pattern,
        assign=assign,
        start=start,
        end=end,
        where=condition_of(options),
        no_match_is_error=no_match == "error" and "Timestamp" in start.option,
        fail_on_data_loss=flag(options, "failondataloss", True),
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=duration_ms(options, "maxtriggerdelay", DEFAULT_TRIGGER_DELAY_MS),
        max_bytes=_bytes_per_trigger(options),
        max_bytes_asked="maxbytespertrigger" in options,
        min_partitions=min_partitions,
        max_records=max_records,
        bytes_per_partition=size(options, "maxbytesperpartition") or DEFAULT_BYTES_PER_PARTITION,
        parallelism=positive(options, "parallelism"),
        tries=positive(options, "fetchoffset.numretries") or DEFAULT_TRIES,
        try_wait_ms=_or(whole(options, "fetchoffset.retryintervalms"), DEFAULT_TRY_WAIT_MS),
        group=group_of(options, streaming),
        share=share_of(options),
        coordinated=is_coordinated(options, location.url, start),
        latest=_is_latest(options, streaming),
        columns=_names(options, "columns"),
        headers=flag(options, "includeheaders", False),  # no effect with a user's schema
        key_format=one_of(options, "key.format", "binary", "string"),
        value_format=one_of(options, "value.format", "columns", "struct", "json", "string"),
        parse_json="value.parse" in options and one_of(options, "value.parse", "json") == "json",
        notes=(*notes, *_read_notes(options, streaming)),
    )


def load_options(options: Options) -> ReadOptions | None:
    """Parse the options of a `load()`, before Spark says whether it is a batch or a stream.

    With an end or a view it can only be a batch.  Otherwise it is checked as a stream; whatever fails that check would
    also fail as a batch.

    Returns None, and checks nothing, for options that are not those of a read:

    * The options of `CREATE TABLE` are not checked here, because each read of the table passes its own.
    * A temporary view used as the target of `INSERT` has the options of a write.

    Raises InvalidRequest for an invalid option.
    """
    to_insert = any(name in names(WRITES) - names(READS) for name in options) and not any(
        name in STRATEGIES for name in options
    )
    if "provider" in options or to_insert:
        return None
    return read_options(options, streaming=not any(name in (*ENDS, "view") for name in options))


def _names(options: Options, option: str) -> tuple[str, ...] | None:
    """Names of columns, separated by commas; None if the option is not set."""
    if option not in options:
        return None
    names = tuple(name.strip() for name in options[option].split(","))
    if "" in names:
        raise InvalidRequest(f"option {option}: {options[option]!r} has an empty name; expected names as in id,amount")
    if twice := [name for name, count in Counter(name.casefold() for name in names).items() if count > 1]:
        raise InvalidRequest(f"option {option}: {twice[0]!r} is in it twice; name each column once")
    return names


def _is_latest(options: Options, streaming: bool) -> bool:
    """Whether the read is of the latest record of each key."""
    if "view" not in options:
        return False
    if streaming:
        raise InvalidRequest(
            "option view is for batches; a stream begins with the latest record of each key by "
            f"startingOffsets={LATEST_PER_KEY}"
        )
    one_of(options, "view", "latest")
    for name in WITHOUT_VIEW:
        if name in options:
            raise InvalidRequest(f"option {spelt(name)}: a view has few tasks; leave it out, or set parallelism")
    return True


def _check_per_key(start: ReadBounds, subscribe: tuple[str, ...], assign: tuple[TopicPartition, ...]) -> None:
    if start.latest_per_key and PROGRESS_TOPIC in {*subscribe, *(tp.topic for tp in assign)}:
        raise InvalidRequest(
            f"option {start.option}: {LATEST_PER_KEY} has no meaning for {PROGRESS_TOPIC}, which is made from the log's "
            "state: use earliest"
        )


def _check_progress_topic(options: Options, topics: set[str]) -> None:
    """`__consumer_offsets` is made from the log's state: it is read alone, whole, by one task."""
    if PROGRESS_TOPIC not in topics:
        return
    if topics != {PROGRESS_TOPIC}:
        raise InvalidRequest(
            f"{PROGRESS_TOPIC} cannot be read with other topics: leave out "
            f"{', '.join(sorted(topics - {PROGRESS_TOPIC}))}, and union the frames"
        )
    refused = [name for name in OF_OBJECTS if name in options]
    if options.get("value.format", "string").strip().lower() != "string":
        refused.append("value.format")
    for name in refused:
        raise InvalidRequest(
            f"option {spelt(name)} has no meaning for {PROGRESS_TOPIC}, which is small and read whole: leave it out"
        )


def _or(number: int | None, default: int) -> int:
    return default if number is None else number


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
            return (), parse_pattern(text), ()
        case _:
            return (), "", _assign(text)


def _assign(text: str) -> tuple[TopicPartition, ...]:
    shape = '{"topicA":[0,1],"topicB":[2,4]}'
    found = parse_json(text, "assign", shape)
    for topic, numbers in found.items():
        if not isinstance(numbers, list) or not all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers
        ):
            raise InvalidRequest(f"option assign: {topic!r} must map to a list of partitions, as in {shape}")
    assigned = tuple(sorted({TopicPartition(topic, n) for topic, numbers in found.items() for n in numbers}))
    if not assigned:
        raise InvalidRequest(f"option assign: names no partition; the shape is {shape}")
    return assigned


def _check_named(
    subscribe: tuple[str, ...], pattern: str, assign: tuple[TopicPartition, ...], start: ReadBounds, end: ReadBounds
) -> None:
    wanted: dict[str, set[int] | None] = dict.fromkeys(subscribe)
    for topic, number in assign:
        wanted.setdefault(topic, set()).add(number)  # type: ignore[union-attr]
    if pattern:
        wanted = dict.fromkeys(topic for topic in start.named | end.named if finds(pattern, topic))
    check_named(wanted, start, end)


def _read_notes(options: Options, streaming: bool) -> Iterator[str]:
    """Warnings about options without effect."""
    idle = [spelt(name) for name in STREAMS_ONLY if name in options]
    if idle and not streaming:
        yield f"{', '.join(idle)}: for streams; this batch reads all of its range, whatever the limits"
    if "kafkaconsumer.polltimeoutms" in options:
        yield "kafkaConsumer.pollTimeoutMs: without effect, tasks read from the storage, with its own timeouts"
    if "groupidprefix" in options:
        yield "groupIdPrefix: without effect, tasks join no consumer group"


def _bytes_per_trigger(options: Options) -> int | None:
    if options.get("maxbytespertrigger", "").strip().lower() == "none":
        return None
    return size(options, "maxbytespertrigger") or DEFAULT_BYTES_PER_TRIGGER


# -------------------------------------------------------------------------------------------------------------- writing


def write_options(options: Options, *, streaming: bool) -> WriteOptions:
    """Parse and check the options of a write.  Raises InvalidRequest, which names the option."""
    _check_names(options, WRITES)
    topic = options.get("topic", "").strip() or None
    if topic is not None:
        check_topic_name(topic)
    notes = tuple(_kafkas(options, WRITES))
    flag(options, "nativeread", True)  # obeyed by native/PylogSource.java
    acks = _acks(options, streaming=streaming)
    if streaming:
        _only(
            options,
            ("txnappid", "txnversion"),
            "batch writes; a stream is exactly once by its checkpoint (see producerId)",
        )
    else:
        _only(options, ("producerid",), "streams; for a batch use txnAppId and txnVersion")
    if not streaming and "pylog.txnfromquery" not in options:
        _only(options, ("onolderbatch",), "streams and spark_log.sink; an older txnVersion is skipped")
    if ("txnappid" in options) != ("txnversion" in options) and "pylog.txnfromquery" not in options:
        raise InvalidRequest("options txnAppId and txnVersion go together: give both or neither")
    return WriteOptions(
        location=_location(options),
        topic=topic,
        partitioner=_partitioner(options),
        compression=_compression(options),
        txn_app_id=_name(options, "txnappid"),
        txn_version=whole(options, "txnversion"),
        txn_after=int(options["pylog.txnafter"]) if "pylog.txnafter" in options else None,
        txn_from_query=flag(options, "pylog.txnfromquery", False),
        query_id=options.get("pylog.queryid"),
        producer_id=_name(options, "producerid"),
        skip_older_batches=one_of(options, "onolderbatch", "fail", "skip") == "skip",
        checkpoint=options.get("checkpointlocation") or options.get("pylog.checkpoint"),
        dead_letters=_dead_letters(options, topic),
        acks=acks,
        value_columns=_names(options, "value.columns"),
        key_column=_name(options, "key.column") or "",
        timestamp_column=_name(options, "timestamp.column") or "",
        create=flag(options, "create", True),
        beside=flag(options, "pylog.beside", False),
        notes=(*notes, *_write_notes(options)),
    )


def _name(options: Options, option: str) -> str | None:
    """A name, which must not be empty: writes with an empty identity would all look equal."""
    if option in options and not options[option].strip():
        raise InvalidRequest(f"option {spelt(option)}: is empty; give a name, or leave it out")
    if not options.get(option, "").isprintable():
        raise InvalidRequest(f"option {spelt(option)}: {options[option]!r} has characters that cannot be printed")
    return options.get(option)


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


def _compression(options: Options) -> str:
    name = "kafka.compression.type" if "compression" not in options else "compression"
    if options.get(name, "").strip().lower() in ("gzip", "snappy"):
        raise InvalidRequest(
            f"option {name}: {options[name]!r} is unsupported, because Arrow does not have it; use zstd or lz4"
        )
    return one_of(options, name, *COMPRESSIONS)


def _partitioner(options: Options) -> str:
    name = options.get("partitioner", "").strip()
    if not name and "kafka.partitioner.class" in options:
        name = _kafkas_partitioner(options["kafka.partitioner.class"].strip())
    if not name:
        return "sticky" if flag(options, "kafka.partitioner.ignore.keys", False) else "default"
    if ":" not in name:  # a user's class may exist only on the tasks' machines
        from spark_log.segment.partitioners import make_partitioner  # readers do not need it

        try:
            make_partitioner(name, random.Random(0))
        except InvalidRequest as error:
            raise InvalidRequest(f"option partitioner: {error}") from error
    return name


def _kafkas_partitioner(name: str) -> str:
    if name not in PARTITIONERS:
        raise InvalidRequest(
            f"option kafka.partitioner.class: {name!r} is a JVM class without an equivalent in pylog; expected "
            f"{', '.join(PARTITIONERS)}, or your own class in Python: partitioner=module:Class"
        )
    return PARTITIONERS[name]


def _write_notes(options: Options) -> Iterator[str]:
    """Warnings about options without effect."""
    if not flag(options, "kafka.enable.idempotence", True):
        yield "kafka.enable.idempotence=false: without effect, a retry never writes twice"
    for ours, kafkas in (
        ("acks", "kafka.acks"),
        ("compression", "kafka.compression.type"),
        ("partitioner", "kafka.partitioner.class"),
        ("partitioner", "kafka.partitioner.ignore.keys"),
    ):
        if ours in options and kafkas in options:
            yield f"{kafkas}: without effect, the option {ours} takes precedence"


def _acks(options: Options, *, streaming: bool) -> int:
    """`acks` as a commit has it.  Exactly-once writes need all, as Kafka's idempotence does."""
    given = [name for name in ("acks", "kafka.acks") if name in options]
    found = [
        ACKS_ALL if one_of(options, name, "all", "-1", "0", "1") in ("all", "-1") else ACKS_LEADER for name in given
    ]
    if not found or found[0] == ACKS_ALL:
        return ACKS_ALL
    if streaming or "txnversion" in options or "pylog.txnfromquery" in options:
        raise InvalidRequest(
            f"option {given[0]}: {options[given[0]]!r} is for batch writes without txnVersion: a write that happens once "
            "needs acks=all, as Kafka's idempotence does; remove the option"
        )
    return ACKS_LEADER


def _only(options: Options, names: tuple[str, ...], where: str) -> None:
    for name in names:
        if name in options:
            raise InvalidRequest(f"option {spelt(name)} is for {where}")


# --------------------------------------------------------------------------------------------------------------- shared


def _location(options: Options) -> Location:
    url = options.get("path") or options.get("kafka.bootstrap.servers") or ""
    if not url.strip():
        raise InvalidRequest(
            "where is the log? give its URL: .load(URL), .save(URL), .start(URL) or .option('path', URL)"
        )
    if "path" not in options and "/" not in url:
        url = f"pylog://{url}"
    storage = {name.removeprefix("storage."): options[name] for name in options if name.startswith("storage.")}
    durability = one_of(options, "durability", "disk", "os")
    rack = options.get("client.rack", "")
    url = url.strip()
    # Pins are named by it, and tasks may be on machines without the variable.
    token = given_token(options.get("token")) if is_coordinator(url) else options.get("token")
    return Location(url=url, storage=storage, durability=durability, token=token, rack=rack)


_INSTEAD = {
    "subscribe": ": to write to a topic, use the option topic",
    "topic": ": to read a topic, use the option subscribe",
}


def _check_names(options: Options, uses: str) -> None:
    """Rejects unknown options and those of the other side.  `_kafkas` checks `kafka.*`."""
    if not options:
        raise InvalidRequest(
            "no options came; those of a catalog table Spark does not hand over, so name them in the statement: "
            "SELECT … FROM t WITH (path '…', subscribe '…'), INSERT INTO t WITH (path '…', topic '…') …"
        )
    known = names(uses) | {name.lower() for name in (*SPARKS, *INTERNAL)}
    for name in options:
        if name in known or name.startswith(("storage.", "kafka.")):
            continue
        if name in SPELLING:
            where = "reads" if uses == WRITES else "writes"
            raise InvalidRequest(f"option {spelt(name)} is for {where}{_INSTEAD.get(name, '')}")
        if name.lstrip("_").startswith("asyncprogresstracking"):
            raise InvalidRequest(
                f"option {name} is refused: with it, Spark may repeat a batch with other records, which stops the query, "
                "and a record passes no faster; leave it out"
            )
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {spelt(near[0])}?" if near else ""
        raise InvalidRequest(f"option {name} is not known{hint}")


def _kafkas(options: Options, uses: str) -> Iterator[str]:
    """Warnings about settings of Kafka's clients.  Raises InvalidRequest for rejected ones."""
    refuse_kafkas(options, uses)
    one_of(options, "kafka.isolation.level", "read_committed", "read_uncommitted")
    idle: dict[str, list[str]] = {}
    for name in options:
        if name.startswith("kafka.") and name not in names(uses):
            idle.setdefault(why_without_effect(name, names(READS + WRITES)), []).append(name)
    if "path" in options and "kafka.bootstrap.servers" in options:
        idle["the log is where the path says"] = ["kafka.bootstrap.servers"]
    for why, settings in idle.items():
        yield f"{', '.join(settings)}: without effect, {why}"
