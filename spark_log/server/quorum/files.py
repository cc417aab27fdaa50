"""The metadata in the files of a quorum, read without a lock: for tools, also while a node runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from spark_log.errors import InvalidRequest
from spark_log.metadata.formats.batch_format import decode_batch, first_line
from spark_log.metadata.replay import replay
from spark_log.metadata.state import State
from spark_log.quorum.messages import EMPTY, Kind
from spark_log.quorum.node.directory import read_meta
from spark_log.quorum.node.file_operations import LocalFiles
from spark_log.quorum.node.inspection import read_beside
from spark_log.quorum.node.log_file_sequence import log_names, snapshot_name, snapshots_among
from spark_log.quorum.snapshot_format import read_state
from spark_log.quorum.unit_format import decode_log
from spark_log.server.quorum.state import Content, parse_snapshot


def content_of(path: str, version: int | None = None) -> Content:
    """The content of a node's directory, of a snapshot in it, or of a snapshot beside the records.

    Batches of a directory are included whether they are committed or not.

    version:  stop at this version; None: read everything.
    Raises InvalidRequest for another path, or if the version is not there; CorruptObject.
    """
    read = _snapshot if Path(path).is_file() else partial(_directory, version=version)
    found = read_beside(path, lambda: read(path))
    if version not in (None, found.state.version):
        raise InvalidRequest(f"{path} has no version {version}: it has {found.state.version}")
    return found


def _directory(path: str, version: int | None) -> Content:
    read_meta(path)
    found, files = Content(State()), LocalFiles(path)
    names = files.names()
    newest = snapshots_among(names)[-1]
    if newest != EMPTY:
        found = _snapshot(f"{path}/{snapshot_name(newest)}")
    logs = decode_log((f"{path}/{name}", files.read(name)) for name in log_names(names, path))
    for entry in logs.entries:
        if entry.kind is Kind.DATA and entry.offset >= newest.offset and found.state.version != version:
            state = replay(found.state, decode_batch(entry.data, f"entry {entry.offset} in {path}"))
            found = found._replace(state=state, head=first_line(entry.data))
    return found


def _snapshot(path: str) -> Content:
    if not path.endswith(".checkpoint"):
        raise InvalidRequest(f"{path} is not a snapshot (.checkpoint)")
    files, name = LocalFiles(str(Path(path).parent)), Path(path).name
    return parse_snapshot(read_state(partial(files.read, name), files.size(name), path), path)
