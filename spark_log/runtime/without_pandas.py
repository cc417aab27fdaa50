"""A process in which pandas cannot be imported, as if it were not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Refused(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process does without pandas: see without_pandas.py", name=fullname)
        return None


def leave_out_pandas() -> None:
    """For processes that answer others all the time, and do not use it.

    Arrow imports pandas with the first array that it makes of Python's values, if it is installed: that takes half a
    second of CPU, in parts during which no other thread runs, and 40 MB.
    """
    sys.meta_path.insert(0, _Refused())
