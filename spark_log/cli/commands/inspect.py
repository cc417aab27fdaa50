"""`pylog plan`, and commands that show the internals of a log: metadata, config, producer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_log.cli.commands.topics import CONFIG_COLUMNS, all_configs_option, alter_configs
from spark_log.cli.common.base import LONG, POSITION, Failed, Noun, Verb, config_option, pass_session, verb
from spark_log.cli.common.completion import complete_topics
from spark_log.cli.common.output import echo, emit_line, emit_rows, emit_value
from spark_log.cli.common.session import CommandSession
from spark_log.display.producers import producer_rows
from spark_log.display.topics import config_rows
from spark_log.display.units import human
from spark_log.errors import CorruptObject
from spark_log.positions import Position, format_timestamp_ms
from spark_log.text import counted, printable_json

if TYPE_CHECKING:
    from spark_log.client.log import Log
    from spark_log.client.reader.fetch import Touched
    from spark_log.client.reader.plan import SliceRead
    from spark_log.conditions import Window
    from spark_log.display.metadata_tree import Shell
    from spark_log.metadata.state import State
    from spark_log.quorum.node.inspection import FileDump


# ----------------------------------------------------------------------------------------------------------------- plan


SUMS = ("records", "segments", "batches", "bytes")
"""The columns of a plan."""


@click.command(cls=Verb)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--start", type=POSITION, default="earliest", show_default=True, help="The position at which the read begins."
)
@click.option("--end", type=POSITION, default="latest", show_default=True, help="The position at which the read ends.")
@click.option(
    "--where",
    metavar="CONDITION",
    help="A condition as in SQL, over timestamp, offset, partition and data columns; times without a zone are UTC.",
)
@pass_session
def plan(session: CommandSession, topic: str, start: Position, end: Position, where: str | None) -> None:
    """Show how much of a topic a read fetches.

    Records, segments, batches and bytes are shown beside the topic's total. Batches are read whole, so a read may
    fetch records outside of its range.  Bytes include the indexes of the segments, but not the metadata of the log.
    Spark tasks that share a large segment each read its index, and both read the batch at their border.

    \b
    Example:
      pylog plan orders --start @2026-01-31T10:00Z --end @2026-01-31T11:00Z
      pylog plan orders --where "timestamp >= '2026-01-31 10:00' and timestamp < '2026-01-31 11:00'"
      pylog plan orders --where "amount > 100 and country = 'DE'"
    """
    from spark_log.client.reader.typed import bound_to_topic
    from spark_log.conditions import as_condition

    log, condition = session.connect(), as_condition(where)
    reads = log.plan(topic, start=start, end=end, where=condition)
    found = _touched(log, reads, bound_to_topic(log.journal.state, topic, condition).window)
    there = _touched(log, log.plan(topic), None)
    count = log.journal.state.topics[log.journal.state.names[topic]].partitions
    rows = [_plan_row(number, _of(found, number), _of(there, number)) for number in range(count)]
    total = {name: value for name, value in _plan_row(-1, found, there).items() if name != "partition"}
    if session.structured:
        emit_value(session, {"topic": topic, "partitions": rows, "total": total})
    elif session.output == "csv":
        emit_rows(session, list(rows[0]), rows)
    else:
        shown = [*rows, {"partition": "total", **total}]
        emit_rows(session, ["partition", *SUMS], [_of_total(session, row) for row in shown])


def _touched(log: Log, reads: Sequence[SliceRead], window: Window | None) -> list[tuple[SliceRead, Touched]]:
    from spark_log.client.reader.fetch import touched

    return [(read, touched(log.journal.objects, read, window)) for read in reads]


def _of(found: Sequence[tuple[SliceRead, Touched]], number: int) -> list[tuple[SliceRead, Touched]]:
    return [one for one in found if one[0].partition == number]


def _plan_row(
    number: int, found: Sequence[tuple[SliceRead, Touched]], there: Sequence[tuple[SliceRead, Touched]]
) -> dict[str, Any]:
    return {"partition": number, **_sums(found), **{f"total_{name}": value for name, value in _sums(there).items()}}


def _sums(found: Sequence[tuple[SliceRead, Touched]]) -> dict[str, int]:
    """Totals; objects that several partitions share count once."""
    counts = [one for _, one in found]
    return {
        "records": sum(one.records for one in counts),
        "segments": len({read.slice.object for read, _ in found}),
        "batches": sum(one.batches for one in counts),
        "bytes": sum(one.bytes for one in counts),
    }


def _of_total(session: CommandSession, row: dict[str, Any]) -> dict[str, Any]:
    def of_total(name: str) -> str:
        found, total = row[name], row[f"total_{name}"]
        return f"{found} of {total}" if session.exact else f"{human(name, found)} of {human(name, total)}"

    return {"partition": str(row["partition"]), **{name: of_total(name) for name in SUMS}}


# ------------------------------------------------------------------------------------------------------------- metadata


@click.group(cls=Noun)
def metadata() -> None:
    """Show the metadata log."""


@verb(metadata, "dump")
@click.argument("path", required=False, type=click.Path(exists=True))
@click.option(
    "--state", "of_state", is_flag=True, help="Show the state that results from the records instead, as JSON."
)
@click.option("--verify", is_flag=True, help="With PATH: only check that everything is whole.")
@pass_session
def dump_metadata(session: CommandSession, path: str | None, of_state: bool, verify: bool) -> None:
    """Show the records of the metadata log that have not been deleted yet.

    With -o json, each version is one line with its complete records.  A damaged record is reported, and the exit
    status is then 1.

    PATH is a node's directory of a quorum, or one of its files, in place of the log: it shows the writes of a log
    (.log) and the snapshots (.checkpoint).  With -o json, their entries are shown as well.

    \b
    Example:
      pylog metadata dump -o json
      pylog metadata dump /var/lib/pylog/quorum --verify
    """
    if path is not None:
        if of_state:
            raise click.UsageError("--state is for the metadata log, without a PATH")
        dump_quorum(session, path, verify=verify)
        return
    if verify:
        raise click.UsageError("--verify needs a PATH; `pylog verify` checks a log")
    _dump_log(session, of_state=of_state)


def _dump_log(session: CommandSession, *, of_state: bool) -> None:
    import msgspec

    from spark_log.metadata.formats.batch_format import decode_batch
    from spark_log.metadata.formats.checkpoint_format import state_json
    from spark_log.store.object_names import LOG, listed, log_version

    log = session.connect()
    store = log.journal.metadata
    if of_state:
        echo(printable_json(msgspec.json.format(state_json(log.journal.refresh()), indent=2).decode()))
        return
    rows, damaged = [], []
    for key in listed(store, LOG):
        try:
            batch = decode_batch(store.get(key), key)
        except CorruptObject as error:
            damaged.append(str(error))
            continue
        version = log_version(key)
        if session.output == "json":
            content = msgspec.json.encode({"version": version, **msgspec.structs.asdict(batch)})
            echo(printable_json(content.decode()))
        kinds = ", ".join(str(record.__struct_config__.tag) for record in batch.records)
        rows.append({"version": version, "time": format_timestamp_ms(batch.time), "id": batch.id, "records": kinds})
    if session.output != "json":
        emit_rows(session, ["version", "time", "id", "records"], rows)
    if damaged:
        hint = "`pylog repair --dry-run` shows whether the log needs them"
        raise Failed(f"{counted(len(damaged), 'record')} cannot be read: {'; '.join(damaged)}. {hint}")


@verb(metadata, "shell")
@click.argument("command", nargs=-1)
@click.option(
    "--snapshot",
    "path",
    metavar="PATH",
    type=click.Path(exists=True),
    help="Show this instead of the log: a node's directory of a quorum, or a snapshot (.checkpoint).",
)
@click.option("--version", type=LONG, metavar="N", help="Show the state at this version, if it is still there.")
@pass_session
def metadata_shell(session: CommandSession, command: tuple[str, ...], path: str | None, version: int | None) -> None:
    """Look around in the state of the metadata log, as in a tree of files.

    COMMAND is one of ls, cat, tree and find, with a path. Without it, commands are read from the terminal or from
    standard input, one on each line; `help` shows them. A partition begins with what Kafka's PartitionRecord has.

    
    Example:
      pylog metadata shell ls /topics/byName
      pylog metadata shell cat /topics/byName/orders/partitions/0
      pylog metadata shell --snapshot /var/lib/pylog/quorum tree /brokers
      pylog metadata shell find /groups 'billing*'
    """
    from spark_log.display.metadata_tree import Shell, ShellError
    from spark_log.server.quorum.files import content_of

    shell = Shell(_state_of(session, version) if path is None else content_of(path, version).state)
    try:
        if command:
            _echo_all(shell.carry_out(*command))
            return
        while (line := input(">> " if sys.stdin.isatty() else "")).strip() != "exit":
            _carry_out(shell, line)
    except EOFError:
        return
    except ShellError as error:
        raise Failed(str(error)) from error


def _state_of(session: CommandSession, version: int | None) -> State:
    journal = session.connect().journal
    newest = journal.refresh()
    found = newest if version is None else journal.state_at(version)
    if found is None:
        raise Failed(f"the log has no version {version} any more: it has {newest.version}")
    return found


def _carry_out(shell: Shell, line: str) -> None:
    """Raises ShellError, unless somebody sits there and can correct the command."""
    from spark_log.display.metadata_tree import ShellError

    try:
        _echo_all(shell.run(line))
    except ShellError as error:
        if not sys.stdin.isatty():
            raise
        echo(str(error), err=True)


def _echo_all(lines: Iterable[str]) -> None:
    for line in lines:
        echo(line)


# --------------------------------------------------------------------------------------------------------------- config


@click.group(cls=Noun)
def config() -> None:
    """Show and change configs of the log and of its topics."""


@verb(config, "describe")
@click.option(
    "--topic", metavar="TOPIC", shell_complete=complete_topics, help="Configs of this topic, instead of the log's."
)
@all_configs_option
@pass_session
def describe_config(session: CommandSession, topic: str | None, everything: bool) -> None:
    """Show configs of the log or of a topic, with their values and meanings.

    \b
    Example:
      pylog config describe --topic orders
    """
    rows = config_rows(session.connect(), topic, everything=everything)
    emit_rows(session, [*CONFIG_COLUMNS, "meaning"], rows)


@verb(config, "alter")
@config_option
@click.option("--unset", multiple=True, metavar="KEY", help="A config to set back to its default; may be repeated.")
@click.option(
    "--topic", metavar="TOPIC", shell_complete=complete_topics, help="Configs of this topic, instead of the log's."
)
@pass_session
def alter_config(session: CommandSession, configs: dict[str, str], unset: tuple[str, ...], topic: str | None) -> None:
    """Change configs of the log or of a topic.

    \b
    Example:
      pylog config alter -c gc.fence.age.ms=3600000
    """
    if not configs and not unset:
        raise click.UsageError("nothing to alter: give -c KEY=VALUE or --unset KEY")
    alter_configs(session.connect(), topic, configs, unset)
    emit_line(session, "configs altered", {"set": configs, "unset": list(unset)})


# ------------------------------------------------------------------------------------------------------------- producer


@click.group(cls=Noun)
def producer() -> None:
    """List producers."""


@verb(producer, "list")
@pass_session
def list_producers(session: CommandSession) -> None:
    """List the producer ids under which records were committed, until the log forgets them.

    \b
    Example:
      pylog producer list
    """
    rows = producer_rows(session.journal().refresh())
    emit_rows(session, ["producer", "kind", "epoch", "sequence", "holder", "version", "time"], rows)


def dump_quorum(session: CommandSession, path: str, *, verify: bool) -> None:
    """Show the content of a directory or a file, or only check it.  Raises Failed for damage."""
    from spark_log.quorum.node.inspection import damage_of, dump_file, files_of

    paths = files_of(path)
    dumps = [dump_file(one) for one in paths]
    if not verify:
        _show(session, dumps)
    if problems := list(dict.fromkeys(damage_of(paths))):
        raise Failed("; ".join(problems))
    if verify:
        units = sum(len(dump.rows) for dump in dumps if dump.name.endswith(".log"))
        unfinished = sum(dump.unfinished for dump in dumps)
        rest = f"; {counted(unfinished, 'byte')} of an unfinished write" if unfinished else ""
        echo(f"{counted(len(dumps), 'file')} with {counted(units, 'write')} of the log: all are whole{rest}")


def _show(session: CommandSession, dumps: list[FileDump]) -> None:
    if session.structured:
        emit_value(session, [{"file": one.name, "unfinished": one.unfinished, "content": one.rows} for one in dumps])
        return
    for number, one in enumerate(dumps):
        if session.output != "csv":
            echo(f"{'' if number == 0 else chr(10)}Dumping {one.name}")
        columns = [name for name in (one.rows[0] if one.rows else {}) if name != "entries"]
        emit_rows(session, columns, one.rows)
        if one.unfinished:
            echo(f"{counted(one.unfinished, 'byte')} at the end are not a whole write", err=True)
