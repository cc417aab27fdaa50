"""The tree of errors: what docs/clients.md says of every one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import spark_log.errors
from spark_log.errors import SparkLogError


def kinds(kind: type[SparkLogError] = SparkLogError) -> Iterator[type[SparkLogError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds(below)


# Promise: clients.md#errors
@pytest.mark.parametrize("kind", sorted(set(kinds()), key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_every_error_says_whether_to_retry_and_whether_it_may_have_happened(kind: type[SparkLogError]) -> None:
    """Both are known of the class, and it has a line that says when it is raised."""
    assert isinstance(kind.retriable, bool) and isinstance(kind.maybe_applied, bool)
    assert kind.__doc__


# Promise: clients.md#errors
def test_there_is_one_tree() -> None:
    """Catching SparkLogError catches all errors of spark_log.errors."""
    found = {kind for kind in vars(spark_log.errors).values() if isinstance(kind, type)}
    assert {kind for kind in found if issubclass(kind, Exception)} <= set(kinds())
