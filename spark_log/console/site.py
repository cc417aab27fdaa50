"""Answers of the console: JSON that the commands print as well, for the topics and groups that a token may see.

An answer that took long is kept for ten times as long, so pages that ask again and again take a tenth of one processor
at most.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from spark_log.client.admin.broker_views import describe_replicas
from spark_log.client.admin.group_listing import GroupDescription, describe_group, shared_now
from spark_log.client.admin.lag import lags_of
from spark_log.client.log import Log
from spark_log.client.reader.plan import chunks
from spark_log.console import records
from spark_log.console.filters import Query, parse_field
from spark_log.console.history import History
from spark_log.console.history_file import HistoryFile
from spark_log.console.plans import allowed_position, may_change, plan
from spark_log.display.cluster import info_fields
from spark_log.display.groups import group_parts, listed_group
from spark_log.display.health import log_checks
from spark_log.display.producers import producer_rows, transaction_row
from spark_log.display.topics import config_rows, topic_rows
from spark_log.errors import GroupIdNotFound, InvalidRequest
from spark_log.maintenance.maintain_report import MaintainReport
from spark_log.metadata.records import Piece
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.metadata.topics.schemas import schemas_of
from spark_log.monitoring.log_metrics import lag_in
from spark_log.positions import format_timestamp_ms
from spark_log.rpc.messages import GroupView
from spark_log.schema.ddl import sql_type, to_ddl
from spark_log.schema.topic_schema import TopicSchema
from spark_log.server.tokens import Grant, allows_producer, check_names, sees
from spark_log.text import printable_json

ROWS_MAX = 500
"""Rows of a list; a search finds the others."""
KEPT_FOR = 10
"""An answer is kept for this many times as long as it took."""
KEPT_S = 1.0
KEPT_MAX = 50
ASKED_ONCE = ("records", "record", "plan")
"""Large and limited in other ways, or of this moment."""
POINTS_MAX = 60
"""Samples of a small picture."""
SAMPLE_S = 15.0
"""How often the ends of topics and the lags of groups are sampled."""
SAVED_EACH = 4
"""After the first sample, and then after so many, they are saved."""
SAMPLED_MAX = 20_000
"""Partitions and positions that a sample visits."""

logger = logging.getLogger("spark_log")

Views = Callable[[], Mapping[str, GroupView]]


class Asked(NamedTuple):
    """A request."""

    log: Log
    grant: Grant
    query: Mapping[str, str]

    def text(self, name: str) -> str:
        """Raises InvalidRequest if it is missing."""
        value = self.query.get(name, "")
        if not value:
            raise InvalidRequest(f"{name}: missing")
        return value

    def number(self, name: str, default: int, most: int) -> int:
        value = self.query.get(name, str(default))
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise InvalidRequest(f"{name}: {value[:80]!r} is not a number")
        return min(int(value), most)

    def topic(self) -> str:
        """A topic that the token may see."""
        name = self.text("topic")
        check_names(self.grant, topics=[name])
        return name


class Site:
    """The answers about one log.  Methods may be called from several threads, and may block."""

    def __init__(
        self,
        open_log: Callable[[], Log],
        views: Views | None = None,
        maintenance: Callable[[], tuple[int, MaintainReport] | None] = lambda: None,
        folder: Path | None = None,
        urls: Sequence[str] = (),
    ) -> None:
        """
        open_log:  called once, at the first request.
        views:     the live groups of the coordinator in this process; None: it is asked over the network.
        maintenance:  the last maintenance of this process.
        folder:    where samples are kept for the next process; None: nowhere.
        urls:      all logs of this console, if there are several.
        """
        self._open_log = open_log
        self._views = views
        self._maintenance = maintenance
        self._folder = folder
        self._urls = urls
        self._lock = threading.Lock()
        self._log: Log | None = None
        self._kept: OrderedDict[Any, tuple[float, bytes]] = OrderedDict()
        self.ends = History()
        self.lags = History()
        self.total = History()
        self._histories = {"ends": self.ends, "lags": self.lags, "total": self.total}
        self._file: HistoryFile | None = None
        self._closed = threading.Event()
        self._views_of_state = {
            "me": self._me,
            "topics": self._topics,
            "topic": self._topic,
            "segments": self._segments,
            "groups": self._groups,
            "queries": self._queries,
            "transactions": self._transactions,
            "brokers": self._brokers,
        }
        self._reads = {
            "cluster": self._cluster,
            "group": self._group,
            "records": self._records,
            "record": self._record,
            "maintenance": self._maintenance_view,
            "health": self._health,
            "plan": self._plan,
        }

    def reads(self, name: str) -> bool | None:
        """True for an answer that needs the storage, which may be slow; None if no answer has this name."""
        return True if name in self._reads else False if name in self._views_of_state else None

    def ask(self, grant: Grant, name: str, query: Mapping[str, str]) -> bytes:
        """JSON.  Raises SparkLogError."""
        answer = self._reads.get(name) or self._views_of_state[name]
        key = (grant, name, tuple(sorted(query.items())))
        if (kept := self._kept_answer(key)) is not None:
            return kept
        began = time.monotonic()
        content = msgspec.json.encode(answer(Asked(self._opened(), grant, query)))
        found = printable_json(content.decode()).encode()
        now = time.monotonic()
        if name not in ASKED_ONCE:
            self._keep(key, found, now + max(KEPT_S, KEPT_FOR * (now - began)))
        return found

    def _kept_answer(self, key: object) -> bytes | None:
        with self._lock:
            until, found = self._kept.get(key, (0.0, b""))
        return found if time.monotonic() < until else None

    def _keep(self, key: object, found: bytes, until: float) -> None:
        with self._lock:
            self._kept[key] = until, found
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)

    def _opened(self) -> Log:
        with self._lock:
            if self._log is None:
                self._log = self._open_log()
                threading.Thread(target=self._sample, args=(self._log,), name="pylog-console", daemon=True).start()
            return self._log

    def close(self) -> None:
        self._closed.set()
        if self._file is not None:
            self._file.save(self._histories)

    # --------------------------------------------------------------------------------------------------------- history

    def _sample(self, log: Log) -> None:
        clock = log.journal.context.clock
        if self._folder is not None:  # here, where a folder that hangs stops no answer
            file = HistoryFile(self._folder, log.cluster_id)
            file.load(self._histories, clock.now_ms())
            self._file = file
        for number in itertools.count(1):
            try:
                self.note(log.journal.refresh(), clock.now_ms())
                if self._file is not None and number % SAVED_EACH == 1:
                    self._file.save(self._histories)
            except Exception as error:  # noqa: BLE001  the storage may be unreachable for a while
                logger.debug("no sample was taken: %s", error)
            if self._closed.wait(SAMPLE_S):
                return

    def note(self, state: State, now_ms: int) -> None:
        """Take a sample."""
        ends, left = dict[str, int](), SAMPLED_MAX
        for name, topic_id in sorted(state.names.items()):
            left -= state.topics[topic_id].partitions
            if left < 0:
                break
            ends[name] = sum(part.readable_end for _, part in state.topic_partitions(topic_id))
        lags, left = dict[str, int](), SAMPLED_MAX
        for name, group in sorted(state.groups.items()):
            left -= len(group.offsets)
            if left < 0:
                break
            lags[name] = sum(lag_in(state, name, key) or 0 for key in group.offsets if key in state.partitions)
        self.ends.note(now_ms, ends)
        self.total.note(now_ms, {"records": sum(ends.values())})
        self.lags.note(now_ms, lags)

    # ------------------------------------------------------------------------------------------------------------- log

    def _me(self, asked: Asked) -> object:
        state, grant = asked.log.journal.refresh(), asked.grant
        return {
            "name": grant.name,
            "role": grant.role,
            "topics": grant.topics,
            "groups": grant.groups,
            "url": asked.log.url,
            "logs": self._urls,
            "cluster_id": asked.log.cluster_id,
            "version": state.version,
            "coordinator": state.coordinator.address,
            "may_change": may_change(grant),
        }

    def _plan(self, asked: Asked) -> object:
        return plan(asked.log, asked.grant, asked.query)

    def _cluster(self, asked: Asked) -> object:
        return {**info_fields(asked.log), "history": self.total.of("records")}

    def _health(self, asked: Asked) -> object:
        asked.log.journal.refresh()
        checks = log_checks(asked.log, "", [], writes=False)
        return {"healthy": all(check.healthy for check in checks), "checks": [check._asdict() for check in checks]}

    def _maintenance_view(self, asked: Asked) -> object:
        log, state = asked.log, asked.log.journal.refresh()
        last = self._maintenance()
        moves = log.admin.list_partition_reassignments()
        return {
            "version": state.version,
            "checkpoint": log.journal.run(log.journal.metadata_log.status()).checkpoint,
            "fence": state.fence,
            "waiting_objects": len(state.dropped) + sum(one.names for one in state.dropped_lists.values()),
            "pending_commits": len(state.pending),
            "compacted_partitions": len(state.cleaned),
            "moving": [
                {**tp._asdict(), **move._asdict()}
                for tp, move in sorted(moves.items())
                if sees(tp.topic, asked.grant.topics)
            ],
            "last_run": None if last is None else format_timestamp_ms(last[0]),
            "last": None if last is None or asked.grant.topics else asdict(last[1]),
        }

    def _brokers(self, asked: Asked) -> object:
        return {"brokers": [one._asdict() for one in asked.log.admin.describe_cluster().brokers]}

    # ---------------------------------------------------------------------------------------------------------- topics

    def _topics(self, asked: Asked) -> object:
        state = asked.log.journal.refresh()
        names = [name for name in _found(state.names, asked) if sees(name, asked.grant.topics)]
        rows = topic_rows(state, internal=False, names=names[:ROWS_MAX])
        return {"topics": [{**row, **self._replication(state, row["topic"])} for row in rows], "total": len(names)}

    def _replication(self, state: State, name: str) -> dict[str, Any]:
        topic_id = state.names[name]
        found = [describe_replicas(state, (topic_id, number)) for number in range(state.topics[topic_id].partitions)]
        return {
            "replicas": max((len(one.replicas) for one in found), default=0),
            "under_replicated": sum(one.under_replicated for one in found),
            "unavailable": sum(one.leader < 0 for one in found),
            "per_second": self.ends.rate(name),
            "history": self.ends.of(name, POINTS_MAX),
        }

    def _topic(self, asked: Asked) -> object:
        name, log = asked.topic(), asked.log
        state = log.journal.refresh()
        topic_id, topic = topic_named(state, name)
        first = asked.number("first", 0, topic.partitions)
        return {
            "topic": name,
            "id": topic_id,
            "created": format_timestamp_ms(topic.created_ms),
            **topic_rows(state, internal=False, names=[name])[0],
            **self._replication(state, name),
            "history": self.ends.of(name),
            "rows": [
                _partition_row(state, topic_id, number)
                for number in range(first, min(first + ROWS_MAX, topic.partitions))
            ],
            "configs": config_rows(log, name, everything=True),
            **_schema_fields(schemas_of(state, topic_id)),
            "readers": [
                {"group": group, "lag": lag}
                for group, lag in _readers(state, topic_id).items()
                if sees(group, asked.grant.groups)
            ],
        }

    def _segments(self, asked: Asked) -> object:
        """From the state alone: a piece of an index stands for its slices."""
        name = asked.topic()
        state = asked.log.journal.refresh()
        topic_id, topic = topic_named(state, name)
        number = asked.number("partition", 0, max(0, topic.partitions - 1))
        part = state.partitions[topic_id, number]
        entries = [entry for entry in part.entries if entry.end > part.start]
        return {
            "partition": number,
            "total": len(entries),
            "segments": [
                {
                    "start": entry.start,
                    "end": entry.end,
                    "object": entry.object,
                    "bytes": entry.bytes if isinstance(entry, Piece) else entry.length,
                    "slices": entry.slices if isinstance(entry, Piece) else 1,
                    "min_ms": entry.min_us // 1000,
                    "max_ms": entry.max_us // 1000,
                }
                for entry in entries[-ROWS_MAX:]
            ],
        }

    # --------------------------------------------------------------------------------------------------------- records

    def _records(self, asked: Asked) -> object:
        """`from`, `to`: positions; `cursor`: of an earlier page; `before`: the same, for the records before it."""
        topic, limit = asked.topic(), max(1, asked.number("limit", 50, records.PAGE_MAX))
        partitions = [asked.number("partition", 0, 1 << 31)] if asked.query.get("partition") else []
        cursor, before = (
            records.parse_cursor(text) if (text := asked.query.get(name)) else None for name in ("cursor", "before")
        )
        given = {name: asked.query.get(name, "") for name in ("key", "search", "field")}
        key, part = (given[name].encode() or None for name in ("key", "search"))
        query = Query(key, part, parse_field(given["field"]) if given["field"] else None)
        start = asked.query.get("from") or "newest"
        end = asked.query.get("to")
        until = allowed_position(asked.grant, end, "to") if end else None
        if cursor is None and (before is not None or start == "newest"):
            if before is None and until is not None:
                before = records.offsets_at(asked.log, topic, partitions, until)
            if not query.is_empty:
                return records.newest_matching(asked.log, topic, partitions, before, limit, query)
            return records.newest(asked.log, topic, partitions, before, limit)
        position = cursor if cursor is not None else allowed_position(asked.grant, start, "from")
        return records.following(asked.log, topic, partitions, position, limit, query, until)

    def _record(self, asked: Asked) -> object:
        topic = asked.topic()
        asked.log.journal.refresh()
        return {
            "record": records.one(
                asked.log, topic, asked.number("partition", 0, 1 << 31), asked.number("offset", 0, 1 << 62)
            )
        }

    # ---------------------------------------------------------------------------------------------------------- groups

    def _described(self, log: Log) -> Mapping[str, GroupView]:
        """The coordinator's view of the groups that share partitions; it may be in another process."""
        return shared_now(log.journal) if self._views is None else self._views()

    def _groups(self, asked: Asked) -> object:
        journal, state = asked.log.journal, asked.log.journal.refresh()
        shared = self._described(asked.log)
        names = [name for name in _found({**state.groups, **shared}, asked) if sees(name, asked.grant.groups)]
        shown = names[:ROWS_MAX]
        lags = lags_of(journal, [name for name in shown if name in state.groups], ages=False)
        rows = []
        for name in shown:
            of_topics = [lag for lag in lags.get(name, []) if sees(lag.tp.topic, asked.grant.topics)]
            group = describe_group(state, name, shared.get(name))
            row = listed_group(group, of_topics)
            row.pop("lag_ms")
            history = [] if asked.grant.topics else self.lags.of(name, POINTS_MAX)
            rows.append({**row, "kind": _kind(group), "history": history})
        return {"groups": rows, "total": len(names)}

    def _group(self, asked: Asked) -> object:
        name = asked.text("group")
        check_names(asked.grant, groups=[name])
        journal, state = asked.log.journal, asked.log.journal.refresh()
        shared = self._described(asked.log)
        if name not in state.groups and name not in shared:
            raise GroupIdNotFound(f"group {name!r} is unknown: it has neither members nor committed offsets")
        fields, members, offsets = group_parts(journal, describe_group(state, name, shared.get(name)))
        allowed = asked.grant.topics
        return {
            **fields,
            "members": [
                {
                    **row,
                    "partitions": row["partitions"]
                    and {t: n for t, n in row["partitions"].items() if sees(t, allowed)},
                }
                for row in members
            ],
            "offsets": [row for row in offsets if sees(row["topic"], allowed)],
            "history": [] if allowed else self.lags.of(name),
        }

    # ------------------------------------------------------------------------------------------- queries, transactions

    def _queries(self, asked: Asked) -> object:
        """Spark queries: those that publish their progress to a group, and those that write."""
        state = asked.log.journal.refresh()
        rows = []
        for row in producer_rows(state):
            kind, _, name = row["producer"].partition(":")
            if kind not in ("sink", "app") or not allows_producer(asked.grant, row["producer"], state):
                continue
            last = state.producers[row["producer"]].last_commit
            topics = [state.topics[one].name for one in (last.topics if last else ()) if one in state.topics]
            if all(sees(topic, asked.grant.topics) for topic in topics):
                rows.append({**row, "name": name, "kind": kind, "topics": topics, "rows": last.rows if last else 0})
        return {"sinks": rows[:ROWS_MAX], "total": len(rows)}

    def _transactions(self, asked: Asked) -> object:
        state = asked.log.journal.refresh()
        found = [
            {**transaction_row(one), "topics": _topics_of(state, f"txn:{one.transactional_id}")}
            for one in asked.log.admin.list_transactions()
            if allows_producer(asked.grant, f"txn:{one.transactional_id}", state)
        ]
        return {"transactions": found[:ROWS_MAX], "total": len(found)}


def _found(names: Mapping[str, object], asked: Asked) -> list[str]:
    """Sorted, those that contain the text of a search."""
    text = asked.query.get("search", "").lower()
    return sorted(name for name in names if text in name.lower())


def _partition_row(state: State, topic_id: str, number: int) -> dict[str, Any]:
    part = state.partitions[topic_id, number]
    replicas = describe_replicas(state, (topic_id, number))._asdict()
    return {
        "partition": number,
        "start": part.start,
        "end": part.readable_end,
        "log_end": part.end,
        "records": part.readable_end - part.start,
        "bytes": sum(chunk.bytes for chunk in chunks(part, part.start, part.readable_end)),
        "newest_ms": part.entries[-1].max_us // 1000 if part.entries else None,
        **replicas,
    }


def _schema_fields(versions: Sequence[TopicSchema]) -> dict[str, Any]:
    """The columns of the newest version, and all versions as DDL."""
    columns = versions[-1].columns if versions else ()
    return {
        "schema": [{"name": one.name, "type": sql_type(one.type), "nullable": one.nullable} for one in columns],
        "schemas": [{"version": one.version, "schema": to_ddl(one.columns)} for one in versions[-ROWS_MAX:]],
    }


def _readers(state: State, topic_id: str) -> dict[str, int]:
    """The groups with a position in a topic, and their lag in it."""
    found: dict[str, int] = {}
    for name, group in sorted(state.groups.items()):
        lags = [lag_in(state, name, key) for key in group.offsets if key[0] == topic_id]
        if lags:
            found[name] = sum(lag or 0 for lag in lags)
        if len(found) >= ROWS_MAX:
            break
    return found


def _kind(group: GroupDescription) -> str:
    """`stream` for the group of a Spark query."""
    return group.members[0].kind if group.members else "consumer"


def _topics_of(state: State, producer: str) -> list[str]:
    last = state.producers[producer].last_commit
    return [state.topics[one].name for one in (last.topics if last else ()) if one in state.topics]
