"""Files that a log's folders may have, and that no pylog has written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

STRANGERS = (
    *(".DS_Store", "._0", ".nfs000000000000a1b200000001", "README", "Thumbs.db", "0", "1.rec", "x-y"),
    *("-1", "9" * 40, "٣" * 20 + ".rec", "1e5", "00000000000000000001_rec", "a\nb\x1b]0;x\x07", "é", "z" * 200),
    *("20260101T000000Z", "0000000000000001-00000000000000000001.checkpoint", "team1/README"),
    *("team1/meta/format", f"team1/meta/log/{1:020}.rec", f"team1/meta/ckpt/{1:020}-0123456789abcdef"),
    *(f"team1/data/{1:016x}/0123456789abcdef.seg", "0123456789abcdef/team/x.seg", f"{10**19}.rec/x"),
)
"""Names in any folder: of desktops, network file systems, editors and people, and another log."""
NEARLY = ("{}~", "{} (1)", "{}.tmp", ".{}", "._{}", "{}.bak", "{}\u202f", "{}/x")
"""Names of copies that people or programs make of a log's file, beside it."""
OF_ANY_NAME = ("meta/pin", "meta/probe", "meta/damaged")
"""Folders whose files have names by their users: most names in them may be a log's."""
OF_A_LOG = ("log", "ckpt", "quorum", "pin", "alive", "probe", "damaged")


def foreign_names(names: Mapping[str, list[str]]) -> Iterator[str]:
    """Keys of other files, given the names of a log's files by their folders."""
    for folder, known in names.items():
        found = [*STRANGERS, *(form.format(name) for name in known[:3] for form in NEARLY)]
        yield from (f"{folder}/{name}" for name in found if folder not in OF_ANY_NAME or not name[0].isalnum())


def names_in(root: Path) -> dict[str, list[str]]:
    """The names of the files in each folder of a root, and folders that it does not have yet."""
    found = {folder: list[str]() for folder in ("meta", "data", *(f"meta/{name}" for name in OF_A_LOG))}
    for path, _, files in os.walk(root):
        if path != str(root):
            found[str(Path(path).relative_to(root))] = sorted(files)
    return found


def plant(root: Path) -> dict[Path, bytes]:
    """Put other files in each folder of a root; their content, by path.  Names that a file's name forbids are left out.

    A file beside its own backup as a folder (`x` and `x/x`) cannot be: the file stays.
    """
    planted = dict[Path, bytes]()
    for key in foreign_names(names_in(root)):
        path = root / key
        if any(part.is_file() for part in (path, *path.parents)) or path.is_dir():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        planted[path] = b"of somebody else"
        path.write_bytes(planted[path])
    undecodable = os.fsencode(root) + b"/data/\xff"
    with open(undecodable, "wb") as file:
        file.write(b"of somebody else")
    planted[Path(os.fsdecode(undecodable))] = b"of somebody else"
    (root / "meta" / "ckpt" / "link").symlink_to("/nowhere")
    return planted


def assert_untouched(planted: Mapping[Path, bytes]) -> None:
    """Nothing of what is planted was deleted or changed."""
    assert {path: path.read_bytes() for path in planted if path.exists()} == planted
