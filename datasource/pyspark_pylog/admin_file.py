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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from spark_log.cli.reassignment_file import Wanted, read_reassignment
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.model import TopicPartition
from spark_log.positions import Position, parse_position
from spark_log.settings import check_together, validate_topic_configs
from spark_log.text import counted, type_of
from spark_log.topic_names import check_topic_name

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


class Declared(NamedTuple):
    """A file."""

    topics: Mapping[str, DeclaredTopic]
    groups: Mapping[str, DeclaredGroup]
    replicas: Mapping[TopicPartition, Wanted]
    """Of a file of Kafka's."""


class Problems:
    """Errors of several topics and groups, which are reported together."""

    def __init__(self) -> None:
        self._found: list[str] = []

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Keep an error."""
        try:
            yield
        except SparkLogError as error:
            self._found.append(f"{what}: {error}")

    def check(self, where: str) -> None:
        """Raises InvalidRequest with all of them."""
        if self._found:
            raise InvalidRequest("\n  ".join([f"{where}:", *self._found]))


def read_file(path: Path) -> Declared:
    """Raises InvalidRequest that names everything that is wrong in the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from error
    document = parse_yaml(text, path)
    if isinstance(document, dict) and KAFKAS_KEY in document:
        return Declared({}, {}, read_reassignment(str(path)))
    if not isinstance(document, dict) or not document or not {"topics", "groups"}.issuperset(document):
        raise InvalidRequest(f"{path}: expected the keys `topics` and `groups`, or one of them")
    problems = Problems()
    topics = _parse_each(document, path, "topic", parse_topic, problems)
    groups = _parse_each(document, path, "group", parse_group, problems)
    problems.check(str(path))
    return Declared(topics, groups, {})


def _parse_each(
    document: Mapping[str, Any],
    path: Path,
    kind: str,
    parse: Callable[[object, object], Parsed],
    problems: Problems,
) -> dict[str, Parsed]:
    given = document.get(f"{kind}s", {})
    if not isinstance(given, dict):
        raise InvalidRequest(f"{path}: expected `{kind}s` to be a mapping of names to {kind}s, and found {given!r}")
    found = {}
    for name, one in given.items():
        with problems.of(f"{kind} {name}"):
            found[name] = parse(name, one)
    return found


def parse_yaml(text: str, path: Path) -> object:
    """The document.  A key that is there twice is an error: PyYAML takes the last one."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise InvalidRequest("PyYAML is not installed in this Python: pip install 'spark-log[jobs]'") from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value]
            if twice := sorted({name for name in names if names.count(name) > 1} - {"<<"}):
                raise yaml.MarkedYAMLError(problem=f"{twice[0]!r} is there twice", problem_mark=node.start_mark)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{path}: {' '.join(str(error).split())}") from None


# --------------------------------------------------------------------------------------------------------------- topics


def parse_topic(name: object, given: object) -> DeclaredTopic:
    """A topic.  Raises InvalidRequest and its subclasses."""
    check_topic_name(_name(name))
    if given is None:
        return DeclaredTopic()
    fields = _fields(given, TOPIC_KEYS)
    if fields.get("replicas") is not None and fields.get("replication_factor") is not None:
        raise InvalidRequest("`replicas` names all replicas of each partition: leave out `replication_factor`")
    partitions, replicas = _count("partitions", fields.get("partitions")), _replicas(fields.get("replicas"))
    if replicas is not None and partitions not in (None, len(replicas)):
        raise InvalidRequest(f"`replicas` has {counted(len(replicas), 'partition')}, and `partitions` is {partitions}")
    return DeclaredTopic(
        partitions if replicas is None else len(replicas),
        _configs(fields.get("configs")),
        _count("replication_factor", fields.get("replication_factor")),
        replicas,
        _delete(fields, "topic"),
    )


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"the name is {type_of(name)}: put it into quotes")
    return name


def _fields(given: object, known: Sequence[str]) -> Mapping[str, object]:
    if not isinstance(given, dict):
        raise InvalidRequest(f"expected a mapping with some of {', '.join(known)}, and found {given!r}")
    for key in given:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            raise InvalidRequest(
                f"unknown key {key!r}: " + (f"did you mean {near[0]}?" if near else f"expected {', '.join(known)}")
            )
    return given


def _delete(fields: Mapping[str, object], kind: str) -> bool:
    delete = fields.get("delete", False)
    if not isinstance(delete, bool):
        raise InvalidRequest(f"delete: expected true or false, and found {delete!r}")
    if delete and len(fields) > 1:
        raise InvalidRequest(f"a {kind} with `delete: true` has no other keys")
    return delete


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


def _configs(given: object) -> dict[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise InvalidRequest(f"configs: expected a mapping of names to values, and found {given!r}")
    configs, _ = validate_topic_configs({name: _config_text(name, value) for name, value in given.items()})
    check_together(configs)
    return configs


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


def parse_group(name: object, given: object) -> DeclaredGroup:
    """A group.  Raises InvalidRequest."""
    if not _name(name):
        raise InvalidRequest("the name of a group is empty")
    fields = _fields(given, GROUP_KEYS)
    delete, topics = _delete(fields, "group"), fields.get("positions") or {}
    if not isinstance(topics, dict):
        raise InvalidRequest(f"positions: expected a mapping of topics to positions, and found {topics!r}")
    if not topics and not delete:
        raise InvalidRequest("expected `positions`, or `delete: true`")
    return DeclaredGroup({_name(topic): _positions(topic, one) for topic, one in topics.items()}, delete)


def _positions(topic: str, given: object) -> dict[int | None, Position]:
    """One position for all partitions, or one for each of some."""
    if not isinstance(given, dict):
        return {None: _position(topic, given)}
    return {_number(topic, key): _position(f"{topic}-{key}", one) for key, one in given.items()}


def _number(topic: str, key: object) -> int:
    """The number of a partition; in JSON it is a text."""
    if isinstance(key, int) and _is_number(key, 0):
        return key
    if isinstance(key, str) and key.isdecimal():
        return int(key)
    raise InvalidRequest(f"positions of {topic}: expected the number of a partition, and found {key!r}")


def _position(where: str, given: object) -> Position:
    return parse_position(given, f"the position in {where}")
