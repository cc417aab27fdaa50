"""`pylog metadata dump PATH`: the files of a quorum's node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_log.cli.base import Failed
from spark_log.cli.output import echo, emit_rows, emit_value
from spark_log.cli.session import CommandSession
from spark_log.text import counted

if TYPE_CHECKING:
    from spark_log.quorum_node.inspection import FileDump


def dump_quorum(session: CommandSession, path: str, *, verify: bool) -> None:
    """Show the content of a directory or a file, or only check it.  Raises Failed for damage."""
    from spark_log.quorum_node.inspection import damage_of, dump_file, files_of

    paths = files_of(path)
    dumps = [dump_file(one) for one in paths]
    if not verify:
        _show(session, dumps)
    if problems := list(dict.fromkeys(damage_of(paths))):
        raise Failed("; ".join(problems))
    if verify:
        units = sum(len(dump.rows) for dump in dumps if dump.name.endswith(".log"))
        unfinished = sum(dump.unfinished for dump in dumps)
        rest = f"; {counted(unfinished, 'byte')} of an unfinished write" if unfinished else ""
        echo(f"{counted(len(dumps), 'file')} with {counted(units, 'write')} of the log: all are whole{rest}")


def _show(session: CommandSession, dumps: list[FileDump]) -> None:
    if session.structured:
        emit_value(session, [{"file": one.name, "unfinished": one.unfinished, "content": one.rows} for one in dumps])
        return
    for number, one in enumerate(dumps):
        if session.output != "csv":
            echo(f"{'' if number == 0 else chr(10)}Dumping {one.name}")
        columns = [name for name in (one.rows[0] if one.rows else {}) if name != "entries"]
        emit_rows(session, columns, one.rows)
        if one.unfinished:
            echo(f"{counted(one.unfinished, 'byte')} at the end are not a whole write", err=True)
