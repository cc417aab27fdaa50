"""Which mount of this machine a path is in, and which it should be in.

A mount that hangs may be detached (`umount -l`) and mounted again.  Requests to the former mount hang for ever, and say
nothing about the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
FSTAB = Path("/etc/fstab")


def mount_of(path: str) -> int:
    """The number of the mount; 0: not known, as on other systems than Linux.

    Makes no request to the file system of the path, which may hang; so symbolic links on the way are not followed.
    """
    try:
        return find_mount(MOUNTS.read_text(encoding="utf-8", errors="replace"), os.path.abspath(path))
    except OSError:
        return 0


def find_mount(mounts: str, path: str) -> int:
    """mounts:  as `/proc/self/mountinfo`: number, parent, device, root, mount point, …  The last one wins."""
    number, longest = 0, -1
    for line in mounts.splitlines():
        fields = line.split(" ", 5)
        point = _unescaped(fields[4])
        if len(point) >= longest and _is_in(path, point):
            number, longest = int(fields[0]), len(point)
    return number


def unmounted_point(path: str) -> str:
    """The mount point in `/etc/fstab` in which a path would be, if nothing is mounted there; empty: none is known."""
    try:
        fstab, mounts = (file.read_text(encoding="utf-8", errors="replace") for file in (FSTAB, MOUNTS))
        return find_unmounted(fstab, mounts, os.path.realpath(path))
    except OSError:
        return ""


def find_unmounted(fstab: str, mounts: str, path: str) -> str:
    """
    fstab:   as `/etc/fstab`: device, mount point, type, …
    mounts:  as for `find_mount`.  In a `chroot`, `/` is often absent.
    """
    listed = _nearest((line.split()[1] for line in fstab.splitlines() if _is_entry(line)), path)
    mounted = _nearest((line.split(" ", 5)[4] for line in mounts.splitlines()), path) or "/"
    return listed if len(listed) > len(mounted) else ""


def _is_entry(line: str) -> bool:
    return len(line.split()) > 2 and not line.lstrip().startswith("#")


def _nearest(points: Iterable[str], path: str) -> str:
    """The mount point in which a path is; empty if it is in none."""
    found = (_unescaped(point).rstrip("/") or "/" for point in points)
    return max((point for point in found if _is_in(path, point)), key=len, default="")


def _is_in(path: str, point: str) -> bool:
    return f"{path}/".startswith(f"{point.rstrip('/')}/")


def mount_point_of(path: str) -> str:
    """Where the disk of a path is mounted; empty if that is `/`, or not known, as on other systems than Linux."""
    return _nearest(_points(), os.path.realpath(path)).rstrip("/")


def is_mounted(point: str) -> bool:
    """Whether something is mounted at a path; also if that is not known, as on other systems than Linux.

    Makes no request to it.
    """
    points = _points()
    return not points or point in map(_unescaped, points)


def _points() -> list[str]:
    """The mount points of this machine, as they are listed."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line.split(" ", 5)[4] for line in mounts.splitlines()]


def _unescaped(text: str) -> str:
    """A space, tab, newline or backslash is `\\` and its number in three octal digits."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text
