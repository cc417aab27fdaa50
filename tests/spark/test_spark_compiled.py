"""The file of compiled classes, which Spark runs: nobody but the user can have written it."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.native import compiled

pytestmark = pytest.mark.tasks
SOURCE = "package io.pylog.spark; public final class Small {}"
NOBODY = 65534
of_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


@pytest.fixture
def made(classic: SparkSession) -> Callable[[], Path]:
    """Makes the file of one small class, or finds it."""
    jvm: Any = classic._jvm
    return lambda: compiled.jar(jvm, compiled.loader(jvm), classic.version, [SOURCE])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "cache"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "pylog"


def assert_sound(path: Path) -> None:
    found = path.lstat()
    assert stat.S_ISREG(found.st_mode)
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, os.geteuid())
    with zipfile.ZipFile(path) as jar:
        assert "io/pylog/spark/Small.class" in jar.namelist()


def of_others(path: Path) -> None:
    """A whole file with other classes."""
    path.unlink()
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("io/pylog/spark/Small.class", b"of others")
    path.chmod(0o600)


def link(path: Path) -> None:
    """A link to such a file."""
    other = path.with_name("other.jar")
    path.rename(other)
    of_others(other)
    path.symlink_to(other)


CHANGES: dict[str, Callable[[Path], object]] = {
    "other content": of_others,
    "a link": link,
    "a writable file": lambda path: path.chmod(0o666),
    "of another user": lambda path: os.chown(path, NOBODY, NOBODY),
}


# Promise: spark-read.md#reading-less
@pytest.mark.parametrize("change", [pytest.param(n, marks=of_root if "user" in n else ()) for n in CHANGES])
def test_a_file_that_others_may_have_written_is_compiled_again(
    made: Callable[[], Path], cache: Path, change: str
) -> None:
    """It has the name of the file, which is the hash of the sources and of the versions."""
    path = made()
    assert_sound(path)
    CHANGES[change](path)
    changed = path.resolve()
    before = changed.read_bytes()
    assert made() == path
    assert_sound(path)
    if change == "a link":
        assert changed.read_bytes() == before


def writable(cache: Path) -> None:
    cache.chmod(0o777)


def above(cache: Path) -> None:
    """Others could put another folder in its place."""
    cache.parent.chmod(0o777)


def linked(cache: Path) -> None:
    """A link to a folder in which others can write."""
    other = cache.with_name("other")
    cache.rename(other)
    other.chmod(0o777)
    cache.symlink_to(other)


def given_away(cache: Path) -> None:
    os.chown(cache, NOBODY, NOBODY)


# Promise: spark-read.md#reading-less
@pytest.mark.parametrize("change", [writable, above, linked, pytest.param(given_away, marks=of_root)])
def test_a_folder_in_which_others_can_write_is_not_used(
    made: Callable[[], Path], cache: Path, change: Callable[[Path], None]
) -> None:
    path = made()
    assert path.parent == cache
    change(cache)
    other = made()
    assert other.parent.resolve() not in (cache.resolve(), cache)
    assert stat.S_IMODE(other.parent.stat().st_mode) == 0o700
    assert_sound(other)


def test_a_sticky_folder_above_is_no_danger(made: Callable[[], Path], cache: Path) -> None:
    """In a folder such as /tmp, others can rename only their own files."""
    cache.parent.chmod(0o1777)
    assert made().parent == cache
