"""Runs a command where a folder is mounted by the kernel's autofs: `FOLDER DISKS COMMAND…`.

A folder `FOLDER/x` is there as soon as somebody looks into it: `DISKS/x` is mounted there, if it exists.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

PACKET, HEAD = 304, "iiIIQIIIII"
"""`autofs_v5_packet`: its size, and what is before the name; the last number is the length of that."""
READY, FAILED = 0x9360, 0x9361
"""`AUTOFS_IOC_READY`, `AUTOFS_IOC_FAIL`."""


def mount_wanted(requests: int, folder: Path, disks: Path) -> None:
    """Mount what processes of other groups look for."""
    handle = os.open(folder, os.O_RDONLY)
    while data := os.read(requests, PACKET):
        _, _, token, *_, length = struct.unpack_from(HEAD, data)
        name = data[struct.calcsize(HEAD) :][:length].decode()
        is_there = (disks / name).is_dir()
        if is_there:
            (folder / name).mkdir(exist_ok=True)
            subprocess.run(["mount", "--bind", disks / name, folder / name], check=True)
        fcntl.ioctl(handle, READY if is_there else FAILED, token)


def main() -> int:
    """The exit status of the command."""
    folder, disks, *command = sys.argv[1:]
    requests, to = os.pipe()
    options = f"fd={to},pgrp={os.getpgrp()},minproto=5,maxproto=5,indirect"
    subprocess.run(["mount", "-t", "autofs", "-o", options, "auto", folder], check=True, pass_fds=[to])
    os.close(to)
    threading.Thread(target=mount_wanted, args=(requests, Path(folder), Path(disks)), daemon=True).start()
    return subprocess.run(command, start_new_session=True, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
