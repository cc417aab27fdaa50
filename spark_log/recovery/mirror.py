"""A mirror: a copy of a log in another root, which follows it version by version.

A mirror has its own metadata log, whose records are those of the log it follows, byte for byte.  The objects that a
record makes visible are copied before the record.  So a mirror is at any time the whole log at an earlier version: it
can be read, it writes its own checkpoints, and its own garbage collection deletes what is garbage at that version.
Nothing else changes it, until it is recovered: then it is a separate log (docs/decisions/0062-mirrors.md).

If the log has deleted records that the mirror lacks, the mirror copies the objects of the newest state instead, and
writes that state as its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_log.client.log import Log
from spark_log.errors import (
    CorruptObject,
    InvalidRequest,
    LogMoved,
    LogRestored,
    NoLog,
    ObjectNotFound,
    SparkLogError,
    StorageError,
)
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.rounds import rounds
from spark_log.journal.storage.checkpointing import (
    checkpoint,
    damaged_between,
    damaged_checkpoints,
    is_kept,
    lost_checkpoint,
    truncate,
)
from spark_log.journal.storage.log_format import Format, parse_format
from spark_log.journal.storage.log_remains import find_remains
from spark_log.journal.storage.opening import KEPT_CHECKPOINTS, WAVE_MAX, View, open_view
from spark_log.journal.storage.storage_log import begin_log
from spark_log.journal.store_operations import Get, Steps, Stores, run
from spark_log.log_lines import logger
from spark_log.maintenance.erasure_ends import MirrorCleaner
from spark_log.metadata.commits.pending_commits import optional_copies
from spark_log.metadata.decide_coordinators import moved_to
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.records import CommitRecord, ListDroppedRecord, LostRecord, SwapRecord
from spark_log.metadata.renewed_ids import has_accepted_loss, versions_since
from spark_log.metadata.replay import replay
from spark_log.metadata.replicas.replicas import copies_of, is_active
from spark_log.metadata.state import ObjectRow, State
from spark_log.recovery.late_files import note_version
from spark_log.recovery.lost_log import damage_of_record, has_other_history
from spark_log.recovery.mirror_copier import PARALLEL_COPIES, MirrorCopier
from spark_log.recovery.mirror_source import check_is_mirror, check_replaceable
from spark_log.recovery.whole_copies import lacking_in_mirror, needed_objects
from spark_log.rewriting.rewrite import Progress
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import CHECKPOINTS, DATA, FORMAT_KEY, listed, log_key
from spark_log.store.retry import with_retries


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The result of a round."""

    version: int
    """The version that the mirror has."""
    versions: int
    """By how many versions it has advanced."""
    objects: int
    bytes: int
    """Number and size of the copied objects."""
    behind: int
    """Versions that the log has and the mirror lacks: those since the round began."""
    problem: str = ""
    """A sentence on objects that the mirror lacks, and the command that helps; only in a process's first round."""


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """How far a mirror is behind its log."""

    version: int
    """The version that the mirror has; 0: nothing yet."""
    behind: int
    """Versions that the log has and the mirror lacks."""
    behind_ms: int
    """Time since the first of these versions was written, by this process's clock; 0 if there is none."""
    must_catch_up: bool
    """The log has deleted some of their records or objects: only `round(catch_up=True)` continues the mirror."""
    problem: str = ""
    """A sentence on objects that the mirror lacks of the versions that it has, and the command that helps."""
    after_loss: bool = False
    """Lost versions of the log were given up since: those that the mirror has may be the only ones."""


def catch_up_text(mirror: str, log: str, version: int) -> str:
    """The advice for a mirror that cannot be continued version by version.

    mirror, log:  URLs.
    version:      that of the mirror.
    """
    return (
        f"{mirror} has version {version}, and {log} has deleted or lost records or objects of the versions up to the "
        f"newest, or the mirror has lost the record of its version. `pylog mirror run {mirror} --catch-up` replaces the "
        "mirror by the newest version. Do not run it if an older copy of the log was restored: then only the mirror has "
        "the later commits"
    )


def begin_mirror(log: Log, store: ObjectStore) -> None:
    """Make an empty folder or prefix the mirror of a log.  `Mirror` then copies to it.

    If the root is a mirror of this log already, only `meta/format` is written: the log's URL changes when it is moved,
    and the file may be lost.
    Raises InvalidRequest for a root that has something else, for a root within the log or around it, and for a log
    whose metadata files this process cannot read: a mirror copies these files.  Raises LogRestored as `Mirror.round`
    does.
    """
    journal = log.journal
    if journal.metadata_log.is_served:
        journal.metadata.get(FORMAT_KEY)  # raises
    store = with_retries(store, journal.context.clock, journal.context.random())
    form = check_place_of_mirror(log, store)
    if form is None:
        begin_log(Stores.of(store), journal.context, journal.cluster_id, journal.metadata.url)
    else:
        store.put(FORMAT_KEY, (form.of_mirror(journal.metadata.url).encode(),))
    Mirror(log, store).check_follows()


def check_place_of_mirror(log: Log, store: ObjectStore) -> Format | None:
    """The format of a root, if the root is a mirror of the log, or was one before the log moved; None if it is empty,
    or a mirror without the file.

    Raises InvalidRequest as `begin_mirror` does.
    """
    journal = log.journal
    here, there = f"{store.url}/", f"{journal.metadata.url}/"
    if here != there and (here.startswith(there) or there.startswith(here)):
        raise InvalidRequest(f"{here} and {there}: a mirror and its log must not lie within each other")
    form = format_of(store)
    found = file_of_log(store) if form is None else ""
    if found:
        form = format_of(store)  # another process may have begun it meanwhile
    if form is None and found and not _has_lost_format(store, journal):
        raise InvalidRequest(f"{store.url} has {found}: a mirror begins in an empty folder")
    if form is not None:
        check_is_mirror(form, store, journal)
    return form


def _has_lost_format(store: ObjectStore, log: Journal) -> bool:
    """Whether a root without the file is a mirror: it has the log's newest record that it knows, and all objects."""
    try:
        state = run(open_view(), Stores.of(store), log.context.clock).state
        last = [log_key(state.version)]
        mine, theirs = run(_get_all(last), Stores.of(store), log.context.clock), log.run(_get_all(last))
    except SparkLogError:
        return False
    return mine == theirs != [None] and needed_objects(state).keys() <= set(listed(store, DATA))


class Mirror:
    """Copies a log to its mirror.  Not thread-safe; several processes may copy to one mirror."""

    def __init__(self, log: Log, store: ObjectStore) -> None:
        """
        store:  the root of the mirror, as given to `begin_mirror`.
        Raises NoLog if nothing was begun there, such as in the folder of a disk that is not mounted; InvalidRequest for
        a root that is not a mirror of this log.
        """
        self._source = log.journal
        context = self._source.context
        self._store = with_retries(store, context.clock, context.random())
        self._journal: Journal | None = None
        self._cleaner = MirrorCleaner()
        self._has_looked = False
        """Whether the checkpoints are those of a copy that ended."""
        self._ahead = frozenset[str]()
        """Objects of pending commits that this process has copied."""
        self._noted = 0
        """The version that this process has noted."""
        _check_format(self._store, self._source)

    def round(self, progress: Progress | None = None, *, catch_up: bool = False, force: bool = False) -> Mirrored:
        """Copy the records and objects that the mirror lacks.

        progress:  called with ("copy", bytes, total) in each part of the copy.
        catch_up:  if the log has deleted some of these records or objects, copy the log's newest version.  If False,
                   that raises InvalidRequest.
        force:     replace also a mirror that has records which the log lacks.
        Raises InvalidRequest for a mirror that was recovered, and without `force` for one that has such records;
        LogRestored if an older copy of the log was restored; CorruptObject if an object of the log is missing;
        StorageUnavailable if the only root that has it is away.
        """
        newest, journal = self._look()
        copier = MirrorCopier(self._source, self._store, progress)
        before = journal.state.version if journal is not None else 0
        if journal is None or not self._follow(journal, newest.version, copier):
            if journal is not None and not catch_up:
                raise InvalidRequest(catch_up_text(self._store.url, self._source.metadata.url, before))
            if journal is not None and not force:
                check_replaceable(journal, self._source)
            self._jump(copier)
            self._journal = None
            journal = self._opened()
        assert journal is not None, "there is a checkpoint"
        self._note(journal.state.version)
        self._copy_pending(copier)
        known = journal.view
        journal.adopt(journal.run(self._maintenance(journal, known)), known)
        problem = "" if self._has_looked else lacking_in_mirror(journal, self._source.metadata.url)
        self._has_looked = True
        version = journal.state.version
        behind = versions_since(version, self._source.refresh().version)
        return Mirrored(version, versions_since(before, version), copier.objects, copier.bytes, behind, problem)

    def status(self) -> MirrorStatus:
        """How far the mirror is behind.  Raises the errors of `round`, if that cannot continue the mirror."""
        newest, journal = self._look()
        state = State() if journal is None else journal.state
        is_known = journal is None or self._is_known(journal)
        next_key = log_key(state.version + 1)
        (record,) = self._source.run(_get_all([next_key]))
        since_ms = state.time if record is None else decode_batch(record, next_key).time
        behind, now_ms = versions_since(state.version, newest.version), self._source.context.clock.now_ms()
        is_gone = bool(behind) and (record is None or not self._is_kept(state.version + 1))
        must_catch_up = journal is not None and (is_gone or not is_known)
        problem = "" if journal is None else lacking_in_mirror(journal, self._source.metadata.url)
        return MirrorStatus(
            state.version,
            behind,
            max(0, now_ms - since_ms) if behind else 0,
            must_catch_up,
            problem,
            has_accepted_loss(newest.version, state.version),
        )

    def check_follows(self) -> None:
        """Raises LogRestored if the mirror has records that the log does not have."""
        _, journal = self._look()
        if journal is not None:
            self._is_known(journal)

    def _look(self) -> tuple[State, Journal | None]:
        """The newest state of the log, and the mirror's refreshed journal, None if it has no state yet."""
        _check_format(self._store, self._source)
        there = self._source.refresh_if_there()
        if url := moved_to(self._source.state.coordinator):
            raise LogMoved(
                f"{self._source.metadata.url} was moved to {url}: run `pylog mirror set {self._store.url} -u {url}`, and "
                "then copy from there",
                url=url,
            )
        if not there:
            raise NoLog(f"{self._source.metadata.url} was deleted or replaced: is its disk mounted?")
        newest, journal = self._source.state, self._opened()
        if journal is not None and journal.refresh().version > newest.version:
            newest = self._source.refresh()  # another process may have copied what was written meanwhile
        if journal is not None and journal.state.version > newest.version:
            raise LogRestored(
                f"{self._store.url} has version {journal.state.version}, and {self._source.metadata.url} has version "
                f"{newest.version}: an older copy of that log was restored. {self._ways}"
            )
        return newest, journal

    def rounds(self, interval_ms: int, progress: Progress | None = None) -> Iterator[Mirrored]:
        """A round every `interval_ms`, until the caller stops iterating.

        Raises errors as `rounds`.
        """
        failed = f"{self._source.metadata.url} was not mirrored to {self._store.url}"
        return rounds(self._source.context.clock, interval_ms, partial(self.round, progress), failed)

    def _opened(self) -> Journal | None:
        """The mirror's own journal; None if it has no state yet."""
        if self._journal is None and listed(self._store, CHECKPOINTS):
            of = self._source.context
            self._journal = Journal.open(self._store, create=False, clock=of.clock, rng=of.rng, threads=of.threads)
        return self._journal

    def _follow(self, journal: Journal, upto: int, copier: MirrorCopier) -> bool:
        """Copy version by version; False if the log has deleted records or objects that the mirror lacks, or the record
        of the mirror's version, by which it is recognised.
        """
        if not self._is_known(journal):
            return False
        state = journal.state
        while state.version < upto:
            keys = [log_key(state.version + 1 + n) for n in range(min(WAVE_MAX, upto - state.version))]
            batches = [data for data in self._source.run(_get_all(keys)) if data is not None]
            if len(batches) < len(keys) or not self._is_kept(state.version + 1):
                return False
            wanted = dict[str, ObjectRow | None]()
            for key, data in zip(keys, batches, strict=True):
                state = _replayed(state, data, key, wanted)
            if copier.copy({name: row for name, row in wanted.items() if name not in self._ahead}):
                return False
            _check_format(self._store, self._source)  # its disk may not be mounted any more
            for key, data in zip(keys, batches, strict=True):
                self._put_record(key, data)
        journal.refresh()
        return True

    def _copy_pending(self, copier: MirrorCopier) -> None:
        """Copy objects of pending commits with acks=1 that active brokers have: so they survive the loss of the log.

        Nobody waits for them: the others, and those of a root that does not answer, are copied when they are visible.
        """
        state = self._source.state
        optional = optional_copies(state)
        self._ahead &= optional
        new = [name for name in sorted(optional - self._ahead) if _is_on_active_broker(state, name)]
        for first in range(0, len(new), PARALLEL_COPIES):
            some = new[first : first + PARALLEL_COPIES]
            try:
                if copier.copy({name: state.objects[name] for name in some}):
                    break
            except (StorageError, CorruptObject) as error:
                logger.info("records that readers do not see yet were not mirrored: %s", error)
                break
            self._ahead |= set(some)

    def _note(self, version: int) -> None:
        """Note a version whose records and objects are all there, before garbage collection deletes any of these."""
        if version != self._noted:
            note_version(self._store, version)
            self._noted = version

    def _is_known(self, journal: Journal) -> bool:
        """Whether the log has the record of the mirror's version.

        Raises LogRestored if it has another one, CorruptObject if one of them is damaged.
        """
        if not journal.state.version:
            return True
        last = log_key(journal.state.version)
        (mine,), (theirs,) = journal.run(_get_all([last])), self._source.run(_get_all([last]))
        if mine == theirs and theirs is not None:
            return True
        if mine is None and theirs is not None and self._source.state_at(journal.state.version) == journal.state:
            self._put_record(last, theirs)  # a copy has its checkpoint, and has ended or is about to put it
            return True
        if mine is None or theirs is None or not self._is_kept(journal.state.version):
            self._check_history(journal)
            return False
        if why := damage_of_record(f"{self._store.url}/{last}", mine):
            raise CorruptObject(f"{why}: delete this file of the mirror, and run the command again")
        if why := damage_of_record(f"{self._source.metadata.url}/{last}", theirs):
            raise CorruptObject(f"{why}: run `pylog repair -u {self._source.metadata.url}`, and this command again")
        raise LogRestored(
            f"{self._store.url} has another {last} than {self._source.metadata.url}: an older copy of that log was "
            f"restored and changed since. {self._ways}"
        )

    @property
    def _ways(self) -> str:
        """Advice for a mirror that has commits which the log lacks."""
        return (
            "Only the mirror has the later commits. To continue with them, stop all clients of the log, and run "
            f"`pylog recover --force -u {self._store.url}`. To continue without them, give the log a new mirror in an "
            "empty folder, with `pylog mirror set NEW-MIRROR`. If the log was moved, and this is a copy of before the move, that was "
            f"restored at its former URL, remove the copy, and run `pylog mirror set {self._store.url} -u NEW-URL`"
        )

    def _is_kept(self, version: int) -> bool:
        """Whether a record that was just read was not deleted before: then what has its name is the record."""
        return self._source.run(is_kept(version, self._source.refresh().fence))

    def _check_history(self, journal: Journal) -> None:
        """Raises LogRestored if the log was restored from a copy that was older than the mirror."""
        if has_other_history(journal.state, self._source.state):
            raise LogRestored(
                f"{self._store.url} has version {journal.state.version}, and {self._source.metadata.url} was restored "
                f"from an older copy. {self._ways}"
            )

    def _put_record(self, key: str, data: bytes) -> None:
        """Put a record, if nobody else has: another process may have put it, and deleted it after its checkpoints."""
        if not self._store.put_new(key, data) and _found(self._store, key) not in (None, data):
            raise InvalidRequest(
                f"{self._store.url} has another {key} than {self._source.metadata.url}: it was recovered, and is a "
                "separate log"
            )

    def _jump(self, copier: MirrorCopier) -> None:
        """Copy the objects of the newest state, and write this state as the newest checkpoints of the mirror."""
        gone = ""
        while True:
            self._source.refresh()
            view, there = self._source.view, set(listed(self._store, DATA))
            wanted = needed_objects(view.state)
            if gone in wanted:
                raise CorruptObject(f"{self._source.metadata.url}/{gone} is missing: run `pylog verify`")
            gone = copier.copy({name: row for name, row in wanted.items() if name not in there})
            if not gone:
                break
        last = log_key(view.state.version)
        (record,) = self._source.run(_get_all([last]))
        _check_format(self._store, self._source)  # a checkpoint of the lost log must not get into a recovered one
        write_state(self._store, view.state, self._source.context)
        if record is not None:  # it may be missing after a repair
            self._put_record(last, record)
        logger.info("the mirror at %s begins again at version %d", self._store.url, view.state.version)

    def _maintenance(self, journal: Journal, view: Any) -> Steps[Any]:
        """The maintenance that changes no log: checkpoints, truncation, garbage collection, and what erasures delete.

        A copy that ended between its two checkpoints has left an older one, and not the records between them.
        """
        log, view = journal.metadata_log, view._replace(log=view.log._replace(is_mirror=True))
        if not self._has_looked and (yield from _lacks_files()):
            yield from write_checkpoints(view, log.context)
        elif log.is_due(view):
            view = yield from log.checkpoint(view)
            yield from log.truncate(view)
        return (yield from self._cleaner.clean(log, view, partial(log.refresh, view)))


def _lacks_files() -> Steps[bool]:
    """Whether a checkpoint, or a record between the two, is missing or damaged."""
    damaged = bool((yield from damaged_checkpoints()) or (yield from damaged_between()))
    return damaged or bool((yield from lost_checkpoint()))


def format_of(store: ObjectStore) -> Format | None:
    """`meta/format` in a root; None if it has none."""
    data = _found(store, FORMAT_KEY)
    return None if data is None else parse_format(data, store.url)


def _found(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except ObjectNotFound:
        return None


def file_of_log(store: ObjectStore) -> str:
    """A file of a log or of a broker in a root without `meta/format`; "" if there is none."""
    return next(iter(run(find_remains(), Stores.of(store), SystemClock())), "")


def _check_format(store: ObjectStore, source: Journal) -> None:
    form = format_of(store)
    if form is None and (found := file_of_log(store)):
        raise NoLog(
            f"{store.url}/{FORMAT_KEY} is missing, and {found} is there: `pylog mirror set {store.url}` makes it again"
        )
    if form is None:
        raise NoLog(f"{store.url} is not a mirror: is its disk mounted? `pylog mirror set {store.url}` begins one")
    check_is_mirror(form, store, source)
    if form.mirrors != source.metadata.url:
        raise InvalidRequest(
            f"{store.url} is the mirror of {form.mirrors}, not of {source.metadata.url}: if the log was moved, run "
            f"`pylog mirror set {store.url}` again"
        )


def _get_all(keys: Sequence[str]) -> Steps[list[bytes | None]]:
    found: list[bytes | None] = yield [Get(key) for key in keys]
    return found


def _replayed(state: State, data: bytes, key: str, wanted: dict[str, ObjectRow | None]) -> State:
    """The state after a record; adds the objects that a copy must have from it on."""
    batch = decode_batch(data, key)
    before, state = optional_copies(state), replay(state, batch)
    optional = optional_copies(state)
    new = dict.fromkeys(before - optional)
    for record in batch.records:
        if isinstance(record, CommitRecord | SwapRecord | LostRecord):
            new.update(dict.fromkeys(made.name for made in record.objects if made.name not in optional))
        elif isinstance(record, ListDroppedRecord) and record.object in state.dropped_lists:
            wanted[record.object] = None
    # A void record has no object in the state, and a lost commit has no more.
    wanted.update((name, row) for name in new if (row := state.objects.get(name)) is not None)
    return state


def _is_on_active_broker(state: State, name: str) -> bool:
    known = copies_of(state, state.objects[name])
    return known is None or any(is_active(state, broker) for broker in known.brokers)


def write_state(store: ObjectStore, state: State, context: Context) -> None:
    """Write a state as the newest checkpoints of a mirror.  All objects that readers need must be there."""
    run(write_checkpoints(View("", state), context), Stores.of(store), context.clock)


def write_checkpoints(view: View, context: Context) -> Steps[None]:
    """Write as many as are kept, since the records between them and older ones are not there, and delete the older
    ones.
    """
    for _ in range(KEPT_CHECKPOINTS):
        view, _ = yield from checkpoint(view, context)
    yield from truncate(view, context)
