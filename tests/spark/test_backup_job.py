"""`jobs/backup.py`: tasks copy to backups and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark_pylog.jobs.backup import check_args, parse_args, run, without_tasks

from spark_log import connect
from spark_log.errors import InvalidRequest, LogRestored, NoLog, SparkLogError
from spark_log.recovery.backup import back_up
from spark_log.recovery.backup_copies import BackupShare, CopiedShare, copy_share
from spark_log.recovery.backup_files import BackupFiles
from spark_log.recovery.verify import verify
from spark_log.replication.copy_throttle import Pace
from spark_log.runtime.clock import SystemClock
from spark_log.store.open import open_store
from tests.maintenance.logs import append_small, new_log
from tests.replication.replicated_logs import put, replicated_log
from tests.spark.builders import environment
from tests.spark.submitted import JOBS


def done(spark: SparkSession, *arguments: str, url: str = "") -> dict[str, Any]:
    """The summary of a job in this process."""
    args = parse_args([*(["--url", url] if url else []), *arguments])
    alone = args.list or args.prune or args.dry_run
    summary, status = without_tasks(args) if alone else run(spark, args)
    assert status == 0
    json.dumps(summary)
    return summary


# Promise: tasks/backup.md#backup-and-restore
def test_backups_of_a_log_with_brokers(classic: SparkSession, tmp_path: Path) -> None:
    """Made, listed, removed and restored by tasks, which read copies in any root."""
    log, to = replicated_log(tmp_path), ["--backups", f"file://{tmp_path}/backups"]
    for _ in range(3):
        put(log, [1, 2])
    planned = done(classic, *to, "--create", "--dry-run", url=log.url)
    assert (planned["objects"], (tmp_path / "backups").exists()) == (3, False)
    first = done(classic, *to, "--create", url=log.url)
    put(log, [1, 2])
    second = done(classic, *to, "--throttle", "50MB", url=log.url)
    assert [one["copied_objects"] for one in (first, second)] == [3, 1]
    assert done(classic, *to, "--list") == {"backups": [first["backup"], second["backup"]], "unfinished": []}

    url = f"file://{tmp_path}/new"
    restore = [*to, "--restore", str(first["backup"]["version"])]
    assert done(classic, *restore, "--dry-run", url=url)["objects"] == 3
    restored = done(classic, *restore, url=url)
    new = connect(url, create=False)
    assert (restored["problems"], new.cluster_id) == ([], restored["cluster_id"])
    assert verify(new, deep=True) == [] and new.read("t").num_rows == 30
    assert done(classic, *to, "--prune", "--keep", "1") == {"removed": (first["backup"]["id"],), "objects_deleted": 0}
    assert done(classic, *to, "--keep", "30d", url=log.url)["removed"] == ()


# Promise: tasks/backup.md#if-the-log-lacks-what-the-backups-have
def test_no_backup_is_removed_while_the_log_lacks_what_it_has(classic: SparkSession, tmp_path: Path) -> None:
    """The job is refused, before and after it has started Spark; by force it makes a backup, and says what is lost."""
    log, to = new_log(tmp_path / "log"), ["--backups", str(tmp_path / "backups"), "--keep", "1"]
    append_small(log, 5)
    first = done(classic, *to, "--create", url=log.url)
    log.close()
    for path in sorted((tmp_path / "log/meta/log").iterdir())[-3:]:
        path.unlink()
    args = parse_args(["--url", log.url, *to])
    for refused in (check_args, partial(run, classic), without_tasks):
        with pytest.raises(LogRestored, match=f"has backup {first['backup']['id']}"):
            refused(parse_args(["--url", log.url, *to, "--dry-run"]) if refused is without_tasks else args)
    summary, status = run(classic, parse_args(["--url", log.url, *to, "--force"]))
    assert status == 1 and "removed" not in summary and "are lost" in summary["problems"][0]
    assert len(done(classic, *to[:2], "--list")["backups"]) == 2


# Promise: tasks/backup.md#restore
def test_what_is_refused(classic: SparkSession, tmp_path: Path) -> None:
    """Unknown backups, a coordinator as the place of a log, a root that is not empty, and wrong places of backups."""
    log, to = new_log(tmp_path / "log"), ["--backups", str(tmp_path / "backups")]
    append_small(log, 1)
    done(classic, *to, "--create", url=log.url)
    for which, url, said in (
        ("99", f"{tmp_path}/new", "has no backup '99'; it has "),
        ("@2020-01-01T00:00Z", f"{tmp_path}/new", r"has no backup '@2020-.*'; it has .* \(version 1?\d, 20.*Z\)$"),
        ("latest", "pylog://host:9550", "give the folder or bucket of the new log"),
        ("latest", log.url, "restore to a folder without files of a log or of backups"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            done(classic, *to, "--restore", which, url=url)
    for place, url, said in (
        (f"{tmp_path}/empty", log.url, "Give --create for the first backup"),
        (f"{log.url}/backups", log.url, "must not lie within each other"),
        (to[1], new_log(tmp_path / "other").url, "has backups of another log"),
    ):
        for dry in ([], ["--dry-run"]):
            with pytest.raises(SparkLogError, match=said):
                done(classic, "--backups", place, *dry, url=url)
    assert not (tmp_path / "empty").exists()
    with pytest.raises(NoLog, match="there is no log at .*: check the URL"):
        done(classic, *to, url=f"{tmp_path}/lgo")


# Promise: operations.md#jobs, tasks/backup.md#backup-and-restore
def test_backups_are_listed_without_spark(tmp_path: Path) -> None:
    """Also on a machine without Java; an error is a sentence."""
    log = new_log(tmp_path / "log")
    files = BackupFiles(
        open_store(str(tmp_path / "backups")), lambda folder: open_store(f"{tmp_path}/backups/{folder}")
    )
    files.begin(log.cluster_id, log.url)
    command = [sys.executable, str(JOBS / "backup.py"), "--backups", str(tmp_path / "backups"), "--list"]
    env = environment(JAVA_HOME="/nowhere")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"backups": [], "unfinished": []})
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, env=env, stdout=writer, stderr=subprocess.PIPE, timeout=240, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b""), "nobody reads its output any more"
    command[3] = str(tmp_path / "none")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (1, "") and "none has no backups: is its disk" in done.stderr
    assert done.stderr.startswith("backup: ") and "Traceback" not in done.stderr


# Promise: tasks/backup.md#restore
def test_the_list_says_which_backups_have_records_that_were_erased_later(tmp_path: Path) -> None:
    """By the newest backup; `--restore --dry-run` says what has to be erased again."""
    log = new_log(tmp_path / "log")
    log.append("t", [{"key": b"customer-17", "value": b"secret"}])
    url = str(tmp_path / "backups")
    files = BackupFiles(open_store(url), lambda folder: open_store(f"{url}/{folder}"))
    files.begin(log.cluster_id, log.url)

    def copy(shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
        for share in shares:
            yield copy_share(log.journal.objects, files.folder(share.folder), share, Pace(SystemClock()))

    first = back_up(log, files, copy).backup.id
    log.admin.erase_records("t", [b"customer-17"])
    back_up(log, files, copy)
    command = [sys.executable, str(JOBS / "backup.py"), "--backups", url]
    env = environment(JAVA_HOME="/nowhere")
    done = subprocess.run([*command, "--list"], env=env, capture_output=True, text=True, timeout=240, check=True)
    before, after = json.loads(done.stdout)["backups"]
    assert [one.partition(" ")[0] for one in before["erased_since"]] == ["t"]
    assert "erased_since" not in after
    restore = ["--restore", first, "--dry-run", "--url", str(tmp_path / "new")]
    done = subprocess.run([*command, *restore], env=env, capture_output=True, text=True, timeout=240, check=True)
    (again,) = json.loads(done.stdout.splitlines()[-1])["erase_again"]
    assert "an erasure from t ended at" in again
    assert "if records were erased after this copy was made, they are there again: erase them again" in done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "--url is missing"),
        (["--prune"], "--prune needs --keep"),
        (["--list", "--keep", "3"], "--keep is for backups and --prune"),
        (["--url", "x", "--keep", "0"], "0 would keep no backup"),
        (["--url", "x", "--keep", "often"], "is not a duration"),
        (["--url", "x", "--throttle", "fast"], "bytes per second"),
        (["--list", "--prune", "--keep", "3"], "not allowed with"),
    ],
)
def test_wrong_arguments(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and a sentence."""
    with pytest.raises(SystemExit) as ended:
        parse_args(["--backups", "b", *given])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
