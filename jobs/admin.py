"""Creates and alters topics as a file describes them.

    spark-submit jobs/admin.py --url s3://bucket/log plan topics.yaml
    spark-submit jobs/admin.py --url s3://bucket/log apply topics.yaml

The file has the partitions and the configs of each topic:

    topics:
      orders:
        partitions: 6
        configs: {retention.ms: 604800000, cleanup.policy: delete}
      old-orders:
        delete: true

`plan` prints the changes that `apply` would make.  Both check the whole file against the log first, and change nothing
if anything is wrong.  `configs` has all configs of a topic: those that it does not have are unset.  Without `configs`,
or without `partitions`, these are left as they are.  Topics that are not in the file are left alone.  A topic is
deleted only with `delete: true` in the file and --allow-delete.  If `apply` is killed, run it again.

The last line of standard output is a summary in JSON.  Exit status: 0 nothing to change, or all changes were made;
1 refused or failed; 2 wrong usage; 3 `plan` has found changes.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark_pylog.job_support import job_parser, location_of, progress, run_job
from pyspark_pylog.open_log import journal_of

from spark_log import Log, NewTopic
from spark_log.client.administering.admin import Admin, TopicDescription
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.settings import check_together, validate_topic_configs
from spark_log.text import counted, type_of
from spark_log.topic_names import check_topic_name

HAS_CHANGES = 3
"""Exit status of `plan`.  Not 2, which is wrong usage."""
KEYS = ("partitions", "configs", "delete")


class Declared(NamedTuple):
    """A topic in the file."""

    partitions: int | None = None
    """None: as they are; 1 for a new topic."""
    configs: Mapping[str, str] | None = None
    """All of the topic's configs, in their canonical spelling; None: as they are."""
    delete: bool = False


class Differences(NamedTuple):
    """The differences between a log and a file."""

    create: list[NewTopic]
    partitions: dict[str, tuple[int, int]]
    """By topic, the number now and the new one."""
    configs: dict[str, dict[str, tuple[str | None, str | None]]]
    """By topic and config, the value now and the new one; None: not set."""
    delete: dict[str, int]
    """By topic, its number of records."""

    def lines(self) -> Iterator[str]:
        """For people, one change in each line."""
        for topic in self.create:
            configs = "".join(f", {name}={value}" for name, value in topic.configs.items())
            yield f"+ {topic.name}: create with {counted(topic.num_partitions, 'partition')}{configs}"
        for name, (now, new) in self.partitions.items():
            yield f"~ {name}: partitions {now} -> {new}"
        for name, configs in self.configs.items():
            for config, (before, after) in configs.items():
                yield f"~ {name}: {config} {before or '(default)'} -> {after or '(default)'}"
        for name, records in self.delete.items():
            yield f"- {name}: delete with {counted(records, 'record')}"

    def summary(self) -> dict[str, Any]:
        return {
            "create": [topic.name for topic in self.create],
            "partitions": {name: new for name, (_, new) in self.partitions.items()},
            "configs": {name: {key: new for key, (_, new) in one.items()} for name, one in self.configs.items()},
            "delete": list(self.delete),
        }


class Problems:
    """Errors of several topics, which are reported together."""

    def __init__(self) -> None:
        self._found: list[str] = []

    @contextmanager
    def of(self, topic: object) -> Iterator[None]:
        """Keep an error of a topic."""
        try:
            yield
        except SparkLogError as error:
            self._found.append(f"topic {topic}: {error}")

    def check(self, where: str) -> None:
        """Raises InvalidRequest with all of them."""
        if self._found:
            raise InvalidRequest("\n  ".join([f"{where}:", *self._found]))


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument("verb", choices=("plan", "apply"))
    parser.add_argument("file", type=Path, metavar="topics.yaml", help="YAML or JSON, on the driver")
    parser.add_argument("--allow-delete", action="store_true", help="delete the topics that have `delete: true`")
    return parser.parse_args(args)


# ------------------------------------------------------------------------------------------------------------- the file


def read_file(path: Path) -> dict[str, Declared]:
    """The topics of a file.  Raises InvalidRequest that names everything that is wrong in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from error
    document = parse_yaml(text, path)
    if not isinstance(document, dict) or set(document) != {"topics"} or not isinstance(document["topics"], dict):
        raise InvalidRequest(f"{path}: expected one key, `topics`, with a mapping of names to topics")
    found, problems = {}, Problems()
    for name, given in document["topics"].items():
        with problems.of(name):
            found[name] = parse_topic(name, given)
    problems.check(str(path))
    return found


def parse_yaml(text: str, path: Path) -> object:
    """The document.  A key that is there twice is an error: PyYAML takes the last one."""
    try:
        import yaml
    except ImportError:
        raise InvalidRequest("PyYAML is not installed in this Python: pip install 'spark-log[jobs]'") from None

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value]
            if twice := sorted({name for name in names if names.count(name) > 1} - {"<<"}):
                raise yaml.MarkedYAMLError(problem=f"{twice[0]!r} is there twice", problem_mark=node.start_mark)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{path}: {' '.join(str(error).split())}") from None


def parse_topic(name: object, given: object) -> Declared:
    """A topic.  Raises InvalidRequest and its subclasses."""
    if not isinstance(name, str):
        raise InvalidRequest(f"the name is {type_of(name)}: put it into quotes")
    check_topic_name(name)
    if given is None:
        return Declared()
    if not isinstance(given, dict):
        raise InvalidRequest(f"expected a mapping with some of {', '.join(KEYS)}, and found {given!r}")
    for key in given:
        if key not in KEYS:
            near = get_close_matches(str(key), KEYS, n=1)
            raise InvalidRequest(
                f"unknown key {key!r}: " + (f"did you mean {near[0]}?" if near else f"expected {', '.join(KEYS)}")
            )
    delete = given.get("delete", False)
    if not isinstance(delete, bool):
        raise InvalidRequest(f"delete: expected true or false, and found {delete!r}")
    if delete and len(given) > 1:
        raise InvalidRequest("a topic with `delete: true` has no other keys")
    return Declared(_partitions(given.get("partitions")), _configs(given.get("configs")), delete)


def _partitions(given: object) -> int | None:
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise InvalidRequest(f"partitions: expected a number of 1 or more, and found {given!r}")
    return given


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


# ------------------------------------------------------------------------------------------------------------- the plan


def plan_changes(declared: Mapping[str, Declared], known: Mapping[str, TopicDescription]) -> Differences:
    """The changes that `apply` has to make.  Raises InvalidRequest that names everything that cannot be done."""
    changes, problems = Differences([], {}, {}, {}), Problems()
    for name, topic in sorted(declared.items()):
        with problems.of(name):
            _add_changes(changes, name, topic, known.get(name))
    problems.check("the file does not fit the log")
    return changes


def _add_changes(changes: Differences, name: str, topic: Declared, known: TopicDescription | None) -> None:
    if topic.delete:
        if known is not None:
            changes.delete[name] = known.rows
        return
    if known is None:
        changes.create.append(NewTopic(name, topic.partitions or 1, topic.configs or {}))
        return
    now = len(known.partitions)
    if topic.partitions is not None and topic.partitions < now:
        raise InvalidRequest(f"it has {counted(now, 'partition')}, and they cannot become {topic.partitions}")
    if topic.partitions is not None and topic.partitions > now:
        changes.partitions[name] = (now, topic.partitions)
    if topic.configs is not None and topic.configs != known.configs:
        keys = sorted({*topic.configs, *known.configs})
        pairs = {key: (known.configs.get(key), topic.configs.get(key)) for key in keys}
        changes.configs[name] = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def apply_changes(admin: Admin, changes: Differences) -> None:
    """Make the changes, in four commits: a process that is killed in between leaves the rest to the next one."""
    with notes_as_progress():
        if changes.create:
            admin.create_topics(changes.create)
        if changes.partitions:
            admin.create_partitions({name: new for name, (_, new) in changes.partitions.items()})
        if changes.configs:
            new = {name: {key: after for key, (_, after) in one.items()} for name, one in changes.configs.items()}
            admin.incremental_alter_configs(new)
        if changes.delete:
            admin.delete_topics(changes.delete)


@contextmanager
def notes_as_progress() -> Iterator[None]:
    """Print the log's warnings on standard error, for example about configs without effect."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        yield
    for note in dict.fromkeys(str(note.message) for note in notes):
        progress(f"warning: {note}")


# -------------------------------------------------------------------------------------------------------------- running


def administer(_spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Plan or apply; the summary and the exit status."""
    declared = read_file(args.file)
    with Log(journal_of(location_of(args))) as log:
        changes = plan_changes(declared, log.admin.describe_topics())
        with notes_as_progress():
            log.admin.create_topics(changes.create, validate_only=True)
        lines = list(changes.lines())
        print("\n".join(lines or ["nothing to change"]), flush=True)
        blocked = list(changes.delete) if not args.allow_delete else []
        if blocked:
            progress(f"to delete {', '.join(blocked)}, give --allow-delete")
        if args.verb == "apply" and blocked:
            raise InvalidRequest("nothing was changed: a topic has `delete: true`, and --allow-delete is not given")
        if args.verb == "apply":
            apply_changes(log.admin, changes)
    summary = {"verb": args.verb, "changes": len(lines), **changes.summary()}
    return summary, HAS_CHANGES if args.verb == "plan" and lines else 0


def main() -> None:
    args = parse_args()
    run_job("admin", partial(administer, args=args))


if __name__ == "__main__":
    main()
