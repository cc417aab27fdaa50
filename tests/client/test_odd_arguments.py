"""Odd arguments of each public call end that call alone: the log and its other clients continue."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from spark_log import Log, TopicPartition
from spark_log.node.verify import verify
from tests.client.logs import new_log


class Unshown:
    """Its repr raises."""

    def __repr__(self) -> NoReturn:
        raise RuntimeError("no repr")


ODD: tuple[Any, ...] = ("\udcff", "a\x1b]0;x\x07\n", math.nan, 10**5000, {}, Unshown())
OTHERS = ("close", "consumer", "producer", "transaction")
"""Calls that return an object with other calls, or end the log."""


def forms(odd: Any) -> Iterator[Any]:
    """The value in each place of an argument that has one."""
    yield odd
    yield [odd]
    if not isinstance(odd, dict):
        yield {odd: odd}
        yield {TopicPartition("t", 0): odd, TopicPartition(odd, odd): 0}


def calls(log: Log) -> Iterator[tuple[str, Any, inspect.Signature]]:
    for owner in (log, log.admin):
        for name, call in inspect.getmembers(owner, inspect.ismethod):
            if not name.startswith("_") and name not in OTHERS:
                yield f"{type(owner).__name__}.{name}", call, inspect.signature(call)


def given(signature: inspect.Signature) -> Iterator[dict[str, Any]]:
    """Arguments of which one is odd."""
    known = [one for one in signature.parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    required = {
        one.name: "t" if one.name in ("topic", "name", "group") else ["t"] for one in known if one.default is one.empty
    }
    for one in known:
        for odd in ODD:
            yield from ({**required, one.name: form} for form in forms(odd))


def test_an_odd_argument_harms_no_other_call(tmp_path: Path) -> None:
    """All calls of `Log` and `Admin` are found by their names, so a new one is called, too."""
    log = new_log(tmp_path, t=1)
    tried = 0
    with log.producer() as producer:
        for _, call, signature in calls(log):
            for arguments in given(signature):
                tried += 1
                try:
                    found = call(**arguments)
                    next(found, None) if inspect.isgenerator(found) else None
                except Exception:  # noqa: BLE001  the caller gets it
                    continue
            assert producer.send("t", b"x").result(60).topic == "t"
        sent = len(list(calls(log)))
    assert tried > 1000 and log.read("t").num_rows == sent
    assert verify(log) == []
