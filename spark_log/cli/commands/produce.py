"""`pylog produce`."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import click

from spark_log.cli.common.base import LONG, Verb, create_option, pair_list, pass_session
from spark_log.cli.common.completion import complete_topics
from spark_log.cli.common.output import echo, emit_line
from spark_log.cli.common.session import CommandSession
from spark_log.errors import InvalidRecord, SparkLogError
from spark_log.text import counted, is_unicode

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_log.client.log import Log
    from spark_log.schema.topic_schema import TopicSchema


APPEND_BYTES = 8 << 20
"""Lines that have arrived are appended together up to this size."""


@click.command(cls=Verb)
@click.argument("topic", shell_complete=complete_topics)
@click.option("-k", "--key", help="The key of all records.")
@click.option("--key-delimiter", metavar="TEXT", help="The text between key and value in each line.")
@click.option("--null-marker", metavar="TEXT", help="A key or value that equals TEXT is null. Without it, none is.")
@click.option("-p", "--partition", type=LONG, metavar="N", help="The partition of all records.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="K=V", help="A header of all records; may be repeated."
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all", "-1"]),
    default="all",
    show_default=True,
    help="The replicas to wait for: all in-sync ones (all, or -1), or only the leader (1, or 0).",
)
@create_option
@pass_session
def produce(
    session: CommandSession,
    topic: str,
    key: str | None,
    key_delimiter: str | None,
    null_marker: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    acks: str,
    create: bool,
) -> None:
    """Append each line of standard input to a topic as a record.  A topic that does not exist is created.

    If the topic has a schema, a value is a JSON object with its columns.

    A record with a key and a null value is a tombstone: it deletes the key from a compacted topic.

    \b
    Example:
      printf 'c1:hello\\nc2:world\\n' | pylog produce orders --key-delimiter :
      echo c1:NULL | pylog produce customers --key-delimiter : --null-marker NULL
    """
    if key is not None and key_delimiter is not None:
        raise click.UsageError("give either --key or --key-delimiter")
    if key_delimiter == "":
        raise click.BadParameter("it is empty", param_hint="'--key-delimiter'")
    pairs = [{"key": _header_name(name), "value": os.fsencode(value)} for name, value in pair_list(headers)]
    log = session.connect(create=create)
    count, prompt = 0, _prompt(topic)
    try:
        prompt()
        for lines in _line_groups(sys.stdin.buffer):
            keys, values = _split(lines, key, key_delimiter, count)
            records = _table(_nulled(keys, null_marker), _nulled(values, null_marker), partition, pairs)
            log.append(topic, _parsed(log, topic, records, count), acks=acks)
            count += len(lines)
            prompt()
    except SparkLogError as error:
        error.args = (f"{_by_line(error, count)}; {counted(count, 'line')} {'was' if count == 1 else 'were'} appended",)
        raise
    emit_line(session, f"{counted(count, 'record')} appended to {topic}", {"topic": topic, "records": count})


def _prompt(topic: str) -> Callable[[], None]:
    """Asks for a record, as Kafka's tool does, if standard input and standard error are a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return lambda: None
    echo(f"each line is a record of topic {topic}; Ctrl-D ends", err=True)
    return lambda: echo("> ", err=True, nl=False)


def _by_line(error: SparkLogError, before: int) -> str:
    """The message of an error; a row is named by the number of its line.  before: lines before the rows."""
    if not isinstance(error, InvalidRecord) or error.row is None:
        return str(error)
    return f"line {before + error.row + 1}: {str(error).removeprefix(f'row {error.row}: ')}"


def _header_name(name: str) -> str:
    """The name.  Keys and values may be any bytes; names are text."""
    if not is_unicode(name):
        raise click.BadParameter(f"the name {name!r} is not UTF-8", param_hint="'-H'")
    return name


def _line_groups(stream: IO[bytes]) -> Iterator[list[bytes]]:
    """Lines without their ends: all that have arrived, so that lines from a slow source are appended immediately."""
    rest = b""
    for data in _arriving(stream):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]


def _arriving(stream: IO[bytes]) -> Iterator[bytes]:
    """Data as it arrives: a thread reads ahead while records are appended."""
    chunks: queue.Queue[bytes] = queue.Queue(maxsize=64)
    read = _reader(stream)

    def pump() -> None:
        try:
            while data := read(1 << 20):
                chunks.put(data)
        finally:
            chunks.put(b"")

    threading.Thread(target=pump, name="pylog-stdin", daemon=True).start()
    ended = False
    while not ended:
        data = [chunks.get()]
        while data[-1] and not chunks.empty() and sum(map(len, data)) < APPEND_BYTES:
            data.append(chunks.get())
        ended = not data[-1]
        yield b"".join(data)


def _reader(stream: IO[bytes]) -> Callable[[int], bytes]:
    """A function that returns the available data.  It bypasses the stream's buffer, because a process that exits while
    a thread waits in a buffered read is aborted."""
    try:
        return partial(os.read, stream.fileno())
    except OSError:  # a stream in memory
        return stream.read


def _split(
    lines: Sequence[bytes], key: str | None, delimiter: str | None, before: int
) -> tuple[Sequence[bytes | None], Sequence[bytes]]:
    """Keys and values.  Raises InvalidRecord for a line without the delimiter."""
    if delimiter is None:
        return [None if key is None else os.fsencode(key)] * len(lines), lines
    parts = [line.partition(os.fsencode(delimiter)) for line in lines]
    for number, (_, found, _) in enumerate(parts):
        if not found:
            raise InvalidRecord(f"line {before + number + 1} has no {delimiter!r} between key and value")
    return [part[0] for part in parts], [part[2] for part in parts]


def _nulled(texts: Sequence[bytes | None], null_marker: str | None) -> pa.Array:
    """The keys or values of a batch; those that equal the marker are null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.array(texts, pa.binary())
    if null_marker is None:
        return found
    marker = pa.scalar(os.fsencode(null_marker), pa.binary())
    return pc.if_else(pc.equal(found, marker), pa.scalar(None, pa.binary()), found)


def _table(keys: pa.Array, values: pa.Array, partition: int | None, headers: list[dict[str, Any]]) -> pa.Table:
    import pyarrow as pa

    from spark_log.segment.schema import HEADERS

    columns = {"key": keys, "value": values}
    if partition is not None:
        columns["partition"] = pa.repeat(pa.scalar(partition, pa.int64()), len(values))
    if headers:
        columns["headers"] = pa.array([headers] * len(values), HEADERS)
    return pa.table(columns)


def _parsed(log: Log, topic: str, records: pa.Table, before: int) -> pa.Table:
    """The records; for a topic with a schema, with values that are parsed by it.

    before:  lines before these.
    Raises InvalidRecord with the line.
    """
    from spark_log.client.producer.topic_rules import topic_spec
    from spark_log.client.topic_creation import ensure_topic

    ensure_topic(log.journal, topic)
    schema = topic_spec(log.journal.state, topic).schema
    if schema is None:
        return records
    values = _typed(records.column("value").combine_chunks(), schema, topic, before)
    return records.set_column(records.schema.get_field_index("value"), "value", values)


def _typed(texts: pa.Array, schema: TopicSchema, topic: str, before: int) -> pa.Array:
    """JSON as structs of a schema."""
    import pyarrow as pa

    from spark_log.segment.json_values import from_json
    from spark_log.segment.typed_rows import sifted

    kind = pa.struct(list(schema.columns))
    values = from_json(texts, kind, lambda row: f"line {before + row + 1}", strict=True)
    for fault in sifted(pa.record_batch({"value": values}), schema, now_us=0, topic=topic)[1]:
        raise InvalidRecord(f"line {before + int(fault.rows.argmax()) + 1}: {fault.reason}")
    return values
