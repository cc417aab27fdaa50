"""Decisions: which coordinator leads the log."""

from __future__ import annotations

from spark_log.errors import LogMoved, NotCoordinator
from spark_log.metadata import records as r
from spark_log.metadata.decide.decision import Decision
from spark_log.metadata.state import Leadership, State

MOVED = "moved to "
"""The address of a log that was moved begins with this, and ends with its new URL."""
ARRIVED = "moved"
"""The address under which a move takes the log over in its new place, before it releases the log there."""


def moved_to(held: Leadership) -> str:
    """The URL to which a log was moved; empty if it is here."""
    address = held.address
    return address.removeprefix(MOVED) if address.startswith(MOVED) else ""


def moved_error(url: str) -> LogMoved:
    """The error of a process that used the log in its former place."""
    return LogMoved(f"the log was moved to {url}: open it there, or again with the URL that you have", url=url)


def decide_take_over(state: State, expected: int, address: str, host: str, cluster_id: str) -> Decision[int]:
    """Take over the log from epoch `expected`, whose coordinator is dead or has released it.  The reply is the new
    epoch.

    Raises NotCoordinator if another process was faster.
    """
    held = state.coordinator
    if held.epoch != expected:
        raise NotCoordinator(
            f"another coordinator has taken the log over, with epoch {held.epoch}, at {held.address or 'no address'}",
            address=held.address,
            epoch=held.epoch,
        )
    if (url := moved_to(held)) and address != ARRIVED:
        raise moved_error(url)
    new = r.TakeOverRecord(epoch=expected + 1, address=address, host=host, cluster_id=cluster_id)
    return Decision((new,), new.epoch)


def decide_release(state: State, epoch: int) -> Decision[bool]:
    """Release the log to embedded writers: under the coordinator's epoch, or under the next one, which fences it.

    The reply is False, and nothing is written, if the epoch does not match.
    """
    held = state.coordinator
    if not held.address or epoch not in (held.epoch, held.epoch + 1):
        return Decision((), False)
    return Decision((r.ReleaseRecord(epoch=epoch),), True)
