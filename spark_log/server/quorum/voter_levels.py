"""A level of the log that every node of a quorum understands.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spark_log.errors import InvalidRequest
from spark_log.journal.context import DecisionRule, Proposal
from spark_log.metadata.command_base import Command
from spark_log.metadata.commands import UpdateFeature
from spark_log.metadata.features import METADATA_VERSION, SUPPORTED
from spark_log.quorum.node.node_status import NodeStatus


def check_nodes_understand(level: int, status: NodeStatus) -> None:
    """Raise InvalidRequest if a voter, or another connected node, could not read a record of this level.

    status:  the leader's status.
    """
    levels, voters = status.levels, {voter.id for voter in status.voters}
    older = [f"node {node} supports level {levels[node]}" for node in sorted(levels) if levels[node] < level]
    away = [f"node {node} is not connected" for node in sorted(voters - set(levels))]
    if older or away:
        raise InvalidRequest(
            f"the log cannot be raised to level {level} of {METADATA_VERSION}: {', '.join([*older, *away])}; update pylog "
            "on all nodes, start them, and try again, or remove voters that are gone"
        )


def refuse_levels(commands: Iterable[Proposal], known: int, status_of: Callable[[], NodeStatus | None]) -> None:
    """Reject commands that raise the level above a level that the quorum's nodes support.

    Other commands of the same request continue: they may come from other threads of the client.  A level that does not
    raise the log, or that this pylog does not support, is left to the decision, which says so in every log.

    known:      the level of the log.
    status_of:  the leader's status.
    """
    for command in commands:
        for level in _new_levels(command.decide):
            if not known < level <= SUPPORTED[METADATA_VERSION]:
                continue
            status = status_of()
            assert status is not None, "a node that leads takes part"
            try:
                check_nodes_understand(level, status)
            except InvalidRequest as error:
                command.error, command.done = error, True


def _new_levels(decide: DecisionRule) -> list[int]:
    """Those to which a command raises the log; `log.admin` sends it in an atomic set."""
    parts = decide.parts() if isinstance(decide, Command) else ()
    return [part.level for part in parts if isinstance(part, UpdateFeature) and part.name == METADATA_VERSION]
