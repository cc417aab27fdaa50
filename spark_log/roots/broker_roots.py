"""The roots that have objects of a log: its own, and those of its brokers.

On the root of a broker:

    meta/broker.json            which broker this is: a root without it, or with another, is not that broker
    <directory>/data/…          copies of objects, under the names that they have in the log's own root
    <directory>/meta/probe-…    marks of the checks of the root

The name of the directory is a random id from the broker's registration.  No put creates a root: before its first put a
writer reads `meta/broker.json`, because an unmounted disk leaves an empty folder in which anybody can write.  On disks
each put and delete does so, and continues with the folder in which it found the file.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.errors import (
    AccessDenied,
    CorruptObject,
    ObjectNotFound,
    SparkLogError,
    StorageError,
    UnsupportedVersion,
    WrongRoot,
)
from spark_log.metadata.replicas.replica_state import OWN_BROKER, Broker
from spark_log.roots.read_failover import PATIENT_MS, WARN_EVERY_S, BoundedStore, copies_away, from_sources
from spark_log.roots.root_options import DEFAULT_OPTIONS, RootOptions
from spark_log.roots.root_threads import BUCKET_HUNG_MS, HUNG_MS, RootThreads
from spark_log.runtime.clock import Clock, SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.local import Guard
from spark_log.store.object_names import FORMAT_KEY
from spark_log.store.open import is_local, mount_of_url, open_store
from spark_log.store.retry import with_retries
from spark_log.store.store_wrapper import StoreWrapper

ANY_ROOT = -2
"""The root of reads of data objects: any that has them."""
BROKER_KEY = "meta/broker.json"
OTHER_SOURCE_MS = 2_000
"""How long a read waits for a root if there is another one to try."""
LATE_MS = 30_000
"""After such a wait, other roots are tried first for this long."""


class BrokerFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `meta/broker.json`."""

    format: int = 1
    cluster_id: str
    broker: int
    directory: str


class Roots(Mapping[int, ObjectStore]):
    """Stores of objects by broker id, opened when they are first used; under `ANY_ROOT`, one that reads from any.

    Thread-safe.  Broker 0 is the log's own root.
    """

    def __init__(
        self,
        own: ObjectStore,
        cluster_id: str,
        brokers: Callable[[], Mapping[int, Broker]],
        holders: Callable[[str], Sequence[int]],
        options: RootOptions = DEFAULT_OPTIONS,
        clock: Clock | None = None,
    ) -> None:
        """
        brokers:  the registered ones.
        holders:  brokers from which an object can be read, in the order in which they are tried.
        """
        self.own = own
        self.cluster_id = cluster_id
        self.clock = clock or SystemClock()
        self._threads, self._readers = RootThreads(self.clock), RootThreads(self.clock, "pylog-source")
        self._brokers, self._holders, self.options = brokers, holders, options
        self.rack = options.rack
        self._late: dict[int, int] = {}
        """Until when other roots are tried before that of a broker, on the monotonic clock."""
        self._failed: dict[int, tuple[str, int]] = {}
        """By broker, the last failure that was worth a warning, and when that was."""
        self._opened: dict[tuple[int, str, str], ObjectStore] = {}
        """By (broker, URL, directory), without those of former registrations."""
        self._checked: set[tuple[int, str]] = set()
        """(broker, directory) of the roots whose description was right when this process first used them."""
        self.of_this_log: set[tuple[int, str]] = set()
        """(broker, directory) of the roots that do not belong to a log of which this one is a copy
        (`root_owner.py`)."""

    def __getitem__(self, broker: int) -> ObjectStore:
        """Raises KeyError for a broker that is not registered."""
        if broker == OWN_BROKER:
            return self.own
        if broker == ANY_ROOT:
            return ReplicatedStore(self) if self._brokers() else self.own
        known = self._brokers()[broker]
        guard = Guard(BROKER_KEY, BrokerCheck(known.url, self.cluster_id, broker, known.directory))
        return self._open(broker, f"{known.url.rstrip('/')}/{known.directory}", known, guard)

    def __contains__(self, broker: object) -> bool:
        return broker in (OWN_BROKER, ANY_ROOT) or broker in self._brokers()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({OWN_BROKER, *self._brokers()}))

    def __len__(self) -> int:
        return len({OWN_BROKER, *self._brokers()})

    def root(self, broker: int) -> ObjectStore:
        """The whole root of a broker, with its description."""
        known = self._brokers()[broker]
        return self._open(broker, known.url, known)

    def _open(self, broker: int, url: str, known: Broker, guard: Guard | None = None) -> ObjectStore:
        key = broker, url, known.directory
        store = self._opened.get(key)
        if store is None:
            store = self.open(broker, url, dict(known.options), guard)
            kept = {one: it for one, it in self._opened.items() if one[0] != broker or one[2] == known.directory}
            self._opened = {**kept, key: store}  # another dict: other threads may look at this one
        return store

    def open(self, broker: int, url: str, registered: Mapping[str, str], guard: Guard | None = None) -> ObjectStore:
        """The store at a URL, with the options of the root of a broker, which need not be registered."""
        given = self.options.of_broker(broker, url, self.own.url, registered)
        return with_retries(open_store(url, given, self.options.durability, guard), self.clock)

    def sources(self, name: str, holders: Sequence[int] | None = None, rack: str = "") -> list[ObjectStore]:
        """Stores from which an object can be read, in the order in which they are tried.

        holders:  the brokers that have it, if the caller knows them.
        rack:     of the reader; empty: that of the process.

        Those in the reader's rack come first, and those that failed lately last.  Each of their reads has a time limit,
        a long one if there are no others.
        """
        brokers, known, rack = self._brokers(), self.brokers_of(name, holders), rack or self.rack
        if known == [OWN_BROKER]:
            return [self.own]
        if len(known) == 1:
            return [self._bounded(known[0], PATIENT_MS)]
        known.sort(key=lambda broker: (self.is_late(broker), not _is_near(brokers.get(broker), rack)))
        return [self._bounded(broker) for broker in known]

    def brokers_of(self, name: str, holders: Sequence[int] | None = None) -> list[int]:
        """Registered brokers from which an object can be read, wherever the reader is."""
        brokers, some = self._brokers(), self._holders(name) if holders is None else holders
        known = [broker for broker in some if broker == OWN_BROKER or broker in brokers]
        return list(dict.fromkeys(known)) or [OWN_BROKER]

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """The registered brokers."""
        return self._brokers()

    def _bounded(self, broker: int, limit_ms: int = OTHER_SOURCE_MS) -> BoundedStore:
        is_late, why_away = partial(self.note_late, broker), partial(self._why_away, broker)
        return BoundedStore(broker, self[broker], self.clock, limit_ms, is_late, why_away)

    def note_late(self, broker: int) -> None:
        """A read of a root was given up, or the storage was unavailable."""
        self._late[broker] = self.clock.monotonic_ms() + LATE_MS

    def is_new_failure(self, broker: int, error: object, name: str) -> bool:
        """Whether a root fails for another reason than before, or this was long ago: then it is worth a warning.

        name:  of the object, which is not a part of the reason.
        """
        why, now_ms = str(error).replace(name, ""), self.clock.monotonic_ms()
        known = self._failed.get(broker)
        if known is not None and known[0] == why and now_ms - known[1] < WARN_EVERY_S * 1000:
            return False
        self._failed[broker] = why, now_ms
        return True

    def is_late(self, broker: int) -> bool:
        """Whether other roots are tried first."""
        return self._late.get(broker, 0) > self.clock.monotonic_ms()

    def _why_away(self, broker: int, error: StorageError | CorruptObject) -> str:
        """Why a root may still have a good copy, although a read of it failed; empty: it has none."""
        known = None if broker == OWN_BROKER else self._brokers().get(broker)
        if known is None and broker != OWN_BROKER:
            return ""
        if known is not None and known.fenced:
            return f"broker {broker} ({known.url}) is fenced{f': {known.reason}' if known.reason else ''}"
        if not isinstance(error, ObjectNotFound | CorruptObject):
            return f"broker {broker} ({self.own.url if known is None else known.url}): {error}"
        try:
            self.check(broker, again=True)
        except SparkLogError as wrong:
            return f"broker {broker}: {wrong}"
        return ""

    @property
    def local(self) -> bool:
        """Whether the reads of all roots take microseconds."""
        return self.own.local and all(is_local(known.url) for known in self._brokers().values() if known.url)

    def start(self, broker: int, job: Callable[[], None]) -> None:
        """Does what `RootThreads.start` does, for the root of a broker."""
        known, mount = self._brokers().get(broker), partial(self.mount, broker)
        self._threads.start((broker, _directory(known)), job, self._hung_ms(known), mount)

    def start_read(self, broker: int, job: Callable[[], None]) -> None:
        """Starts a read that a copy to another root waits for: no put to this root delays it."""
        known, mount = self._brokers().get(broker), partial(self.mount, broker)
        self._readers.start((broker, _directory(known)), job, self._hung_ms(known), mount)

    def mount(self, broker: int) -> int:
        """The mount of a broker's root, as `mount_of_url` gives it.  Calls that hang in a former mount say nothing
        about the present one.
        """
        known = self._brokers().get(broker)
        return mount_of_url(self.own.url if broker == OWN_BROKER or known is None else known.url)

    def _hung_ms(self, known: Broker | None) -> int:
        is_disk = is_local(known.url) if known is not None and known.url else self.own.local
        return HUNG_MS if is_disk else BUCKET_HUNG_MS

    def moved(self, broker: int) -> None:
        """A job makes progress."""
        self._threads.moved((broker, _directory(self._brokers().get(broker))))

    def check(self, broker: int, *, again: bool = False) -> None:
        """Check that a root is that of its broker; once in a process, unless `again`.

        Raises WrongRoot, StorageUnavailable.
        """
        known = None if broker == OWN_BROKER else self._brokers()[broker]
        key = broker, _directory(known)
        if not again and key in self._checked:
            return
        self._checked.discard(key)
        if known is None:
            check_own_root(self.own, self.cluster_id)
        else:
            check_root(self.root(broker), self.cluster_id, broker, known.directory)
        self._checked.add(key)


def _directory(known: Broker | None) -> str:
    return "" if known is None else known.directory


def _is_near(known: Broker | None, rack: str) -> bool:
    """Whether a broker is active, and in the rack of a reader that has one."""
    return bool(rack) and known is not None and known.rack == rack and not known.fenced


@dataclass(frozen=True, slots=True)
class BrokerCheck:
    """Checks the description of a root, which must be that of a broker."""

    url: str
    cluster_id: str
    broker: int
    directory: str

    def __call__(self, data: bytes | None) -> None:
        """Check the bytes of the description, or None if the root has none.

        Raises WrongRoot, CorruptObject, UnsupportedVersion.
        """
        if data is None:
            raise WrongRoot(
                f"{self.url} has no {BROKER_KEY} on {platform.node()}, so it is not the root of broker {self.broker}: is "
                "its disk mounted?"
            )
        found = _parse_broker_file(data, self.url)
        if (found.broker, found.directory) == (self.broker, self.directory) and found.cluster_id != self.cluster_id:
            raise other_id_error(self.url, found, self.cluster_id)
        if (found.cluster_id, found.broker, found.directory) != (self.cluster_id, self.broker, self.directory):
            raise WrongRoot(
                f"{self.url} is the root of broker {found.broker} of log {found.cluster_id}, directory "
                f"{found.directory}; expected broker {self.broker} of log {self.cluster_id}, directory "
                f"{self.directory}: another disk is in its place"
            )


class OtherLogId(WrongRoot):
    """The right root of a broker, by its random directory, has another id than the log."""


def other_id_error(url: str, found: BrokerFile, cluster_id: str) -> OtherLogId:
    """The error for such a root, with the way back."""
    return OtherLogId(
        f"{url} is the root of this broker, under the log id {found.cluster_id}, and the log has the id {cluster_id}: {FORMAT_KEY} was made again, or is "
        f"that of another log. Nothing is lost: stop all clients, and run `pylog repair --cluster-id {found.cluster_id}`"
    )


class _OwnFile(msgspec.Struct):
    """The part of `meta/format` that names the log."""

    cluster_id: str


def check_own_root(root: ObjectStore, cluster_id: str) -> None:
    """Check that the log's own root is there, by `meta/format`.

    A process that has its metadata from a coordinator may run where the root is not mounted.  It may also have no
    access to the metadata in the root: then nothing is known.
    Raises WrongRoot, StorageError, CorruptObject.
    """
    try:
        data = root.get(FORMAT_KEY)
    except ObjectNotFound:
        data = None
    except AccessDenied:
        return
    check_own_file(data, root.url, cluster_id)


def check_own_file(data: bytes | None, url: str, cluster_id: str) -> None:
    """Check the bytes of `meta/format`, or None if there is none, in the log's own root.

    Raises WrongRoot, CorruptObject.
    """
    if data is None:
        raise not_there(url)
    try:
        found = msgspec.json.decode(data, type=_OwnFile).cluster_id
    except UNREADABLE as error:
        raise CorruptObject(f"{url}/{FORMAT_KEY} is damaged: {error}") from error
    if found != cluster_id:
        raise WrongRoot(
            f"{url} is the root of log {found}, not of log {cluster_id}: another disk is in its place, or its disk is not "
            "mounted, and a new log was begun in the folder"
        )


def check_is_mounted(own: ObjectStore, cluster_id: str = "") -> None:
    """Raise WrongRoot if the log's own root is a folder that is not there on this machine: a put would make another.
    The same if another log was begun in the folder.

    cluster_id:  of the log; empty: not known.

    Buckets are not asked.  Nothing is known if this process has no access to the metadata, and another error of the
    storage is one of the put, too.
    """
    if not own.url.startswith("file://"):
        return
    try:
        data = own.get(FORMAT_KEY)
    except ObjectNotFound:
        raise not_there(own.url) from None
    except StorageError:
        return
    if cluster_id:
        check_own_file(data, own.url, cluster_id)


def raise_if_away(store: ObjectStore, name: str) -> None:
    """Raise CopiesAway if the log's own root, in which an object was not found, is not mounted on this machine.

    Otherwise a query would pass over records that are on the disk.
    store:  the own root, or that of a log with brokers.
    """
    try:
        check_is_mounted(store.roots.own if isinstance(store, ReplicatedStore) else store)
    except WrongRoot as wrong:
        raise copies_away(name, {OWN_BROKER: str(wrong)}) from None


def not_there(url: str) -> WrongRoot:
    """The error for the log's own root, which a process does not find."""
    return WrongRoot(
        f"{url} has no {FORMAT_KEY} on {platform.node()}, so it is not the root of the log there: is its disk "
        "mounted? All machines that use the log must have the same folder under this path"
    )


def check_root(root: ObjectStore, cluster_id: str, broker: int, directory: str) -> None:
    """Raises as `BrokerCheck` does, unless a root is that of a broker."""
    BrokerCheck(root.url, cluster_id, broker, directory)(_read_broker_file(root))


def read_broker_file(root: ObjectStore) -> BrokerFile | None:
    """The description of a root; None if it has none.  Raises CorruptObject, UnsupportedVersion."""
    data = _read_broker_file(root)
    return None if data is None else _parse_broker_file(data, root.url)


def _read_broker_file(root: ObjectStore) -> bytes | None:
    try:
        return root.get(BROKER_KEY)
    except ObjectNotFound:
        return None


def _parse_broker_file(data: bytes, url: str) -> BrokerFile:
    try:
        found = msgspec.json.decode(data, type=BrokerFile)
    except UNREADABLE as error:
        raise CorruptObject(f"{url}/{BROKER_KEY} is damaged: {error}") from error
    if found.format != 1:
        raise UnsupportedVersion(f"{url}/{BROKER_KEY} has format {found.format}, this pylog reads 1: update pylog")
    return found


def encode_broker_file(file: BrokerFile) -> bytes:
    """The content of `meta/broker.json`."""
    return msgspec.json.encode(file) + b"\n"


class ReplicatedStore(StoreWrapper):
    """The objects of a log with brokers: reads go to any root that has the object, all else to the log's own root.

    A root that fails, or does not have the object, is skipped; the last error is raised if none is left.  Damaged
    bytes are noticed by who decodes them, and read again from the next of `sources`.
    """

    def __init__(self, roots: Roots, holders: Mapping[str, Sequence[int]] | None = None, rack: str = "") -> None:
        """
        holders:  by object, the brokers that have it, instead of what the roots know.
        rack:     of the reader.
        """
        super().__init__(roots.own)
        self.roots = roots
        self._known, self._rack = holders or {}, rack

    @property
    def local(self) -> bool:
        return self.roots.local

    def sources(self, key: str) -> list[ObjectStore]:
        """The roots that may have an object, as `Roots.sources` gives them."""
        return self.roots.sources(key, self._known.get(key), self._rack)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return from_sources(key, self.sources(key), lambda store: store.get(key, start, end))

    def get_intact(self, key: str, start: int, end: int | None, check: Callable[[bytes], object]) -> bytes:
        """`get` from the first root whose bytes pass a check, which raises CorruptObject; if all are damaged, those of
        the first one, so that their reader says what is wrong with them."""

        def checked(store: ObjectStore) -> bytes:
            data = store.get(key, start, end)
            check(data)
            return data

        try:
            return from_sources(key, self.sources(key), checked)
        except CorruptObject:
            return self.get(key, start, end)

    def size(self, key: str) -> int | None:
        def known(store: ObjectStore) -> int:
            size = store.size(key)
            if size is None:
                raise ObjectNotFound(f"{store.url}/{key} is not there", key=key)
            return size

        try:
            return from_sources(key, self.sources(key), known)
        except ObjectNotFound:
            return None


def sources_of(store: ObjectStore, name: str) -> list[ObjectStore]:
    """Stores from which an object can be read, in the order in which they are tried."""
    return store.sources(name) if isinstance(store, ReplicatedStore) else [store]
