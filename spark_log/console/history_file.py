"""The samples of the console in a file, so that charts survive a restart.

The file is one of the user's state, and holds the last hour.  It may be lost or damaged: then charts start empty.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from operator import sub
from pathlib import Path

import msgspec

from spark_log.console.history import KEPT_MS, History

FILE_BYTES_MAX = 4 << 20
"""A larger file is not written, and not read."""
CONTENT_BYTES_MAX = 32 << 20
"""Limit of the content after decompression."""
_NAME = re.compile(r"[\w-]{1,100}", re.ASCII)

logger = logging.getLogger("spark_log")


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the file: compressed JSON."""

    format: int
    series: dict[str, dict[str, tuple[list[int], list[int]]]]
    """By the name of a history and of a number: times and values, each as the first one and the differences."""


def state_folder() -> Path | None:
    """The folder for files of the console: systemd's, or that of the user's state.  None if the user has no home."""
    if folder := os.environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(folder) / "console"
    home = os.environ.get("XDG_STATE_HOME", "")
    state = Path(home if os.path.isabs(home) else os.path.expanduser("~/.local/state"))
    return state / "pylog" / "console" if state.is_absolute() else None


class HistoryFile:
    """Loads the samples of one log, and saves them."""

    def __init__(self, folder: Path, cluster_id: str) -> None:
        name = cluster_id if _NAME.fullmatch(cluster_id) else f"{zlib.crc32(cluster_id.encode()):08x}"
        self.path = folder / f"{name}.samples"

    def load(self, histories: Mapping[str, History], now_ms: int) -> None:
        """Add the samples of the last hour.  A file that cannot be read is left out."""
        try:
            with open(self.path, "rb", opener=_open) as file:
                data = file.read(FILE_BYTES_MAX + 1)
            content = _decoded(data)
            found = {name: {one: _samples(*kept) for one, kept in series.items()} for name, series in content.items()}
            for name, series in found.items():
                if name in histories:
                    histories[name].restore(series, now_ms - KEPT_MS, now_ms)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, OverflowError, zlib.error, msgspec.MsgspecError) as error:
            logger.warning("the console's samples in %s cannot be read, and start empty: %s", self.path, error)

    def save(self, histories: Mapping[str, History]) -> None:
        """Replace the file.  Without a place to write, samples last as long as the process."""
        series = {
            name: {one: (_differences(times), _differences(values)) for one, (times, values) in kept.samples().items()}
            for name, kept in histories.items()
        }
        data = zlib.compress(msgspec.json.encode(_Content(1, series)), 1)
        if len(data) > FILE_BYTES_MAX:
            return
        new = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            new.replace(self.path)
        except OSError as error:
            logger.debug("the console's samples cannot be written to %s: %s", self.path, error)
            with suppress(OSError):
                new.unlink()


def _open(path: str, flags: int) -> int:
    """Open a file; a pipe without waiting for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _decoded(data: bytes) -> dict[str, dict[str, tuple[list[int], list[int]]]]:
    """Raises ValueError, zlib.error or MsgspecError for a file of another form."""
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX:,} bytes")
    content = msgspec.json.decode(zlib.decompressobj().decompress(data, CONTENT_BYTES_MAX), type=_Content)
    if content.format != 1:
        raise ValueError(f"it has the unknown format {content.format}")
    return content.series


def _differences(numbers: Sequence[int]) -> list[int]:
    return [*numbers[:1], *map(sub, numbers[1:], numbers)]


def _samples(times: Sequence[int], values: Sequence[int]) -> tuple[list[int], list[int]]:
    """Raises ValueError unless there is a value for each time."""
    if len(times) != len(values):
        raise ValueError(f"it has {len(values)} values for {len(times)} times")
    return list(accumulate(times)), list(accumulate(values))
