"""`pylog mirror` and `pylog recover`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.commands import Pylog


@pytest.fixture
def pylog(tmp_path: Path) -> Pylog:
    pylog = Pylog(tmp_path / "log")
    pylog.ok("produce", "orders", stdin="a\nb\n")
    return pylog


# Promise: cli.md#pylog-mirror-status, copies.md#keep-a-mirror, tasks/erase.md#copies-elsewhere
def test_a_log_is_lost_and_recovered(pylog: Pylog, tmp_path: Path) -> None:
    """From the first command to the last."""
    mirror = str(tmp_path / "mirror")
    assert f"is a mirror: run `pylog mirror run {mirror}`" in pylog.ok("mirror", "set", mirror)
    assert pylog.json("mirror", "status", mirror)["version"] == 0
    found = pylog.json("mirror", "run", mirror)
    assert found["objects"] == 1 and found["versions"] == found["version"] and found["behind"] == 0
    pylog.ok("produce", "orders", stdin="c\n")
    assert "1 version behind" in pylog.ok("mirror", "status", mirror)
    assert "1 version, 1 object (" in pylog.ok("mirror", "run", mirror)
    pylog.ok("produce", "orders", stdin="too late\n")
    copy = Pylog(tmp_path / "mirror")
    assert copy.ok("consume", "orders").split() == ["a", "b", "c"]
    assert "can be opened: it has version" in copy.refused("recover", "--yes")
    shutil.rmtree(tmp_path / "log")
    assert "would make" in copy.run("recover", "--dry-run").stderr
    assert "a separate log, at version" in copy.refused("recover")
    done = copy.ok("recover", "--yes")
    assert "is a separate log, at version" in done
    assert "if records were erased after this copy was made, they are there again: erase them again" in done
    copy.ok("produce", "orders", stdin="d\n")
    assert copy.ok("consume", "orders").split() == ["a", "b", "c", "d"]


def test_a_folder_that_is_no_mirror_is_refused(pylog: Pylog, tmp_path: Path) -> None:
    """Such as that of a disk that is not mounted."""
    assert "is not a mirror: is its disk mounted?" in pylog.refused("mirror", "run", str(tmp_path / "empty"))
    assert "is a separate log" in pylog.refused("mirror", "run", str(tmp_path / "log"))
    assert "is not a mirror, but a separate log" in pylog.refused("recover", "--yes")
    assert not (tmp_path / "empty").exists()


# Promise: cli.md#pylog-verify
def test_a_damaged_object_is_repaired_from_the_mirror(pylog: Pylog, tmp_path: Path) -> None:
    """And one of the mirror from the log."""
    mirror = str(tmp_path / "mirror")
    pylog.ok("mirror", "set", mirror)
    pylog.ok("mirror", "run", mirror)
    (victim,) = (tmp_path / "log" / "data").glob("*/*.seg")
    name = str(victim.relative_to(tmp_path / "log"))
    victim.unlink()
    assert f"{name}" in pylog.run("verify").stdout
    found = pylog.json("verify", "--deep", "--repair-from", mirror)
    assert [(row["what"], row["repaired"]) for row in found] == [(name, True)]
    assert pylog.ok("consume", "orders").split() == ["a", "b"]
    assert "no problems found" in pylog.ok("verify", "--deep", "--repair-from", mirror)
    copy = Pylog(tmp_path / "mirror")
    (tmp_path / "mirror" / name).write_bytes(b"")
    assert "has been replaced" in copy.ok("verify", "--repair-from", str(tmp_path / "log"))
    (tmp_path / "mirror" / name).unlink()
    (tmp_path / "log" / name).unlink()
    assert f"{mirror} has no good copy" in pylog.run("verify", "--repair-from", mirror).stdout
    assert "1 problem found" in pylog.refused("verify", "--repair-from", mirror)
    assert "empty has no copy of the log: is its disk mounted?" in pylog.refused(
        "verify", "--repair-from", str(tmp_path / "empty")
    )
    assert "--repair-from, which is missing" in pylog.run("verify", "--repair-option", "key=k").stderr


def test_the_status_names_an_accepted_loss(pylog: Pylog, tmp_path: Path) -> None:
    """The mirror has versions that the log has given up."""
    mirror = str(tmp_path / "mirror")
    pylog.ok("mirror", "set", mirror)
    pylog.ok("mirror", "run", mirror)
    pylog.ok("produce", "orders", stdin="c\n")
    lost = max((tmp_path / "log/meta/log").iterdir())
    pylog.ok("produce", "orders", stdin="d\n")
    lost.unlink()
    pylog.ok("repair", "--accept-loss", "--yes")
    said = pylog.run("mirror", "status", mirror).stdout
    assert "1 version behind" in said and "lost versions of the log were given up" in said


def test_a_mirror_whose_log_is_lost_names_the_recovery(pylog: Pylog, tmp_path: Path) -> None:
    """Not a command that begins an empty log in its place."""
    mirror = str(tmp_path / "mirror")
    pylog.ok("mirror", "set", mirror)
    pylog.ok("mirror", "run", mirror)
    (tmp_path / "log").rename(tmp_path / "lost")
    for verb in ("run", "status"):
        said = pylog.refused("mirror", verb, mirror)
        assert f"If the log is lost, `pylog recover -u {mirror}` makes a log of its mirror" in said
        assert "topic create" not in said


# Promise: cli.md#pylog-move
def test_a_log_is_moved(pylog: Pylog, tmp_path: Path) -> None:
    """It asks before; the former URL leads to the new place; wrong usage is named."""
    new = tmp_path / "moved"
    assert "give --yes" in pylog.refused("move", str(new))
    assert "give either TARGET or --cancel" in pylog.wrong("move")
    assert "would move the log from" in pylog.run("move", str(new), "--dry-run").stderr and not new.exists()
    (tmp_path / "other/data/0000000000000001").mkdir(parents=True)
    (tmp_path / "other/data/0000000000000001/a.seg").touch()
    assert "begins in an empty folder" in pylog.refused("move", str(tmp_path / "other"), "--dry-run")
    assert "is not being moved" in pylog.refused("move", "--cancel", "--dry-run")
    done = pylog.json("move", str(new), "--yes")
    assert done["url"] == new.as_uri() and done["closed_ms"] >= 0
    assert Pylog(new).ok("topic", "list") == pylog.ok("topic", "list")
    assert pylog.json("cluster", "info")["url"] == new.as_uri()
    assert "already" in pylog.refused("move", "--cancel", "--yes")
    cancel = ("move", "--cancel", "--yes", "--target-option", "key=k")
    assert "cannot be read there: storage options (key)" in pylog.refused(*cancel)
    assert "already" in pylog.refused("move", "--cancel", "--yes", "--force")


# Promise: copies.md#move-a-log
def test_a_second_log_in_the_former_place_is_not_healthy(pylog: Pylog, tmp_path: Path) -> None:
    """A copy of before the move was restored there, and clients with the former URL write to it."""
    shutil.copytree(tmp_path / "log", tmp_path / "yesterday")
    pylog.ok("move", str(tmp_path / "moved"), "--yes")
    moved = Pylog(tmp_path / "moved")
    assert "former place" not in moved.ok("cluster", "health")
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "yesterday").rename(tmp_path / "log")
    found = moved.run("cluster", "health")
    assert found.exit_code == 1 and "not healthy: former place" in found.stderr
    said = f"there is a second log with the same id at {(tmp_path / 'log').as_uri()}"
    assert said in found.stdout and said in moved.ok("maintain")


def test_what_asks_for_yes_names_a_dry_run_only_where_there_is_one(pylog: Pylog, tmp_path: Path) -> None:
    mirror = str(tmp_path / "mirror")
    pylog.ok("mirror", "set", mirror)
    pylog.ok("mirror", "run", mirror)
    asked = pylog.refused("mirror", "run", mirror, "--catch-up")
    assert "give --yes to do it" in asked and "--dry-run" not in asked
    assert "or --dry-run to see it" in pylog.refused("topic", "delete", "orders")


@pytest.mark.parametrize("number", [0, 1])
def test_a_mirror_that_lost_a_checkpoint_gets_one_from_the_command_that_verify_names(
    pylog: Pylog, tmp_path: Path, number: int
) -> None:
    mirror = str(tmp_path / "mirror")
    pylog.ok("mirror", "set", mirror)
    pylog.ok("mirror", "run", mirror)
    sorted((tmp_path / "mirror/meta/ckpt").iterdir())[number].write_bytes(b"")
    copy = Pylog(mirror)
    assert "it is empty; `pylog mirror run MIRROR` writes a new one" in copy.run("verify").stdout
    pylog.ok("mirror", "run", mirror)
    assert "no problems found" in copy.ok("verify")
    sorted((tmp_path / "mirror/meta/ckpt").iterdir())[number].unlink()
    assert "another checkpoint is lost; `pylog mirror run MIRROR` writes a new one" in copy.run("verify").stdout
    pylog.ok("mirror", "run", mirror)
    assert "no problems found" in copy.ok("verify")
