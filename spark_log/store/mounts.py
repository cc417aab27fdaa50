"""Which mount of this machine a path is in.

A mount that hangs may be detached (`umount -l`) and mounted again.  Requests to the former mount hang for ever, and say
nothing about the new one.
"""

from __future__ import annotations

import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")


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
        if len(point) >= longest and f"{path}/".startswith(f"{point.rstrip('/')}/"):
            number, longest = int(fields[0]), len(point)
    return number


def _unescaped(text: str) -> str:
    """A space, tab, newline or backslash is `\\` and its number in three octal digits."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text
