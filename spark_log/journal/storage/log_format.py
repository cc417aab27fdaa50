"""`meta/format`: identifies a folder as a log, with its cluster id and the probed storage library."""

from __future__ import annotations

from typing import Any

import msgspec
from crc32c import crc32c

from spark_log.bounds import UNREADABLE
from spark_log.errors import InvalidRequest, NoLog, StorageUnavailable, UnsupportedVersion
from spark_log.journal.storage.log_remains import find_remains, remains_error
from spark_log.journal.store_operations import Get, PutAnswer, PutNew, Steps
from spark_log.log_lines import logger
from spark_log.store.object_names import FORMAT_KEY
from spark_log.text import first_bytes

FORMAT_VERSION = 1
MIRROR_VERSION = 2
"""The version of mirrors."""
QUORUM_VERSION = 3
"""The version of a folder with the objects of a log, whose metadata is in a quorum."""
VERSIONS = (FORMAT_VERSION, MIRROR_VERSION, QUORUM_VERSION)
TRIES = 5
OF_BACKUP = "backup:"
"""Begins `Format.mirrors` in a root to which a backup is being restored."""


class Format(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The contents of `meta/format`."""

    pylog: int
    """Version of the log's format."""
    cluster_id: str
    created_ms: int
    probed: str
    """Fingerprint of the store library whose probe succeeded."""
    crc: str = ""
    """crc32c of the other fields, in hex; empty in a file from an earlier pylog."""
    mirrors: str = ""
    """URL of the log that this one follows (`recovery/mirror.py`), or after `OF_BACKUP` the backup that is being
    restored; empty if it is a separate log."""
    quorum: str = ""
    """URL of the quorum that has the metadata, as its first leader knew it; empty if the metadata is here."""
    founding: str = ""
    """The id of that quorum, if it has taken the log over from a storage or another quorum: others must not lead."""

    def checksum(self) -> str:
        """The correct value of `crc`."""
        fields = [self.pylog, self.cluster_id, self.created_ms, self.probed]
        fields += [value for value in (self.mirrors, self.quorum, self.founding) if value]
        return f"{crc32c(msgspec.json.encode(fields)):08x}"

    def check_restored(self, url: str) -> None:
        """Raises NoLog for a root to which a backup is being restored."""
        if self.mirrors.startswith(OF_BACKUP):
            raise NoLog(
                f"{url} is not a log yet, but half restored from the backup {self.mirrors.removeprefix(OF_BACKUP)}: if "
                "the restoration was interrupted, run `jobs/backup.py --restore` again"
            )

    def of_mirror(self, mirrors: str) -> Format:
        """The format of a mirror of the log at this URL; empty: of a log that is not a mirror."""
        return msgspec.structs.replace(self, pylog=MIRROR_VERSION if mirrors else FORMAT_VERSION, mirrors=mirrors)

    def of_quorum(self, url: str, founding: str) -> Format:
        """The format of a folder whose metadata is in the quorum with this URL and id."""
        return msgspec.structs.replace(self, pylog=QUORUM_VERSION, quorum=url, founding=founding)

    def encode(self) -> bytes:
        """The bytes of the file."""
        return msgspec.json.encode(msgspec.structs.replace(self, crc=self.checksum())) + b"\n"


def parse_format(data: bytes, url: str) -> Format:
    """Parse `meta/format`.  Raises UnsupportedVersion for a file that is damaged, not pylog's, or newer."""
    damaged = UnsupportedVersion(
        f"{url}/{FORMAT_KEY} is not pylog's, or damaged: {first_bytes(data)}; if it is damaged, stop all clients, and restore it "
        "from a copy of this folder, or delete it, and run the command again, which then says how to make it again"
    )
    try:
        fields: Any = msgspec.json.decode(data)
        version = fields["pylog"]
        form = msgspec.convert(fields, Format) if version in VERSIONS else None
    except (*UNREADABLE, KeyError, TypeError) as error:
        raise damaged from error
    if form is None:
        raise UnsupportedVersion(
            f"the log at {url} has format {version}, this pylog reads {', '.join(map(str, VERSIONS))}: update pylog"
        )
    if form.crc and form.crc != form.checksum():
        raise damaged
    return form


def check_is_here(form: Format, url: str) -> None:
    """Raises InvalidRequest if the metadata of the log is in a quorum, and not in this folder."""
    if form.quorum:
        raise in_quorum_error(url, form.quorum)


def in_quorum_error(url: str, quorum: str) -> InvalidRequest:
    """The error of a process that opens a log by the URL of its records.

    quorum:  the URL of the nodes, as their first leader knew it.
    """
    return InvalidRequest(
        f"{url} has the records of a log whose metadata is in a quorum: open the log with the addresses of its nodes, "
        f"{quorum} and others: each has its address for clients as advertise or listen in [coordinator] of its `pylog serve "
        "--conf` file, and a node that is gone may be among these; repair, mirror and move are not possible for it yet, see "
        "docs/quorum.md"
    )


def put_format(form: Format, url: str) -> Steps[bytes]:
    """Put `meta/format` if it is absent; returns its bytes, these or another process's."""
    for _ in range(TRIES):
        answer: PutAnswer = yield PutNew(FORMAT_KEY, form.encode())
        found: bytes | None = yield Get(FORMAT_KEY)
        if found is not None:
            return found
        logger.debug("put of %s answered %s and the object does not exist, retrying", FORMAT_KEY, answer)
    raise StorageUnavailable(f"the storage at {url} does not keep {FORMAT_KEY}, put {TRIES} times")


def find_format(url: str) -> Steps[bytes | None]:
    """The bytes of `meta/format`, which was not there; None if there is no log, and one can begin.

    Another process may have created the log meanwhile: it puts this file before any record.
    Raises UnsupportedVersion if the file is lost, or the folder is the root of a broker.  Another log must not begin
    there: its maintenance would delete the objects.
    """
    names = yield from find_remains()
    if not names:
        return None
    data: bytes | None = yield Get(FORMAT_KEY)
    if data is None:
        raise remains_error(url, names)
    return data
