"""Who changed what: a line of JSON for each change that a client asks for, of the logger `spark_log.audit`.

A line has no data of records.  Heartbeats are left out, and so is what the coordinator does for itself.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from spark_log.errors import SparkLogError
from spark_log.metadata.commands import AnyCommand, SeveralCommands, SignOfLife
from spark_log.metadata.decide import Committed
from spark_log.metadata.state import State

NAMES_MAX = 100
"""Names of one kind in a line; a number says how many more there are."""
STDERR = "stderr"
logger = logging.getLogger("spark_log.audit")
logger.setLevel(logging.CRITICAL)
"""Until a destination is set."""


class AuditedChange(NamedTuple):
    """What a client asks for."""

    kind: str
    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    producers: Sequence[str] = ()


class AuditFile(logging.FileHandler):
    """A file that can be renamed for rotation; after `reopen` lines go to a new one of its name."""

    def reopen(self) -> None:
        """Raises OSError, and then goes on with the file that it has."""
        stream = self._open()
        self.acquire()
        try:
            old, self.stream = self.stream, stream
        finally:
            self.release()
        if old is not None:
            old.close()


def open_audit(destination: str) -> None:
    """Have lines go to a file or to `stderr`; empty: nowhere.  Raises OSError."""
    close_audit()
    if destination:
        handler = (
            logging.StreamHandler(sys.stderr) if destination == STDERR else AuditFile(destination, encoding="utf-8")
        )
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.INFO)


def reopen_audit() -> None:
    """After the file was renamed.  Raises OSError."""
    for handler in logger.handlers:
        if isinstance(handler, AuditFile):
            handler.reopen()


def close_audit() -> None:
    """Write nothing any more."""
    for handler in tuple(logger.handlers):
        if isinstance(handler, logging.StreamHandler):
            logger.removeHandler(handler)
            handler.close()
    logger.setLevel(logging.CRITICAL)


def is_on() -> bool:
    """Whether lines go anywhere."""
    return logger.isEnabledFor(logging.INFO)


def changes_of(commands: Iterable[AnyCommand], state: State) -> list[AuditedChange | None]:
    """Of each command, by names that are known before it is carried out; None for a heartbeat, or if nothing is written."""
    if not is_on():
        return []
    return [_change_of(command, state) for command in commands]


def _change_of(command: AnyCommand, state: State) -> AuditedChange | None:
    if isinstance(command, SignOfLife):
        return None
    parts = command.commands if isinstance(command, SeveralCommands) else (command,)
    kinds = dict.fromkeys(str(type(part).__struct_config__.tag) for part in parts)
    return AuditedChange("+".join(kinds), command.topics(state), command.groups(), command.producers())


def write(principal: str, address: str, change: AuditedChange | None, outcome: object, version: int) -> None:
    """One line.

    outcome:  the reply, or the error.
    version:  of the log; a commit of records knows its own.
    """
    if change is None or not is_on():
        return
    line: dict[str, Any] = {
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "principal": principal,
        "address": address,
        "change": change.kind,
    }
    for kind, names in (("topics", change.topics), ("groups", change.groups), ("producers", change.producers)):
        line[kind] = sorted(names)[:NAMES_MAX]
        if len(names) > NAMES_MAX:
            line[f"more_{kind}"] = len(names) - NAMES_MAX
    if isinstance(outcome, BaseException):
        certain = isinstance(outcome, SparkLogError) and not outcome.maybe_applied
        line["outcome"] = "refused" if certain else "unknown"
        line["error"] = type(outcome).__name__
        line["reason"] = str(outcome)
    else:
        line["outcome"] = "done"
        line["version"] = outcome.version if isinstance(outcome, Committed) else version
    logger.info("%s", json.dumps(line, ensure_ascii=True))
