"""Adding, returning and removing brokers: the roots in which objects can have copies.

Each function first writes the root, then the state, and can be repeated after it was killed in between.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import msgspec

from spark_log.client.admin.root_places import check_mounted, check_place, warn_of_shared_disk
from spark_log.configs.settings import cluster_config
from spark_log.errors import (
    InvalidRequest,
    SparkLogError,
    StorageError,
    StorageUnavailable,
    WrongRoot,
)
from spark_log.journal.garbage_collection import garbage
from spark_log.journal.journal import Journal
from spark_log.journal.storage.log_remains import find_remains
from spark_log.journal.store_operations import Stores, run
from spark_log.log_lines import logger
from spark_log.metadata.commands import Report
from spark_log.metadata.erasures import waits_for, wiped_upto
from spark_log.metadata.lines import plan_of
from spark_log.metadata.new_names import check_new_names
from spark_log.metadata.records import Copy, MissingRecord, WipedRecord
from spark_log.metadata.replicas.replica_commands import (
    AlterBroker,
    FenceBroker,
    RegisterBroker,
    RemoveBroker,
    ReturnBroker,
    registered,
)
from spark_log.metadata.replicas.replica_state import OWN_BROKER, Broker
from spark_log.metadata.state import FormerRoot, State
from spark_log.roots.broker_roots import (
    BROKER_KEY,
    BrokerFile,
    Roots,
    check_root,
    encode_broker_file,
    other_id_error,
    read_broker_file,
)
from spark_log.roots.root_options import registered_options
from spark_log.roots.root_owner import OWNER_KEY, check_first_use, check_owner, write_owner
from spark_log.store.base import ObjectStore
from spark_log.store.bounded_waits import Slot, Unfinished
from spark_log.store.local import OF_A_DISK
from spark_log.store.object_names import DATA, FORMAT_KEY, META, listed
from spark_log.store.open import mount_point_of_url
from spark_log.text import printable_lines

MISSING_MAX = 10_000
"""Copies that one command reports as missing."""
PUT_MS_MAX = 3_600_000
"""A temporary file without writes for this long belongs to a dead put."""
ANSWER_S = 10.0
"""How long an administrator waits for the first answer of a root."""


# ---------------------------------------------------------------------------------------------------------- add, replace


def add_broker(
    journal: Journal,
    broker: int,
    url: str,
    rack: str = "",
    storage_options: Mapping[str, Any] | None = None,
    is_async: bool = False,
    keep_ms: int = 0,
) -> Broker:
    """See `Admin.add_broker`.  Changes nothing if the broker has this root already.

    The options are stored in the log so that all processes can open the root.
    """
    state = journal.require(None)
    state = journal.refresh()
    options = registered_options(broker, storage_options or {})
    store = journal.roots.open(broker, url, options)
    wanted = RegisterBroker(
        broker=broker, directory="", url=store.url, rack=rack, options=options, is_async=is_async, keep_ms=keep_ms
    )
    wanted.check_types()
    if (known := state.brokers.get(broker)) is not None and _is_registered(journal, known, wanted, store):
        return known
    return _register(journal, state, wanted, store)


def replace_broker(
    journal: Journal,
    broker: int,
    url: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    lose_data: bool = False,
) -> Broker:
    """See `Admin.replace_broker`.

    url, storage_options:  None: unchanged, and a root on a disk has to be on the same disk as before.
    """
    journal.require(None)
    state = journal.refresh()
    known = registered(state, broker)
    options = dict(known.options) if storage_options is None else registered_options(broker, storage_options)
    store = journal.roots.open(broker, url or known.url, options)
    if url is None:
        check_mounted(broker, known)
    _check_id(journal, broker, known)
    wanted = RegisterBroker(
        broker=broker,
        directory="",
        url=store.url,
        rack=known.rack,
        options=options,
        is_async=known.is_async,
        keep_ms=known.keep_ms,
        replaces=True,
        lose_data=lose_data,
    )
    return _register(journal, state, wanted, store)


def _check_id(journal: Journal, broker: int, known: Broker) -> None:
    """Raises WrongRoot if the present root is right, and the log has another id than before."""
    try:
        found = Slot[BrokerFile | None]().answer(lambda: read_broker_file(journal.roots.root(broker)), ANSWER_S)
    except (SparkLogError, OSError, Unfinished):
        return  # it is lost, or away
    if found is not None and found.directory == known.directory and found.cluster_id != journal.cluster_id:
        raise other_id_error(known.url, found, journal.cluster_id)


def _is_registered(journal: Journal, known: Broker, wanted: RegisterBroker, store: ObjectStore) -> bool:
    """Whether an earlier call has registered the same."""
    found = read_broker_file(store) if known.url == wanted.url else None
    asked = (wanted.rack, wanted.is_async, wanted.keep_ms, wanted.options)
    same = (known.rack, known.is_async, known.keep_ms, dict(known.options)) == asked
    here = found is not None and (found.cluster_id, found.directory) == (journal.cluster_id, known.directory)
    return same and here


def _register(journal: Journal, state: State, wanted: RegisterBroker, store: ObjectStore) -> Broker:
    new = BrokerFile(cluster_id=journal.cluster_id, broker=wanted.broker, directory=journal.context.unique())
    now_ms = journal.context.clock.now_ms()
    decision = msgspec.structs.replace(wanted, directory=new.directory)(state, now_ms)
    check_new_names(state, decision.records)  # both raise what the log would refuse
    check_place(journal, state, wanted.broker, store)
    found = _check_empty(journal, state, wanted.broker, store)
    _check_writable(store, journal.context.unique())
    if found is None:
        found = _described(store, new)
    write_owner(store, journal.roots.own.url)
    for text in warn_of_shared_disk(journal, state, wanted.broker, store):
        warnings.warn(printable_lines(text), stacklevel=5)
    point = mount_point_of_url(store.url)
    journal.propose(msgspec.structs.replace(wanted, directory=found.directory, mount_point=point))
    return journal.refresh().brokers[wanted.broker]  # the answer may have been lost, and the state with it


def _described(store: ObjectStore, new: BrokerFile) -> BrokerFile:
    """The description of the root: this one, or that of another process which registers the same broker."""
    with suppress(StorageUnavailable):
        store.put_new(BROKER_KEY, encode_broker_file(new))
    found = read_broker_file(store)
    if found is None:
        raise StorageError(f"{store.url}/{BROKER_KEY} was written and is not there")
    _check_is_for(found, new.cluster_id, new.broker, store)
    return found


def _check_is_for(found: BrokerFile, cluster_id: str, broker: int, store: ObjectStore) -> None:
    """Raises InvalidRequest for a root that another broker has."""
    if found.cluster_id != cluster_id:
        raise InvalidRequest(
            f"{store.url} is the root of broker {found.broker} of another log, with the id {found.cluster_id}: choose "
            "an empty folder"
        )
    if found.broker != broker:
        raise InvalidRequest(f"{store.url} is the root of broker {found.broker} of this log: choose an empty folder")


def _check_empty(journal: Journal, state: State, broker: int, store: ObjectStore) -> BrokerFile | None:
    """The description that an earlier call has left in an empty root, None if there is none.

    Raises InvalidRequest for a root that is not empty.
    """
    if store.size(FORMAT_KEY) is not None:
        raise InvalidRequest(
            f"{store.url} is the root of a log ({FORMAT_KEY} is there), or of a mirror: a broker begins in an empty folder"
        )
    found = read_broker_file(store)
    if found is None:
        lost = [name for name in run(find_remains(), Stores.of(store), journal.context.clock) if name != OWNER_KEY]
        others = [*lost, *(name for name in _contents(store) if not name.startswith(META))]
        found = read_broker_file(store) if others else None  # another process may register it at this moment
        if found is None and others:
            raise InvalidRequest(
                f"{store.url} has {others[0]}: a broker begins in an empty folder; choose one, or delete these files if "
                "nobody needs them, as those of a removed broker"
            )
    if found is None:
        return None
    _check_is_for(found, journal.cluster_id, broker, store)
    known = state.brokers.get(broker)
    if known is not None and known.directory == found.directory:
        raise InvalidRequest(
            f"{store.url} has the directory with which broker {broker} is registered: if the broker is fenced, `pylog "
            f"broker unfence {broker}` takes it back with its copies; to begin without them, empty the folder first"
        )
    others = [name for name in _contents(store) if not name.startswith(META)]
    if others:
        raise InvalidRequest(
            f"{store.url} has {others[0]}, which broker {broker} had under another registration: empty the folder first"
        )
    return found


def _contents(store: ObjectStore) -> Iterator[str]:
    """Names in a root, as far as they can be listed: of a bucket, those that a log or a broker would have."""
    if store.url.startswith("file://"):
        yield from _files(unquote(store.url.removeprefix("file://")))
        return
    found = read_broker_file(store)
    yield from listed(store, DATA)
    if found is not None:
        yield from listed(store, f"{found.directory}/", f"{found.directory}/")


def _files(folder: str) -> Iterator[str]:
    """Paths of the files in a folder, without those of a desktop or of the disk itself, and without empty folders."""

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise StorageError(f"{error.filename}: {error.strerror}") from error

    for path, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".") and (path, name) != (folder, OF_A_DISK)]
        yield from (os.path.relpath(os.path.join(path, name), folder) for name in files if not name.startswith("."))


def _check_writable(store: ObjectStore, nonce: str) -> None:
    """Raises StorageError unless objects can be put, read and deleted."""
    key = f"{META}check-{nonce}"
    try:
        store.put(key, (b"1",))
        if store.get(key) != b"1":
            raise StorageError(f"{store.url}/{key} was written with other content than it has")
        store.delete([key])
    except StorageError as error:
        raise type(error)(f"{store.url} cannot be the root of a broker: {error}") from error


# ------------------------------------------------------------------------------------------------- racks, fence and return


def alter_broker(journal: Journal, broker: int, rack: str | None = None, drained: bool | None = None) -> bool:
    """See `Admin.alter_broker`."""
    return _changes(journal, AlterBroker(broker=broker, rack=rack, drained=drained))


def fence_broker(journal: Journal, broker: int, reason: str = "") -> bool:
    """See `Admin.fence_broker`.  Nobody calls `return_broker` automatically, even if the root had failed before."""
    command = FenceBroker(broker=broker, reason=reason or "fenced by an administrator")
    return _changes(journal, command)


def _changes(journal: Journal, command: AlterBroker | FenceBroker) -> bool:
    """Whether a command changes what is there when it is made.

    If its answer is lost, it is sent again, and that finds it done.
    """
    command.check_types()
    wanted = command(journal.refresh(), journal.context.clock.now_ms()).reply
    return journal.propose(command) or wanted


def return_broker(journal: Journal, broker: int, *, deep: bool = False) -> bool:
    """See `Admin.unfence_broker`.  Records which copies the root lacks; deep: also those of another size.

    Raises WrongRoot if the root is not the broker's, or belongs to the log of which this log is a copy;
    StorageUnavailable if the root does not answer; StorageError if it cannot be read.  The broker then stays fenced.
    """
    journal.require(None)
    state = journal.refresh()
    known = registered(state, broker)
    if not known.fenced:
        return False
    _check_has_disk(journal.roots, broker)
    check_first_use(journal.roots, broker)
    store = journal.roots[broker]
    found = set(listed(store, DATA))
    _finish_erasures(journal, state, broker, found)
    missing = _lacking(journal, broker, store, found, deep=deep)  # no copy on a fenced broker is added meanwhile
    epoch = known.epoch
    while len(missing) > MISSING_MAX:
        gone, missing = missing[:MISSING_MAX], missing[MISSING_MAX:]
        journal.propose(Report.of(state, MissingRecord(copies=tuple(Copy(name, broker, epoch) for name in gone))))
    journal.propose(ReturnBroker(broker=broker, epoch=epoch, missing=tuple(missing), history=plan_of(state)))
    # The reply is False, too, if its answer was lost, and it was sent again.
    now = journal.refresh().brokers.get(broker)
    return now is not None and not now.fenced and now.directory == known.directory


def _finish_erasures(journal: Journal, state: State, broker: int, found: set[str]) -> None:
    """Delete the copies of erased records that a root has kept while its broker was fenced, and record that.

    Those that the fence has not passed yet are deleted by maintenance, as on any root.
    """
    root = (broker, state.brokers[broker].directory)
    if not waits_for(state, root):
        return
    store = journal.roots[broker]
    check_owner(journal.roots.root(broker), journal.roots.own.url)
    old = journal.run(garbage(state, found))
    if old is None:
        raise StorageError(
            f"the copies of erased records on the root of broker {broker} are not known, because a list of dropped "
            "objects is missing: see `pylog verify`"
        )
    store.delete(old)
    age_ms = max(cluster_config(state.configs, "gc.fence.age.ms"), PUT_MS_MAX)
    swept = store.sweep(DATA, journal.context.clock.now_ms() - age_ms)
    upto = wiped_upto(state, root, swept.oldest_ms, PUT_MS_MAX)
    if upto is not None:
        journal.propose(Report.of(state, WipedRecord(broker=root[0], directory=root[1], upto=upto)))


def _check_has_disk(roots: Roots, broker: int) -> None:
    """`check_answers`, with what to do if the root is empty."""
    try:
        check_answers(roots, broker)
    except WrongRoot as wrong:
        if read_broker_file(roots.root(broker)) is not None:
            raise
        raise WrongRoot(f"{wrong} If that is a new, empty disk, run `pylog broker replace {broker}`") from wrong


def check_answers(roots: Roots, broker: int) -> None:
    """`Roots.check` of a root that may hang.  Raises StorageUnavailable after `ANSWER_S`."""
    try:
        Slot[None]().answer(lambda: roots.check(broker, again=True), ANSWER_S)
    except Unfinished:
        raise StorageUnavailable(
            f"the root of broker {broker}, {_url_of(roots, broker)}, has not answered for {ANSWER_S:.0f} s: bring "
            f"its disk or bucket back; `pylog broker fence {broker}` lets everybody else continue without it meanwhile"
        ) from None


def _url_of(roots: Roots, broker: int) -> str:
    return roots.own.url if broker == OWN_BROKER else roots.brokers[broker].url


def _lacking(journal: Journal, broker: int, store: ObjectStore, found: set[str], *, deep: bool) -> list[str]:
    """Objects that the broker should have in the newest state, and has not.

    found:  names that were listed.  An object that was put since is looked for.
    Raises as `check_answers` if the root is not there any more: everything would be missing.
    """
    missing = []
    for name, size in held_objects(journal.refresh(), broker):
        if name not in found or deep:
            there = store.size(name)
            if there is None or (deep and there != size):
                missing.append(name)
    if missing:
        check_answers(journal.roots, broker)
    return missing


def held_objects(state: State, broker: int) -> Iterator[tuple[str, int]]:
    """Names and sizes of the objects of which a broker has a copy, by the state."""
    held = {number for number, copies in state.copies.items() if broker in copies.brokers}
    if held:
        for name, row in state.objects.items():
            if row.copies in held:
                yield name, row.size


# ------------------------------------------------------------------------------------------------------------------ remove


def remove_broker(journal: Journal, broker: int, *, force: bool = False) -> None:
    """See `Admin.remove_broker`.  If its root can be reached, the files there that describe the broker are deleted."""
    journal.require(None)
    known = registered(journal.refresh(), broker)
    root = journal.roots.root(broker)
    journal.propose(RemoveBroker(broker=broker, directory=known.directory, force=force))

    def forget() -> None:
        check_root(root, journal.cluster_id, broker, known.directory)
        check_owner(root, journal.roots.own.url)
        root.delete([BROKER_KEY, OWNER_KEY])

    try:
        Slot[None]().answer(forget, ANSWER_S)
    except (SparkLogError, OSError, Unfinished) as error:
        why = str(error) or f"{root.url} has not answered for {ANSWER_S:.0f} s"
        logger.warning("broker %d is removed, and its root is left as it is: %s", broker, why)


def forget_root(journal: Journal, directory: str) -> FormerRoot:
    """Record that a root that a broker had before has no files any more.  Raises InvalidRequest for an unknown one."""
    journal.require(None)
    state = journal.refresh()
    known = state.former_roots.get(directory)
    if known is None:
        raise InvalidRequest(
            f"{directory!r} is not the directory of a removed or replaced broker: `pylog topic erasures` names them"
        )
    journal.propose(Report.of(state, WipedRecord(broker=known.broker, directory=directory, upto=known.version)))
    return known
