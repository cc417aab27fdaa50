"""Calls of users, good and bad, in the order in which they are made on one log.  Each has a name.

A call gets a deployment, and returns what is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from spark_log.client.consumer.consumer import Consumer
from spark_log.errors import CoordinatorNotAvailable, IllegalGeneration
from spark_log.maintenance.replicate import replicate_once
from spark_log.model import EARLIEST, LATEST, NewTopic, OffsetAndMetadata, TopicPartition
from tests.contract.deployments import COORDINATOR, LOSING, QUORUM, Deployment, LosingLink
from tests.processes import eventually

Call = Callable[[Deployment], object]
A0, A1, B0, R0 = (TopicPartition(name, n) for name, n in (("a", 0), ("a", 1), ("b", 0), ("r", 0)))
BIG, HALF = 2**70, "\ud800"

SERVED = (COORDINATOR, QUORUM, LOSING)
DIFFERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "whole_log: describe the cluster": ("the address of the coordinator is in it", SERVED),
    "whole_log: describe the quorum": ("there is none", (QUORUM, LOSING)),
    "consumers: describe the group of a consumer": ("members share a group only through a coordinator", SERVED),
    "consumers: a second consumer of the group": ("members share a group only through a coordinator", SERVED),
    "consumers: commit by the first consumer": ("embedded, a newer consumer takes the group", SERVED),
    "consumers: move a group that is in use": ("only a coordinator knows whether members are alive", SERVED),
    "consumers: delete offsets of a group that is in use": (
        "only a coordinator knows whether members are alive",
        SERVED,
    ),
    "consumers: delete a group that is in use": ("only a coordinator knows whether members are alive", SERVED),
}
"""Why calls give something else than embedded, and where.  There, they give the same."""
UNTYPED: Mapping[str, str] = {}
"""Calls that raise an error that is not of pylog, with the reason."""


def rows(*values: bytes | None, **columns: Any) -> list[dict[str, Any]]:
    return [{"value": value, "timestamp": 1000 * n, **columns} for n, value in enumerate(values)]


def topics() -> Iterable[tuple[str, Call]]:
    def create(*wanted: NewTopic, **options: bool) -> Call:
        return lambda d: sorted(d.log.admin.create_topics(wanted, **options))

    yield "create topics", create(NewTopic("a", 2), NewTopic("b", 1, {"retention.ms": "1000"}))
    yield "check topics", create(NewTopic("c"), NewTopic("d", 3), validate_only=True)
    yield "check a topic that exists", create(NewTopic("c"), NewTopic("a"), validate_only=True)
    yield "create a topic that exists", create(NewTopic("c"), NewTopic("a"))
    yield "create one topic twice", create(NewTopic("c"), NewTopic("c", 2))
    yield "create no topic", create()
    yield (
        "create with configs that are not text",
        create(
            NewTopic("numbers", 1, {"retention.ms": 5000, "max.message.bytes": "10"}),
            NewTopic("flags", 1, {"schema.auto": False}),
        ),
    )
    yield (
        "configs of these",
        lambda d: {n: t.configs for n, t in d.log.admin.describe_topics(["numbers", "flags"]).items()},
    )
    for wrong in (
        NewTopic(""), NewTopic(".."), NewTopic("a b"), NewTopic("é"), NewTopic(HALF), NewTopic("x" * 250),
        NewTopic("__consumer_offsets"), NewTopic("c", 0), NewTopic("c", -1), NewTopic("c", 100_001), NewTopic("c", BIG),
        NewTopic("c", True), NewTopic("c", 1, {"retention.m": "1"}), NewTopic("c", 1, {"retention.ms": "soon"}),
        NewTopic("c", 1, {"num.partitions": "1"}), NewTopic("c", 1, {"retention.ms": None}),
        NewTopic("c", 1, {"min.insync.replicas": "2"}), NewTopic("c", 1, {5: "1"}),
        NewTopic("c", replication_factor=2), NewTopic("c", replication_factor=0), NewTopic("c", replication_factor=BIG),
        NewTopic("c", replication_factor="1"), NewTopic("c", replica_assignment={0: [7]}),
        NewTopic("c", replica_assignment={0: [0, 0]}), NewTopic("c", replica_assignment={1: [0]}),
        NewTopic("c", replica_assignment={0: []}), NewTopic("c", replica_assignment={0: [False]}),
        NewTopic("c", 1, replication_factor=1, replica_assignment={0: [0]}), NewTopic("c", schema="id NUMBER"),
        NewTopic("c", schema=5), NewTopic("c", 1, {"key.column": "nope"}, schema="id BIGINT"),
    ):  # fmt: skip
        shown = str(wrong).encode(errors="backslashreplace").decode()[:150]
        yield f"create {shown}", create(NewTopic("good"), wrong)
    yield "create a topic beside a similar name", create(NewTopic("x.y"))
    yield "create a topic of a similar name", create(NewTopic("x_y"))
    yield "create a typed topic", create(NewTopic("typed", schema="id BIGINT NOT NULL, name STRING"))
    yield "its schema", lambda d: d.log.admin.describe_schema("typed")
    yield "its next schema", lambda d: d.log.admin.alter_schema("typed", "id BIGINT NOT NULL, name STRING, at DATE")
    yield "the same schema", lambda d: d.log.admin.alter_schema("typed", "id BIGINT NOT NULL, name STRING, at DATE")
    yield "a schema that does not follow", lambda d: d.log.admin.alter_schema("typed", "id STRING")
    yield "a schema of no topic", lambda d: d.log.admin.alter_schema("typd", "id STRING")
    yield "a first schema", lambda d: d.log.admin.alter_schema("b", "id BIGINT")
    yield "list topics", lambda d: d.log.admin.list_topics()
    yield "more partitions", lambda d: d.log.admin.create_partitions({"a": 3, "b": 2})
    for total in (3, 2, 0, -1, BIG, True, 3.5, "4", None):
        yield f"{total!r} partitions", lambda d, n=total: d.log.admin.create_partitions({"a": n, "b": 4})
    yield "partitions of no topic", lambda d: d.log.admin.create_partitions({"aa": 4})
    yield "describe a topic", lambda d: d.log.admin.describe_topics(["a"])
    yield "describe no topic", lambda d: d.log.admin.describe_topics(["a", "aa"])
    yield "describe text", lambda d: d.log.admin.describe_topics("a")
    yield "delete no topic", lambda d: d.log.admin.delete_topics(["flags", "flog"])
    yield "delete topics", lambda d: d.log.admin.delete_topics(["flags", "x.y"])
    yield "delete them again", lambda d: d.log.admin.delete_topics(["flags", "x.y"])
    yield "delete one twice", lambda d: d.log.admin.delete_topics(["numbers", "numbers"])
    yield "topics that are left", lambda d: d.log.admin.list_topics()


def configs() -> Iterable[tuple[str, Call]]:
    def alter(changes: Mapping[Any, Mapping[Any, Any]]) -> Call:
        return lambda d: d.log.admin.incremental_alter_configs(changes)

    for changes in (
        {"a": {"retention.ms": "5000"}, None: {"num.partitions": "2"}}, {"a": {"retention.ms": 6000, "flush.ms": 5}},
        {"a": {"flush.ms": None}}, {"a": {"retention.ms": True}}, {"a": {"retention.m": "1"}}, {"a": {"no": None}},
        {"aa": {"retention.ms": "1"}}, {None: {"retention.ms": "1"}}, {"a": {"num.partitions": "1"}}, {5: {}},
        {"a": {"min.insync.replicas": "3"}}, {"a": {"retention.ms": HALF}}, {"a": {"retention.ms": "9"}, "b": {"x": "1"}},
        {}, {"a": {}}, {"typed": {"key.column": "nope"}}, {None: {"delete.topic.enable": False}},
    ):  # fmt: skip
        yield f"alter {changes!a}", alter(changes)
    yield "delete while that is not allowed", lambda d: d.log.admin.delete_topics(["a"])
    yield "allow it", alter({None: {"delete.topic.enable": "true"}})

    def shown(d: Deployment) -> object:
        found = d.log.admin.describe_configs(["a", None])
        return {name: {key: e[:3] for key, e in of.items() if not e.is_default} for name, of in found.items()}

    yield "describe configs", shown
    yield "describe configs of no topic", lambda d: d.log.admin.describe_configs(["aa"])


def records() -> Iterable[tuple[str, Call]]:
    def append(topic: str, data: object, *more: Any, **named: Any) -> Call:
        return lambda d: d.log.append(topic, data, *more, **named)

    yield "append", append("a", rows(b"1", b"2", b"3", partition=0))
    yield "append with keys", append("a", rows(b"4", b"5", key=b"k", partition=1))
    yield "append to a new topic", append("new", rows(b"1", partition=0))
    yield "append once", append("a", rows(b"6", partition=0), "etl", 1)
    yield "append it again", append("a", rows(b"6", partition=0), "etl", 1)
    yield "append other rows as the same", append("a", rows(b"6", b"7", partition=0), "etl", 1)
    for version in (True, -1, "1", None, 1.5):
        yield f"append as version {version!r}", append("a", rows(b"6", partition=0), "etl", version)
    yield "append for no application", append("a", rows(b"6", partition=0), "", 1)
    yield "append with a flag for acks", append("a", rows(b"6", partition=1), acks=None)
    yield "append to a partition that is a flag", append("a", rows(b"6", partition=True))
    yield "append with acks", append("a", rows(b"8", partition=0), acks=1)
    yield "append typed rows", append("typed", [{"id": 1, "name": "x"}])
    yield "append other columns", append("typed", [{"id": "no"}])
    for wrong in (
        ("a", rows(b"x", partition=9)), ("a", rows("\ud800")), ("a", [{"valu": b"x"}]), ("a", 5), ("a b", rows(b"x")),
        ("a", rows(b"x", partition="0")), ("__consumer_offsets", rows(b"x")), ("a", [{"value": b"x", "timestamp": "soon"}]),
        ("new", rows(b"x" * 2_000_000)),
    ):  # fmt: skip
        yield f"append {ascii(wrong)[:60]}", append(*wrong)
    yield "append with unknown acks", append("a", rows(b"x"), acks="some")
    yield (
        "do not create topics",
        lambda d: d.log.admin.incremental_alter_configs({None: {"auto.create.topics.enable": "false"}}),
    )
    yield "append to no topic", append("aa", rows(b"1"))
    yield "produce to no topic", lambda d: produced(d, "aa", b"1")
    yield "produce", lambda d: produced(d, "b", b"p", b"q")
    yield "read", lambda d: d.log.read("a", columns=["offset", "value", "key"]).to_pylist()
    yield "read typed rows", lambda d: d.log.read("typed", columns=["offset", "id", "name"]).to_pylist()
    yield (
        "read what is there",
        lambda d: d.log.read("a", 0, "latest-2", where="offset > 0", columns=["offset"]).to_pylist(),
    )
    yield "read beyond the end", lambda d: d.log.read("a", 0, 99)
    yield "read no partition", lambda d: d.log.read("a", 9)
    yield "read no topic", lambda d: d.log.read("aa")
    yield "read a column that is not there", lambda d: d.log.read("a", columns=["nope"])
    yield "read positions of groups", lambda d: d.log.read("__consumer_offsets").num_rows
    yield (
        "compact a topic without keys",
        lambda d: d.log.admin.incremental_alter_configs({"b": {"cleanup.policy": "compact"}}),
    )
    yield "describe topics with records", lambda d: d.log.admin.describe_topics(["a", "b"])
    yield (
        "producers",
        lambda d: [
            one._replace(producer_id=one.producer_id.partition(":")[0])
            for one in d.log.admin.describe_producers([A0])[A0]
        ],
    )
    yield "producers of no partition", lambda d: d.log.admin.describe_producers([A0, TopicPartition("a", 9)])


def produced(d: Deployment, topic: str, *values: bytes) -> object:
    with d.log.producer(max_block_ms=20_000) as producer:
        futures = [producer.send(topic, value, partition=0, timestamp_ms=5) for value in values]
        producer.flush()
        return [one.result(0) for one in futures]


def offsets() -> Iterable[tuple[str, Call]]:
    for at in (
        EARLIEST,
        LATEST,
        0,
        1000,
        10**12,
        BIG,
        -7,
        True,
        "latest-2",
        "now-1h",
        "@1970-01-01T00:00:01Z",
        "group:no",
        "soon",
        None,
    ):
        yield f"offset of {at!r}", lambda d, at=at: d.log.admin.list_offsets({A0: at, A1: LATEST})
    yield "offset of no partition", lambda d: d.log.admin.list_offsets({TopicPartition("a", 9): LATEST})
    yield (
        "offset of a partition that is a flag",
        lambda d: d.log.admin.list_offsets({TopicPartition("a", True): LATEST}),
    )
    yield "offset of text", lambda d: d.log.admin.list_offsets({"a": LATEST})
    for before in (1, 0, "latest-4", 99, -1, -2, BIG, True, "soon", OffsetAndMetadata(1)):
        yield f"delete records before {before!r}", lambda d, b=before: d.log.admin.delete_records({A1: b})
    yield "delete records of no topic", lambda d: d.log.admin.delete_records({TopicPartition("aa", 0): 1})
    yield "delete records of a flag", lambda d: d.log.admin.delete_records({TopicPartition("a", True): 1})
    yield "delete no records", lambda d: d.log.admin.delete_records({})

    def erased(*given: Any, **named: Any) -> Call:
        def call(d: Deployment) -> object:
            found = d.log.admin.erase_records(*given, **named)
            return found.records, found.keys, found.before, found.objects, found.writers, found.readers, found.problems

        return call

    yield "append records to erase", lambda d: d.log.append("a", rows(b"x", b"y", key="gone", partition=2))
    yield "count what an erasure would do", erased("a", ["gone"], dry_run=True)
    yield "erase", erased("a", ["gone"])
    yield "erase again", erased("a", [b"gone"])
    yield "erase before an offset", erased("a", ["k"], "latest-1")
    for wrong in (([],), ("gone",), ([None],), ([5],), (pa.array([1]),), (["k"], 99), (["k"], "soon"), ([HALF],)):
        yield f"erase {ascii(wrong)[:40]}", erased("a", *wrong)
    yield "erase from no topic", erased("aa", ["k"])
    yield "what is left", lambda d: d.log.read("a", columns=["partition", "offset", "key"]).to_pylist()


def groups() -> Iterable[tuple[str, Call]]:
    def alter(group: Any, positions: Mapping[Any, Any]) -> Call:
        return lambda d: d.log.admin.alter_consumer_group_offsets(group, positions)

    yield "move a group", alter("g", {A0: 1, A1: "latest", B0: OffsetAndMetadata(1, "note")})
    yield "its offsets", lambda d: d.log.admin.list_consumer_group_offsets("g")
    for wrong in (
        {A0: -5}, {A0: 99}, {A0: True}, {A0: "soon"}, {A0: 1.5}, {A0: OffsetAndMetadata(-1)}, {A0: OffsetAndMetadata(BIG)},
        {A0: OffsetAndMetadata(True)}, {A0: OffsetAndMetadata("1")}, {A0: OffsetAndMetadata(1, None)},
        {A0: OffsetAndMetadata(1, HALF)}, {A0: OffsetAndMetadata(1, "x" * 5000)}, {TopicPartition("aa", 0): 1},
        {TopicPartition("a", 9): 1}, {TopicPartition("a", True): 1}, {"a": 1}, {A0: OffsetAndMetadata(99)}, {},
    ):  # fmt: skip
        yield f"move it to {ascii(wrong)[:80]}", alter("g", wrong)
    for name in ("", 5, HALF, "x" * 2000, None):
        yield f"move group {ascii(name)[:20]}", alter(name, {A0: 1})
    yield "list groups", lambda d: d.log.admin.list_consumer_groups()
    yield "describe groups", lambda d: d.log.admin.describe_consumer_groups(["g", "no"])
    yield "offsets of some", lambda d: d.log.admin.list_consumer_group_offsets("g", [A1])
    yield "offsets of no group", lambda d: d.log.admin.list_consumer_group_offsets("no")
    yield "delete offsets", lambda d: d.log.admin.delete_consumer_group_offsets("g", [B0])
    yield "delete no offsets", lambda d: d.log.admin.delete_consumer_group_offsets("g", [])
    yield "delete offsets that are not there", lambda d: d.log.admin.delete_consumer_group_offsets("g", [B0])
    yield "delete offsets of no group", lambda d: d.log.admin.delete_consumer_group_offsets("no", [B0])
    yield (
        "delete offsets of no topic",
        lambda d: d.log.admin.delete_consumer_group_offsets("g", [TopicPartition("aa", 0)]),
    )
    yield "remove members of no group", lambda d: d.log.admin.remove_members_from_consumer_group("no")
    yield "remove members that are not there", lambda d: d.log.admin.remove_members_from_consumer_group("g")
    yield "delete no group", lambda d: d.log.admin.delete_consumer_groups(["g", "no"])
    yield "delete groups as text", lambda d: d.log.admin.delete_consumer_groups("g")
    yield "delete a group", lambda d: d.log.admin.delete_consumer_groups(["g"])
    yield "groups that are left", lambda d: d.log.admin.list_consumer_groups()
    yield "a bookmark", bookmarked
    yield "the bookmark at its end", bookmarked


def bookmarked(d: Deployment) -> object:
    with d.log.bookmark("nightly", "a") as run:
        return sorted(run.starts.items()), sorted(run.ends.items())


def consumers() -> Iterable[tuple[str, Call]]:
    """One or two consumers of a group, which stay open from call to call."""
    open_: dict[tuple[str, int], Consumer] = {}

    def opened(d: Deployment, number: int) -> object:
        consumer = d.log.consumer("a", group_id="team", auto_offset_reset="earliest", client_id=f"c{number}")
        open_[d.name, number] = consumer
        found: list[bytes | None] = []
        if number == 0:
            eventually(lambda: found.extend(polled(consumer)) or len(found) >= 4, 60)
            return sorted(filter(None, found))

        def are_assigned() -> bool:
            polled(consumer)
            first = open_[d.name, 0]
            with suppress(IllegalGeneration):  # embedded, it has lost the group
                polled(first)
            new = len(consumer.assignment())
            return new == 3 or (new > 0 and new + len(first.assignment()) == 3)

        eventually(are_assigned, 60)
        return len(consumer.assignment())

    def closed(d: Deployment) -> None:
        for number in (0, 1):
            open_.pop((d.name, number)).close()

    def removed(d: Deployment) -> None:
        link = d.log.journal.link
        if isinstance(link, LosingLink):
            link.loses_leaving = True
        d.log.admin.remove_members_from_consumer_group("team")

    yield "a consumer", lambda d: opened(d, 0)
    yield "commit", lambda d: open_[d.name, 0].commit()
    yield "commit what is not a number", lambda d: open_[d.name, 0].commit({A0: "1"})
    yield "commit a flag", lambda d: open_[d.name, 0].commit({A0: OffsetAndMetadata(True)})
    yield "commit of no partition", lambda d: open_[d.name, 0].commit({TopicPartition("a", 9): 1})
    yield "describe the group of a consumer", lambda d: d.log.admin.describe_consumer_groups(["team"])
    yield "move a group that is in use", lambda d: d.log.admin.alter_consumer_group_offsets("team", {A0: 2})
    yield "delete offsets of a group that is in use", lambda d: d.log.admin.delete_consumer_group_offsets("team", [A0])
    yield "delete a group that is in use", lambda d: d.log.admin.delete_consumer_groups(["team"])
    yield "a second consumer of the group", lambda d: opened(d, 1)
    yield "commit by the first consumer", lambda d: open_[d.name, 0].commit({A0: 1})
    yield "remove the members", removed
    yield (
        "the group without them",
        lambda d: [one.state for one in d.log.admin.describe_consumer_groups(["team"]).values()],
    )
    yield "close the consumers", closed
    yield "delete the group", lambda d: d.log.admin.delete_consumer_groups(["team"])


def polled(consumer: Consumer) -> list[bytes | None]:
    return [record.value for some in consumer.poll(timeout_ms=200).values() for record in some]


def transactions() -> Iterable[tuple[str, Call]]:
    def transaction(name: Any, *values: bytes, group: Any = None, **settings: Any) -> Call:
        def call(d: Deployment) -> object:
            with d.log.transaction(name, **settings) as found:
                for value in values:
                    found.send("a", value, partition=0, timestamp_ms=7)
                if group is not None:
                    found.commit_offsets(*group)
            return found.offsets

        return call

    def hung(d: Deployment) -> object:
        """It is taken over, and fails."""
        with d.log.transaction("hung") as found:
            found.send("a", b"never", partition=0)
            d.log.admin.abort_transaction("hung")
        return found.offsets

    def fenced(d: Deployment) -> object:
        """The epochs are those in force; a retry may take an id over twice."""
        epochs = d.log.admin.fence_producers(["fenced", "etl"])
        found = d.log.admin.describe_transactions(epochs.keys())
        return {name: epoch == found[name].listing.producer_epoch for name, epoch in epochs.items()}

    yield "a transaction", transaction("etl", b"t1", b"t2")
    yield "with positions of a group", transaction("etl", b"t3", group=("copied", {A0: 3}))
    for wrong in (
        {A0: True},
        {A0: OffsetAndMetadata(True)},
        {A0: OffsetAndMetadata(1, HALF)},
        {A0: -1},
        {TopicPartition("a", True): 1},
    ):
        yield f"with positions {ascii(wrong)[:70]}", transaction("etl", group=("copied", wrong))
    yield "with positions of text", transaction("etl", group=("copied",))
    yield "positions of the group", lambda d: d.log.admin.list_consumer_group_offsets("copied")
    yield "for too long", transaction("etl", b"x", transaction_timeout_ms=10**9)
    yield "without a name", transaction("", b"x")
    yield "with a name that is not text", transaction(5, b"x")
    yield "with half a name", transaction(HALF, b"x")
    yield "that is aborted", hung
    yield (
        "describe it",
        lambda d: d.log.admin.describe_transactions(["hung"])["hung"].listing._replace(producer_epoch=0),
    )
    yield "abort it again", lambda d: d.log.admin.abort_transaction("hung")
    yield "abort one that has committed", lambda d: d.log.admin.abort_transaction("etl")
    yield "abort none", lambda d: d.log.admin.abort_transaction("no")
    yield "fence two ids", fenced
    yield "fence what is no id", lambda d: d.log.admin.fence_producers([5])
    yield "list transactions", lambda d: [(one.transactional_id, one.state) for one in d.log.admin.list_transactions()]
    yield "describe no transaction", lambda d: d.log.admin.describe_transactions(["etl", "no"])


def whole_log() -> Iterable[tuple[str, Call]]:
    def update(levels: Mapping[Any, Any]) -> Call:
        return lambda d: d.log.admin.update_features(levels)

    yield "describe the cluster", lambda d: d.log.admin.describe_cluster()._replace(version=0)

    def quorum(d: Deployment) -> object:
        """When no election is in progress."""
        found: list[object] = []

        def is_described() -> bool:
            with suppress(CoordinatorNotAvailable):
                found.append(d.log.admin.describe_metadata_quorum())
            return bool(found)

        eventually(is_described, 60)
        return "there is one"

    yield "describe the quorum", quorum
    for level in (1, 2, 0, BIG, True, "1", 1.0, None):
        yield f"level {level!r}", update({"metadata.version": level})
    yield "an unknown feature", update({"nope": 1})
    yield "no feature", update({})
    yield "reset the clock", lambda d: d.log.admin.reset_clock()
    yield "reset the clock by force", lambda d: d.log.admin.reset_clock(force=True)
    yield "reset it by text", lambda d: d.log.admin.reset_clock(force="yes")


def brokers() -> Iterable[tuple[str, Call]]:
    def add(broker: Any, folder: str, *given: Any, **named: Any) -> Call:
        return lambda d: d.log.admin.add_broker(broker, str(d.folder / folder), *given, **named)

    slow = {None: {"broker.session.timeout.ms": "3600000"}}  # no broker is fenced because this machine is slow
    yield "wait long for brokers", lambda d: d.log.admin.incremental_alter_configs(slow)
    yield "add a broker", add(1, "disk1", "a")
    yield "add it again", add(1, "disk1", "a")
    yield "add it elsewhere", add(1, "disk9", "a")
    yield "add another one", add(2, "disk2", "b")
    yield "add one that is behind", add(3, "disk3", is_async=True, keep_ms=3_600_000)
    yield "add it on the root of another", add(4, "disk2")
    yield "add it on the log", add(4, "records")
    for wrong in (0, -1, 1000, BIG, True, "4", None):
        yield f"add broker {wrong!r}", add(wrong, "disk4")
    yield "add one with options of a wrong type", add(4, "disk4", 5, None, "yes", "1d")
    yield "add one that keeps and is not behind", add(4, "disk4", keep_ms=5)
    yield (
        "describe brokers",
        lambda d: [one._replace(epoch=0, since=0) for one in d.log.admin.describe_cluster().brokers],
    )
    for broker, change in ((1, {"rack": "c"}), (1, {"rack": "c", "drained": None}), (0, {"rack": "z"}), (2, {"drained": True}),
                           (2, {"drained": False}), (0, {"drained": True}), (9, {"rack": "x"}), (1, {"rack": 5}),
                           ("1", {"rack": "x"}), (1, {"drained": "yes"}), (1, {}), (1, {"rack": HALF})):  # fmt: skip
        yield f"alter broker {broker!r} {change!a}", lambda d, b=broker, c=change: d.log.admin.alter_broker(b, **c)
    yield "fence", lambda d: d.log.admin.fence_broker(1, "a new disk")
    yield "fence again", lambda d: d.log.admin.fence_broker(1)
    yield "unfence", lambda d: d.log.admin.unfence_broker(1)
    yield "unfence again", lambda d: d.log.admin.unfence_broker(1)
    for wrong in (0, 9, BIG, "1", None):
        yield f"fence {wrong!r}", lambda d, b=wrong: d.log.admin.fence_broker(b)
        yield f"unfence {wrong!r}", lambda d, b=wrong: d.log.admin.unfence_broker(b)
        yield f"remove {wrong!r}", lambda d, b=wrong: d.log.admin.remove_broker(b)
        yield f"replace {wrong!r}", lambda d, b=wrong: d.log.admin.replace_broker(b)
    yield "fence for a reason that is not text", lambda d: d.log.admin.fence_broker(1, 5)


def replicas() -> Iterable[tuple[str, Call]]:
    """On the brokers of `brokers`."""
    both = {"min.insync.replicas": "2"}  # an append waits for both replicas, also on a slow machine
    topic = NewTopic("r", 1, both, replica_assignment={0: [1, 2]})
    yield "a topic with replicas", lambda d: len(d.log.admin.create_topics([topic]))
    yield "append to it", lambda d: d.log.append("r", rows(b"1", b"2"))
    yield "read it", lambda d: d.log.read("r", columns=["value"]).to_pylist()
    yield "describe it with replicas", lambda d: d.log.admin.describe_topics(["r"])
    yield "log dirs", lambda d: d.log.admin.describe_log_dirs()
    yield "elect", lambda d: d.log.admin.elect_leaders("preferred")
    yield "elect otherwise", lambda d: d.log.admin.elect_leaders("best")
    yield "elect for no partition", lambda d: d.log.admin.elect_leaders("unclean", [TopicPartition("r", 9)])
    yield "fence the leader", lambda d: d.log.admin.fence_broker(1)
    yield "let one be enough", lambda d: d.log.admin.incremental_alter_configs({"r": {"min.insync.replicas": None}})
    yield "append to the other", lambda d: d.log.append("r", rows(b"3"))
    yield "unfence it", lambda d: d.log.admin.unfence_broker(1, deep=True)
    yield "its replicas when all have caught up", settled
    yield "elect the first", lambda d: d.log.admin.elect_leaders("preferred", [R0])
    yield "elect it again", lambda d: d.log.admin.elect_leaders("preferred", [R0])
    yield "remove one with replicas", lambda d: d.log.admin.remove_broker(2)
    for lists in ({R0: []}, {R0: [9]}, {R0: [1, 1]}, {R0: "12"}, {R0: [True]}, {R0: None}, {R0: [1, 2]}, {R0: [3]},
                  {TopicPartition("r", 9): [1]}, {"r": [1]}, {}, {R0: [2, 1, 0]}):  # fmt: skip
        yield f"reassign {lists!a}", lambda d, one=lists: d.log.admin.alter_partition_reassignments(one)
    yield "its replicas when all was moved", settled
    yield (
        "reassign a factor that is kept",
        lambda d: d.log.admin.alter_partition_reassignments({R0: [1]}, allow_replication_factor_change=False),
    )
    yield "moves", lambda d: d.log.admin.list_partition_reassignments()
    yield "moves of no topic", lambda d: d.log.admin.list_partition_reassignments([TopicPartition("aa", 0)])
    yield "replace on a root that is not empty", lambda d: d.log.admin.replace_broker(3)
    yield "replace", lambda d: d.log.admin.replace_broker(3, str(d.folder / "disk33"))
    yield "remove the one behind", lambda d: d.log.admin.remove_broker(3)
    yield "remove it again", lambda d: d.log.admin.remove_broker(3)
    yield "brokers that are left", lambda d: [one.broker for one in d.log.admin.describe_cluster().brokers]


def settled(d: Deployment) -> object:
    """The replicas after the work that a coordinator does in the background, or else `pylog replicate`."""
    replicate_once(d.log)

    def all_in_sync() -> bool:
        (part,) = d.log.admin.describe_topics(["r"])["r"].partitions
        return len(part.isr) == len(part.replicas) and not part.adding and not part.removing

    eventually(all_in_sync, 60)
    (part,) = d.log.admin.describe_topics(["r"])["r"].partitions
    return part._replace(leader_epoch=0)


def calls() -> Iterable[tuple[str, Call]]:
    for part in (topics, configs, records, offsets, groups, consumers, transactions, whole_log, brokers, replicas):
        for name, call in part():
            yield f"{part.__name__}: {name}", call
