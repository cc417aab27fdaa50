"""A standalone cluster of Spark: its own master and workers, as processes on addresses of the loopback network.

Each worker has an address, so that Spark takes it for a separate machine, and a work folder.  All of it is in the
package that pip installs.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from tests.processes import eventually, free_port

SPARK = Path(pyspark.__file__).parent
CLASS = SPARK / "bin" / "spark-class"
EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
UNMOUNTED = 'mount -t tmpfs none "$0" && exec "$@"'
"""A command in its own namespace of mounts, which finds an empty folder at a path."""


class Daemon:
    """A master or a worker."""

    def __init__(self, folder: Path, name: str, command: Sequence[str], ready: str, options: str = "") -> None:
        """ready: what it logs when it can be used."""
        self._log, self._command, self._ready = folder / f"{name}.log", command, ready
        java = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {options}"
        self._env = {
            **os.environ,
            "SPARK_HOME": str(SPARK),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": java,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it is ready."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        process = self._process
        eventually(lambda: self._ready in self.said() or process.poll() is not None)
        assert process.poll() is None, self.said()[-3000:]

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Worker(Daemon):
    """With two cores, and its executors."""

    def __init__(self, folder: Path, number: int, master: str, unmounted: Path | None, options: str) -> None:
        self._host, self._port = f"127.0.0.{number + 2}", free_port()
        mounts = [] if unmounted is None else ["unshare", "--mount", "sh", "-c", UNMOUNTED, str(unmounted)]
        arguments = [
            "--host",
            self._host,
            "--port",
            str(self._port),
            "--webui-port",
            "0",
            "--cores",
            "2",
            "--memory",
            "2g",
        ]
        command = [*mounts, str(CLASS), "org.apache.spark.deploy.worker.Worker", *arguments]
        work = ["--work-dir", str(folder / f"work-{number}"), master]
        super().__init__(folder, f"worker-{number}", [*command, *work], "Successfully registered with master", options)

    def executors(self) -> list[int]:
        """Their processes."""
        ours, found = f"spark://Worker@{self._host}:{self._port}".encode(), []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has ended
                words = file.read_bytes().split(b"\0")
                if EXECUTOR in words and ours in words:
                    found.append(int(file.parent.name))
        return found


def kill_process(pid: int) -> None:
    """SIGKILL; nothing if it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Standalone:
    """A cluster, whose workers are added one by one."""

    def __init__(self, folder: Path) -> None:
        self._folder, port = folder, free_port()
        self.shuffle_port = free_port()
        self.master, self.workers = f"spark://127.0.0.1:{port}", list[Worker]()
        command = [str(CLASS), "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        self._daemon = Daemon(folder, "master", [*command, "--webui-port", "0"], "New state: ALIVE")

    def add_worker(self, *, unmounted: Path | None = None, has_shuffle_service: bool = False) -> Worker:
        """
        unmounted:            a folder whose disk is not mounted there.
        has_shuffle_service:  of one worker, for those of all: they share a disk.
        """
        service = f"-Dspark.shuffle.service.enabled=true -Dspark.shuffle.service.port={self.shuffle_port}"
        options = service if has_shuffle_service else ""
        self.workers.append(Worker(self._folder, len(self.workers), self.master, unmounted, options))
        self.workers[-1].start()
        return self.workers[-1]

    def executors(self) -> list[int]:
        return [pid for worker in self.workers for pid in worker.executors()]

    def start(self) -> None:
        self._daemon.start()

    def kill(self) -> None:
        """Executors end with their workers, unless they hang."""
        left = self.executors()
        for daemon in (*self.workers, self._daemon):
            daemon.kill()
        for pid in left:
            kill_process(pid)


@contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """A master without workers."""
    cluster = Standalone(folder)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill()
