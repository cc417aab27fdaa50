"""A node's metrics, in Prometheus's text format.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_log.quorum.node.node_status import NodeStatus

NO_LEADER = -1


def metrics_text(status: NodeStatus) -> str:
    return "".join(f"{line}\n" for line in metric_lines(status))


def metric_lines(status: NodeStatus) -> Iterator[str]:
    """The lines of the text format.  Lag is known to the leader only."""
    for name, text, number in _numbers(status):
        yield from _metric(f"pylog_quorum_{name}", text, {"": number})
    replicas = {f'{{node="{one.key.id}",voter="{str(one.is_voter).lower()}"}}': one for one in status.replication}
    yield from _metric(
        "pylog_quorum_lag", "Entries that a replica lacks.", {labels: one.lag for labels, one in replicas.items()}
    )
    yield from _metric(
        "pylog_quorum_fetch_age_seconds",
        "Since a replica last fetched.",
        {labels: one.fetched_ms_ago / 1000 for labels, one in replicas.items()},
    )
    yield from _metric(
        "pylog_quorum_connected",
        "1 while this node has a connection to another one.",
        {f'{{node="{node}"}}': int(problem is None) for node, problem in status.problems.items()},
    )


def _numbers(status: NodeStatus) -> Iterator[tuple[str, str, float]]:
    yield "epoch", "Epoch of the quorum.", status.epoch
    yield "leader", "Id of the node that leads; -1: unknown.", NO_LEADER if status.leader is None else status.leader.id
    yield "leading", "1 while this node leads.", int(status.role == "leader")
    yield "voters", "Voters.", len(status.voters)
    yield "high_watermark", "Offset behind the last committed entry.", status.high_watermark
    yield "log_start", "Offset of the first entry of the log.", status.log_start
    yield "log_end", "Offset behind the last entry of the log.", status.log_end
    yield "applied", "Offset behind the last entry that was applied.", status.applied
    yield "snapshot_end", "Offset behind the last entry of the newest snapshot.", status.snapshot.offset
    yield "elections_total", "Leaders that this node has followed, or been.", status.elections
    yield "fsyncs_total", "Writes of the log's disk that are durable.", status.writes
    yield "fsync_seconds_total", "Their time.", status.write_ms_sum / 1000
    yield "fsync_seconds_max", "The longest of them.", status.write_ms_max / 1000
    yield "fsync_age_seconds", "Since the write that is under way began; 0: none is.", status.writing_ms / 1000
    yield "disk_full", "1 while the disk has no space.", int(status.is_full)
    yield "state_compared", "Last version at which nodes have compared their states.", status.compared
    yield (
        "state_differs",
        "1 while the states of nodes differ, as far as this node knows.",
        int(bool(status.state_problem)),
    )


def _metric(name: str, text: str, values: Mapping[str, float]) -> Iterator[str]:
    """
    values:  by labels, which are empty or in braces.
    """
    kind = "counter" if name.endswith("_total") else "gauge"
    yield from (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
    yield from (f"{name}{labels} {value}" for labels, value in values.items())
