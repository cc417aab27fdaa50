"""The rules of flows, each removed in turn: the simulation has to notice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulation.log_sim.mutations import MUTATIONS as OF_LOGS
from simulation.mutation import Mutation, Patch
from spark_log.client.admin import erasure
from spark_log.client.producer.commit import PlainProducer
from spark_log.flows import keyed_state
from spark_log.flows.keyed_state import KeyedState
from spark_log.metadata.commits import decide_commits as commits
from spark_log.metadata.commits.decide_commits import Committed, ReadBasis
from spark_log.metadata.records import GroupCommit
from spark_log.metadata.set_backs import BEGINNING, Lineage
from spark_log.metadata.state import State

_commit = PlainProducer.commit


def _no_basis(state: State, basis: ReadBasis) -> None:
    """Whatever others have changed since."""


def _outputs_first(
    self: Any, epoch: int, uploads: Sequence[Any], groups: Sequence[GroupCommit] = (), **more: Any
) -> Committed:
    committed = _commit(self, epoch, uploads, **more)
    if groups:
        _commit(self, epoch, (), groups)
    return committed


def _positions_first(
    self: Any, epoch: int, uploads: Sequence[Any], groups: Sequence[GroupCommit] = (), **more: Any
) -> Committed:
    if groups:
        _commit(self, epoch, (), groups)
    return _commit(self, epoch, uploads, **more)


def _keeps(self: KeyedState) -> None:
    """The changes of a batch that was not committed stay in memory."""


def _none(state: State, topic_id: str) -> tuple[str, ...]:
    """No flow keeps its state in a topic."""
    return ()


def _one_lineage(state: State) -> Lineage:
    return BEGINNING


MUTATIONS = {
    "no_basis": Mutation("a commit is refused if its state was changed", (Patch(commits, "check_basis", _no_basis),)),
    "any_generation": OF_LOGS["any_generation"],
    "outputs_first": Mutation(
        "positions are committed with the outputs", (Patch(PlainProducer, "commit", _outputs_first),)
    ),
    "positions_first": Mutation(
        "outputs are committed with the positions", (Patch(PlainProducer, "commit", _positions_first),)
    ),
    "keeps_refused": Mutation(
        "changes of a batch that was not committed are dropped", (Patch(KeyedState, "discard", _keeps),)
    ),
    "erased_once": Mutation(
        "an erasure also removes the state that flows have written meanwhile", (Patch(erasure, "_flows", _none),)
    ),
    "one_lineage": Mutation("state is read again after a restore", (Patch(keyed_state, "lineage_of", _one_lineage),)),
}
