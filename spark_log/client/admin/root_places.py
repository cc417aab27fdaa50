"""Where roots are: whether two are one, within each other, or on one disk."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.metadata.replicas.replica_state import Broker
from spark_log.metadata.state import State
from spark_log.store.base import ObjectStore
from spark_log.store.bounded_waits import Slot, Unfinished
from spark_log.store.mounts import is_mounted
from spark_log.store.open import unmounted_point_of_url

FILE = "file://"
HANGS_S = 2.0
"""A disk that does not answer for so long hangs."""
Answer = TypeVar("Answer")


def check_place(journal: Journal, state: State, broker: int, store: ObjectStore) -> None:
    """Raise InvalidRequest for a root that is another root of the log, or is within it or around it.

    The folder or its parent must exist: otherwise its disk may not be mounted.
    """
    if store.url.startswith(FILE):
        path = _path(store.url)
        if not os.path.isdir(path) and not os.path.isdir(os.path.dirname(path)):
            raise InvalidRequest(f"{path}: {os.path.dirname(path)} is not there: is its disk mounted?")
        if os.path.exists(path) and not os.path.isdir(path):
            raise InvalidRequest(f"{path} is a file: a broker's root is a folder")
        if point := unmounted_point_of_url(store.url):
            raise InvalidRequest(f"{path}: {point} is in /etc/fstab, and is not mounted: mount it")
    for number, url in _others(journal, state, broker):
        whose = "the log's own root" if number == 0 else f"the root of broker {number}"
        if _is_same(store.url, url):
            raise InvalidRequest(f"{store.url} is {whose}: each broker has a root to itself")
        here, there = _place(store.url), _answer(partial(_place, url), f"{url.rstrip('/')}/")
        if here.startswith(there) or there.startswith(here):
            raise InvalidRequest(f"{store.url} and {whose}, {url}, are one within the other: choose another folder")


def check_mounted(broker: int, known: Broker) -> None:
    """Raise InvalidRequest if the disk of a broker's root was mounted when it was registered, and none is there now.

    An automounter mounts it when somebody looks into the folder.
    """
    if known.mount_point and not is_mounted(known.mount_point):
        _stat(f"{Path(known.mount_point).as_uri()}/.")
    if known.mount_point and not is_mounted(known.mount_point):
        path = _path(known.url)
        raise InvalidRequest(
            f"{path}: nothing is mounted at {known.mount_point} on {platform.node()}, as there was when broker {broker} "
            f"got this root: mount the new disk there. If the root is to be on another disk, name it: `pylog broker "
            f"replace {broker} --root {path}`"
        )


def warn_of_shared_disk(journal: Journal, state: State, broker: int, store: ObjectStore) -> Iterator[str]:
    """A text for each other root that is on the same disk."""
    device = _device(store.url)
    for number, url in _others(journal, state, broker):
        if device is not None and _device(url) == device:
            whose = "the log's own root" if number == 0 else f"broker {number}"
            yield (
                f"{store.url} is on the same disk as {whose}, {url}: if the disk is lost, both are; replicas protect "
                "only if they are on different disks"
            )


def _others(journal: Journal, state: State, broker: int) -> Iterator[tuple[int, str]]:
    yield 0, journal.roots.own.url
    yield from (
        (number, known.url) for number, known in sorted(state.brokers.items()) if number != broker and known.url
    )


def _path(url: str) -> str:
    return unquote(url.removeprefix(FILE))


def _place(url: str) -> str:
    """A URL that is the same for all spellings of a root, with a '/' at its end."""
    if url.startswith(FILE):
        return f"{FILE}{os.path.realpath(_path(url)).rstrip('/')}/"
    scheme, colon, rest = url.partition(":")
    return f"{'s3' if scheme == 's3a' else scheme}{colon}{rest.rstrip('/')}/"


def _is_same(url: str, other: str) -> bool:
    if _place(url) == _answer(partial(_place, other), other):
        return True
    if not (url.startswith(FILE) and other.startswith(FILE)):
        return False
    one, two = _stat(url), _stat(other)
    return one is not None and two is not None and (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)


def _device(url: str) -> int | None:
    """The disk of a folder of this machine, or of the folder in which it is made."""
    if not url.startswith(FILE):
        return None
    found = _stat(url) or _stat(f"{FILE}{os.path.dirname(_path(url))}")
    return None if found is None else found.st_dev


def _stat(url: str) -> Any:
    """None if the path is not there, or does not answer."""
    try:
        return _answer(partial(os.stat, _path(url)), None)
    except OSError:
        return None


def _answer(ask: Callable[[], Answer], otherwise: Answer) -> Answer:
    """An answer of a disk; another one if it hangs: a new broker may be to replace one whose disk does."""
    try:
        return Slot[Answer]().answer(ask, HANGS_S)
    except Unfinished:
        return otherwise
