"""Features of clients: transactions, numbered and pending writes, groups, bookmarks, schemas and views."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from spark_log import Log, NewTopic, TopicPartition
from spark_log.client.producer.append import txn_identity
from spark_log.client.producer.commit import Identity
from spark_log.errors import (
    GroupIdNotFound,
    InvalidRecord,
)
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.model import ACKS_LEADER
from spark_log.replication.replicator import Replicator
from tests.crossings.feature import FIRST, After, Feature, assert_each_is_seen, assert_no_double, is_gone, rows, values
from tests.replication.replicated_logs import put


class Transactions(Feature):
    """A consume-transform-produce loop: each record of the source is in both outputs once."""

    head = "transaction"
    topics = ("txn-source", "txn-out", "txn-audit")

    def write(self, log: Log, phase: str) -> None:
        log.append("txn-source", rows("txn", phase))

    def read(self, log: Log, phase: str) -> None:
        tp = TopicPartition("txn-source", 0)
        try:
            positions = log.admin.list_consumer_group_offsets("txn-group")
        except GroupIdNotFound:
            positions = {}
        start = positions[tp].offset if tp in positions else "earliest"
        found = log.read("txn-source", start=start, columns=["value", "offset"])
        if not found.num_rows:
            return
        with log.transaction("txn-id") as txn:
            for topic in ("txn-out", "txn-audit"):
                txn.append(topic, [{"key": value, "value": value} for value in found["value"].to_pylist()])
            txn.commit_offsets("txn-group", {tp: found["offset"][-1].as_py() + 1})

    def check(self, after: After) -> None:
        self.write(after.log, "after")
        self.read(after.log, "after")
        source, out, audit = (values(after.log, topic) for topic in self.topics)
        assert_no_double(out)
        if not after.gone:
            assert sorted(out) == sorted(audit) and set(source) <= set(out)
        assert_each_is_seen(out, after.log, "txn-source")


FIRST_JOB = "numbered/before/first"
"""Written by a job that ran once, before the operation."""


class Producers(Feature):
    """A job that numbers its writes, and is run again: each write is in the log once."""

    head = "numbered write"
    topics = ("numbered",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.phases: list[str] = []

    def write(self, log: Log, phase: str) -> None:
        self.phases.append(phase)
        self._write(log)
        if phase == "before":
            log.append("numbered", [{"key": "first", "value": FIRST_JOB}], "first", 1)

    def _write(self, log: Log) -> None:
        log.append("numbered", rows("numbered", self.phases[-1]), "job", len(self.phases))

    def check(self, after: After) -> None:
        known = values(after.log, "numbered")
        self._write(after.log)
        if FIRST_JOB not in known:  # the topic was created again, and has no version yet
            after.log.append("numbered", [{"key": "first", "value": FIRST_JOB}], "first", 1)
            assert FIRST_JOB in values(after.log, "numbered")
        found = values(after.log, "numbered")
        assert_no_double(found)
        newest = [row["value"] for row in rows("numbered", self.phases[-1])]
        lost = [value for value in newest if value not in found and not is_gone(value, after)]
        assert not lost, f"the run was skipped, and its records are not there: {lost}; before it there were {known}"


class PendingWrites(Feature):
    """Records with acks=1 that one replica lacks.  A numbered write and a transaction wait behind them: their processes
    died when their commits were in the log.  Both are run again, and the records of each are there once.
    """

    head = "acks=1"

    def create(self, log: Log) -> None:
        known = log.admin.list_topics()
        replicas = {0: [1, 2]} if log.journal.refresh().brokers else None
        for topic in ("pending", "pending-source"):
            if topic not in known:
                log.admin.create_topics([NewTopic(topic, 1, replica_assignment=replicas)])

    def write(self, log: Log, phase: str) -> None:
        state = log.journal.refresh()
        if phase != "before" or not state.brokers:
            return
        log.append("pending-source", [{"value": "transformed"}])
        position = OffsetEntry(state.names["pending-source"], 0, 1, "")
        put(log, [1], topic="pending", values=[b"lazy"], acks=ACKS_LEADER)
        put(log, [1, 2], topic="pending", values=[b"numbered"], **_fields(txn_identity("job", 7, "pending")))
        put(
            log,
            [1, 2],
            topic="pending",
            values=[b"transformed"],
            groups=(GroupCommit("pending-group", -1, (position,)),),
        )
        assert len(log.journal.refresh().pending) == 3

    def check(self, after: After) -> None:
        log = after.log
        for _ in range(3):
            Replicator(log).round()
        log.append("pending", [{"value": "numbered"}], "job", 7)
        try:
            position = log.admin.list_consumer_group_offsets("pending-group")[
                TopicPartition("pending-source", 0)
            ].offset
        except (GroupIdNotFound, KeyError):
            position = 0
        if position == 0:
            log.append("pending", [{"value": "transformed"}])
        found = values(log, "pending")
        assert sorted(value for value in found if value != "lazy") == ["numbered", "transformed"]
        assert found.count("lazy") <= 1


def _fields(identity: Identity) -> dict[str, Any]:
    return {"producer": identity.producer, "sequence": identity.sequence, "dense": identity.dense}


class Groups(Feature):
    """A consumer that stays, and one that is started again, each in its group."""

    head = "group"
    topics = ("group",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.consumer: Any = None
        self.seen: dict[str, list[str]] = {"stays": [], "again": []}

    def write(self, log: Log, phase: str) -> None:
        log.append("group", rows("group", phase))

    def read(self, log: Log, phase: str) -> None:
        if self.consumer is None:
            self.consumer = log.consumer(
                "group", group_id="stays", auto_offset_reset="earliest", enable_auto_commit=False
            )
        self._poll(self.consumer, "stays")
        self._again(log)

    def _again(self, log: Log) -> None:
        with log.consumer(
            "group", group_id="again", auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            self._poll(consumer, "again")

    def _poll(self, consumer: Any, name: str) -> None:
        """Read to the end.  In a group that a coordinator leads, it takes a while to become a member."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = consumer.poll_arrow(timeout_ms=100)
            self.seen[name] += [value.decode() for value in found["value"].to_pylist()]
            if consumer.assignment() and not any(consumer.lag().values()):
                break
        consumer.commit()

    def check(self, after: After) -> None:
        for phase in ("after", "more"):
            after.log.append("group", rows("group", phase))
        self._again(after.log)
        assert_each_is_seen(self.seen["again"], after.log, "group")
        if not after.is_older:
            assert_no_double(self.seen["again"])
        if after.is_where_it_was:
            self._poll(self.consumer, "stays")
            assert_each_is_seen(self.seen["stays"], after.log, "group")


class Bookmarks(Feature):
    """A batch job that continues where its last run ended."""

    head = "bookmark"
    topics = ("bookmark",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.seen: list[str] = []

    def write(self, log: Log, phase: str) -> None:
        log.append("bookmark", rows("bookmark", phase))

    def read(self, log: Log, phase: str) -> None:
        with log.bookmark("nightly", "bookmark") as bookmark:
            for tp, end in bookmark.ends.items():
                start = max(
                    bookmark.starts[tp], log.admin.describe_topics(["bookmark"])["bookmark"].partitions[0].start
                )
                found = log.read("bookmark", tp.partition, start=start, end=end, columns=["value"])
                self.seen += [value.decode() for value in found["value"].to_pylist()]

    def check(self, after: After) -> None:
        for phase in ("after", "more"):
            after.log.append("bookmark", rows("bookmark", phase))
        self.read(after.log, "after")
        assert_each_is_seen(self.seen, after.log, "bookmark")
        if not after.is_older:
            assert_no_double(self.seen)


class Schemas(Feature):
    """A topic with a schema, which got another column."""

    head = "schema"
    topics = ("typed",)

    def create(self, log: Log) -> None:
        if "typed" not in log.admin.list_topics():
            log.admin.create_topics([NewTopic("typed", 1, schema="id BIGINT NOT NULL, name STRING")])
            log.admin.alter_schema("typed", "id BIGINT NOT NULL, name STRING, more INT")

    def write(self, log: Log, phase: str) -> None:
        log.append("typed", [{"key": f"{phase}-k{n}", "id": n, "name": phase, "more": n} for n in range(FIRST)])

    def check(self, after: After) -> None:
        log = after.log
        assert len(log.admin.describe_schema("typed")) == 2
        with pytest.raises(InvalidRecord):
            log.append("typed", [{"key": "k", "value": b"garbage"}])
        self.write(log, "after")
        found = log.read("typed", columns=["id", "name", "more"]).to_pylist()
        assert all(row["id"] == row["more"] for row in found)
        assert [row["id"] for row in found if row["name"] == "after"] == list(range(FIRST))
        before = [row["id"] for row in found if row["name"] == "before"]
        assert before == [n for n in range(FIRST) if f"before-k{n}" not in after.gone] or not after.is_same_topic


class Views(Feature):
    """Latest values of keys, and a log that was open before."""

    head = "view"
    topics = ("view",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.open: Log | None = None

    def write(self, log: Log, phase: str) -> None:
        log.append("view", [*rows("view", phase), {"key": "same", "value": f"view/{phase}/same"}])

    def read(self, log: Log, phase: str) -> None:
        if self.open is None:
            self.open = Log(log.journal)
        values(self.open, "view")

    def check(self, after: After) -> None:
        after.log.append("view", [{"key": "same", "value": "view/after/same"}])
        latest = {row["key"].decode(): row["value"].decode() for row in after.log.read("view").to_pylist()}
        table = {row["key"].decode(): row["value"].decode() for row in after.log.table("view").to_pylist()}
        assert table == latest and table["same"] == "view/after/same"
        assert self.open is not None
        if after.is_where_it_was:
            assert values(self.open, "view") == values(after.log, "view")
