"""Preferred replicas lead again."""

from __future__ import annotations

from pathlib import Path

from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.replicas.leader_election import imbalanced_groups
from spark_log.metadata.replicas.replica_commands import FenceBroker
from tests.replication.replicated_logs import create_topic, group_of, replicated_log
from tests.unit.metadata.replica_history import ReplicaHistory


def test_a_broker_leads_again_if_others_lead_more_than_a_share_of_its_partitions() -> None:
    """Where it is in sync.  Partitions of all its groups count together."""
    log = ReplicaHistory(1, 2)
    log.topic(*[(1, 0)] * 9, (1, 2))
    assert imbalanced_groups(log.state, 0) == []
    log.put()
    log.fence(1)
    (name,) = log.put((0,))
    log.back(1)
    number, other = log.number(), log.number("t", 9)
    assert (log.group().leader, log.group("t", 9).leader) == (0, 2)
    assert imbalanced_groups(log.state, 10) == [(other, 1)]  # it lacks an object of the other group
    log.copied(1, name)
    log.join(1)
    assert imbalanced_groups(log.state, 10) == [(number, 1), (other, 1)]
    assert imbalanced_groups(log.state, 100) == []


# Promise: replicas.md#change-brokers
def test_maintain_elects_preferred_leaders_unless_that_is_disabled(tmp_path: Path) -> None:
    log = replicated_log(tmp_path, auto_leader_rebalance_enable="false")
    create_topic(log, "u", (2, 0))
    log.journal.propose(FenceBroker(broker=2, reason="its root does not answer", cause="check"))
    maintain_once(log)
    assert (group_of(log.journal.refresh(), "u").leader, log.journal.state.brokers[2].fenced) == (0, False)
    log.admin.incremental_alter_configs({None: {"auto.leader.rebalance.enable": None}})
    maintain_once(log)
    assert group_of(log.journal.refresh(), "u").leader == 2
