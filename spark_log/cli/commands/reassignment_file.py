"""The files of kafka-reassign-partitions: topics to move, and replicas of partitions.

    {"version": 1, "topics": [{"topic": "orders"}]}
    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}]}

A file without a version has version 1, as for Kafka's tool.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spark_log.errors import InvalidReplicaAssignment, InvalidRequest, SparkLogError, UnknownTopicOrPartition
from spark_log.model import TopicPartition
from spark_log.text import counted, unknown_brokers

if TYPE_CHECKING:
    from spark_log.metadata.state import State

VERSION = 1
ANY = "any"
Assignment = Mapping[TopicPartition, Sequence[int]]


class Wanted(NamedTuple):
    """An entry of a file."""

    where: str
    """File and number, for messages."""
    replicas: tuple[int, ...]


def read_topics(file: str) -> dict[str, str]:
    """The topics of a file, each with its entry's place.  Raises InvalidRequest, which names the file and the entry."""
    found: dict[str, str] = {}
    for where, entry in _entries(file, "topics"):
        name = _topic(where, _fields(where, entry, ("topic",)))
        if name in found:
            raise InvalidRequest(f"{where}: topic {name!r} is in the file twice")
        found[name] = where
    return found


def read_reassignment(file: str) -> dict[TopicPartition, Wanted]:
    """The entries of a file, by partition.  Raises InvalidRequest, which names the file and the wrong entries."""
    found, errors = parse_reassignment(file)
    _raise_all(file, errors)
    return found


def parse_reassignment(file: str) -> tuple[dict[TopicPartition, Wanted], dict[str, SparkLogError]]:
    """The right entries of a file, by partition; and the errors of the others, by the entry.

    Raises InvalidRequest for a file without entries.
    """
    found: dict[TopicPartition, Wanted] = {}
    errors: dict[str, SparkLogError] = {}
    for where, entry in _entries(file, "partitions"):
        try:
            tp, replicas = _reassigned(where, entry)
            if tp in found:
                raise InvalidRequest(f"{where}: partition {tp.topic}-{tp.partition} is in the file twice")
        except InvalidRequest as error:
            errors[where] = error
        else:
            found[tp] = Wanted(where, replicas)
    return found, errors


def _reassigned(where: str, entry: object) -> tuple[TopicPartition, tuple[int, ...]]:
    fields = _fields(where, entry, ("topic", "partition", "replicas", "log_dirs"))
    tp = TopicPartition(_topic(where, fields), _number(where, "partition", fields.get("partition")))
    return tp, _replicas(where, fields)


def check_topics(state: State, topics: Mapping[str, str]) -> None:
    """Raises UnknownTopicOrPartition, which names the entry."""
    from spark_log.metadata.topics.decide_topics import topic_named

    for name, where in topics.items():
        with _at(where):
            topic_named(state, name)


def check_reassignment(file: str, state: State, wanted: Mapping[TopicPartition, Wanted]) -> None:
    """Raises UnknownTopicOrPartition or InvalidReplicaAssignment, which name the entry; InvalidRequest for several."""
    _raise_all(file, reassignment_errors(state, wanted))


def reassignment_errors(state: State, wanted: Mapping[TopicPartition, Wanted]) -> dict[str, SparkLogError]:
    """Why a log cannot have these replicas, by the entry."""
    from spark_log.client.reader.positions_to_offsets import partition_of
    from spark_log.metadata.replicas.replicas import epoch_of
    from spark_log.metadata.topics.decide_topics import topic_named

    errors: dict[str, SparkLogError] = {}
    for tp, (where, replicas) in wanted.items():
        try:
            with _at(where):
                topic_named(state, tp.topic)
                partition_of(state, tp)
                if unknown := [broker for broker in replicas if epoch_of(state, broker) is None]:
                    raise InvalidReplicaAssignment(unknown_brokers(unknown))
        except (UnknownTopicOrPartition, InvalidRequest) as error:
            errors[where] = error
    return errors


def _raise_all(file: str, errors: Mapping[str, SparkLogError]) -> None:
    """One error as it is; several in one InvalidRequest."""
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        lines = [str(error).removeprefix(f"{file}: ") for error in errors.values()]
        raise InvalidRequest(f"{file} has {counted(len(lines), 'error')}: {'; '.join(lines)}")


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Errors of the body name the entry."""
    try:
        yield
    except (UnknownTopicOrPartition, InvalidRequest) as error:
        raise type(error)(f"{where}: {error}") from error


def encode_reassignment(assignment: Assignment) -> str:
    """A file that `read_reassignment` and Kafka's tool read, in one line."""
    partitions = [
        {**tp._asdict(), "replicas": list(replicas), "log_dirs": [ANY] * len(replicas)}
        for tp, replicas in sorted(assignment.items())
    ]
    return json.dumps({"version": VERSION, "partitions": partitions}, ensure_ascii=False, separators=(",", ":"))


def _entries(file: str, kind: str) -> Iterator[tuple[str, object]]:
    """(name of the entry for messages, entry) of the list in a file."""
    content = _content(file)
    if (version := content.get("version", VERSION)) != VERSION or isinstance(version, bool):
        raise InvalidRequest(f"{file}: version {version!r} is not supported; expected {VERSION}")
    entries = content.get(kind)
    if not isinstance(entries, list):
        raise InvalidRequest(f'{file}: it has no list "{kind}", as in {{"version":1,"{kind}":[…]}}')
    if not entries:
        raise InvalidRequest(f'{file}: the list "{kind}" is empty')
    for number, entry in enumerate(entries):
        yield f"{file}: {kind}[{number}]", entry


def _fields(where: str, entry: object, names: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{where} is {_shown(entry)}; expected an object with {', '.join(names)}")
    if unknown := sorted(entry.keys() - names):
        raise InvalidRequest(f"{where} has the unknown field {unknown[0]!r}; expected {', '.join(names)}")
    return entry


def _content(file: str) -> Mapping[str, Any]:
    try:
        with click.open_file(file, encoding="utf-8-sig") as text:
            written = text.read()
        content = json.loads(written, object_pairs_hook=_object)
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8: {error}") from error
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{file} has a character that is not valid Unicode: {error}") from error
    except RecursionError:
        raise InvalidRequest(f"{file} has too many levels of brackets") from None
    except ValueError as error:
        if not written.strip():
            raise InvalidRequest(f"{file} is empty: did the command that should write it fail?") from None
        raise InvalidRequest(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidRequest(f"{file} has {_shown(content)}; expected an object")
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError for a key that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key in found if sum(one == key for one, _ in pairs) > 1)
        raise ValueError(f"an object has the field {twice!r} twice")
    return found


def _topic(where: str, entry: Mapping[str, Any]) -> str:
    name = entry.get("topic")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f'{where}: "topic" is {_shown(name)}; expected the name of a topic')
    return name


def _number(where: str, name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest(f'{where}: "{name}" is {_shown(value)}; expected a number from 0 on')
    return value


def _replicas(where: str, entry: Mapping[str, Any]) -> tuple[int, ...]:
    given = entry.get("replicas")
    if not isinstance(given, list) or not given:
        raise InvalidRequest(f'{where}: "replicas" is {_shown(given)}; expected a list of broker ids, as [1, 2]')
    replicas = tuple(_number(where, "replicas", one) for one in given)
    if twice := next((one for one in replicas if replicas.count(one) > 1), None):
        raise InvalidRequest(f'{where}: "replicas" has broker {twice} twice: {_shown(given)}')
    dirs = entry.get("log_dirs")
    if dirs is not None and dirs != [ANY] * len(replicas):
        raise InvalidRequest(
            f'{where}: "log_dirs" is {_shown(dirs)}; expected "{ANY}" for each replica: a broker has one root'
        )
    return replicas


def _shown(value: object) -> str:
    return "absent" if value is None else json.dumps(value, ensure_ascii=False)[:60]
