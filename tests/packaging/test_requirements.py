"""setup.cfg agrees with the tree, with the tested lower bounds and with the page of reasons."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
import sys
from pathlib import Path

import pytest

from spark_log.store.remote import BACKENDS
from spark_log.text import install_extra

ROOT = Path(__file__).parents[2]
LOWEST = ROOT / "tests" / "packaging" / "lowest.txt"
PAGE = ROOT / "docs" / "dependencies.md"

ONLY_IF_THERE = {"pandas", "polars", "py4j", "pytest"}
"""Imported where users hand them over, in what is shipped for tests, and py4j where PySpark itself talks to a JVM with
it.
"""

IMPORTED_AS = {"PyYAML": "yaml"}


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(comment_prefixes=("#",))
    parser.read(ROOT / "setup.cfg")
    return parser


def lines(text: str) -> list[str]:
    """The items of a list in setup.cfg."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=]", requirement)[0]


def requirements() -> dict[str, str]:
    """Requirement as written -> name of the package, of all extras."""
    parser = setup_cfg()
    written = lines(parser["options"]["install_requires"])
    written += [line for text in parser["options.extras_require"].values() for line in lines(text)]
    return {line: name_of(line) for line in written}


def test_every_package_of_the_tree_is_shipped() -> None:
    """The list of packages is written by hand, since setuptools finds only one tree."""
    found = {str(file.parent.relative_to(ROOT)) for file in (ROOT / "spark_log").rglob("__init__.py")}
    found |= {str(file.parent.relative_to(ROOT / "datasource")) for file in (ROOT / "datasource").rglob("__init__.py")}
    found.add("spark_log/jobs")  # the folder jobs, whose files are also run by their paths
    assert sorted(lines(setup_cfg()["options"]["packages"])) == sorted(name.replace("/", ".") for name in found)


def third_party_imports() -> set[str]:
    """Top-level names that spark_log and the data source import, wherever in a module."""
    files = [*(ROOT / "spark_log").rglob("*.py"), *(ROOT / "datasource").rglob("*.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"spark_log", "pyspark_pylog"}


# Promise: ../README.md#install, dependencies.md#always
def test_every_import_is_declared() -> None:
    """Nothing works only because another package happens to bring what it needs."""
    parser = setup_cfg()
    text = parser["options"]["install_requires"] + "".join(
        parser["options.extras_require"][extra]
        for extra in ("spark", "s3", "gcs", "abfs", "server", "jobs", "delta", "iceberg")
    )
    declared = {re.split(r"[\[<>=!]", line)[0] for line in lines(text)}
    assert third_party_imports() - ONLY_IF_THERE <= {IMPORTED_AS.get(name, name) for name in declared}


# Promise: dependencies.md#lower-bounds
def test_lower_bounds_are_the_tested_ones() -> None:
    """`lowest.txt` pins what users get at least; the whole suite passes with it."""
    bounds = {line.partition(">=")[0].split("[")[0]: line.partition(">=")[2].split(",")[0] for line in requirements()}
    pinned = dict(line.split("==") for line in lines(LOWEST.read_text()) if not line.startswith("#"))
    assert {name: bounds[name] for name in pinned} == pinned
    needed = {re.split(">=", line)[0] for line in lines(setup_cfg()["options"]["install_requires"])}
    assert needed <= set(pinned)


# Promise: dependencies.md#dependencies
@pytest.mark.parametrize(("requirement", "name"), requirements().items())
def test_every_dependency_has_its_reason(requirement: str, name: str) -> None:
    """A requirement is a row in docs/dependencies.md, as it is written in setup.cfg."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{requirement}` |")]
    assert rows, f"no row for {requirement}, the requirement of {name}"
    assert all(len(row.split("|")) == 4 and row.split("|")[2].strip() for row in rows)


def test_every_instruction_to_install_names_a_checkout_or_a_repository() -> None:
    """On pages and in errors, as README says it: pylog on PyPI is another project, and spark-log is not there.  Extras
    are those of setup.cfg.
    """
    extras = set(setup_cfg()["options.extras_require"])
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    files += [
        file for folder in ("spark_log", "datasource", "jobs", "examples") for file in (ROOT / folder).rglob("*.*")
    ]
    texts = [file.read_text() for file in files if file.suffix in (".py", ".md")]
    assert not any(
        re.search(r"spark-log\[[a-z0-9,{}]+\](?! @ git\+)|pip install '?(pylog|spark-log)\b(?! @|\[)", text)
        for text in texts
    )
    found = [pair for text in texts for pair in re.findall(r"'(\.|/path/to/pylog|[^'\s]*pylog)\[([a-z0-9,]+)\]'", text)]
    assert len(found) > 10 and {where for where, _ in found} == {".", "/path/to/pylog"}
    named = {extra for _, several in found for extra in several.split(",")}
    named |= {extra for text in texts for extra in re.findall(r"install_extra\('([^']*)'\)", text)}
    named |= {backend.extra for backend in BACKENDS.values()}
    assert {"delta", "iceberg", "jobs", "server", "examples", "s3"} <= named <= extras


def test_no_platform_is_claimed_that_was_not_tested() -> None:
    """The classifiers on an index agree with the page of what was tested."""
    row = next(
        line for line in (ROOT / "docs" / "testing.md").read_text().splitlines() if line.startswith("| system |")
    )
    tested = row.split("|")[2]
    claimed = re.findall(r"Operating System :: (?:\w+ :: )?(\w+)", setup_cfg()["metadata"]["classifiers"])
    assert claimed == ["Linux"]
    assert all(name in tested for name in claimed)


def test_the_advice_installs_packages_and_not_pylog() -> None:
    """Installing pylog from its folder once more would end an editable install."""
    for extra, text in setup_cfg()["options.extras_require"].items():
        python, *command = shlex.split(install_extra(extra))
        assert python == sys.executable and command[:3] == ["-m", "pip", "install"]
        assert [name_of(one) for one in command[3:]] == [name_of(one) for one in lines(text)]
    assert "aiohttp>=3.9" in install_extra("server")
