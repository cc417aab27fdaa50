"""Erasures that end while something else is in progress: maintenance, transactions, backups."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from simulation.harness.clocks import ManualClock
from simulation.harness.stores import Names, Wrapper
from spark_log import Log, NewTopic
from spark_log.errors import UploadFenced
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import compact, maintain_once
from spark_log.recovery.backup import back_up, begin_place, prune
from spark_log.recovery.backup_copies import BackupShare, CopiedShare, copy_share
from spark_log.recovery.backup_files import BackupFiles
from spark_log.recovery.verify import verify
from spark_log.replication.copy_throttle import Pace
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from tests.hidden_bytes import files_with, has_text
from tests.thinning import merge_all, seal_all

KEY, SECRET = b"customer-1738", b"secret-person"
AGE_MS = 24 * 3_600_000
CONFIGS = {"compression.type": "zstd", "min.cleanable.dirty.ratio": "0"}


class Interrupted(Wrapper):
    """A store before whose n-th request something else happens."""

    def __init__(self, inner: ObjectStore, number: int, happens: Callable[[], None]) -> None:
        super().__init__(inner)
        self.left, self._happens = number, happens

    def _next(self) -> None:
        self.left -= 1
        if self.left == 0:
            self._happens()

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._next()
        super().put(key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        self._next()
        return super().put_new(key, data)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._next()
        return super().get(key, start, end)

    def list(self, prefix: str) -> Names:
        self._next()
        return super().list(prefix)


@dataclass
class Place:
    """A log in memory, which several processes use."""

    clock: ManualClock = field(default_factory=ManualClock)
    store: MemoryStore = field(default_factory=lambda: MemoryStore(uuid.uuid4().hex))

    def open(self, store: ObjectStore | None = None) -> Log:
        return Log(Journal.open(store or self.store, create=True, clock=self.clock, rng=random.Random(7)))

    def fill(self, policy: str = "delete") -> Log:
        log = self.open()
        for topic in ("t", "u"):
            log.create_topic(NewTopic(topic, 2, {**CONFIGS, "cleanup.policy": policy}))
        for number in range(8):
            with log.transaction("x") as transaction:
                for topic in ("t", "u"):
                    for part in (0, 1):
                        for key in (b"other-%d" % (number % 3), KEY if number % 3 == part else b"same"):
                            value = SECRET if key == KEY else b"%d" % number
                            transaction.send(topic, value, key=key, partition=part)
            self.clock.ms += 1000
            if number == 4:
                seal_all(log)
        return log

    def end_erasures(self) -> None:
        """Maintenance until they are done."""
        log = self.open()
        for _ in range(8):
            if not log.admin.list_erasures():
                return
            self.clock.ms += AGE_MS // 2
            maintain_once(log)
        raise AssertionError(log.admin.list_erasures())

    def files_with(self, *texts: bytes) -> list[str]:
        names = [name for prefix in ("data/", "meta/") for name in self.store.list(prefix)]
        return [name for name in names if any(has_text(self.store.get(name), text) for text in texts)]


def erase(log: Log) -> None:
    for topic in ("t", "u"):
        assert log.admin.erase_records(topic, [KEY]).problems == ()


def offsets_of_others(log: Log) -> dict[tuple[str, int], set[int]]:
    found = {}
    for topic in ("t", "u"):
        for part in (0, 1):
            table = log.read(topic, part)
            rows = zip(table.column("offset").to_pylist(), table.column("key").to_pylist(), strict=True)
            found[topic, part] = {offset for offset, key in rows if key != KEY}
    return found


DUTIES: dict[str, Callable[[Log], object]] = {
    "merge": merge_all,
    "compaction": compact,
    "seal": seal_all,
    "maintenance": maintain_once,
}


# Promise: tasks/erase.md#when-the-records-are-gone
@pytest.mark.parametrize("duty", DUTIES)
@pytest.mark.parametrize("begins", ["the duty", "the erasure"])
def test_maintenance_in_flight(duty: str, begins: str) -> None:
    """Planned before the erasure and committed after it, or the other way around: before some request of the one
    that begins, the other one runs as a whole."""
    first, second = (DUTIES[duty], erase) if begins == "the duty" else (erase, DUTIES[duty])
    policy = "compact" if duty in ("compaction", "maintenance") else "delete"
    count = requests_of(first, policy)
    for number in range(1, count + 1, max(1, count // 4)):
        place = Place()
        before = offsets_of_others(place.fill(policy))
        store = Interrupted(place.store, 0, partial(second, place.open()))
        beginning = place.open(store)
        store.left = number
        first(beginning)
        assert store.left <= 0
        place.end_erasures()
        assert place.files_with(KEY, SECRET) == [], number
        after = offsets_of_others(place.open())
        assert all(after[one] and after[one] <= before[one] for one in before)
        assert policy == "compact" or after == before
        assert verify(place.open(), deep=True) == []


def requests_of(duty: Callable[[Log], object], policy: str) -> int:
    """How many requests a duty sends that nobody disturbs."""
    place = Place()
    place.fill(policy)
    store = Interrupted(place.store, 0, lambda: None)
    log = place.open(store)
    store.left = 0
    duty(log)
    return -store.left


def test_a_transaction_that_was_open() -> None:
    """Its records are after the report's offsets, and another erasure finds them; of an aborted one nothing stays."""
    place = Place()
    log = place.fill()
    aborted = log.transaction("aborted")
    aborted.__enter__()
    with log.transaction("open") as transaction:
        for one in (aborted, transaction):
            one.append("t", [{"key": KEY, "value": SECRET, "partition": 0}] * 20_000)
        assert place.files_with(SECRET)
        report = log.admin.erase_records("t", [KEY])
        assert report.records == 6
    assert transaction.offsets[("t", 0)].start >= report.before[0]  # type: ignore[index]
    aborted.__exit__(ValueError, ValueError("given up"), None)
    assert log.read("t", 0).column("key").to_pylist().count(KEY) == 20_000
    assert log.admin.erase_records("t", [KEY]).records == 20_000
    log.admin.erase_records("u", [KEY])
    place.end_erasures()
    assert place.files_with(KEY, SECRET) == []


# Promise: tasks/erase.md#when-the-records-are-gone
def test_a_transaction_that_is_still_open_when_the_erasure_is_done() -> None:
    """Its objects are deleted with the others, and its commit is refused."""
    place = Place()
    log = place.fill()
    transaction = log.transaction("open", transaction_timeout_ms=900_000)
    transaction.__enter__()
    transaction.append("t", [{"key": KEY, "value": SECRET, "partition": 0}] * 20_000)
    erase(log)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1000"}})
    while log.admin.list_erasures():
        place.clock.ms += 2000
        maintain_once(place.open())
    assert place.files_with(KEY, SECRET) == []
    with pytest.raises(UploadFenced):
        transaction.__exit__(None, None, None)
    assert KEY not in log.read("t").column("key").to_pylist()


def copied(log: Log, files: BackupFiles, shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
    for share in shares:
        yield copy_share(log.journal.objects, files.folder(share.folder), share, Pace(log.journal.context.clock))


# Promise: tasks/erase.md#when-the-records-are-gone
def test_a_backup_in_flight(tmp_path: Path) -> None:
    """Whenever the erasure runs, the backup lacks the records, or a later one names the erasure for it.  A backup after
    it, and the removal of those of before, leave no byte of them."""
    for number in (1, 3, 6, 9, 12):
        place, root = Place(), tmp_path / str(number)
        place.fill()
        store = Interrupted(place.store, 10**9, partial(erase, place.open()))
        log = place.open(store)
        store.left = number
        files = BackupFiles(LocalStore(str(root), "os"), lambda folder, root=root: LocalStore(str(root / folder), "os"))

        copy = partial(copied, log, files)
        begin_place(log, files, create=True)
        first = back_up(log, files, copy).backup
        if store.left > 0:
            erase(place.open())
        state = files.state(first.end.state)
        place.clock.ms += 1000
        back_up(place.open(), files, copy)
        assert state is not None
        has_key = bool(files_with(root, KEY))
        assert not has_key or {row.name for row in files.erased_since(first, state).values()} == {"t", "u"}
        prune(files, place.clock.ms + 10 * AGE_MS, keep=1)
        assert files_with(root, KEY) == []
