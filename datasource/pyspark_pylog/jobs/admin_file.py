"""The file of `jobs/admin.py`: topics, groups and replicas as they should be.

    topics:
      orders:
        partitions: 6
        replication_factor: 3
        configs: {retention.ms: 604800000, cleanup.policy: delete}
      audit:
        replicas: [[1, 2], [2, 1]]
      old-orders:
        delete: true
    groups:
      billing:
        positions: {orders: earliest, audit: {0: 42, 1: now-1h}}
      old-billing:
        delete: true

A file of Kafka's kafka-reassign-partitions is the other form: `{"version": 1, "partitions": […]}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from spark_log.cli.commands.reassignment_file import Wanted, parse_reassignment
from spark_log.configs.settings import check_together, validate_topic_configs
from spark_log.configs.topic_names import check_topic_name
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.model import TopicPartition
from spark_log.positions import Position, parse_position
from spark_log.text import counted, install_extra, type_of

Params = ParamSpec("Params")
Parsed = TypeVar("Parsed")

TOPIC_KEYS = ("partitions", "replication_factor", "replicas", "configs", "delete")
GROUP_KEYS = ("positions", "delete")
KAFKAS_KEY = "partitions"


class DeclaredTopic(NamedTuple):
    """A topic in the file."""

    partitions: int | None = None
    """None: as they are; 1 for a new topic."""
    configs: Mapping[str, str] | None = None
    """All of the topic's configs, in their canonical spelling; None: as they are."""
    replication_factor: int | None = None
    """None: as it is, or as `replicas` says."""
    replicas: tuple[tuple[int, ...], ...] | None = None
    """The brokers of each partition, the preferred leader first; None: as they are."""
    delete: bool = False


class DeclaredGroup(NamedTuple):
    """A consumer group in the file."""

    positions: Mapping[str, Mapping[int | None, Position]]
    """By topic and partition; None stands for the partitions that are not named."""
    delete: bool = False


class Faults:
    """The errors of a topic or group, each in a line."""

    def __init__(self, kind: str, name: object) -> None:
        self._kind, self._name = kind, name
        self.lines = list[str]()

    def attempt(self, work: Callable[Params, Parsed], *args: Params.args, **kwargs: Params.kwargs) -> Parsed | None:
        """The result of `work`.  None if it fails: then the error is kept."""
        try:
            return work(*args, **kwargs)
        except SparkLogError as error:
            self.keep(str(error))
            return None

    def keep(self, text: str) -> None:
        """Add an error.  If it begins with the topic or group, its line does not name that twice."""
        of = f"{self._kind} {self._name}"
        rest = re.sub(rf"^{self._kind} (name )?{re.escape(repr(self._name))}", "", text)
        line = f"{of}: {text}" if rest == text else f"{of}{rest}"
        if line not in self.lines:
            self.lines.append(line)


class Problems:
    """The errors of all topics and groups of a file, which are reported together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._of = dict[tuple[str, object], Faults]()
        """In the order of the file."""

    def of(self, kind: str, name: object) -> Faults:
        """Those of a topic or group that are known; more can be added."""
        return self._of.setdefault((kind, name), Faults(kind, name))

    def of_entries(self, errors: Mapping[str, SparkLogError]) -> None:
        """Add those of entries of a file of Kafka's, which they name."""
        for where, error in errors.items():
            self.of("entry", where).lines.append(str(error).removeprefix(f"{self._path}: "))

    def check(self) -> None:
        """Raises InvalidRequest with all of them."""
        lines = [line for faults in self._of.values() for line in faults.lines]
        if lines:
            raise InvalidRequest("\n  ".join([f"{self._path} has {counted(len(lines), 'error')}:", *lines]))


class Declared(NamedTuple):
    """A file."""

    topics: Mapping[str, DeclaredTopic]
    groups: Mapping[str, DeclaredGroup]
    replicas: Mapping[TopicPartition, Wanted]
    """The replicas in a file of Kafka's."""
    problems: Problems
    """Errors of the file.  The log is compared with the rest of it, which can have more."""


def read_file(path: Path) -> Declared:
    """Raises InvalidRequest for a file that does not have topics or groups.  Their errors are in `problems`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path}: {error}") from error
    document, problems = parse_yaml(text, path), Problems(path)
    if isinstance(document, dict) and KAFKAS_KEY in document:
        replicas, errors = parse_reassignment(str(path))
        problems.of_entries(errors)
        return Declared({}, {}, replicas, problems)
    if not isinstance(document, dict) or not document or not {"topics", "groups"}.issuperset(document):
        raise InvalidRequest(f"{path}: expected the keys `topics` and `groups`, or one of them")
    topics = _parse_each(document, path, "topic", _topic_name, parse_topic, problems)
    groups = _parse_each(document, path, "group", _group_name, parse_group, problems)
    return Declared(topics, groups, {}, problems)


def _parse_each(
    document: Mapping[str, Any],
    path: Path,
    kind: str,
    check: Callable[[object], str],
    parse: Callable[[object, Faults], Parsed],
    problems: Problems,
) -> dict[str, Parsed]:
    given = document.get(f"{kind}s", {})
    if not isinstance(given, dict):
        raise InvalidRequest(f"{path}: expected `{kind}s` to be a mapping of names to {kind}s, and found {given!r}")
    found = {}
    for name, one in given.items():
        faults = problems.of(kind, name)
        checked, parsed = faults.attempt(check, name), parse(one, faults)
        if checked is not None:
            found[checked] = parsed
    return found


def parse_yaml(text: str, path: Path) -> object:
    """The document.  A key that is there twice is an error: PyYAML takes the last one."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise InvalidRequest(f"PyYAML is not installed in this Python: {install_extra('jobs')}") from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value]
            for number, (key, _) in enumerate(node.value):
                if key.value in names[:number] and key.value != "<<":
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is there twice", problem_mark=key.start_mark)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # a SafeLoader
    except yaml.reader.ReaderError as error:
        at = error.position
        place = f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"
        raise InvalidRequest(f"{path}, {place}: the character {text[at]!r} is not allowed") from None
    except yaml.MarkedYAMLError as error:
        place = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
        raise InvalidRequest(f"{path}, {place}: {error.problem}") from None


# --------------------------------------------------------------------------------------------------------------- topics


def parse_topic(given: object, faults: Faults) -> DeclaredTopic:
    """A topic, with what is right in it."""
    fields = {} if given is None else _fields(given, TOPIC_KEYS, faults)
    faults.attempt(_check_delete, fields, "topic")
    if fields.get("delete") is True:
        return DeclaredTopic(delete=True)
    partitions = faults.attempt(_count, "partitions", fields.get("partitions"))
    factor = faults.attempt(_count, "replication_factor", fields.get("replication_factor"))
    replicas = faults.attempt(_replicas, fields.get("replicas"))
    configs = _configs(fields.get("configs"), faults)
    if replicas is None:
        return DeclaredTopic(partitions, configs, factor)
    if factor is not None:
        faults.keep("`replicas` names all replicas of each partition: leave out `replication_factor`")
    if partitions not in (None, len(replicas)):
        faults.keep(f"`replicas` has {counted(len(replicas), 'partition')}, and `partitions` is {partitions}")
    return DeclaredTopic(len(replicas), configs, None, replicas)


def _topic_name(name: object) -> str:
    check_topic_name(_name(name))
    return _name(name)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"the name is {type_of(name)}: put it into quotes")
    return name


def _mapping(given: object, expected: str) -> Mapping[Any, object]:
    if not isinstance(given, dict):
        raise InvalidRequest(f"{expected}, and found {given!r}")
    return given


def _fields(given: object, known: Sequence[str], faults: Faults) -> Mapping[str, object]:
    """Those that are known."""
    fields = faults.attempt(_mapping, given, f"expected a mapping with some of {', '.join(known)}") or {}
    for key in fields:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(known)}"
            faults.keep(f"unknown key {key!r}: {hint}")
    return {key: one for key, one in fields.items() if key in known}


def _check_delete(fields: Mapping[str, object], kind: str) -> None:
    delete = fields.get("delete", False)
    if not isinstance(delete, bool):
        raise InvalidRequest(f"delete: expected true or false, and found {delete!r}")
    if delete and len(fields) > 1:
        raise InvalidRequest(f"a {kind} with `delete: true` has no other keys")


def _is_number(given: object, least: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= least


def _count(name: str, given: object) -> int | None:
    if given is None:
        return None
    if not isinstance(given, int) or not _is_number(given, 1):
        raise InvalidRequest(f"{name}: expected a number of 1 or more, and found {given!r}")
    return given


def _replicas(given: object) -> tuple[tuple[int, ...], ...] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not given or not all(map(_is_broker_list, given)):
        raise InvalidRequest(
            f"replicas: expected a list of broker ids for each partition, as in [[1, 2], [2, 1]], and found {given!r}"
        )
    return tuple(map(tuple, given))


def _is_broker_list(given: object) -> bool:
    return isinstance(given, list) and bool(given) and all(_is_number(one, 0) for one in given)


def _configs(given: object, faults: Faults) -> dict[str, str] | None:
    if given is None:
        return None
    found = dict[str, str]()
    configs = faults.attempt(_mapping, given, "configs: expected a mapping of names to values") or {}
    for name, value in configs.items():
        found |= faults.attempt(_config, name, value) or {}
    faults.attempt(check_together, found)
    return found


def _config(name: str, value: object) -> dict[str, str]:
    return validate_topic_configs({name: _config_text(name, value)})[0]


def _config_text(name: object, value: object) -> str:
    """The text of a value: of `true`, of a number, or of a list, as in `cleanup.policy: [compact, delete]`."""
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case list():
            return ",".join(map(str, value))
        case _:
            raise InvalidRequest(
                f"config {name!r}: expected a text, a number, true, false or a list, and found {value!r}"
            )


# --------------------------------------------------------------------------------------------------------------- groups


def parse_group(given: object, faults: Faults) -> DeclaredGroup:
    """A group, with what is right in it."""
    fields = _fields(given, GROUP_KEYS, faults)
    faults.attempt(_check_delete, fields, "group")
    if fields.get("delete") is True:
        return DeclaredGroup({}, delete=True)
    expected = "positions: expected a mapping of topics to positions"
    topics = faults.attempt(_mapping, fields.get("positions") or {}, expected) or {}
    if not topics and not faults.lines:
        faults.keep("expected `positions`, or `delete: true`")
    names = {topic: faults.attempt(_name, topic) for topic in topics}
    return DeclaredGroup(
        {name: _positions(name, topics[topic], faults) for topic, name in names.items() if name is not None}
    )


def _group_name(name: object) -> str:
    if not _name(name):
        raise InvalidRequest("the name of a group is empty")
    return _name(name)


def _positions(topic: str, given: object, faults: Faults) -> dict[int | None, Position]:
    """One position for all partitions, or one for each of some."""
    if not isinstance(given, dict):
        at = faults.attempt(_position, topic, given)
        return {} if at is None else {None: at}
    found = dict[int | None, Position]()
    for key, one in given.items():
        number, at = faults.attempt(_number, topic, key), faults.attempt(_position, f"{topic}-{key}", one)
        if number is not None and at is not None:
            found[number] = at
    return found


def _number(topic: str, key: object) -> int:
    """The number of a partition; in JSON it is a text."""
    if isinstance(key, int) and _is_number(key, 0):
        return key
    if isinstance(key, str) and key.isdecimal():
        return int(key)
    raise InvalidRequest(f"positions of {topic}: expected the number of a partition, and found {key!r}")


def _position(where: str, given: object) -> Position:
    return parse_position(given, f"the position in {where}")
