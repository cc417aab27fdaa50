"""Pauses of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from spark_log.rpc.messages import CommandsRequest, decode
from spark_log.runtime.collector_pause import collector_paused
from tests.client.logs import in_child


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    """The collector is enabled after a test, whatever the test left."""
    assert gc.isenabled()
    yield
    gc.enable()


def test_the_collector_is_enabled_after_the_last_of_overlapping_pauses() -> None:
    """They begin and end in different threads."""
    first, second = collector_paused(), collector_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_collector_that_was_disabled_stays_disabled() -> None:
    """The application has disabled it."""
    gc.disable()
    with collector_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_a_child_forked_during_a_pause_has_its_collector() -> None:
    """Nobody ends the pause there; a later pause ends as usual."""

    def collects() -> None:
        assert gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled()

    with collector_paused():
        assert in_child(collects) == 0


def test_a_large_request_is_decoded_without_collections() -> None:
    """They took nine times as long as the decoding, and all clients of a coordinator waited.  One follows."""
    slices = ",".join(['[0,["topic",0,0,10,1,1,1,0,0]]'] * 20_000)
    commit = f'{{"type":"commit","producer":"p","sequence":0,"upload_epoch":1,"slices":[{slices}]}}'
    body = f'{{"cluster_id":"c","since":0,"commands":[{{"type":"append","commit":{commit}}}]}}'.encode()
    begun = list[str]()

    def note(phase: str, info: dict[str, int]) -> None:
        begun.append(phase)

    gc.callbacks.append(note)
    try:
        decode(body, CommandsRequest, "the request")
    finally:
        gc.callbacks.remove(note)
    assert begun.count("start") <= 1
