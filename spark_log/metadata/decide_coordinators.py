"""Decisions: which coordinator leads the log."""

from __future__ import annotations

from spark_log.errors import ConcurrentChange, InvalidRequest, LogMoved, NotCoordinator
from spark_log.metadata import records as r
from spark_log.metadata.decision import Decision
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.state import Leadership, State

QUORUM = "pylog://"
"""A URL that begins with this is that of a quorum: a log that moves there leaves its objects where they are."""


def moving_to(held: Leadership) -> str:
    """The URL to which a log is being moved, that cannot be changed until then; empty if it is not."""
    return held.address if held.purpose == "moving" else ""


def moved_to(held: Leadership) -> str:
    """The URL to which a log was moved; empty if it is here."""
    return held.address if held.purpose == "moved" else ""


def closed_error(url: str) -> LogMoved:
    """The error of a process that changes a log during the last seconds of a move."""
    again = "start the nodes, or run `pylog quorum adopt`" if url.startswith(QUORUM) else f"run `pylog move {url}`"
    return LogMoved(
        f"the log is being moved to {url}, and cannot be changed until then: wait some seconds. If the move has died, "
        f"{again} again, or `pylog move --cancel`",
        url=url,
    )


def moved_error(url: str) -> LogMoved:
    """The error of a process that used the log in its former place."""
    how = "by" if url.startswith(QUORUM) else "with the URL that you have or by"
    return LogMoved(
        f"the log was moved to {url} while this process had it open: nothing was changed; open it again, {how} "
        f"`spark_log.connect({url!r})`, and with it its producers and consumers",
        url=url,
    )


def check_is_here(held: Leadership) -> None:
    """Raises LogMoved if the log was moved, or is being moved."""
    if url := moving_to(held):
        raise closed_error(url)
    if url := moved_to(held):
        raise moved_error(url)


def check_can_move(state: State, url: str) -> None:
    """Raises InvalidRequest for a log with a coordinator, or with brokers if its objects move."""
    if held := state.coordinator.address:
        raise InvalidRequest(
            f"the coordinator at {held} has the log: stop it, move the log, and start it with the new URL; if it crashed, "
            "run `pylog cluster release --force` first"
        )
    if not url.startswith(QUORUM) and any(broker != OWN_BROKER for broker in state.brokers):
        raise InvalidRequest(
            "a log with brokers cannot be moved: move its partitions to broker 0 by `pylog topic alter TOPIC "
            "--replication-factor 1`, remove the brokers, and add them again afterwards"
        )


def decide_take_over(
    state: State,
    expected: int,
    address: str,
    host: str,
    cluster_id: str,
    purpose: r.TakeOverPurpose = "lead",
    version: int | None = None,
) -> Decision[int]:
    """Take over the log from epoch `expected`, whose coordinator is dead or has released it.  The reply is the new
    epoch.

    A log that is being moved, or was moved, can only be taken over by the end of that move, and in another root: by the
    same move, or by a recovery.

    version:  the one before; None: any.
    Raises NotCoordinator if another process was faster, ConcurrentChange after another version.
    """
    if version is not None and state.version != version + 1:
        raise ConcurrentChange(
            f"a client of the lost log has put version {version + 1} into its copy meanwhile: stop all clients of the "
            "lost log, and run this again"
        )
    held, ends_it = state.coordinator, purpose == "moved"
    if purpose not in ("arrived", "recovered") and not (ends_it and address == moving_to(held)):
        check_is_here(held)
        if ends_it:
            raise InvalidRequest(f"the move to {address} was cancelled meanwhile")
    if held.epoch != expected:
        raise NotCoordinator(
            f"another coordinator has taken the log over, with epoch {held.epoch}, at {held.address or 'no address'}",
            address=held.address,
            epoch=held.epoch,
        )
    if purpose == "moving":
        check_can_move(state, address)
    new = r.TakeOverRecord(epoch=expected + 1, address=address, host=host, cluster_id=cluster_id, purpose=purpose)
    return Decision((new,), new.epoch)


def decide_release(state: State, epoch: int) -> Decision[bool]:
    """Release the log to embedded writers: under the coordinator's epoch, or under the next one, which fences it.

    A move is only cancelled under the next one: under its own, it may have ended since the caller has looked.

    The reply is False, and nothing is written, if the epoch does not match.
    """
    held = state.coordinator
    first = held.epoch + bool(moving_to(held) or moved_to(held))
    if not held.address or not first <= epoch <= held.epoch + 1:
        return Decision((), False)
    return Decision((r.ReleaseRecord(epoch=epoch),), True)
