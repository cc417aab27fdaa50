"""Imports point one way, and what acts on the world is imported only where acting is allowed."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import spark_log

ROOT = Path(__file__).parents[2]

LAYERS: tuple[dict[str, str], ...] = (
    {
        "errors": "Every error that pylog raises on purpose.",
        "bounds": "The bounds of numbers and texts in what others send.",
        "model": "The values that all parts use.",
        "text": "Formatting of text for people.",
        "log_lines": "Lines of the logger reach terminals.",
        "positions": "Where a read starts and ends: one grammar for Spark, Python and the command line.",
        "conditions": "Conditions of reads: a part of SQL's WHERE.",
        "runtime": "Clocks, threads that may hang, forks, and what else a process of Python needs.",
    },
    {
        "configs": "The configs of topics and of the log, as tables of names, types and defaults.",
        "schema": "Schemas of typed topics: their types, their texts, and how they evolve.",
        "groups": "Kafka's group protocol and its assignors.",
        "quorum": "A log replicated by KRaft's protocol, as a machine without a clock or a disk.",
        "http": "Ports, connections, addresses and TLS.",
    },
    {
        "segment": "Objects of records: Arrow batches to bytes and back.",
        "metadata": "The state of a log, the records that change it, and the decisions that make records.",
        "quorum.node": "The process around a machine of the quorum: its disk, its clock and its connections.",
    },
    {
        "store": "Objects on disks and in buckets: put-if-absent, ranged reads, durable writes.",
        "roots": "Objects with copies on several roots: puts to replicas, and reads with failover.",
        "journal": "The metadata log: opening it, following it, and proposing changes.",
    },
    {
        "rpc": "Requests and replies between clients and coordinators.",
        "rewriting": "Segments take the place of others: merging, compaction and erasure, as steps.",
    },
    {"client": "The API of applications: producers, consumers, readers and the administration."},
    {
        "flows": "A function turns records of some topics into records of others, exactly once.",
    },
    {
        "replication": "Brokers are checked, and get the copies that they lack.",
        "maintenance": "The duties that keep a log small, in rounds.",
        "recovery": "Mirrors, moves, backups, verification and repair: what happens when a storage is lost.",
    },
    {
        "monitoring": "Metrics and findings about a log.",
        "server": "Coordinators: on shared storage and on a quorum, with the port that clients ask.",
        "serve": "The process `pylog serve`, from its configuration to its end.",
        "gateway": "Kafka's clients read and write a log by Kafka's wire protocol.",
    },
    {
        "display": "Rows that commands print and the console shows.",
        "console": "Web pages that show a log.",
        "cli": "The command `pylog`.",
        "testing": "Tools for tests of applications.",
        "aio": "The clients for asyncio.",
        "facade": "The package `spark_log` itself, with its public names.",
        "pyspark_pylog": "The Spark data source.",
        "simulation": "Simulations of the protocols, and what else only pylog's own tests need: in no wheel.",
        "jobs": "Programs for spark-submit.",
    },
)
"""A part imports from its own group and from those above it, without going round in a circle."""

PURE = (
    "errors",
    "bounds",
    "model",
    "positions",
    "conditions",
    "configs",
    "schema",
    "segment",
    "metadata",
    "groups",
    "quorum",
)
"""Plain values in, plain values out."""

ACTING = frozenset(
    [
        "asyncio",
        "concurrent",
        "fcntl",
        "fsspec",
        "glob",
        "http",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "requests",
        "sched",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
    ]
)
"""Clocks, randomness, files, sockets, processes and threads: not for pure parts."""

NETWORK = frozenset(["http", "requests", "select", "selectors", "socket", "socketserver", "ssl", "urllib3"])
ONLY_IN = {
    frozenset(["fsspec", "s3fs", "gcsfs", "adlfs"]): ("store",),
    NETWORK: ("http", "rpc", "server", "quorum.node"),
}
"""Storage is reached through the store alone, and the network through the ports and their clients."""

EXCEPT = {"pyspark_pylog.worker_process": "socket", "simulation.harness.simulated_loop": "selectors"}
"""The first sets an option of the socket that Spark's worker has opened; the second waits for timers only."""

READS_THE_WORLD = re.compile(
    r"(datetime\.)?(datetime\.(now|utcnow|today)|date\.today)"
    r"|open|__import__|io\.(open|FileIO)"
    r"|random\.(?!Random$).*|numpy\.random\b.*"
    r"|pyarrow\.(OSFile|memory_map|create_memory_map|input_stream|output_stream|fs\b.*)"
)
"""Names, imports resolved, of what asks for time, chance or a file."""
STORAGE_LOG = ("storage_log", "opening", "commit_protocol", "checkpointing", "claims", "log_format", "log_identity")
"""Modules of the metadata log on shared storage."""
STORAGE_TOOLS = {
    "spark_log.journal.journal",
    "spark_log.journal.other_lines",
    "spark_log.journal.storage.seen_log",
    "spark_log.journal.topic_feed",
    "spark_log.recovery.late_files",
    "spark_log.recovery.lost_format",
    "spark_log.recovery.mirror",
    "spark_log.recovery.mirror_recovery",
    "spark_log.recovery.mirror_source",
    "spark_log.recovery.log_move",
    "spark_log.server.quorum.founding",
    "spark_log.server.quorum.log",
    "spark_log.server.quorum.root",
    "spark_log.recovery.repair",
    "spark_log.recovery.restore_backup",
    "spark_log.recovery.verify",
    "spark_log.display.health",
    "spark_log.client.open_journal",
    "spark_log.journal.served_log",
}
"""`Journal.open` opens one; a feed and a served log send changes to the coordinator in the same way; nine check,
repair or copy the files of the storage; a quorum marks the folder of its records as one without metadata, and
keeps claims there, also one that has taken the log over; a task that finds a pin opens no log."""


class Import(NamedTuple):
    """One import statement's target, and where it stands."""

    module: str
    part: str
    target: str
    """Dotted name of a module, as far as it is one."""
    place: str


def part_of(module: str) -> str:
    """The part that a module belongs to, by the name that LAYERS has for it."""
    top, _, rest = module.partition(".")
    if top != "spark_log":
        return top
    return "quorum.node" if f"{rest}.".startswith("quorum.node.") else rest.partition(".")[0] or "facade"


def sources() -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of everything that is shipped, and of the simulations."""
    for base, top in (
        (ROOT, "spark_log"),
        (ROOT / "datasource", "pyspark_pylog"),
        (ROOT, "simulation"),
        (ROOT, "jobs"),
    ):
        for file in sorted((base / top).rglob("*.py")):
            names = file.relative_to(base).with_suffix("").parts
            yield ".".join(names[:-1] if names[-1] == "__init__" else names), file


@cache
def trees() -> tuple[tuple[str, Path, ast.Module], ...]:
    """(dotted name, file, syntax tree) of everything that is shipped."""
    return tuple((module, file, ast.parse(file.read_text(), str(file))) for module, file in sources())


def targets(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Dotted names in an import statement; `from a import b` gives a.b, which may be a module or a name in one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = module.split(".") if is_package else module.split(".")[:-1]
        base = package[: len(package) - node.level + 1] if node.level else []
        prefix = ".".join([*base, *([node.module] if node.module else [])])
        yield from (f"{prefix}.{alias.name}" for alias in node.names)


@cache
def imports() -> tuple[Import, ...]:
    """Every import that is shipped, in functions and under TYPE_CHECKING too: a type is a dependency."""
    return tuple(
        Import(module, part_of(module), target, f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
        for module, file, tree in trees()
        for node in ast.walk(tree)
        for target in targets(node, module, file.name == "__init__.py")
    )


def inner_part(target: str) -> str | None:
    """The part of ours that a target is in, or None for somebody else's.  `from spark_log import connect` is the
    facade.
    """
    if target.split(".")[0] not in ("spark_log", "pyspark_pylog", "simulation", "jobs"):
        return None
    part = part_of(target)
    return part if any(part in layer for layer in LAYERS) else "facade"


def layer_of(part: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if part in layer)


def test_there_is_something_to_walk() -> None:
    """The walk finds the packages, so that the tests below say something."""
    parts = {part_of(module) for module, _ in sources()}
    assert parts >= {"facade", "errors", "segment", "metadata", "journal", "client", "simulation"}


def test_every_part_has_its_place_in_the_layers() -> None:
    """A new package is put into LAYERS before anything else."""
    known = {part for layer in LAYERS for part in layer}
    assert {part_of(module) for module, _ in sources()} <= known


def test_imports_point_one_way() -> None:
    """Values and formats <- storage and the log <- clients <- duties <- coordinators <- commands, jobs, the data
    source.
    """
    wrong = [
        f"{one.place}: {one.part} imports {one.target}"
        for one in imports()
        if (part := inner_part(one.target)) is not None and layer_of(part) > layer_of(one.part)
    ]
    assert not wrong, "\n".join(wrong)


def test_parts_do_not_import_in_a_circle() -> None:
    """Parts of one layer may use each other, one way."""
    graph: dict[str, set[str]] = {}
    for one in imports():
        part = inner_part(one.target)
        if part is not None and part != one.part:
            graph.setdefault(one.part, set()).add(part)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_files_do_not_import_in_a_circle() -> None:
    """Under TYPE_CHECKING and inside functions too: each file can be read with those that it imports, and without the
    rest.
    """
    modules = {module for module, _ in sources()}
    graph: dict[str, set[str]] = {}
    for module, file, tree in trees():
        for node in ast.walk(tree):
            for target in targets(node, module, file.name == "__init__.py"):
                found = target if target in modules else target.rpartition(".")[0]
                if found in modules - {module}:
                    graph.setdefault(module, set()).add(found)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def is_for_the_type_checker(test: ast.expr) -> bool:
    """Whether an assertion only says that a value is there, or which class it has."""
    match test:
        case ast.BoolOp(values=parts):
            return all(is_for_the_type_checker(part) for part in parts)
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return is_for_the_type_checker(operand)
        case _:
            return isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"


def test_assert_statements_are_for_the_type_checker_alone() -> None:
    """`python -O` leaves them out, so what guards the log is an error with a sentence.  Simulations may assert."""
    found = [
        f"{module}, line {node.lineno}: {ast.unparse(node)}"
        for module, _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and not is_for_the_type_checker(node.test) and part_of(module) != "simulation"
    ]
    assert not found, "\n".join(found)


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them by their names, and collects one of the two only."""
    names = Counter(file.name for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_classes_have_one_name() -> None:
    """A name in an error, a stack or a search leads to one class.  Simulations have their own world."""
    places: dict[str, list[str]] = {}
    for module, _, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and part_of(module) != "simulation":
                places.setdefault(node.name, []).append(module)
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert not twice, twice


@pytest.mark.parametrize("part", PURE)
def test_pure_parts_import_nothing_that_acts(part: str) -> None:
    """No clock, file, socket, process or thread where decisions are made."""
    wrong = [
        f"{one.place}: {one.target}"
        for one in imports()
        if one.part == part and (one.target.split(".")[0] in ACTING or one.target.startswith("spark_log.runtime.clock"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", PURE)
def test_pure_parts_read_no_clock_file_or_chance(part: str) -> None:
    """No open(), no datetime.now(), under whatever name; of `random` only the type `random.Random`, given by the
    caller.
    """
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for module, file, tree in trees()
        if part_of(module) == part
        for line, text in readings(tree)
    ]
    assert not wrong, "\n".join(wrong)


def readings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, code) of what asks for time, chance or a file, whatever it was imported as."""
    names = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            found = READS_THE_WORLD.fullmatch(full_name(node, names))
        elif isinstance(node, ast.Call):
            found = re.fullmatch(r"random\.Random", full_name(node.func, names))
        else:
            found = None
        if found:
            yield getattr(node, "lineno", 0), ast.unparse(node)


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Local name -> dotted name of what it was imported as."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def full_name(node: ast.AST, names: Mapping[str, str]) -> str:
    """Dotted name of an expression with its first part resolved; empty for anything but names and attributes."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (base := full_name(node.value, names)):
        return f"{base}.{node.attr}"
    return ""


@pytest.mark.parametrize("names", ONLY_IN, ids=["storage", "network"])
def test_storage_and_network_have_few_importers(names: frozenset[str]) -> None:
    """fsspec is imported by the store alone, sockets by the parts that have ports or ask them."""
    wrong = [
        f"{one.place}: {one.target}"
        for one in imports()
        if one.part not in ONLY_IN[names]
        and one.target.split(".")[0] in names
        and EXCEPT.get(one.module) != one.target.split(".")[0]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_metadata_log_is_used_by_its_interface() -> None:
    """How it lies on shared storage is known to its implementation, and to tools about this format."""
    insiders = {f"spark_log.journal.storage.{name}" for name in STORAGE_LOG}
    wrong = [
        f"{one.place}: {one.target}"
        for one in imports()
        if any(one.target == name or one.target.startswith(f"{name}.") for name in insiders)
        and one.module not in insiders | STORAGE_TOOLS
        and one.part != "simulation"
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from datetime import datetime; datetime.now()", True),
        ("from datetime import datetime as dt; dt.now(tz)", True),
        ("import datetime; datetime.datetime.now(tz)", True),
        ("open(path)", True),
        ("import io; io.FileIO(path)", True),
        ("import random; random.random()", True),
        ("import random as r; r.shuffle(x)", True),
        ("import random; random.Random(7)", True),
        ("from random import choice; choice(x)", True),
        ("import numpy as np; np.random.default_rng()", True),
        ("from numpy.random import default_rng; default_rng()", True),
        ("import pyarrow as pa; pa.memory_map(path)", True),
        ("from pyarrow import fs; fs.LocalFileSystem()", True),
        ("import random; x: random.Random", False),
        ("from random import Random; x: Random", False),
        ("from datetime import datetime; datetime(2026, 1, 31)", False),
        ("import pyarrow as pa; pa.BufferReader(data)", False),
        ("spool.open()", False),
    ],
)
def test_the_walk_sees_what_it_should(code: str, expected: bool) -> None:
    """A rule that cannot fail would promise nothing."""
    assert bool(list(readings(ast.parse(code)))) is expected


def test_relative_imports_are_followed() -> None:
    """`from ..store import base` in spark_log.segment.reader is spark_log.store.base."""
    node = ast.parse("from ..store import base").body[0]
    assert list(targets(node, "spark_log.segment.reader", is_package=False)) == ["spark_log.store.base"]


PUBLIC_PACKAGES = ("spark_log.maintenance", "spark_log.quorum", "spark_log.testing")
"""Below the public names of `spark_log` itself, what programs may import."""


def is_public(target: str) -> bool:
    """Whether a program that is not part of pylog may import a name: it is below a public name, and none of its parts
    begins with an underscore.
    """
    names = target.split(".")
    if any(name.startswith("_") for name in names):
        return False
    if target == "spark_log" or any(f"{target}.".startswith(f"{package}.") for package in PUBLIC_PACKAGES):
        return True
    return names[0] == "spark_log" and names[1] in spark_log.__all__


# Promise: clients.md#what-is-public
def test_programs_import_what_is_public() -> None:
    """`examples` and `jobs` are read as programs of users; a job starts the program of its name in the data source."""
    wrong, seen = [], 0
    for file in sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "jobs").glob("*.py")]):
        own = f"pyspark_pylog.jobs.{file.stem}.main" if file.parent.name == "jobs" else ""
        for node in ast.walk(ast.parse(file.read_text())):
            for target in targets(node, file.stem, is_package=False):
                if target.split(".")[0] in ("spark_log", "pyspark_pylog", "simulation", "tests"):
                    seen += 1
                    wrong += [] if is_public(target) or target == own else [f"{file.relative_to(ROOT)}: {target}"]
    assert seen > 20 and not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("spark_log", True),
        ("spark_log.connect", True),
        ("spark_log.errors.NoLog", True),
        ("spark_log.maintenance.maintain.Maintainer", True),
        ("spark_log.quorum.node.node.Node", True),
        ("spark_log.maintenance.maintain._Round", False),
        ("spark_log.journal.journal.Journal", False),
        ("spark_log.maintenance_files", False),
        ("pyspark_pylog.options.parse", False),
    ],
)
def test_what_is_public_is_told_by_its_place(target: str, expected: bool) -> None:
    assert is_public(target) is expected


FILES_MAX = 27
"""Files of Python in one folder: more do not fit on a screen."""
STORY_LINES = 5
"""Lines that a package tells about itself at least, at the top of its `__init__`."""


def packages() -> dict[Path, list[Path]]:
    """The files of Python in each folder that is shipped, or simulates."""
    found: dict[Path, list[Path]] = {}
    for _, file in sources():
        found.setdefault(file.parent.relative_to(ROOT), []).append(file)
    return found


def test_no_folder_has_more_files_than_a_screen_shows() -> None:
    """A folder that grows beyond it is split by what its files are about."""
    large = {str(folder): len(files) for folder, files in packages().items() if len(files) > FILES_MAX}
    assert not large, large


def test_each_part_tells_its_story() -> None:
    """The first screen of a part says what it is for, what it begins with, and what it leaves to others."""
    short = [
        part
        for layer in LAYERS
        for part in layer
        if (file := ROOT / "spark_log" / part.replace(".", "/") / "__init__.py").exists()
        and len((ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()) < STORY_LINES
    ]
    assert not short, short


def test_what_is_installed_imports_no_simulation() -> None:
    """`simulation` is in no wheel."""
    wrong = [one.place for one in imports() if one.part != "simulation" and one.target.split(".")[0] == "simulation"]
    assert not wrong, "\n".join(wrong)
