"""Rules of the product that a simulation runs without, one at a time: it has to notice.

The product has no switches for this.  A mutation replaces functions and numbers of its modules for the length of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from spark_log.metadata import records as r
from spark_log.metadata import replay
from spark_log.metadata.state import State


class Patch(NamedTuple):
    """A function or number to replace; `name` is an attribute, or a key if `owner` is a dict."""

    owner: Any
    name: Any
    value: Any


class Mutation(NamedTuple):
    """A missing rule."""

    rule: str
    patches: tuple[Patch, ...]


def replaying(kind: type[r.Record], function: Callable[[State, Any], State | None]) -> Patch:
    """The records of a kind are replayed by another function."""
    return Patch(replay._REPLAY, kind, function)


@contextmanager
def mutated(mutations: Mapping[str, Mutation], name: str) -> Iterator[None]:
    """Run without one rule; the empty name runs with all rules."""
    with patched(mutations[name].patches if name else ()):
        yield


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """Replace the values, and restore them at the end of the block."""
    patches = tuple(patches)
    before = [_get(patch) for patch in patches]
    for patch in patches:
        _set(patch, patch.value)
    try:
        yield
    finally:
        for patch, value in zip(patches, before, strict=True):
            _set(patch, value)


def _get(patch: Patch) -> Any:
    return patch.owner[patch.name] if isinstance(patch.owner, dict) else getattr(patch.owner, patch.name)


def _set(patch: Patch, value: Any) -> None:
    if isinstance(patch.owner, dict):
        patch.owner[patch.name] = value
    else:
        assert hasattr(patch.owner, patch.name), f"{patch.owner} has no {patch.name}"
        setattr(patch.owner, patch.name, value)
