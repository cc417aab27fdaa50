"""Values whose type Arrow cannot find: it ends the process."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np


def check_mixed(values: Any) -> None:
    """Raises TypeError for times of NumPy beside numbers of NumPy, in a column or in the lists and dicts in it.

    values:  what `pa.array` gets without a type: a list, or a column of a pandas frame.
    """
    if isinstance(values, list) or str(getattr(values, "dtype", "")) == "object":
        _check(list(values))


def _check(values: list[Any]) -> None:
    kinds = set(map(type, values))
    if np.datetime64 in kinds and (other := _other(kinds)):
        raise TypeError(f"np.datetime64 is mixed with np.{other}")
    if kinds & {list, tuple, np.ndarray}:
        _check(list(chain.from_iterable(one for one in values if isinstance(one, list | tuple | np.ndarray))))
    if dict in kinds:
        rows = [one for one in values if isinstance(one, dict)]
        for name in dict.fromkeys(chain.from_iterable(rows)):
            _check([row[name] for row in rows if name in row])


def _other(kinds: set[type]) -> str:
    """A type of NumPy that is not for times; empty if there is none."""
    return min((kind.__name__ for kind in kinds - {np.datetime64} if issubclass(kind, np.generic)), default="")
