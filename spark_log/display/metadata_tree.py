"""The state of a log as a tree of folders and values, and the commands of `pylog metadata shell` for it.  Pure.

    /topics/byName/orders/partitions/0      a value, shown as JSON, with the names of Kafka's PartitionRecord
    /groups/billing                         one entry of a map of the state
    /fence                                  a field of the state

Names are those of the fields of `State`.  A slash in a name is written as %2F.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import msgspec

from spark_log.metadata.replicas.reassignments import reassignment_of
from spark_log.metadata.replicas.replicas import group_at, group_number
from spark_log.metadata.state import State, TopicKey
from spark_log.text import printable_json

IN_TOPICS = {"names", "topics", "partitions", "assignments", "schemas", "recent"}
"""Fields of the state that are shown under `/topics`, or not at all."""
HELP = (
    "ls [PATH]              the names in a folder",
    "cat PATH…              values, as JSON; of a folder, all of them",
    "tree [PATH]            a folder and everything in it",
    "find [PATH] [PATTERN]  the paths in a folder whose names match, as in find /topics 'orders*'",
    "cd [PATH], pwd, help, exit",
)


class ShellError(ValueError):
    """A command that cannot be carried out."""


def tree_of(state: State) -> dict[str, Any]:
    """Folders are mappings from names; everything else is a value."""
    parts: dict[str, dict[int, Any]] = {}
    for (topic_id, number), part in state.partitions.items():
        parts.setdefault(topic_id, {})[number] = part
    by_id = {topic_id: _topic(state, topic_id, parts.get(topic_id, {})) for topic_id in sorted(state.topics)}
    by_name = {name: by_id[topic_id] for name, topic_id in sorted(state.names.items()) if topic_id in by_id}
    found: dict[str, Any] = {"topics": {"byName": by_name, "byId": by_id}}
    names = {topic_id: topic.name for topic_id, topic in state.topics.items()}
    for one in fields(State):
        if one.name not in IN_TOPICS:
            value = getattr(state, one.name)
            found[one.name] = _folder(value, names) if hasattr(value, "items") else value
    return dict(sorted(found.items()))


def _topic(state: State, topic_id: str, parts: Mapping[int, Any]) -> dict[str, Any]:
    topic = state.topics[topic_id]
    found: dict[str, Any] = {"id": topic_id, **topic._asdict(), "configs": dict(sorted(topic.configs.items()))}
    found["partitions"] = {str(n): PartitionView(state, (topic_id, n), part) for n, part in sorted(parts.items())}
    if topic_id in state.schemas:
        found["schemas"] = state.schemas[topic_id]
    return found


class PartitionView:
    """A partition, as a value."""

    def __init__(self, state: State, key: TopicKey, part: Any) -> None:
        self._state, self._key, self._part = state, key, part

    def _asdict(self) -> dict[str, Any]:
        """The fields of Kafka's PartitionRecord that the state knows, and then those of the state."""
        group, move = (
            group_at(self._state, group_number(self._state, self._key)),
            reassignment_of(self._state, self._key),
        )
        return {
            "partitionId": self._key[1],
            "topicId": self._key[0],
            "replicas": group.replicas if move is None else move.replicas,
            "isr": group.isr,
            "removingReplicas": () if move is None else move.removing_replicas,
            "addingReplicas": () if move is None else move.adding_replicas,
            "leader": group.leader,
            "leaderEpoch": group.leader_epoch,
            **plain(self._part),
        }


def _folder(values: Any, names: Mapping[str, str]) -> dict[str, Any]:
    return dict(sorted((_name(key, names), value) for key, value in values.items()))


def _name(key: str | int | TopicKey | tuple[Any, ...], names: Mapping[str, str]) -> str:
    """A topic's id, in front of a partition, is shown as its name."""
    if not isinstance(key, tuple):
        return str(key).replace("/", "%2F")
    return "-".join(names.get(part, str(part)) for part in key).replace("/", "%2F")


def plain(value: Any) -> Any:
    """A value of kinds that JSON can show."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items()}
    if hasattr(value, "items"):
        return _folder({key: plain(one) for key, one in value.items()}, {})
    if isinstance(value, tuple | list | frozenset | set):
        return [plain(one) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


class Shell:
    """Has a folder in which paths begin."""

    def __init__(self, state: State) -> None:
        self.folder = "/"
        self._state = state

    @cached_property
    def _tree(self) -> dict[str, Any]:
        return tree_of(self._state)

    def run(self, line: str) -> Iterator[str]:
        """The lines that a command shows.  Raises ShellError."""
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ShellError(f"{line!r}: {error}") from error
        if words:
            yield from self.carry_out(*words)

    def carry_out(self, verb: str, *args: str) -> Iterator[str]:
        """Raises ShellError."""
        match verb, args:
            case "ls", (*paths,) if len(paths) <= 1:
                value = self._at(*paths)
                yield from value if isinstance(value, dict) else [posixpath.basename(self._path(*paths))]
            case "cat", (_, *_):
                yield from (_json(self._at(path)) for path in args)
            case "tree", (*paths,) if len(paths) <= 1:
                yield from _tree_lines(self._at(*paths), "")
            case "find", (*given,) if len(given) <= 2:
                yield from self._find(*given)
            case "cd", (*paths,) if len(paths) <= 1:
                self._change(*(paths or ["/"]))
            case "pwd", ():
                yield self.folder
            case "help", _:
                yield from HELP
            case _:
                raise ShellError(
                    f"{shlex.join([verb, *args])!r} is not a command: expected ls, cat, tree, find, cd, pwd or exit; `help` "
                    "shows them with their arguments"
                )

    def _path(self, path: str = "") -> str:
        return posixpath.normpath(posixpath.join(self.folder, path))

    def _at(self, path: str = "") -> Any:
        """The folder or the value at a path.  Raises ShellError."""
        found: Any = self._tree
        for name in filter(None, self._path(path).split("/")):
            if not isinstance(found, dict) or name not in found:
                raise ShellError(f"{self._path(path)} does not exist: `ls` shows what there is")
            found = found[name]
        return found

    def _change(self, path: str) -> None:
        if not isinstance(self._at(path), dict):
            raise ShellError(f"{self._path(path)} is a value, not a folder: `cat` shows it")
        self.folder = self._path(path)

    def _find(self, path: str = "", pattern: str = "*") -> Iterator[str]:
        top = self._path(path)
        for found in _paths(self._at(path), "" if top == "/" else top):
            if fnmatchcase(posixpath.basename(found), pattern):
                yield found


def _json(value: Any) -> str:
    return msgspec.json.format(_flat_json(value), indent=2)


def _flat_json(value: Any) -> str:
    return printable_json(msgspec.json.encode(plain(value)).decode())


def _tree_lines(value: Any, indent: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{indent}{_flat_json(value)}"
        return
    for name, child in value.items():
        if isinstance(child, dict):
            yield f"{indent}{name}/"
            yield from _tree_lines(child, indent + "  ")
        else:
            yield f"{indent}{name}: {_flat_json(child)}"


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, child in value.items():
            yield f"{path}/{name}"
            yield from _paths(child, f"{path}/{name}")
