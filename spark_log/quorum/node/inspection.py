"""The content of a data directory, read without its lock: for tools, also while a node uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from spark_log.errors import CorruptObject, InvalidRequest
from spark_log.quorum.messages import Entry, Kind
from spark_log.quorum.node.directory import LOCK, read_meta
from spark_log.quorum.node.file_operations import LocalFiles
from spark_log.quorum.node.log_file_sequence import log_names, snapshot_name, snapshots_among
from spark_log.quorum.node.vote_and_identity import QUORUM_STATE, decode_state
from spark_log.quorum.snapshot_format import read_header, read_state
from spark_log.quorum.unit_format import Unit, decode_log, units_of
from spark_log.quorum.voters import decode_voters, key_text, voters_text

TRIES = 10
Result = TypeVar("Result")


@dataclass(slots=True)
class FileDump:
    """A file of a log, or a snapshot."""

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The units of a log; one row for a snapshot, with its position and size."""
    unfinished: int = 0
    """Bytes at the end of a log that are not a whole unit: of a write that is under way, or was not finished."""
    problem: str = ""
    """Damage that a crash cannot have caused; the rows are those before it."""


def read_beside(path: str, read: Callable[[], Result]) -> Result:
    """The result of reading a directory whose node may delete files meanwhile: then it is read again.

    Raises InvalidRequest if that happens each time.
    """
    for _ in range(TRIES):
        try:
            return read()
        except FileNotFoundError as error:
            missing = error
    raise InvalidRequest(f"the files of {path} were deleted while they were read: run the command again") from missing


def files_of(path: str) -> list[str]:
    """The files of a directory that `dump_file` shows, or the file itself.  Raises InvalidRequest."""
    given = Path(path)
    if given.is_file():
        return [path]
    read_meta(path)
    names = LocalFiles(path).names()
    snapshots = [snapshot_name(one) for one in snapshots_among(names)]
    return [str(given / name) for name in [*snapshots, *sorted(name for name in names if name.endswith(".log"))]]


def dump_file(path: str) -> FileDump:
    """Raises InvalidRequest for a file of another kind."""
    found = FileDump(path)
    try:
        if path.endswith(".log"):
            _dump_log(found)
        elif path.endswith(".checkpoint"):
            _dump_snapshot(found)
        else:
            raise InvalidRequest(f"{path} is neither a file of a log (.log) nor a snapshot (.checkpoint)")
    except CorruptObject as error:
        found.problem = str(error)
    except FileNotFoundError as error:
        raise InvalidRequest(f"{path} was deleted meanwhile: run the command again") from error
    return found


def _dump_log(found: FileDump) -> None:
    data, position = Path(found.name).read_bytes(), 0
    for unit, end in units_of(found.name, data):
        found.rows.append(_unit_row(unit, position, end - position))
        position = end
    found.unfinished = len(data) - position


def _unit_row(unit: Unit, position: int, size: int) -> dict[str, Any]:
    """Under the names of kafka-dump-log, as far as it has them."""
    entries = unit.entries
    return {
        "base_offset": entries[0].offset if entries else None,
        "last_offset": entries[-1].offset if entries else None,
        "count": len(entries),
        "epoch": entries[-1].epoch if entries else None,
        "position": position,
        "size": size,
        "high_watermark": unit.high_watermark,
        "truncate_to": unit.truncate_to,
        "entries": [_entry_row(entry) for entry in entries],
    }


def _entry_row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"offset": entry.offset, "epoch": entry.epoch, "kind": entry.kind.value}
    if entry.kind is Kind.VOTERS:
        return {**row, "voters": list(map(key_text, decode_voters(entry.data)))}
    try:
        return {**row, "data": entry.data.decode()}
    except UnicodeDecodeError:
        return {**row, "hex": entry.data.hex()}


def _dump_snapshot(found: FileDump) -> None:
    files, name = LocalFiles(str(Path(found.name).parent)), Path(found.name).name
    read, size = partial(files.read, name), files.size(name)
    header = read_header(read, found.name)
    state = sum(map(len, read_state(read, size, found.name)))
    found.rows.append(
        {
            "end_offset": header.snapshot.offset,
            "epoch": header.snapshot.epoch,
            "voters": voters_text(header.voters) or None,
            "size": size,
            "state_bytes": state,
        }
    )


def storage_info(path: str) -> dict[str, Any]:
    """The identity and the content of a directory.  Raises InvalidRequest if it is not formatted, CorruptObject."""
    return read_beside(path, lambda: _storage_info(path))


def _storage_info(path: str) -> dict[str, Any]:
    meta, files = read_meta(path), LocalFiles(path)
    names = files.names()
    state = decode_state(files.read(QUORUM_STATE), f"{path}/{QUORUM_STATE}")
    snapshots, logs = snapshots_among(names), log_names(names, path)
    content = decode_log((f"{path}/{name}", files.read(name)) for name in logs)
    voters = _voters(path, names, content.entries)
    return {
        "directory": path,
        "cluster_id": meta.cluster_id,
        "node_id": meta.node_id,
        "directory_id": meta.directory_id,
        "epoch": state.leader_epoch,
        "voted": f"{state.voted_id}@{state.voted_directory_id}" if state.voted else None,
        "voters": ", ".join(voters) or None,
        "log_start": content.entries[0].offset if content.entries else snapshots[-1].offset,
        "log_end": max([snapshots[-1].offset, *(entry.offset + 1 for entry in content.entries[-1:])]),
        "high_watermark": max(content.high_watermark, snapshots[-1].offset),
        "log_files": len(logs),
        "log_bytes": sum(map(files.size, logs)),
        "snapshot": snapshot_name(snapshots[-1]),
        "snapshot_bytes": files.size(snapshot_name(snapshots[-1])),
        "last_used_by": _holder(files, names),
    }


def _voters(path: str, names: list[str], entries: Sequence[Entry]) -> list[str]:
    """The newest ones on this disk, be their entry committed or not."""
    for entry in reversed(entries):
        if entry.kind is Kind.VOTERS:
            return list(map(key_text, decode_voters(entry.data)))
    newest = snapshot_name(snapshots_among(names)[-1])
    header = read_header(partial(LocalFiles(path).read, newest), f"{path}/{newest}")
    return list(map(key_text, header.voters))


def _holder(files: LocalFiles, names: list[str]) -> str | None:
    return files.read(LOCK).decode(errors="replace").strip() or None if LOCK in names else None


def damage_of(paths: Sequence[str]) -> Iterator[str]:
    """The damage of files, and between them: a file that is missing, a gap in the offsets."""
    yield from (problem for path in paths if (problem := dump_file(path).problem))
    logs = [path for path in paths if path.endswith(".log")]
    try:
        log_names([Path(path).name for path in logs], str(Path(logs[0]).parent) if logs else "")
        decode_log((path, Path(path).read_bytes()) for path in logs)
    except CorruptObject as error:
        yield str(error)
    except FileNotFoundError as error:
        raise InvalidRequest(f"{error.filename} was deleted meanwhile: run the command again") from error
