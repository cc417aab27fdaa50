"""Files of a log or of a broker in a folder without `meta/format`: another log must not begin there."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spark_log.errors import UnsupportedVersion
from spark_log.journal.store_operations import OWN_ROOT, List, Steps
from spark_log.roots.broker_roots import BROKER_KEY
from spark_log.roots.root_owner import OWNER_KEY
from spark_log.store.object_names import CHECKPOINTS, DATA, FORMAT_KEY, LOG, META, MIRRORED, SNAPSHOTS

FIRST_OBJECTS = f"{DATA}000"
"""Begins the names of all objects: their versions are far below 2^52."""
REMAINS = re.compile(
    r"meta/log/[0-9]{20}\.rec|meta/ckpt/[0-9]{20}-.+|meta/quorum/[0-9]{16}-[0-9]{20}-.+|data/[0-9a-f]{16}/.+|"
    + "|".join(map(re.escape, (BROKER_KEY, OWNER_KEY, MIRRORED))),
    re.DOTALL,
)
"""Names of files without which records would be lost."""


def find_remains() -> Steps[list[str]]:
    """Files of a log or of a broker, those of the metadata first; other files do not matter.

    Call it for a folder without `meta/format`: it lists.
    """
    found = yield [List(META), List(FIRST_OBJECTS, OWN_ROOT)]
    return [name for names in found for name in names if REMAINS.fullmatch(name)]


def is_broker_root(names: Sequence[str]) -> bool:
    """Whether these files are those of the root of a broker."""
    return BROKER_KEY in names or OWNER_KEY in names


def has_metadata(names: Sequence[str]) -> bool:
    """Whether a log has records or checkpoints of its metadata among these files."""
    return any(name.startswith((LOG, CHECKPOINTS)) for name in names)


def remains_error(url: str, names: Sequence[str]) -> UnsupportedVersion:
    """The error for a folder that has lost `meta/format`, or never had it, with the way back.

    names:  of `find_remains`; at least one.
    """
    quorum = next((name for name in names if name.startswith(SNAPSHOTS)), "")
    records = next((name for name in names if name.startswith((LOG, CHECKPOINTS))), "")
    if is_broker_root(names):
        mark = BROKER_KEY if BROKER_KEY in names else OWNER_KEY
        return UnsupportedVersion(
            f"{url} is the root of a broker, because {mark} is there: open the log of that broker by its own URL, or give "
            "another, empty folder"
        )
    if quorum:
        way = (
            "the folder has the records of a quorum; open the log by the addresses of the nodes, whose leader writes the "
            "file again; if their disks are lost, run `pylog quorum restore`"
        )
    elif MIRRORED in names:
        way = (
            f"this is a mirror; run `pylog mirror set {url} -u LOG` with the URL of its log, which makes the file again, or "
            f"`pylog recover --force -u {url}` if that log is lost"
        )
    elif records:
        way = (
            "the log is damaged; stop all clients, and restore that file from a copy of the log, or run `pylog repair -u "
            f"{url}`, which makes it again; if the log is in a quorum, open it by the addresses of the nodes, whose leader "
            "writes the file again"
        )
    else:
        way = (
            "the metadata of a log is lost, and maintenance of another log would delete its records; stop all clients, and "
            f"restore {META} from a copy of the log, or run `pylog recover -u MIRROR` or `jobs/backup.py --restore` for "
            "another place; if the metadata is in a quorum, open the log by the addresses of the nodes, whose leader "
            "writes the file again; for a new log, give another, empty folder"
        )
    there = quorum or (MIRRORED if MIRRORED in names else records) or names[0]
    return UnsupportedVersion(f"{url}/{FORMAT_KEY} is missing, and {there} is there: {way}")
