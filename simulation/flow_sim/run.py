"""Run one seed from its first step to the verdict."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from simulation.flow_sim.mutations import MUTATIONS
from simulation.flow_sim.oracle import ERASED, FLOW, SOURCE, STATE, TARGET, FlowOracle
from simulation.log_sim.blocking import SimulatedProcess, blocking, format_file
from simulation.log_sim.memoized_functions import MemoizedFunctions
from simulation.log_sim.mirrored import FOLDERS, MIRROR_PATCHES, MirrorStore, opened
from simulation.log_sim.restored import EXPECTED, OUTAGE_MS, run_for, run_until
from simulation.log_sim.run import SAME_ORIGIN
from simulation.log_sim.threads import SimulatedEvent
from simulation.log_sim.world import FaultRates, World
from simulation.mutation import mutated, patched
from simulation.verdict import Result, Violation, violation_of
from spark_log.client.log import Log
from spark_log.errors import IllegalGeneration, SparkLogError, StorageUnavailable
from spark_log.flows.flow_options import FlowOptions, flow_options
from spark_log.flows.keyed_state import Keyed, KeyedState
from spark_log.flows.source_positions import has_processed, set_starts, unprocessed
from spark_log.flows.task import FlowTask
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.maintenance.maintain import Maintainer
from spark_log.metadata.state import State
from spark_log.model import NewTopic
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import become_log
from spark_log.store.object_names import FORMAT_KEY, META

PARTITIONS, KEYS, TASKS = 3, "abcd", (1, 2, 3)
MIRROR = "mirror/"
AGE_MS = 600
"""Clocks are wrong by up to a tenth of this."""
BEFORE_MS, AFTER_MS, CALM_MS = (6000, 12_000), (2000, 6000), 60_000
PAUSES_MS = (5, 50, 500)
IN_FUNCTION_MS = (0, 0, 0, 20, 200, 1500)


class FlowSimulation:
    """The state that actors share.  The seed decides every draw."""

    def __init__(self, seed: int, *, transcript: bool = False) -> None:
        self.rng = random.Random(seed)
        self.restores = seed % 3
        """How often the log is lost."""
        self.memoized = MemoizedFunctions()
        self.oracle = FlowOracle(self.memoized)
        rates = replace(FaultRates.draw(self.rng, AGE_MS), astray=0.0)
        self.world = World(self.rng, rates, self.oracle, transcript=transcript)
        self.oracle.files = files = self.world.store.files
        files.update({MIRROR + folder: {} for folder in FOLDERS})
        files[META][FORMAT_KEY] = format_file()
        self.tasks = self.rng.choice(TASKS)
        """Number of tasks of the flow."""
        self.world.alone(blocking(self.world, self._create))

    def _create(self, process: SimulatedProcess) -> None:
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "20"}
        topics = [NewTopic(SOURCE, PARTITIONS), NewTopic(TARGET, 1), NewTopic(STATE, PARTITIONS, configs)]
        opened(self, process).admin.create_topics(topics)


def simulate(seed: int, mutation: str = "", *, transcript: bool = False) -> Result:
    """Run a seed, without one of the rules if a mutation is named."""
    with patched((*MIRROR_PATCHES, SAME_ORIGIN)):
        sim = FlowSimulation(seed, transcript=transcript)
        with patched(sim.memoized.patches()), mutated(MUTATIONS, mutation):
            violation = violation_of(partial(_simulate, sim))
            sim.world.close()
    counts = sim.oracle.seen + Counter(steps=sim.world.events, versions=sim.oracle.state.version)
    return Result(seed, violation, counts, sim.world.transcript())


def _simulate(sim: FlowSimulation) -> None:
    _add_actors(sim)
    run_for(sim, sim.rng.choice(BEFORE_MS))
    for _ in range(sim.restores):
        _copy_and_restore(sim)
        run_for(sim, sim.rng.choice(AFTER_MS))
    sim.world.end_faults()
    sim.world.end_all(
        but=("flow ", "writer", "maintenance")
    )  # the flow waits until a restored log is as long as before
    sim.world.start("last", partial(_process, sim, _await_flow), counts=True)
    run_until(sim, 2 * CALM_MS, "a process is stuck")


def _add_actors(sim: FlowSimulation) -> None:
    start, process = sim.world.start, partial(partial, _process, sim)
    for number in range(max(TASKS)):
        task = partial(_begin_again, partial(blocking, sim.world, partial(_run_task, sim, number)))
        start(f"flow {'xyz'[number]}", task, counts=False, leaves_zombies=True)
    for number in range(2):
        start(f"writer{number}", process(_write), counts=False)
    start("editor", process(_edit), counts=False)
    start("eraser", process(_erase), counts=False)
    start("deployer", partial(_deploy, sim), counts=False)
    start("maintenance", process(_maintain), counts=False)


# ---------------------------------------------------------------------------------------------------------- the actors


def _process(sim: FlowSimulation, use: Callable[[FlowSimulation, Log, SimulatedProcess], None]) -> Steps[None]:
    """A process that begins again after errors that other actors may cause."""

    def run(process: SimulatedProcess) -> None:
        while True:
            try:
                use(sim, opened(sim, process), process)
                return
            except SparkLogError as error:
                if not _may_begin_again(error):
                    raise
            process.sleep_ms(sim.rng.choice(PAUSES_MS))

    return _begin_again(partial(blocking, sim.world, run))


def _may_begin_again(error: SparkLogError) -> bool:
    return error.maybe_applied or error.retriable or isinstance(error, EXPECTED)


def _begin_again(make: Callable[[], Steps[None]]) -> Steps[None]:
    while True:
        try:
            return (yield from make())
        except StorageUnavailable:
            yield Sleep(10)


def _write(sim: FlowSimulation, log: Log, process: SimulatedProcess) -> None:
    while True:
        number = sim.rng.randrange(PARTITIONS)
        words = sim.rng.choices((*KEYS, ERASED.decode()), k=sim.rng.choice((1, 1, 4)))
        log.append(SOURCE, [{"key": word, "value": b"", "partition": number} for word in words])
        process.sleep_ms(sim.rng.choice(PAUSES_MS))


def _edit(sim: FlowSimulation, log: Log, process: SimulatedProcess) -> None:
    """Somebody writes state by hand."""
    while True:
        process.sleep_ms(sim.rng.choice((50, 500)))
        if FLOW not in log.journal.refresh().groups:
            continue  # a flow does not take over a state that is older than its positions
        row = {"key": sim.rng.choice(KEYS), "value": b"%d" % sim.rng.randrange(1000)}
        log.append(STATE, [{**row, "partition": sim.rng.randrange(PARTITIONS)}])
        sim.oracle.seen["edits"] += 1


def _erase(sim: FlowSimulation, log: Log, process: SimulatedProcess) -> None:
    while True:
        process.sleep_ms(sim.rng.choice((500, 2000)))
        if FLOW in log.journal.refresh().groups:
            log.admin.erase_records(STATE, [ERASED])


def _deploy(sim: FlowSimulation) -> Steps[None]:
    """Another number of tasks, now and then."""
    while True:
        yield Sleep(sim.rng.choice((2000, 5000)))
        sim.tasks = sim.rng.choice(TASKS)


def _maintain(sim: FlowSimulation, log: Log, process: SimulatedProcess) -> None:
    maintenance = Maintainer(log, saves_memory=True)
    while True:
        maintenance.round_or_raise()
        process.sleep_ms(sim.rng.choice((200, 2000)))


def _run_task(sim: FlowSimulation, number: int, process: SimulatedProcess) -> None:
    """Processes of one task, one after the other; none while the flow has fewer tasks."""
    while True:
        tasks = sim.tasks
        if number < tasks:
            journal = opened(sim, process).journal
            stopping = SimulatedEvent(process)
            options = _options(number, tasks, partial(_count, sim, process, tasks, stopping))
            try:
                state = KeyedState(journal, FLOW, SOURCE, Keyed(STATE))
                state.begin()
                set_starts(journal, options, state.position_text)
                FlowTask(journal, options, number, stopping).run()
                sim.oracle.seen["stopped"] += 1
            except IllegalGeneration:
                sim.oracle.seen["replaced"] += 1
            except SparkLogError as error:
                if not _may_begin_again(error):
                    raise
            actor = sim.world.current
            if actor is not None and actor.zombie:
                return
        process.sleep_ms(sim.rng.choice((10, 500)))


def _options(number: int, tasks: int, function: Callable[..., object]) -> FlowOptions:
    return flow_options(
        name=FLOW,
        source=SOURCE,
        function=function,
        lookup=(),
        state=Keyed(STATE),
        target=TARGET,
        tasks=tasks,
        task_numbers=[number],
        start="earliest",
        bad_records="fail",
        batch_bytes=300,
        linger_ms=0,
        value_format=None,
    )


def _count(
    sim: FlowSimulation,
    process: SimulatedProcess,
    tasks: int,
    stopping: SimulatedEvent,
    words: pa.Table,
    known: pa.Table,
) -> tuple[pa.Table, pa.Table]:
    """The function of the flow: the place of each word, and how often each word was there."""
    if milliseconds := sim.rng.choice(IN_FUNCTION_MS):
        process.sleep_ms(milliseconds)
    if sim.tasks != tasks:
        stopping.set()
    keys = words["key"].to_pylist()
    counts = Counter({key: int(n) for key, n in zip(known["key"].to_pylist(), known["value"].to_pylist(), strict=True)})
    counts.update(keys)
    found = list(dict.fromkeys(keys))
    places = zip(words["partition"].to_pylist(), words["offset"].to_pylist(), strict=True)
    outputs = pa.table({"value": [f"{partition}-{offset}" for partition, offset in places]})
    return outputs, pa.table({"key": pa.array(found, pa.binary()), "value": [str(counts[key]) for key in found]})


# -------------------------------------------------------------------------------------------------------- the restores


def _copy_and_restore(sim: FlowSimulation) -> None:
    """An operator copies the log, and brings the copy back when the log is lost later."""
    world = sim.world
    for folder in FOLDERS:
        world.store.files[MIRROR + folder].clear()
    world.alone(blocking(world, partial(_copy, sim)))
    run_for(sim, sim.rng.choice(AFTER_MS))
    world.take_away(*FOLDERS)
    run_for(sim, OUTAGE_MS)
    found: list[State] = []
    world.alone(blocking(world, partial(_recover, sim, found)))
    for folder in FOLDERS:
        files = world.store.files[MIRROR + folder]
        world.store.files[folder] = {name.removeprefix(MIRROR): data for name, data in files.items()}
        world.store.files[MIRROR + folder] = {}
    world.take_away()
    sim.oracle.state, sim.oracle.erasures = found[-1], {}
    sim.oracle.seen["restores"] += 1


def _copy(sim: FlowSimulation, process: SimulatedProcess) -> None:
    log, store = opened(sim, process), MirrorStore(process, MIRROR)
    begin_mirror(log, store)
    Mirror(log, store).round()


def _recover(sim: FlowSimulation, found: list[State], process: SimulatedProcess) -> None:
    mirror = opened(sim, process, MIRROR).journal
    become_log(mirror, (), mirror.state.version)
    found.append(opened(sim, process, MIRROR).journal.state)


# ------------------------------------------------------------------------------------------------------------- the end


def _await_flow(sim: FlowSimulation, log: Log, process: SimulatedProcess) -> None:
    """Each record that the log has is processed, once."""
    options, journal = _options(0, sim.tasks, print), log.journal
    state, until_ms = journal.refresh(), process.monotonic_ms() + CALM_MS
    ends = {key: state.partitions[key].readable_end for key in unprocessed(state, options)}
    while not has_processed(state, options, ends):
        if process.monotonic_ms() > until_ms:
            raise Violation(f"progress: the flow does not process all, after {sim.restores} restores")
        process.sleep_ms(100)
        state = journal.refresh()
    at = {number: sim.oracle.position(state, number) for number in range(PARTITIONS)}
    inputs = ((number, row) for number, end in at.items() for row in sim.oracle.rows(state, SOURCE, number, 0, end))
    expected = [f"{number}-{row.offset}".encode() for number, row in inputs]
    if sorted(row.value or b"" for row in sim.oracle.rows(state, TARGET, 0)) != sorted(expected):
        raise Violation("effect: the target has not the output of each record once")
    sim.oracle.seen["processed"] += len(expected)
