"""How `pylog consume` prints records: a format like kcat's, or whole records as JSON lines, YAML or CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spark_log.cli.common.yaml import flow_text
from spark_log.text import json_bytes, json_text, printable

if TYPE_CHECKING:
    import pyarrow as pa

Printer = Callable[["pa.RecordBatch"], Iterator[bytes]]
"""The bytes of each record."""

TOKENS = {
    "k": "key",
    "v": "value",
    "s": "value",
    "o": "offset",
    "p": "partition",
    "t": "topic",
    "T": "timestamp",
    "h": "headers",
}
FORMS = (
    "%k key, %v value, %o offset, %p partition, %t topic, %T milliseconds since 1970, %h headers, %% a percent sign, "
    "\\n and \\t; or json"
)
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}
_ALL = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class Form(NamedTuple):
    """A form of output for records."""

    columns: tuple[str, ...]
    """The columns it needs."""
    header: bytes
    """Printed first."""
    write: Printer


IsTyped = Callable[[str], bool]
"""Whether a topic has a schema: then values that are JSON are nested in JSON and YAML."""


def form_of_output(output: str, is_typed: IsTyped) -> Form:
    """Whole records for structured outputs, values otherwise."""
    match output:
        case "json":
            return Form(_ALL, b"", lambda batch: _print_json(batch, is_typed))
        case "yaml":
            return Form(_ALL, b"", lambda batch: _print_yaml(batch, is_typed))
        case "csv":
            return Form(_ALL, _csv_line(_ALL), _print_csv)
    return Form(("value",), b"", _print_values)


def form_of_format(text: str, is_typed: IsTyped) -> Form:
    """Raises a usage error for an unknown token."""
    if text == "json":
        return form_of_output("json", is_typed)
    parts = _parse(text if text.endswith(("\\n", "\n")) else text + "\n")
    columns = tuple(sorted({part for part in parts if isinstance(part, str)}))
    return Form(columns, b"", lambda batch: _print_parts(parts, batch))


def _parse(text: str) -> list[str | bytes]:
    """Column names, and literal bytes between them."""
    parts: list[str | bytes] = []
    for percent, escape, literal in re.findall(r"%(.?)|\\(.)|([^%\\]+|\\$)", text, re.DOTALL):
        if literal:
            parts.append(literal.encode())
        elif escape:
            parts.append(_ESCAPES.get(escape, "\\" + escape).encode())
        elif percent == "%":
            parts.append(b"%")
        elif percent in TOKENS:
            parts.append(TOKENS[percent])
        else:
            raise click.BadParameter(f"unknown token %{percent}: expected {FORMS}", param_hint="'-f'")
    return parts


def _print_values(batch: pa.RecordBatch) -> Iterator[bytes]:
    for value in batch.column("value").to_pylist():
        yield (value or b"") + b"\n"


def _print_parts(parts: list[str | bytes], batch: pa.RecordBatch) -> Iterator[bytes]:
    columns = [
        [part] * batch.num_rows if isinstance(part, bytes) else list(map(_WRITE[part], _values(batch, part)))
        for part in parts
    ]
    for row in zip(*columns, strict=True):
        yield b"".join(row)


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    if name == "timestamp":
        return [micros // 1000 for micros in batch.column(name).cast("int64").to_pylist()]
    return list(batch.column(name).to_pylist())


def _header_text(headers: list[dict[str, Any]] | None) -> bytes:
    return b",".join(printable(h["key"]).encode() + b"=" + (h["value"] or b"") for h in headers or ())


def _raw(value: bytes | None) -> bytes:
    return value or b""


def _as_text(value: object) -> bytes:
    return str(value).encode()


_WRITE: dict[str, Callable[[Any], bytes]] = {
    "key": _raw,
    "value": _raw,
    "offset": _as_text,
    "partition": _as_text,
    "topic": _as_text,
    "timestamp": _as_text,
    "headers": _header_text,
}


def _print_json(batch: pa.RecordBatch, is_typed: IsTyped) -> Iterator[bytes]:
    for fields in _nested(batch, is_typed):
        yield json_text(fields).encode() + b"\n"


def _print_yaml(batch: pa.RecordBatch, is_typed: IsTyped) -> Iterator[bytes]:
    """A list of records, each a mapping in flow style on one line."""
    for fields in _nested(batch, is_typed):
        yield f"- {flow_text(fields)}\n".encode()


def _print_csv(batch: pa.RecordBatch) -> Iterator[bytes]:
    for fields in _whole(batch):
        yield _csv_line([json_text(cell) if isinstance(cell, list | dict) else cell for cell in fields.values()])


def _csv_line(cells: Sequence[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _nested(batch: pa.RecordBatch, is_typed: IsTyped) -> Iterator[dict[str, Any]]:
    """Whole records; values of typed topics are objects, apart from those from before the topic had a schema."""
    typed = {topic: is_typed(topic) for topic in batch.column("topic").unique().to_pylist()}
    for fields in _whole(batch):
        if typed[fields["topic"]] and isinstance(fields["value"], str):
            with suppress(ValueError):
                fields["value"] = json.loads(fields["value"])
        yield fields


def _whole(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns = {name: _values(batch, name) for name in _ALL}
    for row in zip(*columns.values(), strict=True):
        fields = dict(zip(_ALL, row, strict=True))
        fields["key"], fields["value"] = json_bytes(fields["key"]), json_bytes(fields["value"])
        fields["headers"] = [[h["key"], json_bytes(h["value"])] for h in fields["headers"] or ()]
        yield fields
