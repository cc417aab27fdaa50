"""Dry runs of the changes that the console offers: what a change would do, and the command that does it.

A plan is decided on the newest state, so it is refused as the change would be.  Nothing is written: the page sends the
command afterwards, as any client sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from spark_log.client.admin.lag import standings
from spark_log.client.log import Log
from spark_log.client.reader.positions_to_offsets import group_entries, partition_of, partitions_of, resolve
from spark_log.client.topic_creation import create_command, new_topic_id
from spark_log.configs.settings import validate_topic_configs
from spark_log.display.topics import topic_rows
from spark_log.errors import AuthorizationFailed, InvalidRequest
from spark_log.metadata.commands import AddPartitions, CreateTopic, DeleteTopic, SetConfigs, Single
from spark_log.metadata.groups.group_commands import UNFENCED, CommitOffsets
from spark_log.metadata.groups.named_state import kept_text
from spark_log.metadata.records import CreateTopicRecord, GroupCommit
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import GroupState, State
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.model import NewTopic, OffsetAndMetadata, TopicPartition
from spark_log.monitoring.log_metrics import lag_in
from spark_log.positions import OfGroup, Position, parse_position
from spark_log.server.tokens import ANYBODY, Grant, check_allowed, check_names, sees
from spark_log.text import counted

ROWS_MAX = 500
COMMANDS = (CreateTopic, DeleteTopic, AddPartitions, SetConfigs, CommitOffsets)
"""The commands that the console sends."""
Query = Mapping[str, str]


class DryRun(NamedTuple):
    """A change that was not made yet."""

    does: str
    """A sentence."""
    notes: tuple[str, ...] = ()
    """Consequences that a user should know before."""
    rows: tuple[dict[str, Any], ...] = ()
    """The things that it changes."""


def may_change(grant: Grant) -> bool:
    """Whether a token makes changes in the console.  Without tokens, users cannot be told apart."""
    return grant.role == "admin" and grant != ANYBODY


def plan(log: Log, grant: Grant, query: Query) -> dict[str, Any]:
    """The dry run of an action, with its command as JSON.  Raises the errors of the change."""
    make = ACTIONS.get(query.get("action", ""))
    if make is None:
        raise InvalidRequest(f"action: expected one of {', '.join(ACTIONS)}")
    if not may_change(grant):
        raise AuthorizationFailed(f"the token {grant.name!r} makes no changes in the console: its role is not admin")
    check_names(grant, topics=_named(query, "topic"), groups=_named(query, "group"))
    if query.get("to"):
        allowed_position(grant, query["to"], "to")
    state = log.journal.refresh()
    command, describe = make(log, state, query)
    check_allowed(grant, command, state)
    command.check_types()
    decided = command(state, log.journal.context.clock.now_ms())
    found = describe(decided.records)
    rows = [row for row in found.rows if "group" not in row or sees(row["group"], grant.groups)]
    return {
        "does": found.does,
        "notes": found.notes,
        "rows": rows[:ROWS_MAX],
        "total": len(rows),
        "command": msgspec.json.encode(command).decode(),
    }


def allowed_position(grant: Grant, text: str, what: str) -> Position:
    """A position in a request.  Raises AuthorizationFailed for that of a group which the token does not see."""
    found = parse_position(text, what)
    if isinstance(found, OfGroup):
        check_names(grant, groups=[found.name])
    return found


def _named(query: Query, kind: str) -> tuple[str, ...]:
    return (query[kind],) if query.get(kind) else ()


Describe = Callable[[Any], DryRun]
"""Makes a plan of the records that the command would write."""


def _create(log: Log, state: State, query: Query) -> tuple[Single, Describe]:
    configs = dict(_pair(line) for line in query.get("configs", "").splitlines() if line.strip())
    factor = query.get("replication_factor", "")
    topic = NewTopic(
        query.get("topic", ""),
        _number(query, "partitions"),
        configs,
        replication_factor=_number(query, "replication_factor") if factor else None,
        schema=query.get("schema") or None,
    )

    def describe(records: tuple[CreateTopicRecord, ...]) -> DryRun:
        brokers = sorted({broker for some in records[0].replicas for broker in some} or {0})
        where = "in the log's own root" if brokers == [0] else f"on brokers {', '.join(map(str, brokers))}"
        return DryRun(
            f"Creates topic {topic.name} with {counted(topic.num_partitions, 'partition')} {where}.",
            tuple(validate_topic_configs(configs)[1]),
            tuple({"config": name, "value": value} for name, value in records[0].configs.items()),
        )

    return create_command(topic, new_topic_id(log.journal)), describe


def _pair(line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals:
        raise InvalidRequest(f"configs: {line[:80]!r} is not of the form retention.ms=86400000")
    return name.strip(), value.strip()


def _delete(log: Log, state: State, query: Query) -> tuple[Single, Describe]:
    name = query.get("topic", "")
    topic_id, _ = topic_named(state, name)
    row = topic_rows(state, internal=False, names=[name])[0]
    groups = tuple(
        {"group": group, "lag": sum(lag_in(state, group, key) or 0 for key in known.offsets if key[0] == topic_id)}
        for group, known in sorted(state.groups.items())
        if any(key[0] == topic_id for key in known.offsets)
    )

    def describe(_: object) -> DryRun:
        return DryRun(
            f"Deletes topic {name} with {counted(row['records'], 'record')} in "
            f"{counted(row['partitions'], 'partition')}, and the positions of {counted(len(groups), 'group')} in it.",
            ("This cannot be undone.",),
            groups,
        )

    return DeleteTopic(name=name, topic_id=topic_id), describe


def _partitions(log: Log, state: State, query: Query) -> tuple[Single, Describe]:
    name, total = query.get("topic", ""), _number(query, "partitions")
    topic_id, topic = topic_named(state, name)
    known = topic.partitions

    def describe(_: object) -> DryRun:
        return DryRun(
            f"Adds {counted(total - known, 'partition')} to topic {name}, which then has {total}.",
            (
                "Partitions cannot be removed again.",
                "New records of a key may go to another partition than its earlier ones.",
            ),
        )

    return AddPartitions(name=name, total=total, known=known, topic_id=topic_id), describe


def _reset(log: Log, state: State, query: Query) -> tuple[Single, Describe]:
    group, topic = query.get("group", ""), query.get("topic", "")
    known = state.groups.get(group, GroupState()).offsets
    partitions = partitions_of(state, topic) if topic else [at.tp for at in standings(state, group)]
    if not partitions:
        raise InvalidRequest(f"group {group!r} has no position in a topic that exists: name a topic")
    found = resolve(log.journal, dict.fromkeys(partitions, parse_position(query.get("to", ""), "to")))
    rows = tuple(_move(state, tp, known, offset) for tp, offset in sorted(found.items()))
    ids = {tp: (state.names[tp.topic], tp.partition) for tp in found}
    new = {tp: OffsetAndMetadata(offset, kept_text(state, group, ids[tp], offset)) for tp, offset in found.items()}
    entries = group_entries(state, new)

    def describe(_: object) -> DryRun:
        again = sum(max(0, row["from"] - row["to"]) for row in rows if row["from"] is not None)
        skipped = sum(max(0, row["to"] - row["from"]) for row in rows if row["from"] is not None)
        return DryRun(
            f"Moves group {group} in {counted(len(rows), 'partition')}: it reads {counted(again, 'record')} again, and "
            f"skips {counted(skipped, 'record')}.",
            ("Stop its consumers first: one that runs without a coordinator can overwrite the new positions.",),
            rows,
        )

    commit = GroupCommit(group, UNFENCED, entries)
    return CommitOffsets(commit=commit, history=history_of(state)), describe


def _move(state: State, tp: TopicPartition, known: Mapping[Any, Any], offset: int) -> dict[str, Any]:
    key, part = partition_of(state, tp)
    at = known.get(key)
    return {**tp._asdict(), "from": None if at is None else max(at.offset, part.start), "to": offset}


def _number(query: Query, name: str) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest(f"{name}: {text[:80]!r} is not a number")
    return int(text)


ACTIONS: Mapping[str, Callable[[Log, State, Query], tuple[Single, Describe]]] = MappingProxyType(
    {"create": _create, "delete": _delete, "partitions": _partitions, "reset": _reset}
)
