"""`pylog topic …`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from spark_log.cli.common.base import (
    LONG,
    POSITION,
    Failed,
    Noun,
    config_option,
    confirmed,
    guarded,
    pass_session,
    verb,
)
from spark_log.cli.common.completion import complete_topics
from spark_log.cli.common.output import Table, echo, emit_line, emit_parts, emit_rows
from spark_log.cli.common.session import CommandSession
from spark_log.cli.common.watch import watch_option, watch_rows
from spark_log.display.topics import config_rows, topic_rows
from spark_log.model import PROGRESS_TOPIC
from spark_log.positions import Position, format_timestamp_ms
from spark_log.text import counted

if TYPE_CHECKING:
    from spark_log.client.admin.descriptions import PartitionDescription
    from spark_log.client.log import Log
    from spark_log.model import TopicPartition


TOPIC_RATES = {"appended_per_second": "end"}
"""The rate, and the sum of a topic's end offsets, which grows."""

existing_topic = click.argument("name", metavar="TOPIC", shell_complete=complete_topics)


def read_schema(given: str | None) -> str | None:
    """A schema: the text of a file, or the text itself."""
    if given is None or not os.path.isfile(given):
        return given
    try:
        with open(given, encoding="utf-8-sig") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{given} cannot be read: {error}") from error


schema_option = click.option(
    "--schema",
    metavar="FILE|DDL",
    callback=lambda ctx, param, value: read_schema(value),
    help="The columns of its values: DDL as 'id BIGINT NOT NULL, name STRING', the JSON of a Spark StructType, or a file "
    "with either.",
)


@click.group(cls=Noun)
def topic() -> None:
    """Create, list, alter, trim, erase from and delete topics."""


@verb(topic)
@click.argument("name", metavar="TOPIC")
@click.option(
    "-p", "--partitions", type=LONG, metavar="N", default=1, show_default=True, help="The number of partitions."
)
@click.option(
    "-r",
    "--replication-factor",
    "factor",
    type=LONG,
    metavar="N",
    help="Copies of each record, on as many brokers; default: default.replication.factor of the log.",
)
@click.option(
    "--assign",
    "assignment",
    metavar="0:1,1:2",
    callback=lambda ctx, param, value: parse_assignment(value),
    help="The brokers of each partition, the preferred leader first; instead of -p and -r.",
)
@schema_option
@config_option
@click.option(
    "--create/--no-create", "creates_log", default=True, show_default=True, help="Create the log if the URL has none."
)
@pass_session
def create(
    session: CommandSession,
    name: str,
    partitions: int,
    factor: int | None,
    assignment: Mapping[int, Sequence[int]] | None,
    schema: str | None,
    configs: dict[str, str],
    creates_log: bool,
) -> None:
    """Create a topic.  The log is created with it if the URL has none yet.

    \b
    Example:
      pylog topic create orders -p 3 -c retention.ms=604800000 -u file:///data/log
      pylog topic create payments -p 6 -r 3 -c min.insync.replicas=2
      pylog topic create clicks -p 6 --schema "id BIGINT NOT NULL, url STRING, at TIMESTAMP"
    """
    from spark_log.model import NewTopic

    count = partitions if assignment is None else len(assignment)
    topic = NewTopic(name, count, configs, replication_factor=factor, replica_assignment=assignment, schema=schema)
    with notes_said():
        ids = session.connect(create=creates_log).admin.create_topics([topic])
    text = f"topic {name} created with {counted(count, 'partition')}"
    emit_line(session, text, {"topic": name, "id": ids[name], "partitions": count})


def parse_assignment(text: str | None) -> dict[int, tuple[int, ...]] | None:
    """Kafka's form: the brokers of a partition joined by ':', partitions by ','."""
    if text is None:
        return None
    try:
        return {number: tuple(int(one) for one in some.split(":")) for number, some in enumerate(text.split(","))}
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: expected the brokers of each partition, as in 0:1,1:2 for two partitions"
        ) from None


@contextmanager
def notes_said() -> Iterator[None]:
    """Print warnings of the log on standard error, one per line, for example about configs without effect."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        yield
    for note in notes:
        echo(f"pylog: warning: {note.message}", err=True)


@verb(topic, "list")
@click.option("--internal", is_flag=True, help=f"Include {PROGRESS_TOPIC}.")
@watch_option
@pass_session
def list_topics(session: CommandSession, internal: bool, watch: bool) -> None:
    """List topics with their partitions, records and stored bytes.

    The list comes from the metadata alone.  Bytes of a partition whose first records were trimmed are an estimate.

    \b
    Example:
      pylog topic list -o json
    """
    journal = session.journal()
    journal.refresh()
    columns = ["topic", "partitions", "records", "bytes"]
    if not watch:
        emit_rows(session, columns, topic_rows(journal.state, internal=internal))
        return

    def read() -> list[dict[str, Any]]:
        return topic_rows(journal.poll(), internal=internal)

    def show(rows: list[dict[str, Any]]) -> None:
        emit_rows(session, [*columns, *TOPIC_RATES], rows)

    watch_rows(session, "topics", read, show, keys=["topic"], rates=TOPIC_RATES)


all_configs_option = click.option(
    "--all", "everything", is_flag=True, help="Include configs that are accepted without effect."
)


optional_topic = click.argument("name", metavar="[TOPIC]", required=False, shell_complete=complete_topics)


@verb(topic)
@optional_topic
@all_configs_option
@click.option(
    "--under-replicated", "which", flag_value="under_replicated", help="List partitions whose ISR lacks a replica."
)
@click.option(
    "--under-min-isr", "which", flag_value="under_min_isr", help="List partitions that refuse writes for that."
)
@click.option("--unavailable", "which", flag_value="unavailable", help="List partitions without a leader.")
@pass_session
def describe(session: CommandSession, name: str | None, everything: bool, which: str | None) -> None:
    """Show a topic's configs and where each is set, and the replicas and contents of its partitions.

    A config's source is topic if the topic sets it, else default.  With one of the last three options, only such
    partitions are listed, by default those of all topics.  Records from the high watermark to the end of a partition
    were written with acks=0 or 1, or after such ones: readers see them when all in-sync replicas have them.

    \b
    Example:
      pylog topic describe orders
      pylog topic describe --under-replicated
    """
    log = session.connect()
    if which is not None:
        _list_partitions(session, log, name, which)
        return
    if name is None:
        raise click.UsageError("give a topic, or --under-replicated, --under-min-isr or --unavailable")
    found = log.admin.describe_topics([name])[name]
    fields = {"topic": name, "id": found.topic_id, "created": format_timestamp_ms(found.created_ms)}
    moves = [name for name in MOVE_COLUMNS if any(getattr(part, name) for part in found.partitions)]
    high = ["high_watermark"] if any(part.high_watermark < part.end for part in found.partitions) else []
    lost = ["lost"] if any(part.lost for part in found.partitions) else []
    columns = ["partition", *REPLICA_COLUMNS, *moves, "start", *high, "end", *lost, "records", "bytes", "objects"]
    rows = [{**_replicas_shown(part), "records": part.rows} for part in found.partitions]
    configs = Table(CONFIG_COLUMNS, config_rows(log, name, everything=everything))
    emit_parts(session, fields, {"partitions": Table(columns, rows), "configs": configs}, main="partitions")


REPLICA_COLUMNS = ("leader", "replicas", "isr")
CONFIG_COLUMNS = ("config", "value", "source", "in_force")
MOVE_COLUMNS = ("adding", "removing")
"""Columns for partitions that move."""


def _replicas_shown(part: PartitionDescription) -> dict[str, Any]:
    """A row, with brokers as Kafka's tools print them, and the first and last offsets of what was lost."""
    lists = {name: ",".join(map(str, getattr(part, name))) for name in ("replicas", "isr", *MOVE_COLUMNS)}
    lost = ",".join(f"{start}-{end - 1}" for start, end in part.lost)
    return {**part._asdict(), **lists, "lost": lost, "leader": "none" if part.leader < 0 else part.leader}


def _list_partitions(session: CommandSession, log: Log, name: str | None, which: str) -> None:
    found = log.admin.describe_topics(None if name is None else [name])
    rows = [
        {"topic": topic, **_replicas_shown(part)}
        for topic, described in found.items()
        for part in described.partitions
        if getattr(part, which)
    ]
    emit_rows(session, ["topic", "partition", *REPLICA_COLUMNS], rows)


@verb(topic)
@existing_topic
@click.option(
    "-p", "--partitions", type=LONG, metavar="TOTAL", help="The new number of partitions, which can only grow."
)
@click.option(
    "-r",
    "--replication-factor",
    "factor",
    type=LONG,
    metavar="N",
    help="The new number of replicas of each partition, whose records then move.",
)
@schema_option
@click.option(
    "--additional", is_flag=True, help="Even if partitions of the topic are being moved: with other replicas."
)
@config_option
@click.option("--unset", multiple=True, metavar="KEY", help="A config to set back to its default; may be repeated.")
@pass_session
def alter(
    session: CommandSession,
    name: str,
    partitions: int | None,
    factor: int | None,
    schema: str | None,
    additional: bool,
    configs: dict[str, str],
    unset: tuple[str, ...],
) -> None:
    """Add partitions to a topic, and change its configs, its replication factor and its schema.

    A schema may add nullable columns, widen numbers, and make columns nullable. A topic with bytes may get its first
    schema: its earlier records stay bytes.

    With another replication factor, the partitions are spread over all brokers again, as pylog reassign generate would
    do it; with a factor of 1, all are in the log's own root, as those of a new topic. New records are written to the
    new replicas immediately. A coordinator, pylog replicate or pylog maintain moves the older ones: pylog reassign list
    shows which partitions are moving. While they move, another factor needs --additional: it replaces the replicas to
    which they move.

    \b
    Example:
      pylog topic alter orders --partitions 6 -c retention.bytes=1000000000 --unset retention.ms
      pylog topic alter orders --replication-factor 3 -c min.insync.replicas=2
      pylog topic alter clicks --schema "id BIGINT NOT NULL, url STRING, at TIMESTAMP, country STRING"
    """
    if partitions is None and factor is None and schema is None and not configs and not unset:
        raise click.UsageError(
            "nothing to alter: give --partitions, --replication-factor, --schema, -c KEY=VALUE or --unset KEY"
        )
    log = session.connect()
    if schema is not None:
        log.admin.alter_schema(name, schema)
    if factor is not None and not additional:
        _check_not_moving(log, name)
    if partitions is not None:
        log.admin.create_partitions({name: partitions})
    grows = factor is not None and factor > _factor(log, name)
    if factor is not None and grows:
        alter_factor(log, name, factor, replace=additional)
    if configs or unset:
        alter_configs(log, name, configs, unset)
    if factor is not None and not grows:  # min.insync.replicas may have been lowered with it
        alter_factor(log, name, factor, replace=additional)
    emit_line(session, f"topic {name} altered", {"topic": name})


def _check_not_moving(log: Log, name: str) -> None:
    """Before anything is changed; the change of the factor checks it, too."""
    from spark_log.metadata.replicas.replica_commands import check_not_moving

    state = log.journal.refresh()
    check_not_moving(state, [key for key in state.reassignments if key[0] == state.names.get(name)])


def _factor(log: Log, name: str) -> int:
    from spark_log.client.admin.replica_plans import current_replicas

    return max(map(len, current_replicas(log.journal.refresh(), [name]).values()))


def alter_factor(log: Log, name: str, factor: int, *, replace: bool) -> None:
    """Give a topic another replication factor.  Partitions that have it keep their replicas.

    replace:  also if partitions of it move.
    """
    from spark_log.client.admin.replica_plans import with_factor

    log.admin.alter_partition_reassignments(with_factor(log.journal.refresh(), name, factor), replace=replace)


def alter_configs(log: Log, name: str | None, configs: Mapping[str, str], unset: Sequence[str]) -> None:
    """Set and unset configs of a topic, or of the log for None; warns of configs without effect."""
    with notes_said():
        log.admin.incremental_alter_configs({name: {**configs, **dict.fromkeys(unset)}})


@verb(topic, "schema")
@existing_topic
@click.option("--history", is_flag=True, help="List all versions, each as DDL.")
@pass_session
def show_schema(session: CommandSession, name: str, history: bool) -> None:
    """Show the columns of a topic with a schema.

    
    Example:
      pylog topic schema clicks
      pylog topic schema clicks --history
    """
    from spark_log.errors import InvalidRequest
    from spark_log.schema.ddl import sql_type, to_ddl

    versions = session.connect().admin.describe_schema(name)
    if not versions:
        raise InvalidRequest(
            f"topic {name!r} has no schema, its values are bytes; give it one with `pylog topic alter {name} --schema …`"
        )
    if history:
        rows = [{"version": one.version, "schema": to_ddl(one.columns)} for one in versions]
        emit_rows(session, ["version", "schema"], rows)
        return
    newest = versions[-1]
    rows = [
        {"version": newest.version, "column": field.name, "type": sql_type(field.type), "nullable": field.nullable}
        for field in newest.columns
    ]
    emit_rows(session, ["version", "column", "type", "nullable"], rows)


@verb(topic)
@existing_topic
@guarded
@pass_session
def delete(session: CommandSession, name: str, dry_run: bool, yes: bool) -> None:
    """Delete a topic with its records and the committed offsets of groups in it.

    \b
    Example:
      pylog topic delete orders --yes
    """
    admin = session.connect().admin
    records = admin.describe_topics([name])[name].rows
    if confirmed(f"delete topic {name} with {counted(records, 'record')}", dry_run=dry_run, yes=yes):
        admin.delete_topics([name])
        emit_line(session, f"topic {name} deleted", {"topic": name, "records": records})


@verb(topic)
@existing_topic
@click.option("--to", "position", type=POSITION, required=True, help="The position of the first record to keep.")
@click.option("-p", "--partition", type=LONG, metavar="N", help="Trim this partition only.")
@guarded
@pass_session
def trim(
    session: CommandSession, name: str, position: Position, partition: int | None, dry_run: bool, yes: bool
) -> None:
    """Remove the records before a position, in each partition.

    \b
    Example:
      pylog topic trim orders --to now-7d
    """
    from spark_log.client.reader.positions_to_offsets import partition_of, resolve
    from spark_log.errors import OffsetOutOfRange

    log = session.connect()
    tps = partitions_named(log, name, partition)
    try:
        offsets = resolve(log.journal, dict.fromkeys(tps, position))
    except OffsetOutOfRange as error:
        if len(tps) < 2:
            raise
        raise Failed(f"{error}; nothing was removed: trim one partition with -p N, or give a time for all") from error
    state = log.journal.state
    starts = {tp: partition_of(state, tp)[1].start for tp in tps}
    rows = [
        {"partition": tp.partition, "from": starts[tp], "to": to, "records": max(0, to - starts[tp])}
        for tp, to in offsets.items()
    ]
    count = sum(row["records"] for row in rows)
    if dry_run:
        emit_rows(session, ["partition", "from", "to", "records"], rows)
    elif confirmed(f"remove {counted(count, 'record')} of topic {name}", dry_run=False, yes=yes):
        log.admin.delete_records(offsets)
        emit_rows(session, ["partition", "from", "to", "records"], rows)


def partitions_named(log: Log, topic: str, partition: int | None) -> list[TopicPartition]:
    """All partitions of a topic, or the given one."""
    from spark_log.client.reader.positions_to_offsets import partition_of, partitions_of
    from spark_log.model import TopicPartition

    state = log.journal.refresh()
    if partition is None:
        return partitions_of(state, topic)
    tp = TopicPartition(topic, partition)
    partition_of(state, tp)
    return [tp]


@verb(topic)
@existing_topic
@click.option("--at", "position", type=POSITION, help="Show the offset of this position instead of start and end.")
@pass_session
def offsets(session: CommandSession, name: str, position: Position | None) -> None:
    """Show the first and the next offset of each partition, or the offset of a position.

    \b
    Example:
      pylog topic offsets orders --at @2026-01-31T10:00Z
    """
    from spark_log.client.reader.positions_to_offsets import partition_of, resolve

    log = session.connect()
    tps = partitions_named(log, name, None)
    if position is not None:
        found = resolve(log.journal, dict.fromkeys(tps, position))
        emit_rows(
            session, ["partition", "offset"], [{"partition": tp.partition, "offset": at} for tp, at in found.items()]
        )
        return
    parts = [(tp.partition, partition_of(log.journal.state, tp)[1]) for tp in tps]
    rows = [{"partition": number, "start": part.start, "end": part.readable_end} for number, part in parts]
    emit_rows(session, ["partition", "start", "end"], rows)
