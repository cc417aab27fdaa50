"""The error of a request that only nodes of a quorum have answered that another one has replaced."""

from __future__ import annotations

import pytest

from spark_log.errors import CoordinatorNotAvailable, LogMoved, NotCoordinator, SparkLogError
from spark_log.rpc.request_errors import no_answer

REPLACED = LogMoved("another quorum has the log", url="s3://bucket/records")
ELECTS = NotCoordinator("no node leads at the moment", address="", epoch=1)
SILENT = CoordinatorNotAvailable("two: it does not answer")


def follows(address: str) -> NotCoordinator:
    return NotCoordinator(f"{address} leads", address=address, epoch=1)


@pytest.mark.parametrize("others", [{}, {"two": REPLACED}, {"two": follows("one")}])
def test_a_client_that_knows_only_nodes_of_a_replaced_quorum_does_not_wait(others: dict[str, SparkLogError]) -> None:
    """Also if some of them do not know it yet, and name the one that does."""
    assert no_answer([("one", REPLACED), *others.items()]) is REPLACED


@pytest.mark.parametrize("other", [SILENT, ELECTS, follows("three")])
def test_a_client_waits_for_a_node_that_may_be_of_the_new_quorum(other: SparkLogError) -> None:
    found = no_answer([("one", REPLACED), ("two", other)], "; a hint")
    assert isinstance(found, CoordinatorNotAvailable)
    assert str(found).startswith("one: another quorum has the log; two: ") and str(found).endswith("; a hint")
