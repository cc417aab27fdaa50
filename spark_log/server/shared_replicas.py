"""Checks of a client with a token for some topics, on the state on which its command is decided.  Pure.

Partitions with the same list of brokers are one placement group, with one ISR.  A writer reports which replicas have
its objects, and those that do not leave the ISR.  Nothing shows that a report is true: so a token that does not have
access to all topics of a group takes none of its replicas out.  Those that are away are fenced by the check of roots.
The same for copies that are not there.
"""

from __future__ import annotations

from collections.abc import Collection

from spark_log.errors import AuthorizationFailed, InvalidRequest, NotEnoughReplicas
from spark_log.metadata.command_base import Command
from spark_log.metadata.commands import Append
from spark_log.metadata.records import CommitRecord
from spark_log.metadata.replicas.replay_replicas import counted, lacking_isr
from spark_log.metadata.replicas.replica_commands import AddPendingCopies
from spark_log.metadata.replicas.replicas import copies_of
from spark_log.metadata.state import State
from spark_log.model import ACKS_ALL
from spark_log.server.claimed_copies import ClaimedCopy
from spark_log.server.tokens import Grant, check_allowed, sees


def check_written(grant: Grant, absent: Collection[ClaimedCopy], command: Command, state: State) -> None:
    """Raises the error of a command that is to be written.

    absent:  copies that its client says are there, and that the coordinator did not find.
    Raises AuthorizationFailed, NotEnoughReplicas; InvalidRequest for absent copies of objects in the log.
    """
    check_allowed(grant, command, state)
    for part in command.parts():
        if isinstance(part, Append):
            _check_present(part.commit, absent)
        elif isinstance(part, AddPendingCopies):
            names = {copy.object for copy in part.copies}
            if gone := next((one for one in absent if one.name in names), None):
                raise InvalidRequest(
                    f"broker {gone.broker} does not have {gone.name} with {gone.size} bytes: copy it there"
                )
    check_isr(grant, command, state)


def _check_present(commit: CommitRecord, absent: Collection[ClaimedCopy]) -> None:
    groups = {made.name: where.group for made, where in zip(commit.objects, commit.placed, strict=False)}
    gone = [one for one in sorted(absent) if one.name in groups]
    if not gone:
        return
    number = groups[gone[0].name]
    lacking = dict[str, tuple[int, ...]]()
    for one in gone:
        if groups[one.name] == number:
            lacking[one.name] = (*lacking.get(one.name, ()), one.broker)
    raise NotEnoughReplicas(
        f"broker {gone[0].broker} does not have {gone[0].name} with {gone[0].size} bytes, as the commit says: put it "
        "there, or upload the data again",
        lacking=lacking,
        placement_group=number,
    )


def check_isr(grant: Grant, command: Command, state: State) -> None:
    """Raises NotEnoughReplicas for a commit that would take replicas out of the ISR of other topics, with the objects
    that these lack, and AuthorizationFailed for a report that they were late."""
    for part in command.parts():
        if isinstance(part, Append) and part.commit.acks == ACKS_ALL:
            _check_commit(grant, part.commit, state)
        elif isinstance(part, AddPendingCopies):
            _check_late(grant, part, state)


def _check_commit(grant: Grant, commit: CommitRecord, state: State) -> None:
    for number, brokers in lacking_isr(state, commit.placed).items():
        if not _is_shared(grant, number, state):
            continue
        lacking = {
            made.name: absent
            for made, where in zip(commit.objects, commit.placed, strict=False)
            if where.group == number
            and (absent := tuple(one for one in brokers if one not in (counted(state, where) or ())))
        }
        raise NotEnoughReplicas(
            f"the in-sync replicas {', '.join(map(str, brokers))} lack the records, and are in the ISR of topics to which "
            f"the token {grant.name!r} has no access: write the records to them, or, if a root is unavailable, try again "
            "when its broker is fenced",
            lacking=lacking,
            placement_group=number,
        )


def _check_late(grant: Grant, report: AddPendingCopies, state: State) -> None:
    for name, broker in report.late:
        row = state.objects.get(name)
        known = None if row is None else copies_of(state, row)
        if known is not None and _is_shared(grant, known.group, state):
            raise AuthorizationFailed(
                f"the token {grant.name!r} has no access to all topics of which broker {broker} has replicas beside "
                f"those of {name}: the coordinator decides whether it is late"
            )


def _is_shared(grant: Grant, number: int, state: State) -> bool:
    """Whether a placement group has partitions of topics to which the token has no access."""
    return bool(grant.topics) and any(
        number in numbers and topic_id in state.topics and not sees(state.topics[topic_id].name, grant.topics)
        for topic_id, numbers in state.assignments.items()
    )
