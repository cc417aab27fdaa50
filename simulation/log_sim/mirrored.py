"""Mirrors of the log, which fall behind and are killed, and are recovered when the log is lost.

A mirror is another root in the same world: its names have a prefix there, and its requests fail as those of the log do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from simulation.log_sim.blocking import SimulatedProcess, SimulatedStore, blocking
from simulation.log_sim.readers_and_maintenance import read_once
from simulation.log_sim.setting import Simulation
from simulation.log_sim.threads import SimulatedThreads
from simulation.log_sim.world import Simulated, World
from simulation.mutation import Patch
from simulation.verdict import Violation
from spark_log.client.log import Log
from spark_log.errors import InvalidRequest, LogRestored, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.journal.storage import opening, storage_log
from spark_log.journal.store_operations import Get, List, Op, Sleep, Steps
from spark_log.recovery import lost_format, mirror_copier
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import become_log
from spark_log.store.base import Bytes
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG, META

MIRRORS = ("mirror1/", "mirror2/")
"""Prefixes of the names of their files."""
FOLDERS = (LOG, CHECKPOINTS, DATA, META)
Result = TypeVar("Result")


class MirrorStore(SimulatedStore):
    """The root of a mirror."""

    def __init__(self, process: SimulatedProcess, prefix: str) -> None:
        super().__init__(process)
        self.url = f"simulated://{prefix.rstrip('/')}"
        self._prefix = prefix

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return super().get(self._prefix + key, start, end)

    def size(self, key: str) -> int | None:
        return super().size(self._prefix + key)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        super().put(self._prefix + key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        return super().put_new(self._prefix + key, data)

    def written_ms(self, key: str) -> int | None:
        return super().written_ms(self._prefix + key)

    def list(self, prefix: str) -> list[str]:
        return [name.removeprefix(self._prefix) for name in super().list(self._prefix + prefix)]

    def delete(self, keys: Iterable[str]) -> None:
        super().delete([self._prefix + key for key in keys])


class _InTurn:
    """A pool whose work is done by its caller: the world knows no other thread."""

    def __init__(self, workers: int, thread_name_prefix: str) -> None:
        pass

    def map(self, work: Callable[..., Result], *values: Iterable[Any]) -> Iterator[Result]:
        return map(work, *values)

    def __enter__(self) -> _InTurn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left to do."""


def _passes(*_: object, **__: object) -> None:
    """The probe of a store, which has threads that the world does not know."""


MIRROR_PATCHES = (
    Patch(mirror_copier, "ThreadPoolExecutor", _InTurn),
    Patch(lost_format, "probe_once", _passes),
    Patch(storage_log, "probe_once", _passes),
)


def add_mirrors(sim: Simulation) -> None:
    """Start the processes that copy."""
    for prefix in MIRRORS:
        sim.world.store.files.update({prefix + folder: {} for folder in FOLDERS})
        _add_copiers(sim, prefix)


def _add_copiers(sim: Simulation, prefix: str) -> None:
    for _ in range(sim.rng.choice((1, 2))):
        sim.world.start(f"copier of {prefix}", partial(_persistent_copier, sim, prefix), counts=False)


def _persistent_copier(sim: Simulation, prefix: str) -> Steps[None]:
    while True:
        try:
            yield from blocking(sim.world, partial(_copy, sim, prefix))
        except StorageUnavailable:
            yield Sleep(10)


def _copy(sim: Simulation, prefix: str, process: SimulatedProcess) -> None:
    """A process that mirrors, now and then.  It looks first at what the one before has left, which may have died."""
    if not sim.losses:
        check_whole(sim, prefix)
    log, store = opened(sim, process), MirrorStore(process, prefix)
    with _refused(sim, prefix):
        begin_mirror(log, store)
        _copy_rounds(sim, prefix, process, Mirror(log, store))


def _copy_rounds(sim: Simulation, prefix: str, process: SimulatedProcess, copier: Mirror) -> None:
    for _ in range(sim.rng.randint(1, 6)):
        process.sleep_ms(sim.rng.choice((20, 500, 2 * sim.age)))
        losses = sim.losses
        try:
            with _refused(sim, prefix):
                sim.oracle.seen["mirrored"] += copier.round(catch_up=sim.rng.random() < 0.3).versions
                sim.mirrored[prefix] = losses
        except InvalidRequest:  # the log has deleted what comes next
            sim.oracle.seen["mirrors behind"] += 1


@contextmanager
def _refused(sim: Simulation, prefix: str) -> Iterator[None]:
    """A mirror is refused if it has what its log lacks since that was restored."""
    losses = sim.losses
    try:
        yield
    except LogRestored as error:
        if not losses:
            raise Violation(f"whole: {prefix} is refused, and the log was never restored: {error}") from error
        sim.world.call(1, partial(_begin_again, sim, prefix, losses))


def _begin_again(sim: Simulation, prefix: str, losses: int) -> None:
    """An operator ends what copies to a mirror that has records which the log lacks, and begins a new one there."""
    if sim.losses == losses:
        sim.oracle.seen["mirrors refused"] += 1
        sim.world.end_named(f"copier of {prefix}")
        sim.world.stop(prefix)
        for folder in FOLDERS:
            sim.world.store.files[prefix + folder].clear()
        _add_copiers(sim, prefix)


def opened(sim: Simulated, process: SimulatedProcess, prefix: str = "") -> Log:
    """The log in a process, or the one that a mirror is."""
    store = MirrorStore(process, prefix) if prefix else SimulatedStore(process)
    threads = SimulatedThreads(process)
    return Log(Journal.open(store, create=False, clock=process, rng=sim.rng, threads=threads))


def check_whole(sim: Simulation, prefix: str) -> None:
    """A mirror is the log at an earlier version, with all of its records, at any time."""
    if sim.world.store.files[prefix + CHECKPOINTS]:
        sim.oracle.seen["whole mirrors"] += 1
        _at_once(sim.world, _within(prefix, _read_all(sim)))


def _read_all(sim: Simulation) -> Steps[None]:
    view = yield from opening.open_view()
    sim.oracle.check_view(view)
    yield from read_once(sim, view)


def _at_once(world: World, steps: Steps[Any]) -> None:
    """Carry out steps in no time."""
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration:
            return
        ops = request if isinstance(request, list) else [request]
        answers = [world.store.apply(op, world.now) for op in ops]
        answer = answers if isinstance(request, list) else answers[0]


def _within(prefix: str, steps: Steps[Result]) -> Steps[Result]:
    """The steps in the root of a mirror, which they only read."""
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        several = isinstance(request, list)
        ops: list[Op] = [_moved(op, prefix) for op in (request if several else [request])]
        found = yield ops
        stripped = [_stripped(one, prefix) if isinstance(op, List) else one for op, one in zip(ops, found, strict=True)]
        answer = stripped if several else stripped[0]


def _moved(op: Any, prefix: str) -> Get | List:
    assert isinstance(op, Get | List), f"{op} does not only read"
    return op._replace(key=prefix + op.key) if isinstance(op, Get) else op._replace(prefix=prefix + op.prefix)


def _stripped(names: Iterable[str], prefix: str) -> list[str]:
    return [name.removeprefix(prefix) for name in names]


# ----------------------------------------------------------------------------------------------------------- recovery


def recover_mirrors(sim: Simulation) -> None:
    """The log is lost at the end of a run: each mirror becomes a log, with the records that it had."""
    for prefix in MIRRORS:
        if sim.world.store.files[prefix + CHECKPOINTS]:
            check_whole(sim, prefix)
            sim.world.end_named(f"copier of {prefix}")
            sim.world.alone(blocking(sim.world, partial(_recover, sim, prefix)))
            sim.oracle.seen["recovered"] += 1
            _at_once(sim.world, _within(prefix, _read_recovered(sim)))


def _recover(sim: Simulation, prefix: str, process: SimulatedProcess) -> None:
    mirror = opened(sim, process, prefix).journal
    become_log(mirror, (), mirror.state.version)


def _read_recovered(sim: Simulation) -> Steps[None]:
    """It has the records of the version that the mirror had, erased ones of later versions as well."""
    view = yield from opening.open_view()
    if not view.state.restores:
        raise Violation("whole: a recovered mirror has no new history")
    yield from read_once(sim, view._replace(state=replace(view.state, version=view.state.restores[-1].version)))
