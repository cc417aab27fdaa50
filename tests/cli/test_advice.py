"""Advice is followed as it is printed, from states of a bad day to a healthy log, and never leads back."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.cli.commands import Pylog

STEPS_MAX = 3
"""Commands that a person types until the log is healthy."""
COMMAND = re.compile(r"`pylog ([^`]+)`")


class Person:
    """Types a command, and then the one that its message advises."""

    def __init__(self, pylog: Pylog, **known: str) -> None:
        """
        known:  what a person puts in the place of words such as `MIRROR`.
        """
        self.pylog = pylog
        self.known = known
        self.typed: list[str] = []

    def follow(self, wanted: str, *args: str) -> None:
        """Type a command, and then the advised one that has the wanted words, until a command succeeds.

        A command that asks for --yes gets it.  Raises AssertionError if that takes too long or leads back.
        """
        line = shlex.join(args)
        for _ in range(STEPS_MAX + 1):
            assert line not in self.typed, f"the advice leads back to {line}"
            self.typed.append(line)
            result = self.pylog.run(*shlex.split(line))
            if result.exit_code == 0:
                return
            if "give --yes to do it" in result.output:
                line += " --yes"
                continue
            found = [one for one in COMMAND.findall(result.output) if re.search(wanted, one)]
            assert found, f"no advice has {wanted!r}: {result.output}"
            line = " ".join(self.known.get(word, word) for word in found[0].split())
        raise AssertionError(f"still not done: {self.typed}")


def is_healthy(url: str, topic: str = "orders") -> bool:
    """All checks are true, all bytes can be read, and records can be added."""
    pylog = Pylog(url)
    pylog.ok("produce", topic, stdin="afterwards\n")
    pylog.ok("cluster", "health")
    return pylog.ok("verify", "--deep").startswith("no problems found") and "afterwards" in pylog.ok("consume", topic)


@pytest.fixture
def pylog(tmp_path: Path) -> Pylog:
    """A log with three records, and a mirror of it."""
    pylog = Pylog(tmp_path / "log")
    for value in "abc":
        pylog.ok("produce", "orders", stdin=f"{value}\n")
    pylog.ok("mirror", "set", str(tmp_path / "mirror"))
    pylog.ok("mirror", "run", str(tmp_path / "mirror"))
    return pylog


@pytest.fixture
def mirror(tmp_path: Path) -> str:
    return str(tmp_path / "mirror")


@pytest.fixture(params=[False, True])
def diverged(request: pytest.FixtureRequest, pylog: Pylog, mirror: str, tmp_path: Path) -> Pylog:
    """An older copy of the log was restored, and may have been written to since."""
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    pylog.ok("produce", "orders", stdin="d\n")
    pylog.ok("produce", "orders", stdin="e\n")
    pylog.ok("mirror", "run", mirror)
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "older").rename(tmp_path / "log")
    if request.param:
        for value in "vwxyz":
            pylog.ok("produce", "orders", stdin=f"{value}\n")
    return pylog


@pytest.mark.parametrize("first", ["mirror run", "mirror status", "mirror set"])
def test_a_diverged_mirror_is_recovered(diverged: Pylog, mirror: str, first: str) -> None:
    """Every command that refuses it names both ways, and both are open."""
    Person(diverged).follow("^recover", *first.split(), mirror)
    assert is_healthy(mirror)
    assert Pylog(mirror).ok("consume", "orders").split() == ["a", "b", "c", "d", "e", "afterwards"]


def test_a_diverged_mirror_that_is_recovered_first(diverged: Pylog, mirror: str) -> None:
    """The refusal does not lead to a copy that is refused, too."""
    person = Person(Pylog(mirror))
    person.follow("^recover", "recover")
    assert is_healthy(mirror)
    assert not [line for line in person.typed if line.startswith("mirror")]


def test_a_log_whose_mirror_has_diverged_gets_a_new_mirror(diverged: Pylog, mirror: str, tmp_path: Path) -> None:
    """The other way: the later commits of the former mirror are given up."""
    Person(diverged, **{"NEW-MIRROR": str(tmp_path / "new")}).follow("^mirror set NEW", "mirror", "run", mirror)
    diverged.ok("mirror", "run", str(tmp_path / "new"))
    assert is_healthy(diverged.url)


def test_a_mirror_that_follows_takes_the_place_of_its_log(pylog: Pylog, mirror: str) -> None:
    """One more copy, and then by force."""
    pylog.ok("produce", "orders", stdin="d\n")
    Person(Pylog(mirror)).follow("^mirror run", "recover")
    Person(Pylog(mirror)).follow("^recover", "recover")
    assert Pylog(mirror).ok("consume", "orders").split() == ["a", "b", "c", "d"]
    assert is_healthy(mirror)


def test_a_mirror_that_was_away_for_too_long_catches_up(pylog: Pylog, mirror: str) -> None:
    """Its status fails before a run does."""
    pylog.ok("config", "alter", "-c", "gc.fence.age.ms=1", "-c", "metadata.checkpoint.interval=2")
    for _ in range(4):
        for value in "vwxyz":
            pylog.ok("produce", "orders", stdin=f"{value}\n")
        pylog.ok("maintain")
    Person(pylog).follow("--catch-up", "mirror", "status", mirror)
    assert pylog.ok("mirror", "status", mirror).endswith(" 0 versions behind\n")
    assert is_healthy(pylog.url) and Pylog(mirror).ok("verify", "--deep").startswith("no problems found")


@pytest.mark.parametrize("first", ["verify", "repair", "recover", "mirror run"])
def test_a_mirror_without_its_format_follows_again(pylog: Pylog, mirror: str, tmp_path: Path, first: str) -> None:
    (tmp_path / "mirror/meta/format").unlink()
    if first.startswith("mirror"):
        Person(pylog).follow("^mirror set", *first.split(), mirror)
    else:
        Person(Pylog(mirror), LOG=pylog.url).follow("^mirror set", first)
    pylog.ok("mirror", "run", mirror)
    assert is_healthy(pylog.url)
    assert "no problems found" in Pylog(mirror).ok("verify", "--deep")


@pytest.mark.parametrize("first", ["verify", "repair", "recover"])
def test_a_mirror_without_its_format_and_its_log_is_recovered(
    pylog: Pylog, mirror: str, tmp_path: Path, first: str
) -> None:
    """With the id that the operator has noted."""
    identity = pylog.json("cluster", "info")["cluster_id"]
    (tmp_path / "mirror/meta/format").unlink()
    shutil.rmtree(tmp_path / "log")
    Person(Pylog(mirror), ID=identity).follow("^recover --force", first)
    assert is_healthy(mirror) and Pylog(mirror).json("cluster", "info")["cluster_id"] == identity


def test_a_log_with_another_id_gets_its_own(pylog: Pylog, mirror: str, tmp_path: Path) -> None:
    """An id that no log can have is refused, and the mirror names the right one."""
    identity, other = pylog.json("cluster", "info")["cluster_id"], "0123456789abcdef" * 2
    for wrong in ("nonsense", identity[:-1], identity.upper()):
        assert "invalid id of a log" in pylog.refused("repair", "--cluster-id", wrong, "--yes")
    assert f"give the log the id {other} in place of {identity}" in pylog.refused("repair", "--cluster-id", other)
    (tmp_path / "log/meta/format").unlink()
    assert "invalid id of a log" in pylog.refused("repair", "--cluster-id", "nonsense", "--yes")
    pylog.ok("repair", "--cluster-id", other, "--yes")
    Person(pylog).follow("^repair --cluster-id", "mirror", "run", mirror)
    assert pylog.json("cluster", "info")["cluster_id"] == identity
    assert is_healthy(pylog.url)
    pylog.ok("mirror", "run", mirror)


def test_a_log_that_has_lost_its_format_gets_it_again(pylog: Pylog, mirror: str, tmp_path: Path) -> None:
    """A mirror or a copy has the id."""
    identity = Pylog(mirror).json("cluster", "info")["cluster_id"]
    (tmp_path / "log/meta/format").unlink()
    Person(pylog, ID=identity).follow("^repair", "verify")
    pylog.ok("mirror", "run", mirror)
    assert is_healthy(pylog.url)


def test_a_lost_checkpoint_is_written_again(pylog: Pylog, tmp_path: Path) -> None:
    for first in ("verify", "cluster health"):
        pylog.ok("checkpoint")
        pylog.ok("produce", "orders", stdin="more\n")
        pylog.ok("checkpoint")
        records = sorted((tmp_path / "log/meta/log").iterdir())
        records[0].unlink(missing_ok=True)
        max((tmp_path / "log/meta/ckpt").iterdir()).unlink()
        Person(pylog).follow("^checkpoint", *first.split())
        assert is_healthy(pylog.url)


@pytest.mark.parametrize("first", ["verify", "repair"])
@pytest.mark.parametrize("lost", [min, max])
def test_a_lost_checkpoint_of_a_log_at_rest_is_written_again(
    pylog: Pylog, tmp_path: Path, lost: Callable[[Iterable[Path]], Path], first: str
) -> None:
    """The checkpoint that is left is as new as the log."""
    pylog.ok("checkpoint")
    pylog.ok("produce", "orders", stdin="more\n")
    pylog.ok("checkpoint")
    pylog.ok("config", "alter", "-c", "num.partitions=2")
    pylog.ok("checkpoint")
    min((tmp_path / "log/meta/log").iterdir()).unlink()
    lost((tmp_path / "log/meta/ckpt").iterdir()).unlink()
    Person(pylog).follow("^checkpoint", first)
    assert is_healthy(pylog.url)


@pytest.mark.parametrize("first", ["repair", "cluster health"])
def test_versions_that_were_lost_and_given_again_are_given_up(tmp_path: Path, first: str) -> None:
    """A repair finds nothing that it could mend, and names the command that helps."""
    pylog = Pylog(tmp_path / "alone")
    for value in "abcdef":
        pylog.ok("produce", "orders", stdin=f"{value}\n")
    for record in sorted((tmp_path / "alone/meta/log").iterdir())[-3:]:
        record.unlink()
    assert pylog.run("maintain").exit_code == 1
    for value in "uvwxyz":
        pylog.ok("produce", "orders", stdin=f"{value}\n")
    Person(pylog).follow("--lose-data", *first.split())
    assert is_healthy(pylog.url) and pylog.ok("repair").startswith("nothing to repair")


def test_a_recovered_mirror_is_not_to_be_recovered_again(pylog: Pylog, mirror: str, tmp_path: Path) -> None:
    """The commands of a mirror lead to the log that it has become."""
    shutil.rmtree(tmp_path / "log")
    Person(pylog).follow("^recover", "mirror", "run", mirror)
    for verb in ("run", "status"):
        said = pylog.refused("mirror", verb, mirror)
        assert "is not a mirror, but a separate log" in said and "`pylog recover" not in said
        Person(pylog).follow("^topic list", "mirror", verb, mirror)
    assert is_healthy(mirror)


def test_a_lost_segment_of_a_compacted_topic_is_given_up(tmp_path: Path) -> None:
    """A view of its latest records does not take the loss for a compaction, which would be over at the next run."""
    pylog = Pylog(tmp_path / "alone")
    pylog.ok("topic", "create", "orders", "-c", "cleanup.policy=compact")
    for value in "ab":
        pylog.ok("produce", "orders", "-k", "k", stdin=f"{value}\n")
    max((tmp_path / "alone/data").glob("*/*.seg")).unlink()
    Person(pylog).follow("--lose-data", "consume", "orders", "--latest")
    assert pylog.ok("consume", "orders", "--latest").split() == ["a"]
    pylog.ok("produce", "orders", "-k", "k", stdin="c\n")
    assert pylog.ok("verify", "--deep").startswith("no problems found") and pylog.ok("cluster", "health")


@pytest.mark.parametrize("damage", ["missing", "damaged", "cut"])
@pytest.mark.parametrize("first", ["consume orders", "verify --deep", "verify --deep --repair"])
def test_a_lost_segment_without_a_copy_is_given_up(tmp_path: Path, damage: str, first: str) -> None:
    """Every command that meets it names the one that gives exactly its offsets up."""
    pylog = Pylog(tmp_path / "alone")
    for value in "abc":
        pylog.ok("produce", "orders", stdin=f"{value}\n")
    victim = sorted((tmp_path / "alone/data").glob("*/*.seg"))[1]
    data = victim.read_bytes()
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(data[:50] if damage == "cut" else data[:20] + bytes([data[20] ^ 1]) + data[21:])
    assert "maintenance could not read" not in pylog.run("maintain").stdout
    assert "the records at offsets 1 to 1 would be given up" in pylog.ok(
        "verify", "--deep", "--repair", "--lose-data", "--dry-run"
    )
    Person(pylog).follow("--lose-data", *first.split())
    assert pylog.ok("consume", "orders").split() == ["a", "c"]
    assert is_healthy(pylog.url)
    assert "no records would be given up" in pylog.ok("verify", "--deep", "--repair", "--lose-data", "--dry-run")
    assert "leave it out" in pylog.wrong("verify", "--dry-run")


def test_a_repaired_segment_is_not_set_aside_any_more(pylog: Pylog, mirror: str, tmp_path: Path) -> None:
    """Health is true after the repair, before the next maintenance."""
    victim = sorted((tmp_path / "log/data").glob("*/*.seg"))[1]
    victim.write_bytes(bytes(victim.stat().st_size))
    assert pylog.run("maintain").exit_code == 1
    Person(pylog, URL=mirror).follow("^verify --deep", "cluster", "health")
    pylog.ok("cluster", "health")
    assert is_healthy(pylog.url) and "set aside" not in pylog.ok("maintain")


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_restored_segment_is_not_set_aside_any_more(pylog: Pylog, tmp_path: Path, damage: str) -> None:
    """Somebody has copied the file back: what health advises finds nothing, and then health has nothing to say."""
    victim = sorted((tmp_path / "log/data").glob("*/*.seg"))[1]
    data = victim.read_bytes()
    victim.write_bytes(bytes(len(data)))
    if damage == "missing":
        victim.unlink()
    assert pylog.run("maintain").exit_code == 1
    assert "1 problem" in pylog.refused("verify", "--deep")
    assert "set aside" in pylog.refused("cluster", "health")
    victim.write_bytes(data)
    person = Person(pylog)
    person.follow("^verify --deep", "cluster", "health")
    assert person.typed[-1] == "verify --deep"
    pylog.ok("cluster", "health")
    assert is_healthy(pylog.url) and "set aside" not in pylog.ok("maintain")


def test_a_segment_whose_index_alone_is_damaged_is_written_again(tmp_path: Path) -> None:
    """The finding names what to do, and the repair what it did.  No record is lost."""
    pylog = Pylog(tmp_path / "alone")
    pylog.ok("produce", "orders", stdin="a\nb\n")
    [victim] = (tmp_path / "alone/data").glob("*/*.seg")
    data = bytearray(victim.read_bytes())
    data[-100] ^= 1
    victim.write_bytes(data)
    said = pylog.run("verify", "--deep").output
    assert "all its records can be read" in said and "1 problem found" in said
    person = Person(pylog)
    person.follow("--lose-data", "verify", "--deep")
    assert len(person.typed) == 3 and pylog.ok("consume", "orders").split() == ["a", "b"]
    assert is_healthy(pylog.url)


def test_a_segment_that_is_cut_is_named_once(tmp_path: Path) -> None:
    """With the offsets that it holds, as far as they are known."""
    pylog = Pylog(tmp_path / "alone")
    pylog.ok("produce", "orders", stdin="a\n")
    [victim] = (tmp_path / "alone/data").glob("*/*.seg")
    victim.write_bytes(victim.read_bytes()[:50])
    said = pylog.run("verify").output
    assert "1 problem found" in said and "bytes, not" in said and "offsets 0 to 0 of orders-0 may be unreadable" in said
    said = pylog.run("verify", "--deep").output
    assert "1 problem found" in said and "offsets 0 to 0 of topic 'orders', partition 0 cannot be read" in said
