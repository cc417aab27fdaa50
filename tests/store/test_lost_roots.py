"""A root that was there and is gone is not made again: its disk is not mounted, or the log was moved away."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_log.errors import WrongRoot
from spark_log.store.local import LocalStore

KEY = "data/0000000000000001/0123456789abcdef.seg"


def renamed(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))


def removed(root: Path) -> None:
    shutil.rmtree(root)


class Vanishing(LocalStore):
    """Its root vanishes after a put has found that it is there, and before it makes a folder in it."""

    def __init__(self, root: Path, vanish: Callable[[Path], object]) -> None:
        super().__init__(str(root), "os")
        self._vanish = vanish

    @contextmanager
    def _base_of_folders(self, base: Any) -> Iterator[Any]:
        with super()._base_of_folders(base) as found:
            if self._has_begun:
                self._vanish(Path(self.root))
                self._vanish = lambda root: None
            yield found


@pytest.mark.parametrize("put", [lambda store: store.put(KEY, [b"x"]), lambda store: store.put_new(KEY, b"x")])
@pytest.mark.parametrize("vanish", [renamed, removed])
def test_a_root_that_vanishes_during_a_put_is_not_made_again(
    tmp_path: Path, vanish: Callable[[Path], object], put: Callable[[LocalStore], object]
) -> None:
    store = Vanishing(tmp_path / "log", vanish)
    store.put("meta/format", [b"x"])
    with pytest.raises(WrongRoot, match=r"log is gone on .*is its disk mounted"):
        put(store)
    assert not (tmp_path / "log").exists()


def test_folders_are_made_in_a_root_that_is_there(tmp_path: Path) -> None:
    """A folder that was removed is made again."""
    store = LocalStore(str(tmp_path / "log"))
    store.put("meta/format", [b"x"])
    store.put(KEY, [b"y"])
    shutil.rmtree(tmp_path / "log" / "data")
    assert store.put_new(KEY, b"z") and store.get(KEY) == b"z"
    shutil.rmtree(tmp_path / "log" / "meta")
    store.put("meta/format", [b"t"])
    assert store.get("meta/format") == b"t"
