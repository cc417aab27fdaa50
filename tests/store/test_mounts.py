"""The mount of a path is known without a request to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_log.store.mounts import find_mount, find_unmounted, is_mounted, mount_point_of
from spark_log.store.open import mount_of_url

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 27 0:30 / /mnt/nfs rw,relatime - nfs4 server:/export rw
41 27 0:31 / /mnt/nfs2 rw,relatime - nfs4 server:/other rw
43 27 8:2 / /mnt/my\040disk rw,relatime - ext4 /dev/sdb rw
44 27 0:32 / /mnt/nfs rw,relatime - nfs4 server:/export rw
"""


# Promise: replicas.md#when-a-disk-fails
@pytest.mark.parametrize(
    ("path", "mount"),
    [("/mnt/nfs/log/1", 44), ("/mnt/nfs", 44), ("/mnt/nfs2/log", 41), ("/mnt/my disk/log", 43), ("/mnt/other", 27)],
)
def test_the_last_and_nearest_mount_of_a_path(path: str, mount: int) -> None:
    assert find_mount(MOUNTS, path) == mount


def test_a_bucket_has_none(tmp_path: Path) -> None:
    assert mount_of_url("s3://bucket/log") == 0
    assert mount_of_url(tmp_path.as_uri()) == mount_of_url((tmp_path / "not-there").as_uri())


FSTAB = r"""# /mnt/commented /mnt/commented ext4 defaults 0 2
UUID=1 / ext4 defaults 0 1
UUID=2 none swap sw 0 0
UUID=3 /mnt/my\040disk ext4 defaults 0 2
/dev/sdc /mnt/away/ ext4 defaults,nofail 0 2
/dev/sdd /mnt/nfs/away xfs noauto
"""


# Promise: storage-failures.md#when-the-disk-of-a-log-is-not-mounted
@pytest.mark.parametrize(
    ("path", "point"),
    [
        ("/mnt/away/log", "/mnt/away"),
        ("/mnt/away", "/mnt/away"),
        ("/mnt/nfs/away/log", "/mnt/nfs/away"),
        ("/mnt/nfs/log", ""),
        ("/mnt/my disk/log", ""),
        ("/mnt/commented/log", ""),
        ("/mnt/away2/log", ""),
        ("/home/log", ""),
    ],
)
def test_the_mount_point_that_a_path_lacks(path: str, point: str) -> None:
    """By `/etc/fstab`; a disk that is mounted deeper counts."""
    assert find_unmounted(FSTAB, MOUNTS, path) == point
    mounted = path.replace(" ", r"\040")
    assert find_unmounted(FSTAB, f"{MOUNTS}50 27 8:3 / {mounted} rw - ext4 /dev/sdc rw\n", path) == ""


def test_the_root_of_a_chroot_is_not_a_disk_that_is_away() -> None:
    """There, the mount table begins below `/`, and an image's `/etc/fstab` may have it."""
    mounts = "50 27 0:21 / /proc rw - proc proc rw\n"
    assert find_unmounted(FSTAB, mounts, "/home/log") == ""
    assert find_unmounted(FSTAB, mounts, "/mnt/away/log") == "/mnt/away"


def test_a_system_without_a_table_of_mounts_says_of_none_that_it_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was mounted where a broker was registered may be there, too."""
    monkeypatch.setattr("spark_log.store.mounts.MOUNTS", tmp_path / "absent")
    assert is_mounted(str(tmp_path)) and mount_point_of(str(tmp_path)) == ""
