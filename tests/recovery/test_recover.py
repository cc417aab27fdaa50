"""A recovered mirror is a separate log, whatever happened to the lost one."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import MeteredStore
from spark_log.client.admin.second_logs import second_logs
from spark_log.display.health import log_checks
from spark_log.errors import CorruptObject, InvalidRequest
from spark_log.maintenance.maintain import maintain_once
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.object_repair import repair_objects
from spark_log.recovery.verify import verify
from spark_log.store.local import LocalStore
from tests.maintenance.logs import append_small, new_log
from tests.recovery.dying import Died, Dying
from tests.recovery.test_mirror import values
from tests.thinning import merge_all


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    log = new_log(tmp_path / "log")
    append_small(log, 3)
    return log


@pytest.fixture
def root(log: spark_log.Log, tmp_path: Path) -> str:
    """The root of a mirror that has nothing yet."""
    begin_mirror(log, LocalStore(str(tmp_path / "mirror")))
    return str(tmp_path / "mirror")


# Promise: copies.md#keep-a-mirror
@pytest.mark.parametrize("options", [{}, {"force": True}])
def test_a_recovered_mirror_is_a_log_of_its_own(
    log: spark_log.Log, root: str, tmp_path: Path, options: dict[str, bool]
) -> None:
    """With all that was mirrored.  A process that still copies from the lost log stops."""
    mirror = Mirror(log, LocalStore(root))
    mirror.round()
    append_small(log, 1, first=3)  # not mirrored
    if not options:
        with pytest.raises(InvalidRequest, match=r"can be opened: it has version \d+, and the mirror has \d+"):
            recover(LocalStore(root))
        shutil.move(tmp_path / "log", tmp_path / "lost")
    assert recover(LocalStore(root), dry_run=True, **options).version == mirror._opened().state.version  # type: ignore[union-attr]
    assert recover(LocalStore(root), **options).mirrored.endswith("/log")
    recovered = spark_log.connect(root)
    assert len(values(recovered)) == 9
    append_small(recovered, 2, first=50)
    maintain_once(recovered)
    assert len(values(recovered)) == 15
    assert verify(recovered, deep=True) == []
    with pytest.raises(InvalidRequest, match="not a mirror, but a separate log"):
        recover(LocalStore(root))
    if not options:
        shutil.move(tmp_path / "lost", tmp_path / "log")
    with pytest.raises(InvalidRequest, match="is a separate log"):
        Mirror(log, LocalStore(root))
    with pytest.raises(InvalidRequest, match="is a separate log"):
        mirror.round()


def test_a_copy_and_the_log_that_it_is_of_may_both_be_in_use(log: spark_log.Log, root: str) -> None:
    """Such as in a drill: the health of the copy names the log, and is not bad."""
    Mirror(log, LocalStore(root)).round()
    recover(LocalStore(root), force=True)
    with spark_log.connect(root) as copy:
        (found,) = second_logs(copy.journal)
        assert not found.is_defect and "the log of which this one is a copy is at" in found.text
        checks = log_checks(copy, root, [], writes=True)
        assert all(check.healthy for check in checks)
        assert [check.says for check in checks if check.check == "former place"] == [f"warning: {found.text}"]
        assert maintain_once(copy).second_logs == ()


# Promise: cli.md#pylog-recover
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("library", ["", "another"])
def test_a_recovery_that_is_killed_at_any_write_is_run_again(tmp_path: Path, library: str, *, after: bool) -> None:
    """Also if the library of the storage is another one than when the mirror began."""
    deaths = 0
    for writes in range(1, 20):
        log, store = new_log(tmp_path / f"log{writes}"), LocalStore(str(tmp_path / f"mirror{writes}"))
        append_small(log, 1)
        begin_mirror(log, store)
        Mirror(log, store).round()
        dying = Dying(store, writes, after=after)
        dying.probed = library
        try:
            recover(dying, force=True)
        except Died:
            deaths += 1
            with suppress(InvalidRequest):  # it had ended
                recover(store, force=True)
        recovered = spark_log.connect(store.url)
        append_small(recovered, 1, first=1)
        assert len(values(recovered)) == 6
        if writes > deaths:
            break
    assert deaths == 10


def test_a_recovery_gets_the_sizes_of_objects_with_their_names(log: spark_log.Log, root: str) -> None:
    """One request for a thousand of them, not one for each; an object of another size is noticed nevertheless."""
    append_small(log, 20, first=3)
    Mirror(log, LocalStore(root)).round()
    bucket = MeteredStore(LocalStore(root))
    assert recover(bucket, force=True, dry_run=True).version == log.journal.state.version
    assert Mirror(log, bucket).status().problem == ""
    assert len(bucket.list("data/")) > 20 and bucket.requests["size"] < 5
    victim = Path(root) / bucket.list("data/")[0]
    victim.write_bytes(victim.read_bytes()[1:])
    assert f"such as data/{victim.parent.name}/{victim.name}, which has " in Mirror(log, bucket).status().problem


# Promise: copies.md#keep-a-mirror
@pytest.mark.parametrize("is_there", [False, True])
def test_a_mirror_that_lacks_objects_is_not_recovered(log: spark_log.Log, root: str, *, is_there: bool) -> None:
    """Nor one with an object of another size.  It says which, also before the log is lost, and what replaces it."""
    store = LocalStore(root)
    assert Mirror(log, store).round().problem == ""
    victim = log.journal.objects.list("data/")[0]
    (Path(root) / victim).unlink()
    if is_there:
        (Path(root) / victim).write_bytes(b"")
    said = f"lacks 1 object of version .*{victim}{', which has 0 bytes' if is_there else ':'}"
    for problem in (Mirror(log, store).status().problem, Mirror(log, store).round().problem):
        assert re.search(said, problem)
        assert f"`pylog verify --repair-from {log.url} -u {store.url}`" in problem
    for dry_run in (True, False):
        with pytest.raises(CorruptObject, match=said):
            recover(store, force=True, dry_run=dry_run)
    with spark_log.connect(root) as mirror:
        assert repair_objects(mirror, log.journal).repaired == (victim,)
    assert Mirror(log, store).round().problem == ""
    assert recover(store, force=True).version


# Promise: copies.md#keep-a-mirror
def test_another_log_in_the_place_of_the_lost_one_does_not_prevent_its_recovery(
    log: spark_log.Log, root: str, tmp_path: Path
) -> None:
    """It was created there by a client that did not know."""
    Mirror(log, LocalStore(root)).round()
    shutil.rmtree(tmp_path / "log")
    append_small(new_log(tmp_path / "log"), 1)
    recover(LocalStore(root))
    assert len(values(spark_log.connect(root))) == 9


# Promise: copies.md#keep-a-mirror
def test_a_lost_log_that_cannot_be_looked_for_is_recovered_by_force(
    log: spark_log.Log, root: str, tmp_path: Path
) -> None:
    """Its storage may be away for a moment."""
    Mirror(log, LocalStore(root)).round()
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "log").write_bytes(b"not a folder")
    with pytest.raises(InvalidRequest, match="cannot be looked for: .* If no process uses it any more, give --force"):
        recover(LocalStore(root))
    recover(LocalStore(root), force=True)


@pytest.mark.parametrize("writes", range(1, 8))
def test_a_recovery_that_was_killed_names_and_lists_erasures_when_it_is_run_again(
    log: spark_log.Log, root: str, writes: int
) -> None:
    """The mirror has other records by then, with versions beyond that of the erasure."""
    log.append("t", [{"key": b"customer-17", "value": b"secret"}])
    Mirror(log, LocalStore(root)).round()
    log.admin.erase_records("t", [b"customer-17"])
    with pytest.raises(Died):
        recover(Dying(LocalStore(root), writes, after=False), force=True)
    (again,) = recover(LocalStore(root), force=True).erase_again
    assert "an erasure from t ended at" in again
    recovered = spark_log.connect(root)
    assert {(one.topic, one.incomplete) for one in recovered.admin.list_erasures()} == {("t", True)}
    recovered.admin.erase_records("t", [b"customer-17"])
    assert not any(one.incomplete for one in recovered.admin.list_erasures())


# Promise: tasks/erase.md#copies-elsewhere
def test_a_recovery_names_and_lists_erasures_that_the_mirror_lacks(log: spark_log.Log, root: str) -> None:
    """If the log can still be read; they are listed until they are repeated."""
    log.append("t", [{"key": b"customer-17", "value": b"secret"}])
    Mirror(log, LocalStore(root)).round()
    log.admin.erase_records("t", [b"customer-17"])
    (again,) = recover(LocalStore(root), force=True, dry_run=True).erase_again
    assert "an erasure from t ended at" in again
    assert recover(LocalStore(root), force=True).erase_again == (again,)
    recovered = spark_log.connect(root)
    assert b"secret" in values(recovered)
    assert [(one.topic, one.incomplete) for one in recovered.admin.list_erasures()] == [("t", True)]
    recovered.admin.erase_records("t", [b"customer-17"])
    assert b"secret" not in values(recovered)
    assert not any(one.incomplete for one in recovered.admin.list_erasures())


# Promise: tasks/erase.md#copies-elsewhere
def test_an_erasure_that_found_nothing_is_not_to_be_repeated_in_a_recovered_mirror(
    log: spark_log.Log, root: str
) -> None:
    """The log has all objects of the mirror, so no record of them was erased."""
    Mirror(log, LocalStore(root)).round()
    append_small(log, 2, first=3)
    assert log.admin.erase_records("t", [b"nobody"]).objects == 0
    assert recover(LocalStore(root), force=True).erase_again == ()
    recovered = spark_log.connect(root)
    assert recovered.admin.list_erasures() == [] and verify(recovered) == []


@pytest.mark.parametrize("what", ["a merge", "a problem"])
def test_an_erasure_that_may_have_found_something_is_to_be_repeated(
    log: spark_log.Log, root: str, tmp_path: Path, what: str
) -> None:
    """Objects were replaced meanwhile, which may have been by an erasure that was killed; or one could not be read."""
    Mirror(log, LocalStore(root)).round()
    if what == "a merge":
        merge_all(log)
    else:
        next((tmp_path / "log" / "data").rglob("*.seg")).write_bytes(b"damaged")
    assert log.admin.erase_records("t", [b"nobody"]).records == 0
    assert "an erasure from t ended at" in recover(LocalStore(root), force=True).erase_again[0]


def test_a_process_that_has_the_mirror_open_changes_the_recovered_log(log: spark_log.Log, root: str) -> None:
    """It was opened as a mirror."""
    Mirror(log, LocalStore(root)).round()
    copy = spark_log.connect(root)
    recover(LocalStore(root), force=True)
    append_small(copy, 1, first=3)
    assert len(values(copy)) == 12
