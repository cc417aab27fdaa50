"""`pylog group seek`: like Kafka's --reset-offsets."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import IO, TYPE_CHECKING, Any

import click

from spark_log.cli.commands.topics import partitions_named
from spark_log.cli.common.base import LONG, POSITION, Failed, Verb, confirmed, guarded, pass_session
from spark_log.cli.common.completion import complete_groups, complete_topics
from spark_log.cli.common.output import echo, emit_rows
from spark_log.cli.common.session import CommandSession
from spark_log.errors import InvalidRequest, OffsetOutOfRange, UnknownTopicOrPartition
from spark_log.positions import OFFSET_MAX, Position, format_timestamp_ms
from spark_log.text import counted

if TYPE_CHECKING:
    from spark_log.client.log import Log
    from spark_log.metadata.state import State
    from spark_log.model import TopicPartition

COLUMNS = ["topic", "partition", "from", "to"]
UNDO = "pylog group describe --export saves its offsets first, and --from-file reads them back"
GOALS = "give one of --to POSITION, --to-group GROUP, --shift-by N and --from-file FILE"


@click.command(cls=Verb)
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option("--to", "position", type=POSITION, help="Move to this position.")
@click.option(
    "--to-group",
    "other",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Move to the committed offsets of this group.",
)
@click.option("--shift-by", type=LONG, metavar="N", help="Move forward by N records, or back if N is negative.")
@click.option(
    "--from-file",
    "file",
    type=click.File(encoding="utf-8-sig"),
    metavar="FILE",
    help="Move to the offsets in a file with lines of the form topic,partition,offset; - is standard input.",
)
@click.option(
    "--topic",
    "places",
    metavar="TOPIC[:PARTITION,…]",
    multiple=True,
    shell_complete=complete_topics,
    help="Move in this topic only; may be repeated.  Without it, wherever the group has committed.",
)
@guarded
@pass_session
def seek(
    session: CommandSession,
    name: str,
    position: Position | None,
    other: str | None,
    shift_by: int | None,
    file: IO[str] | None,
    places: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> None:
    """Move the committed offsets of a group, as Kafka's tool does with --reset-offsets.

    Stop the consumers of the group first.  --shift-by stops at the first and at the last record of a partition.  A
    Spark stream starts at its group's offsets only with a new checkpoint, otherwise at its checkpoint; with
    group.members, it starts at the later one of both.

    \b
    Example:
      pylog group seek billing --to now-1h --topic orders --topic payments
      pylog group seek billing --shift-by -100 --dry-run
      pylog group describe billing --export > offsets.csv; pylog group seek audit --from-file offsets.csv
    """
    from spark_log.metadata.groups.named_state import kept_text
    from spark_log.model import OffsetAndMetadata

    if sum(goal is not None for goal in (position, other, shift_by, file)) != 1:
        raise click.UsageError(GOALS)
    if file is not None and places:
        raise click.UsageError("--topic: leave it out, the file names the partitions")
    log = session.connect()
    state = log.journal.refresh()
    check_free(log, name)
    if file is not None:
        new = _read_offsets(log, file)
    elif position is not None:
        new = _resolve(log, dict.fromkeys(_wanted(log, state, places, name), position))
    elif other is not None:
        committed = _committed(state, other)
        new = {tp: committed[tp] for tp in _wanted(log, state, places, other) if tp in committed}
    else:
        assert shift_by is not None, "one of the four is given"
        new = _shifted(state, name, _wanted(log, state, places, name), shift_by)
    rows = _moves(state, name, new)
    if dry_run:
        emit_rows(session, COLUMNS, rows)
    elif confirmed(f"move group {name} in {counted(len(rows), 'partition')}", dry_run=False, yes=yes, undo=UNDO):
        log.admin.alter_consumer_group_offsets(
            name,
            {
                tp: OffsetAndMetadata(offset, kept_text(state, name, (state.names[tp.topic], tp.partition), offset))
                for tp, offset in new.items()
            },
        )
        emit_rows(session, COLUMNS, rows)


def check_free(log: Log, name: str) -> None:
    """Raises GroupInUse before the user is asked, also in a dry run.  Names members that may run or not."""
    from spark_log.client.admin.group_listing import describe_group
    from spark_log.metadata.groups.decide_groups import check_group_free
    from spark_log.metadata.groups.shared_groups import check_not_shared

    state = log.journal.state
    check_group_free(state, name, log.journal.context.clock.now_ms())
    check_not_shared(state, name)
    if members := describe_group(state, name).members:
        echo(
            f"group {name} has {counted(len(members), 'member')}, last seen at "
            f"{format_timestamp_ms(state.groups[name].seen)}, {members[0].owner or members[0].member_id} among them: if "
            "they still run, stop them first, since they continue to commit",
            err=True,
        )


def _wanted(log: Log, state: State, places: Sequence[str], name: str) -> list[TopicPartition]:
    """The given partitions, or those in which the group has committed."""
    if places:
        return list(dict.fromkeys(tp for place in places for tp in _named(log, place)))
    if name not in state.groups:
        near = get_close_matches(name, list(state.groups), n=1)
        hint = f"; or did you mean {near[0]}?" if near else ""
        raise Failed(
            f"group {name!r} has committed nothing yet: give its partitions with --topic TOPIC[:PARTITION]{hint}"
        )
    return list(_committed(state, name))


def _named(log: Log, place: str) -> list[TopicPartition]:
    """The partitions of `TOPIC`, `TOPIC:0` or `TOPIC:0,2`."""
    topic, colon, numbers = place.partition(":")
    if not colon:
        return partitions_named(log, topic, None)
    parts = numbers.split(",")
    if not all(number.isascii() and number.isdigit() for number in parts):
        raise click.BadParameter(f"{place!r} is not of the form TOPIC or TOPIC:PARTITION,…", param_hint="'--topic'")
    return [tp for number in parts for tp in partitions_named(log, topic, int(number))]


def _resolve(log: Log, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    from spark_log.client.reader.positions_to_offsets import resolve

    return resolve(log.journal, positions)


def _committed(state: State, name: str) -> dict[TopicPartition, int]:
    """Raises GroupIdNotFound."""
    from spark_log.client.admin.lag import standings

    return {at.tp: at.position.offset for at in standings(state, name)}


def _shifted(state: State, name: str, tps: Iterable[TopicPartition], by: int) -> dict[TopicPartition, int]:
    """Shifted offsets, within each partition's bounds.  Raises Failed for a partition without a committed offset."""
    from spark_log.client.reader.positions_to_offsets import partition_of

    committed, new = _committed(state, name), {}
    for tp in tps:
        if tp not in committed:
            raise Failed(
                f"group {name!r} has no committed offset in {tp.topic}-{tp.partition} to shift: give --to POSITION"
            )
        _, part = partition_of(state, tp)
        new[tp] = min(max(committed[tp] + by, part.start), part.readable_end)
    return new


def _read_offsets(log: Log, file: IO[str]) -> dict[TopicPartition, int]:
    """The offsets of a file in the form of Kafka's tool.  Raises InvalidRequest with the line."""
    from spark_log.model import TopicPartition
    from spark_log.positions import At

    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(_lines(file), 1):
        if not row:
            continue
        if len(row) != 3 or not all(re.fullmatch(r"\s*[0-9]{1,30}\s*", cell, re.ASCII) for cell in row[1:]):
            raise InvalidRequest(
                f"--from-file: line {number} is {','.join(row)!r}, not of the form topic,partition,offset"
            )
        tp, position = TopicPartition(row[0].strip(), int(row[1])), At(min(int(row[2]), OFFSET_MAX))
        try:
            found |= _resolve(log, {tp: position})
        except (UnknownTopicOrPartition, OffsetOutOfRange) as error:
            raise InvalidRequest(f"--from-file: line {number}: {error}") from error
    if not found:
        raise InvalidRequest("--from-file: the file is empty; give lines of the form topic,partition,offset")
    return found


def _lines(file: IO[str]) -> list[list[str]]:
    try:
        return list(csv.reader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--from-file: the file cannot be read: {error}") from error


def _moves(state: State, name: str, new: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    from spark_log.metadata.state import GroupState

    old = state.groups.get(name, GroupState()).offsets
    rows = []
    for tp, offset in new.items():
        position = old.get((state.names[tp.topic], tp.partition))
        rows.append({**tp._asdict(), "from": None if position is None else position.offset, "to": offset})
    return rows
