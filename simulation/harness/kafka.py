"""A real Kafka broker and Spark's Kafka connector, to compare with and to copy from.

    python -m simulation.harness.kafka fetch DIR
    python -m simulation.harness.kafka start DIR [--port 9092]
    python -m simulation.harness.kafka stop DIR

Use it for tests, jobs and benchmarks, never for data that matters: brokers are on loopback, and their records are
deleted when they stop.  Java and the Ivy that ships with PySpark download the jars, as they do for
`spark.jars.packages`: about 60 MB, once, checked against the repository's checksums.  To use a mirror, set
`PYLOG_IVY_SETTINGS` to an Ivy settings file.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

BROKER_JARS = (
    "org.apache.kafka:kafka_2.13:4.1.0",
    # Kafka lets the user choose a logger.  Without one it prints nothing, not even that it has started.
    "org.slf4j:slf4j-simple:1.7.36",
)
CONNECTOR_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    # Not published for every version of Spark.  This version works with the connector above on Spark 4.2 and 4.3.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
CLUSTER_ID = "cHlsb2ctdGVzdC1rYWZrYQ"
PORT = 9092
START_S, STOP_S = 300, 60
"""Limits: a broker starts in 5 s on an idle machine and in minutes on a busy one."""
PIDS = "pids"
"""The file with the process ids of the brokers."""
SETTINGS_FILE = "PYLOG_IVY_SETTINGS"


class Broker(NamedTuple):
    """A running cluster of one broker or more, and what Spark needs to connect to it."""

    address: str
    """The value for `kafka.bootstrap.servers`."""
    jars: str
    """The value for `spark.jars`, set when the session's JVM starts."""
    pids: tuple[int, ...]


def min_insync(replicas: int) -> dict[str, str]:
    """Configs of a topic, so that an acknowledged record is on all replicas but one at least."""
    return {"min.insync.replicas": str(replicas - 1)} if replicas > 1 else {}


# ------------------------------------------------------------------------------------------------------------- fetching


def fetch(directory: Path) -> str:
    """Download the jars into `directory` unless they are there; return the connector's, for `spark.jars`."""
    retrieve(directory, "broker", BROKER_JARS, transitive=True)
    return retrieve(directory, "connector", CONNECTOR_JARS, transitive=False)


def retrieve(directory: Path, what: str, jars: Sequence[str], *, transitive: bool) -> str:
    """Download jars into the folder `what` unless they are there; return all of it, for `spark.jars`."""
    done = directory / what / "jars.txt"
    if not done.exists() or done.read_text().split() != list(jars):
        _retrieve(directory, what, jars, transitive)
        done.write_text("\n".join(jars))
    return ",".join(str(jar) for jar in sorted((directory / what).glob("*.jar")))


def _retrieve(directory: Path, what: str, jars: Sequence[str], transitive: bool) -> None:
    shutil.rmtree(directory / what, ignore_errors=True)
    (directory / what).mkdir(parents=True)
    wanted = directory / f"{what}.xml"
    wanted.write_text(_ivy_file(jars, transitive))
    settings = ["-settings", os.environ[SETTINGS_FILE]] if SETTINGS_FILE in os.environ else []
    pattern = directory / what / "[artifact]-[revision].[ext]"
    command = [*_java(_ivy_jar(), "org.apache.ivy.Main"), *settings, "-ivy", str(wanted), "-types", "jar", "bundle"]
    command += ["-cache", str(directory / "cache"), "-retrieve", str(pattern)]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode:
        raise RuntimeError(
            f"jars could not be fetched: {', '.join(jars)}. Is the network there? With a mirror, let {SETTINGS_FILE} "
            f"name an Ivy settings file.\n{result.stdout[-3000:]}"
        )


def _ivy_file(jars: Sequence[str], transitive: bool) -> str:
    lines = []
    for jar in jars:
        organisation, name, revision = jar.split(":")
        lines.append(
            f'<dependency org="{organisation}" name="{name}" rev="{revision}" conf="default->default" '
            f'transitive="{str(transitive).lower()}"/>'
        )
    return (
        '<ivy-module version="2.0"><info organisation="pylog" module="kafka"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{"".join(lines)}</dependencies></ivy-module>'
    )


def _ivy_jar() -> str:
    spec = importlib.util.find_spec("pyspark")
    jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec is not None and spec.origin else []
    if not jars:
        raise RuntimeError("jars are fetched with the Ivy that comes with PySpark, and there is none: install pyspark")
    return str(jars[-1])


def _java(classpath: str, main: str, *options: str) -> list[str]:
    home = os.environ.get("JAVA_HOME")
    return [str(Path(home) / "bin" / "java") if home else "java", *options, "-cp", classpath, main]


# --------------------------------------------------------------------------------------------------- starting, stopping


def start(directory: Path, port: int = PORT, settings: Mapping[str, str] | None = None, count: int = 1) -> Broker:
    """Start empty brokers in the background and wait until they answer.

    They listen on as many ports from `port` on, and the controller, which is in the first of them, on the next.
    settings: extra broker settings (`server.properties`).
    """
    jars = fetch(directory)
    stop(directory)
    run = directory / "run"
    run.mkdir()
    pids = tuple(_start(directory, node, count, port, settings or {}) for node in range(1, count + 1))
    for node, pid in enumerate(pids, 1):
        _wait_until_up(directory, node, pid)
    return Broker(",".join(f"127.0.0.1:{port + number}" for number in range(count)), jars, pids)


def _start(directory: Path, node: int, count: int, port: int, settings: Mapping[str, str]) -> int:
    run = directory / "run"
    properties = run / f"server-{node}.properties"
    properties.write_text(_properties(run, node, count, port, settings))
    classpath = str(directory / "broker" / "*")
    formatting = [*_java(classpath, "kafka.tools.StorageTool"), "format", "-t", CLUSTER_ID, "-c", str(properties)]
    formatted = subprocess.run(formatting, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if formatted.returncode:
        raise RuntimeError(f"the broker's folder could not be prepared:\n{formatted.stdout[-3000:]}")
    pid = _spawn([*_java(classpath, "kafka.Kafka", "-Xmx1g"), str(properties)], run / f"broker-{node}.log")
    with (run / PIDS).open("a") as file:
        file.write(f"{pid}\n")
    return pid


def _properties(run: Path, node: int, count: int, port: int, settings: Mapping[str, str]) -> str:
    controller, mine = f"127.0.0.1:{port + count}", f"127.0.0.1:{port + node - 1}"
    listeners = [f"PLAINTEXT://{mine}", *([f"CONTROLLER://{controller}"] if node == 1 else [])]
    values = {
        "process.roles": "broker,controller" if node == 1 else "broker",
        "node.id": str(node),
        "controller.quorum.voters": f"1@{controller}",
        "listeners": ",".join(listeners),
        "advertised.listeners": f"PLAINTEXT://{mine}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(run / f"data-{node}"),
        "offsets.topic.replication.factor": str(count),
        "transaction.state.log.replication.factor": str(count),
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        **settings,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _spawn(command: list[str], log: Path) -> int:
    """Start a process that outlives this one."""
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    output = [(os.POSIX_SPAWN_OPEN, 1, str(log), write, 0o644), (os.POSIX_SPAWN_DUP2, 1, 2)]
    return os.posix_spawnp(command[0], command, os.environ, file_actions=output, setsid=True)


def _wait_until_up(directory: Path, node: int, pid: int) -> None:
    log, deadline = directory / "run" / f"broker-{node}.log", time.monotonic() + START_S
    while "Kafka Server started" not in log.read_text():
        if not _is_broker(pid) or time.monotonic() > deadline:
            found = log.read_text()[-3000:]
            stop(directory)
            raise RuntimeError(f"the broker did not come up; is its port taken? Its last words:\n{found}")
        time.sleep(0.1)


def stop(directory: Path) -> None:
    """Stop the brokers that were started in `directory`, if any, and delete their records.

    The one with the controller is the last: without it the others would not stop.
    """
    file = directory / "run" / PIDS
    for pid in reversed([int(line) for line in file.read_text().split()] if file.exists() else []):
        _stop(pid)
    shutil.rmtree(directory / "run", ignore_errors=True)


def _stop(pid: int) -> None:
    if not _is_broker(pid):
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while _is_broker(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _is_broker(pid: int) -> bool:
    """Whether the process is a running broker.

    The pid may have been reused, and a child that ended remains as a zombie for a while.
    """
    with suppress(ChildProcessError):  # the process was started by another one
        os.waitpid(pid, os.WNOHANG)
    found = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], stdout=subprocess.PIPE, text=True, check=False)
    return "kafka.Kafka" in found.stdout


@contextmanager
def broker(
    directory: Path, port: int = PORT, settings: Mapping[str, str] | None = None, count: int = 1
) -> Iterator[Broker]:
    """Empty brokers that run for the length of a block."""
    try:
        yield start(directory, port, settings, count)
    finally:
        stop(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["fetch", "start", "stop"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--port", type=int, default=PORT, help=f"of the broker; the controller takes the next ({PORT})")
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    if arguments.verb == "fetch":
        print(fetch(directory))
    elif arguments.verb == "start":
        running = start(directory, arguments.port)
        print(f"kafka.bootstrap.servers={running.address}\nspark.jars={running.jars}")
    else:
        stop(directory)


if __name__ == "__main__":
    main()
