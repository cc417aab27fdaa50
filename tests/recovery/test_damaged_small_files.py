"""A small file of a log, its mirror or its backups is damaged: every command says so, and nothing that is untrue."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_log import Log, NewTopic, connect
from spark_log.errors import CorruptObject, SparkLogError
from spark_log.groups.subscription import decode_subscription
from spark_log.journal.journal import Journal
from spark_log.journal.lost_versions import noted_loss
from spark_log.journal.maintenance_limits import LIMITS
from spark_log.maintenance.maintain import maintain_once
from spark_log.recovery.backup import check_follows
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.roots.broker_roots import BROKER_KEY, read_broker_file
from spark_log.roots.root_owner import OWNER_KEY, owner_of
from spark_log.store.local import LocalStore
from spark_log.store.object_names import LOST_VERSIONS
from tests.cli.commands import Pylog
from tests.maintenance.logs import append_small
from tests.recovery.test_backup import Place

FEW = replace(LIMITS, dropped_inline=3)
UNTRUE = ("older copy of", "was restored", "set back", "new log", "is not a mirror", "by a repair")
"""Parts of messages about what has not happened."""
RNG = random.Random(1)
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "random": lambda data: RNG.randbytes(len(data)),
    "a byte": lambda data: data[: len(data) * 2 // 3] + b"\xff" + data[len(data) * 2 // 3 + 1 :],
}
COMMANDS = (
    ("verify",),
    ("cluster", "health"),
    ("maintain", "--dry-run"),
    ("gc", "--dry-run"),
    ("repair", "--dry-run"),
    ("mirror", "status", "MIRROR"),
    ("verify", "-u", "MIRROR"),
    ("recover", "--force", "--dry-run", "-u", "MIRROR"),
    ("consume", "t"),
    ("produce", "t"),
    ("maintain",),
    ("mirror", "run", "MIRROR"),
    ("mirror", "set", "MIRROR"),
)
"""The commands that change something are the last."""


def build(root: Path) -> None:
    """A log with a list of dropped objects, a mirror of an earlier version, and backups from before the merge."""
    log = Log(Journal.open(LocalStore(str(root / "log"), "os"), create=True, limits=FEW))
    log.create_topic(NewTopic("t", 1, {"retention.ms": "-1"}))
    append_small(log, 6)
    Place(log, root / "backups").make()
    maintain_once(log)
    assert log.journal.refresh().dropped_lists
    append_small(log, 2, first=6)
    store = LocalStore(str(root / "mirror"), "os")
    begin_mirror(log, store)
    Mirror(log, store).round()
    maintain_once(log)
    append_small(log, 2, first=8)
    log.close()


def small_files(root: Path) -> list[str]:
    """The small files of the metadata, the lists of dropped objects, and what describes backups.

    Of the log's records: the one of the mirror's version, the first and the last.
    """
    files = [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]
    records = [name for name in files if name.startswith("log/meta/log/")]
    others = {name for name in records[1:-1] if name.replace("log/", "mirror/", 1) not in files}
    small = [name for name in files if "/meta/" in name or name.endswith((".dropped", ".json", ".state"))]
    return [name for name in small if name not in others]


def outcomes(root: Path) -> Iterator[tuple[str, int, str]]:
    """The exit status and the output of each command."""
    for args in COMMANDS:
        line = [str(root / "mirror") if arg == "MIRROR" else arg for arg in args]
        ran = Pylog(root / "log").run(*line, stdin="z\n")
        assert ran.exception is None or isinstance(ran.exception, SystemExit), (args, ran.exception)
        assert args[0] != "consume" or ran.exit_code or ran.stdout.count("\n") == 30, args
        yield " ".join(args), ran.exit_code, ran.output
        if args[0] == "consume":
            yield "back up", *back_up(root)


def back_up(root: Path) -> tuple[int, str]:
    try:
        with connect(str(root / "log"), create=False, durability="os") as log:
            place = Place(log, root / "backups")
            check_follows(log, place.files)
            place.make()
    except SparkLogError as error:
        return 1, str(error)
    return 0, ""


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_each_command_is_true_about_each_damaged_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that fails names the file."""
    caplog.set_level("ERROR")
    root, kept = tmp_path / "root", tmp_path / "kept"
    build(root)
    shutil.copytree(root, kept)
    names, kinds = small_files(root), list(DAMAGES)
    assert {"log", "mirror", "backups"} == {name.partition("/")[0] for name in names}
    for number, name in enumerate(names):
        kind = kinds[number % len(kinds)]
        shutil.rmtree(root)
        shutil.copytree(kept, root)
        (root / name).write_bytes(DAMAGES[kind]((root / name).read_bytes()))
        for command, status, text in outcomes(root):
            said = re.sub(r"[^.:]*\bif\b[^.:]*", "", text, flags=re.IGNORECASE)
            assert not [part for part in UNTRUE if part in said], (name, kind, command, text)
            assert not status or name.partition("/")[2] in text, (name, kind, command, text)


def test_a_list_of_dropped_objects_that_is_damaged_hides_whether_the_log_was_set_back(tmp_path: Path) -> None:
    """The backup says so, and what helps.  A log that was set back is refused as before."""
    build(tmp_path)
    (path,) = (tmp_path / "log" / "data").rglob("*.dropped")
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    log, files = connect(str(tmp_path / "log")), Place(connect(str(tmp_path / "log")), tmp_path / "backups").files
    with pytest.raises(CorruptObject, match="dropped is damaged: .* so it cannot be told .* Restore the list"):
        check_follows(log, files)
    path.write_bytes(data)
    check_follows(log, files)


def test_a_list_of_another_log_is_damaged(tmp_path: Path) -> None:
    build(tmp_path / "one")
    build(tmp_path / "two")
    (path,), (other,) = ((tmp_path / one / "log" / "data").rglob("*.dropped") for one in ("one", "two"))
    shutil.copy(other, path)
    assert "is another list of dropped objects" in Pylog(tmp_path / "one" / "log").run("verify").output


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_files_without_a_checksum_that_are_no_json(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """The marks of a broker's root, and what members of a group say to each other."""
    store = LocalStore(str(tmp_path), "os")
    store.put(
        BROKER_KEY, (damage(b'{"format":1,"broker":1,"directory":"0123456789abcdef0123456789","cluster_id":"1"}'),)
    )
    store.put(OWNER_KEY, (damage(b'{"host":"here","log":"file:///abcdefghijklmnopqrstuvwxyz"}'),))
    with pytest.raises(CorruptObject, match="broker.json is damaged"):
        read_broker_file(store)
    assert owner_of(store) == ""
    assert decode_subscription(damage(b'{"topics":["abcdefghijklmnopqrstuvwxyz"]}')) is None


def test_a_note_of_lost_versions_that_is_no_json(tmp_path: Path) -> None:
    log = connect(str(tmp_path))
    log.journal.metadata.put(LOST_VERSIONS, (b'{"after":1,"upto":2,"objects":["\xff"]}',))
    with pytest.raises(CorruptObject, match="is damaged"):
        log.journal.run(noted_loss())
