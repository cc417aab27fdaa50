"""A feature of flows: state by key."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

import spark_log
from spark_log import Log, NewTopic
from tests.crossings.feature import After, Feature, rows, values
from tests.processes import DEADLINE_S

STATE = "state-counts"
SAME = "same"
"""A key of every phase."""


def counted(records: pa.Table, counts: pa.Table) -> tuple[pa.Table, pa.Table]:
    """How many records of each key there were so far: as outputs, and as the state."""
    found = Counter({row["key"]: int(row["value"]) for row in counts.select(["key", "value"]).to_pylist()})
    found.update(records["key"].to_pylist())
    table = pa.table({"key": sorted(found), "value": [str(found[key]) for key in sorted(found)]})
    return table, table


class KeyedStates(Feature):
    """A flow that counts the records of each key: each record of the source counts once."""

    head = "state by key"
    topics = ("state-source", STATE, "state-out")

    def create(self, log: Log) -> None:
        known = log.admin.list_topics()
        for topic in self.topics:
            if topic not in known:
                log.create_topic(NewTopic(topic, 1, {"cleanup.policy": "compact"} if topic == STATE else {}))

    def write(self, log: Log, phase: str) -> None:
        log.append("state-source", [*rows("state", phase), {"key": SAME, "value": f"state/{phase}/{SAME}"}])

    def read(self, log: Log, phase: str) -> None:
        """Start the flow, let it come to the end, and stop it."""
        settings = {"target": "state-out", "state": spark_log.keyed(STATE)}
        with spark_log.flow(self.url, name="counting", source="state-source", function=counted, **settings) as flow:
            flow.process_all_available(timeout=DEADLINE_S)

    def check(self, after: After) -> None:
        for phase in ("after", "more"):
            self.write(after.log, phase)
        self.read(after.log, "after")
        found = {row["key"].decode(): int(row["value"]) for row in after.log.table(STATE).to_pylist()}
        source = [value.split("/") for value in values(after.log, "state-source")]
        phases = {phase for _, phase, _ in source}
        expected = {f"{phase}-k{number}": 1 for _, phase, number in source if number != SAME}
        if not after.is_erased:
            expected |= dict.fromkeys(after.gone, 1)  # they were counted before
        assert {key: times for key, times in found.items() if key != SAME} == expected
        assert found[SAME] == len(phases)
