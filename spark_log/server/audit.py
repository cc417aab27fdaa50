"""The audit log: a line of JSON for each change that a client requests, in the logger `spark_log.audit`.

A line contains no data of records.  Heartbeats and the coordinator's own changes are not logged.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from spark_log.errors import SparkLogError
from spark_log.groups.messages import JoinGroupRequest, LeaveGroupRequest
from spark_log.groups.subscription import subscribed_topics
from spark_log.metadata.commands import AnyCommand
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.groups.group_commands import RenewSession
from spark_log.metadata.state import State
from spark_log.rpc.messages import MemberRequest

NAMES_MAX = 100
"""Names of one kind in a line; if there are more, their number follows."""
STDERR = "stderr"
logger = logging.getLogger("spark_log.audit")
logger.setLevel(logging.CRITICAL)
"""Until a destination is set."""


class AuditedChange(NamedTuple):
    """The action and the names of a client's request."""

    kind: str
    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    producers: Sequence[str] = ()


class AuditFile(logging.FileHandler):
    """A file that log rotation can rename; after `reopen`, lines go to a new file of the original name."""

    def reopen(self) -> None:
        """Raises OSError, and then continues with the current file."""
        stream = self._open()
        self.acquire()
        try:
            old, self.stream = self.stream, stream
        finally:
            self.release()
        if old is not None:
            old.close()


def open_audit(destination: str) -> None:
    """Write to a file or to `stderr`; empty: nowhere.  Raises OSError."""
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
    """Reopen the file after it was renamed.  Raises OSError."""
    for handler in logger.handlers:
        if isinstance(handler, AuditFile):
            handler.reopen()


def close_audit() -> None:
    """Stop writing."""
    for handler in tuple(logger.handlers):
        if isinstance(handler, logging.StreamHandler):
            logger.removeHandler(handler)
            handler.close()
    logger.setLevel(logging.CRITICAL)


def is_on() -> bool:
    """Whether there is a destination."""
    return logger.isEnabledFor(logging.INFO)


def changes_of(commands: Iterable[AnyCommand], state: State) -> list[AuditedChange | None]:
    """A change for each command, with names from before it is applied; None for heartbeats, or if auditing is off."""
    if not is_on():
        return []
    return [_change_of(command, state) for command in commands]


def _change_of(command: AnyCommand, state: State) -> AuditedChange | None:
    if isinstance(command, RenewSession):
        return None
    kinds = dict.fromkeys(str(type(part).__struct_config__.tag) for part in command.parts())
    return AuditedChange("+".join(kinds), command.topics(state), command.groups(), command.producers())


def change_of_member(request: MemberRequest) -> AuditedChange | None:
    """The change for the audit log; None for requests of current members."""
    if isinstance(request, JoinGroupRequest):
        topics = subscribed_topics(protocol.metadata for protocol in request.protocols) or ()
        return AuditedChange("join_group", sorted(topics), (request.group_id,))
    return AuditedChange("leave_group", (), (request.group_id,)) if isinstance(request, LeaveGroupRequest) else None


def write(principal: str, address: str, change: AuditedChange | None, outcome: object, version: int) -> None:
    """Write one line.

    outcome:  the reply, or the error.
    version:  of the log; a commit of records has its own in the reply.
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
