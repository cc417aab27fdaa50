"""The log that a mirror follows, as it is when the mirror is to take its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_log.client.open_journal import open_journal
from spark_log.errors import InvalidRequest, NoLog, SparkLogError
from spark_log.journal.journal import Journal
from spark_log.metadata.decide.coordinators import check_is_here
from spark_log.metadata.erasures import erased_since
from spark_log.metadata.state import ErasedTopic
from spark_log.node.daemon_tasks import Task

LOOK_S = 10
"""How long a recovery by force waits for the log, to learn of erasures."""


def version_of(url: str, storage_options: Mapping[str, Any] | None, cluster_id: str) -> int | None:
    """The newest version of the log with this id; None if it is not there."""
    failures: list[Exception] = []
    for options in (storage_options, None):
        try:
            journal = open_journal(url, options, create=False)
            check_is_here(journal.state.coordinator)
            return journal.state.version if journal.cluster_id == cluster_id else None
        except NoLog:
            return None
        except (SparkLogError, OSError) as error:
            failures.append(error)
    raise InvalidRequest(
        f"{url}, which is mirrored, cannot be looked for: {failures[-1]}. If no process uses it any more, give --force"
    )


def erased_in(url: str, storage_options: Mapping[str, Any] | None, mirror: Journal) -> dict[str, ErasedTopic]:
    """Erasures that a mirror lacks, if its log can still be read: one that hangs is not waited for."""
    look = Task(lambda: open_journal(url, storage_options, create=False), "pylog-lost-log")
    if not look.wait(LOOK_S) or look.error is not None:
        return {}
    lost = look.result()
    return erased_since(mirror.state, lost.state) if lost.cluster_id == mirror.cluster_id else {}
