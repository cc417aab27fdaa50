"""`pylog verify` of a log with brokers: looks at every copy on every active root, and restores bad ones from good
ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_log.client.admin.brokers import check_answers
from spark_log.client.log import Log
from spark_log.errors import InvalidRequest, SparkLogError, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.journal.storage.missing_indexes import GIVE_UP, GIVE_UP_DAMAGED
from spark_log.metadata.commands import Report
from spark_log.metadata.maps.column_map import rows_with_copies
from spark_log.metadata.records import Copy, MissingRecord
from spark_log.metadata.replicas.replicas import copies_of, epoch_of, is_active
from spark_log.metadata.state import ObjectRow, State
from spark_log.recovery.verify_objects import Spread, each, here, shares_of
from spark_log.replication.checked_copies import BadCopy, SourceFailed, check_copy, copy_checked
from spark_log.replication.copy_throttle import Pace
from spark_log.rewriting.rewrite import Progress
from spark_log.roots.broker_roots import Roots
from spark_log.store.base import ObjectStore

UNREADABLE_MAX = 8
"""With so many copies that cannot be read, the others of a root are not tried: each of them may take half a minute."""


@dataclass(frozen=True, slots=True)
class BadCopyFound:
    """A copy that a broker should have, and that is not there or is damaged."""

    object: str
    broker: int
    epoch: int
    message: str
    unreadable: bool = False
    """The root fails with this one, as a disk with a bad sector does: it may be good."""


@dataclass(frozen=True, slots=True)
class CheckedCopies:
    """All copies of the objects of a log's brokers."""

    bad: tuple[BadCopyFound, ...] = ()
    unreachable: Mapping[int, str] = field(default_factory=dict)
    """By broker, why its root cannot be read; its copies were not checked."""
    lost: frozenset[str] = frozenset()
    """Objects without a good copy on any root that can be read."""

    def good(self, state: State, name: str) -> list[int]:
        """Active brokers with a good copy of an object."""
        copies = copies_of(state, state.objects[name])
        bad = {one.broker for one in self.bad if one.object == name}
        known = () if copies is None else copies.brokers
        return [b for b in known if b not in bad and b not in self.unreachable and is_active(state, b)]


def is_replicated(state: State, row: ObjectRow) -> bool:
    """Whether an object belongs to a placement group, and not to the log's own root alone."""
    return copies_of(state, row) is not None


class CopiesToCheck(NamedTuple):
    """Copies on one root.  Sent to tasks."""

    broker: int
    rows: tuple[tuple[str, ObjectRow], ...]
    deep: bool


class BadCopySeen(NamedTuple):
    """A bad copy on the root of a share."""

    object: str
    message: str
    unreadable: bool = False


class SharedCheck(NamedTuple):
    """The result of a share."""

    copies: int
    bad: list[BadCopySeen]
    failed: str = ""
    """Why the root cannot be read, or not completely."""


def check_copies(
    journal: Journal,
    state: State,
    deep: bool = False,
    progress: Progress | None = None,
    spread: Spread | None = None,
) -> CheckedCopies:
    """Check every copy on every active root: whether it is there with its size, and if `deep`, all of its bytes.

    Copies that the log has recorded as gone meanwhile are left out.

    spread:  does what reads objects; None: this process.
    """
    spread = spread or here(journal.roots)
    found, unreachable = list[BadCopyFound](), dict[int, str]()
    total, done = count_copies(state), 0

    def note(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress("copies", done, total)

    for broker in brokers_to_check(state):
        bad_here, why = _check_root(journal, broker, _copy_shares(state, broker, deep), spread, note)
        epoch = epoch_of(state, broker) or 0
        found += (BadCopyFound(one.object, broker, epoch, one.message, one.unreadable) for one in bad_here)
        if why:
            unreachable[broker] = why
    bad = tuple(_still_held(journal.refresh(), found)) if found else ()
    checked_copies = CheckedCopies(bad, unreachable)
    return CheckedCopies(bad, unreachable, frozenset(_lost(state, checked_copies)))


def brokers_to_check(state: State) -> list[int]:
    """Active brokers that should have copies."""
    having = {broker for copies in state.copies.values() for broker in copies.brokers}
    return sorted(broker for broker in having if is_active(state, broker))


def count_copies(state: State) -> int:
    """Copies that brokers should have."""
    return sum(copies.objects * len(copies.brokers) for copies in state.copies.values())


def _check_root(
    journal: Journal, broker: int, shares: Iterator[CopiesToCheck], spread: Spread, note: Callable[[int], None]
) -> tuple[list[BadCopySeen], str]:
    """The bad copies of a broker, and why its root cannot be read, or not completely."""
    found, why = list[BadCopySeen](), ""
    try:
        check_answers(journal.roots, broker)
        for checked in spread(find_bad_copies, shares):
            found += checked.bad
            note(checked.copies)
            if why := checked.failed or _too_many(found):
                break
    except (SparkLogError, OSError, KeyError) as error:
        why = str(error)
    try:
        if found:  # its disk may have been unmounted meanwhile
            check_answers(journal.roots, broker)
    except (SparkLogError, OSError, KeyError) as error:
        return [], str(error)
    return found, why


def _too_many(found: Sequence[BadCopySeen]) -> str:
    """A sentence, if more copies cannot be read than are tried."""
    count = sum(one.unreadable for one in found)
    return f"{count} copies cannot be read" if count > UNREADABLE_MAX else ""


def unchecked_brokers(state: State) -> list[str]:
    """A sentence for each fenced broker that should have copies: nobody has looked at them."""
    having = {broker for copies in state.copies.values() for broker in copies.brokers}
    return [
        f"the copies of broker {broker} were not checked, because it is fenced: {known.reason}"
        for broker, known in sorted(state.brokers.items())
        if known.fenced and broker in having
    ]


def only_on_fenced(state: State) -> dict[tuple[int, ...], int]:
    """How many objects have copies on fenced brokers alone, by these brokers."""
    found: Counter[tuple[int, ...]] = Counter()
    for copies in state.copies.values():
        if copies.objects and copies.brokers and not any(is_active(state, broker) for broker in copies.brokers):
            found[copies.brokers] += copies.objects
    return dict(sorted(found.items()))


def _lost(state: State, checked: CheckedCopies) -> Iterator[str]:
    none = {number for number, copies in state.copies.items() if not copies.brokers}
    if none:
        yield from (name for name, _ in rows_with_copies(state.objects, none))
    for name in {one.object for one in checked.bad}:
        if not checked.good(state, name):
            yield name


def _copy_shares(state: State, broker: int, deep: bool) -> Iterator[CopiesToCheck]:
    """The copies that a broker should have."""
    held = {number for number, copies in state.copies.items() if broker in copies.brokers}
    rows = rows_with_copies(state.objects, held)
    for some in shares_of(rows, lambda one: one[1].size if deep else 0):
        yield CopiesToCheck(broker, some, deep)


def find_bad_copies(roots: Roots, share: CopiesToCheck) -> SharedCheck:
    """The copies of a share that are missing or damaged, or cannot be read while the root answers."""
    found = list[BadCopySeen]()

    def check(row: tuple[str, ObjectRow]) -> None:
        try:
            message = _problem(store, *row, share.deep)
        except (SparkLogError, OSError) as error:
            if sum(one.unreadable for one in found) >= UNREADABLE_MAX:
                raise StorageUnavailable(
                    f"{UNREADABLE_MAX} copies cannot be read, and not this one: {error}"
                ) from error
            check_answers(roots, share.broker)
            found.append(BadCopySeen(row[0], f"the copy cannot be read: {error}", unreadable=True))
        else:
            if message:
                found.append(BadCopySeen(row[0], message))

    why = ""
    try:
        store = roots[share.broker]
        each(check, share.rows, local=store.local)
    except (SparkLogError, OSError, KeyError) as error:
        why = str(error)
    try:
        if found:  # on the machine of a task, its disk may not be mounted
            check_answers(roots, share.broker)
    except (SparkLogError, OSError, KeyError) as error:
        return SharedCheck(0, [], str(error))
    return SharedCheck(0 if why else len(share.rows), found, why)


def _problem(store: ObjectStore, name: str, row: ObjectRow, deep: bool) -> str:
    """The defect of a copy; empty if it has none."""
    size = store.size(name)
    if size is None:
        return "the copy is not there"
    if size != row.size:
        return f"the copy has {size} bytes, not {row.size}"
    if deep:
        try:
            check_copy(store, name, row)
        except BadCopy as error:
            return str(error)
    return ""


def _still_held(state: State, found: Sequence[BadCopyFound]) -> Iterator[BadCopyFound]:
    for one in found:
        row = state.objects.get(one.object)
        copies = copies_of(state, row) if row is not None else None
        if copies is not None and one.broker in copies.brokers and epoch_of(state, one.broker) == one.epoch:
            yield one


# ----------------------------------------------------------------------------------------------------------------- repair


@dataclass(frozen=True, slots=True)
class CopyRepair:
    """The result of a repair."""

    repaired: tuple[str, ...] = ()
    """The copies that were replaced by good ones, as `broker 2: data/…`."""
    removed: tuple[str, ...] = ()
    """Bad copies that could not be replaced: the log knows now that they are missing.  Those that cannot be read are
    not among them.
    """


def repair_copies(
    log: Log, deep: bool = False, *, progress: Progress | None = None, spread: Spread | None = None
) -> CopyRepair:
    """Replace bad copies by good copies of other brokers.  Copies that cannot be replaced are recorded as missing.

    spread:  looks for the bad copies, which this process replaces; None: this process does both.
    Raises InvalidRequest for a log without brokers.
    """
    journal = log.journal
    journal.require(None)
    state = journal.refresh()
    if not state.brokers:
        raise InvalidRequest(
            "the log has no brokers, so there are no other copies: take the objects from another copy of the log, such as "
            f"a mirror, by `pylog verify --deep --repair-from URL`, or {GIVE_UP_DAMAGED if deep else GIVE_UP}"
        )
    checked = check_copies(journal, state, deep, progress, spread)
    repaired, removed = list[BadCopyFound](), list[BadCopyFound]()
    for number, bad in enumerate(checked.bad):
        if _replaced(journal, state, bad, checked):
            repaired.append(bad)
        elif not bad.unreadable:
            removed.append(bad)
        if progress is not None:
            progress("repair", number + 1, len(checked.bad))
    if removed:
        copies = tuple(Copy(bad.object, bad.broker, bad.epoch) for bad in removed)
        journal.propose(Report.of(state, MissingRecord(copies=copies)))
    return CopyRepair(*(tuple(f"broker {one.broker}: {one.object}" for one in some) for some in (repaired, removed)))


def _replaced(journal: Journal, state: State, bad: BadCopyFound, checked: CheckedCopies) -> bool:
    row, target = state.objects[bad.object], journal.roots[bad.broker]
    for broker in checked.good(state, bad.object):
        try:
            journal.roots.check(bad.broker, again=True)
            copy_checked(journal.roots[broker], target, bad.object, row, Pace(journal.context.clock))
        except (BadCopy, SourceFailed):
            continue
        except SparkLogError:
            return False
        now = journal.refresh()
        if bad.object not in now.objects and bad.object not in now.dropped:
            target.delete([bad.object])  # garbage collection has passed meanwhile, and will not come again
        return True
    return False
