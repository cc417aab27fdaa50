"""docs/api.md from signatures and docstrings: what users of `spark_log` call, and nothing else."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import spark_log
from spark_log import aio, errors, model
from spark_log.aio import AsyncConsumer, AsyncLog, AsyncProducer, AsyncResult
from spark_log.client.admin import admin
from spark_log.client.admin.erasure import ErasureReport
from spark_log.client.client_settings import CONSUMER, PRODUCER, TRANSACTION, ClientSetting
from spark_log.client.consumer.bookmark import Bookmark
from spark_log.client.consumer.consumer import Consumer
from spark_log.client.log import Log, connect
from spark_log.client.producer.futures import RecordFuture
from spark_log.client.producer.producer import Producer
from spark_log.client.producer.transaction import Transaction
from spark_log.flows.flow import Flow
from spark_log.flows.flow_progress import FlowProgress

COLUMNS = 120
FUNCTIONS = (
    connect,
    spark_log.flow,
    spark_log.keyed,
    spark_log.register,
    spark_log.sink,
    spark_log.where,
    spark_log.tune,
    spark_log.metrics_listener,
)
CLASSES = (
    Log,
    Producer,
    RecordFuture,
    Consumer,
    Transaction,
    Bookmark,
    Flow,
    admin.Admin,
    AsyncLog,
    AsyncProducer,
    AsyncConsumer,
    AsyncResult,
)
INTERNAL = {
    Producer: {"after_fork"},
    Consumer: {"committer", "group_commit", "returned"},
    AsyncLog: {"append", "create_topic", "read", "table", "topics"},
    RecordFuture: {"place"},
    Log: {"journal"},
    Flow: {"start"},
}
"""Methods that other modules of pylog call, and users do not; and those that have the text of another class."""
SETTINGS = {"producer": PRODUCER, "consumer": CONSUMER, "transaction": TRANSACTION}
TYPES = (
    model.TopicPartition,
    model.NewTopic,
    model.OffsetAndMetadata,
    model.RecordMetadata,
    model.ConsumerRecord,
    ErasureReport,
    FlowProgress,
    *(kind for kind in vars(admin).values() if inspect.isclass(kind) and kind.__module__ == admin.__name__),
)
HEAD = """\
# Python API

Generated from the docstrings by `make docs`. [Python clients](clients.md) has examples; [frames](frames.md) shows
`read`, `scan` and `append` with pandas, Polars and DuckDB.
"""


def reference_markdown() -> str:
    """The page."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    yield "## spark_log\n"
    for function in FUNCTIONS:
        yield from _callable(f"spark_log.{function.__name__}", function)
    yield from _callable("spark_log.aio.connect", aio.connect)
    for kind in CLASSES:
        yield f"## {kind.__name__}\n"
        yield from _text(kind)
        for name, member in _members(kind):
            yield from _callable(name, member)
    for name, table in SETTINGS.items():
        yield f"## Settings of a {name}\n"
        yield from _settings(table)
    yield "## Types\n"
    yield "`spark_log.EARLIEST` (-2) and `spark_log.LATEST` (-1) stand for the first offset and for the end, as in Kafka."
    yield ""
    for kind in (kind for kind in TYPES if kind is not admin.Admin):
        yield f"**{kind.__name__}**: {_sentence(kind)}\n"
        yield from _fields(kind)
    yield "## Errors\n"
    yield "All are in `spark_log.errors`. *Retry*: the same call may succeed. *Maybe applied*: the call may have taken effect"
    yield "although it failed.\n"
    yield from _errors()


# --------------------------------------------------------------------------------------------------- functions, methods


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(kind).items():
        public = not name.startswith("_") and name not in INTERNAL.get(kind, ())
        if public and isinstance(member, FunctionType | property):
            yield name, member


def _callable(name: str, member: Any) -> Iterator[str]:
    yield "```\n" + (name if isinstance(member, property) else _signature(name, member)) + "\n```\n"
    yield from _text(member)


def _signature(name: str, function: Callable[..., Any]) -> str:
    """In one line, or one line for each parameter."""
    signature = inspect.signature(function)
    table = SETTINGS.get(name, {})
    parameters = [one for one in signature.parameters.values() if one.name != "self" and one.name not in table]
    written = [_parameter(one) for one in parameters] + ["**settings"] * bool(table)
    named = [one.kind is one.KEYWORD_ONLY for one in parameters]
    if any(named) and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        written.insert(named.index(True), "*")
    gives = (
        "" if signature.return_annotation in ("None", inspect.Signature.empty) else f" -> {signature.return_annotation}"
    )
    line = f"{name}({', '.join(written)}){gives}"
    return line if len(line) <= COLUMNS else f"{name}(\n" + "".join(f"    {one},\n" for one in written) + f"){gives}"


def _parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    kind = "" if one.annotation is one.empty else f": {one.annotation}"
    return f"{stars}{one.name}{kind}" + ("" if one.default is one.empty else f" = {one.default!r}")


# ----------------------------------------------------------------------------------------------------------- docstrings


def _text(documented: Any) -> Iterator[str]:
    """A docstring: paragraphs, and a list of the arguments that it explains."""
    for paragraph in (inspect.getdoc(documented) or "").split("\n\n"):
        yield "\n".join(_paragraph(paragraph.splitlines())) + "\n"


def _paragraph(lines: list[str]) -> Iterator[str]:
    """Sentences; lines that open with `name:  ` are items, and indented ones continue them."""
    parts: list[str] = []
    for line in lines:
        if item := re.match(r"([\w, ]+):  +(.*)", line):
            parts.append(f"* {', '.join(f'`{name}`' for name in item[1].split(', '))}: {item[2]}")
        elif parts and (line.startswith(" ") or not parts[-1].startswith("* ")):
            parts[-1] += f" {line.strip()}"
        else:
            parts.append(line)
    listed = False
    for part in parts:
        if part.startswith("* ") != listed and part is not parts[0]:
            yield ""
        listed = part.startswith("* ")
        yield textwrap.fill(
            part.replace("  ", " "),
            COLUMNS,
            subsequent_indent="  " * listed,
            break_long_words=False,
            break_on_hyphens=False,
        )


def _sentence(documented: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())


# --------------------------------------------------------------------------------------------------------------- tables


def _settings(table: Mapping[str, ClientSetting]) -> Iterator[str]:
    yield "| setting | default | possible |\n|---|---|---|"
    for name, setting in sorted(table.items()):
        yield f"| `{name}` | `{setting.default!r}` | {setting.possible} |"
    yield ""


def _fields(kind: type) -> Iterator[str]:
    """Names and types of a value's fields, with the text under each."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    yield "| field | type | meaning |\n|---|---|---|"
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            meaning = " ".join(str(after.value.value).split()) if documented else ""
            type_ = ast.unparse(node.annotation).replace("|", "\\|")
            yield f"| `{ast.unparse(node.target)}` | `{type_}` | {meaning} |"
    yield ""


def _errors() -> Iterator[str]:
    yield "| error | kind of | retry | maybe applied | meaning |\n|---|---|---|---|---|"
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.SparkLogError)]
    for kind in sorted(kinds, key=lambda kind: kind.__name__):
        flags = ["yes" if flag else "no" for flag in (kind.retriable, kind.maybe_applied)]
        bases = ", ".join(base.__name__ for base in kind.__bases__)
        yield f"| `{kind.__name__}` | {bases} | {flags[0]} | {flags[1]} | {_sentence(kind)} |"
    yield ""
