"""An odd value of a parameter of any page: it is answered, or refused with a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.console.plans import ACTIONS
from spark_log.console.site import Site
from spark_log.errors import SparkLogError
from spark_log.recovery.verify import verify
from spark_log.server.tokens import Grant

ODD = ("", "a\x1b]0;x\x07\n", "nan", "-1", "\u0663", "9" * 18, "9" * 5000, "=" * 900)
ODD_CURSORS = ("0:1", "0:" + "9" * 19, "0:1,0:2", "zAAAA", "z" + "9" * 2500, "3:5", "-1:1")
ODD_POSITIONS = ("@", "@9999-99-99", "earliest", "group:", "group:nobody", "-9223372036854775808", "@" + "9" * 400)
FORMS = {"cursor": ODD_CURSORS, "before": ODD_CURSORS, "from": ODD_POSITIONS, "to": ODD_POSITIONS}
USUAL: dict[str, dict[str, str]] = {
    "me": {},
    "topics": {},
    "topic": {"topic": "t"},
    "segments": {"topic": "t"},
    "groups": {},
    "queries": {},
    "transactions": {},
    "brokers": {},
    "cluster": {},
    "group": {"group": "g"},
    "records": {"topic": "t"},
    "record": {"topic": "t", "offset": "0"},
    "maintenance": {},
    "health": {},
}
PLANS = {
    "create": {"topic": "new", "partitions": "1", "configs": "retention.ms=5", "schema": ""},
    "delete": {"topic": "t"},
    "partitions": {"topic": "t", "partitions": "3"},
    "reset": {"group": "g", "to": "earliest"},
}


class Noted(dict[str, str]):
    """Knows which parameters were looked up."""

    names: set[str]

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> str:
        self.names.add(key)
        return super().__getitem__(key)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[spark_log.Log]:
    with spark_log.connect(tmp_path / "log", durability="os") as found:
        found.create_topic(NewTopic("t", 2))
        found.append("t", [{"key": f"k{n}", "value": f'{{"n": {n}}}', "partition": n % 2} for n in range(10)])
        found.admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): 3})
        yield found


def usual() -> Iterator[tuple[str, dict[str, str]]]:
    yield from USUAL.items()
    yield from (("plan", {"action": action, **query}) for action, query in PLANS.items())


def parameters(site: Site, name: str, query: dict[str, str]) -> set[str]:
    """Parameters that an answer looks up, whatever the others are."""
    asked = Noted(query)
    asked.names = set()
    for more in ({}, {"cursor": "0:1"}, {"key": "k1", "search": "x", "field": "n = 1"}, {"to": "earliest"}):
        asked.update(more)
        site.ask(Grant("boss", "admin"), name, asked)
    return asked.names


# Promise: console.md#change-the-log
def test_an_odd_parameter_is_answered_or_refused(log: spark_log.Log) -> None:
    """Parameters of a dry run, which changes nothing, are tried, too."""
    site, grant, tried = Site(lambda: log), Grant("boss", "admin"), 0
    assert {name for name, _ in usual()} == {*site._views_of_state, *site._reads} and set(PLANS) == set(ACTIONS)
    before = log.journal.refresh().version
    for name, query in usual():
        for parameter in parameters(site, name, query):
            for odd in (*ODD, *FORMS.get(parameter, ())):
                tried += 1
                with suppress(SparkLogError):
                    assert site.ask(grant, name, {**query, parameter: odd}).startswith(b"{")
    assert tried > 300
    assert log.journal.refresh().version == before and verify(log) == []
    site.close()
