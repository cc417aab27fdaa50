"""Processes for tests: coordinators (`pylog serve`) and programs, with a store in the way that the test controls."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from spark_log.rpc.messages import Health, decode

ROOT = Path(__file__).parents[1]
DEADLINE_S = 120
"""For what is known to come: only a failure waits so long."""

# `pylog serve` with a store that obeys a file.
CONTROLLED = """
import asyncio, logging, sys
from pathlib import Path
from spark_log.serve.serve import serve
from spark_log.serve.serve_config import read_config
from spark_log.store.open import open_store
from simulation.harness.stores import ControlledStore
folder, control, listen, takeover, timeout = sys.argv[1:]
flags = {"url": folder, "listen": listen, "takeover.after": takeover, "storage.timeout": timeout, "durability": "os"}
config = read_config(None, flags, {})
logging.basicConfig(level=logging.INFO)
store = ControlledStore(open_store(folder, None, "os"), Path(control))
asyncio.run(serve(config, lambda line: print(line, flush=True), store))
"""


def control_storage(control: Path, says: str) -> None:
    """Write the orders of a `ControlledStore` in one step."""
    new = control.with_suffix(".new")
    new.write_text(says)
    new.rename(control)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Process:
    """`pylog serve` as a process."""

    def __init__(
        self,
        folder: Path,
        port: int,
        *flags: str,
        stderr: Path | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """
        stderr:  file for what it says.
        before:  called in the process, before it runs.
        """
        self._stderr, self._before = stderr, before
        self.address = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "spark_log.cli", "-u", str(folder), "serve", "--listen", self.address]
        self._start([*command, "--durability", "os", *flags])

    _stderr: Path | None = None
    _before: Callable[[], None] | None = None

    def _start(self, command: list[str], env: Mapping[str, str] | None = None) -> None:
        with (self._stderr or Path(os.devnull)).open("ab") as stderr:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True, preexec_fn=self._before
            )
        assert self._process.stdout is not None
        assert "listening on" in self._process.stdout.readline()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """As a machine that hangs: the kernel still accepts connections."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def reload(self) -> None:
        os.kill(self._process.pid, signal.SIGHUP)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        self._process.send_signal(number)
        status = self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def health(self, path: str = "/health") -> tuple[int, Health]:
        """The status and what is said of its health."""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=20) as answer:
                return answer.status, decode(answer.read(), Health, "the answer")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, decode(error.read(), Health, "the answer")

    @property
    def leads(self) -> bool:
        return self.health()[1].leading


class ControlledProcess(Process):
    """The same, with storage that can hang, fail, be full or slow."""

    def __init__(
        self, folder: Path, port: int, control: Path, *, takeover: str = "10s", storage_timeout: str = "4s"
    ) -> None:
        self.address = f"127.0.0.1:{port}"
        self._control = control
        self._start(
            [sys.executable, "-c", CONTROLLED, str(folder), str(control), self.address, takeover, storage_timeout]
        )

    def storage(self, says: str) -> None:
        """See `ControlledStore`."""
        control_storage(self._control, says)


class Started:
    """A process that prints lines, which go to a file; what it logs goes to another."""

    def __init__(self, program: str, folder: Path, name: str, url: str = "") -> None:
        """
        program:  it is given a URL, the name of the file that controls its storage, and its own name.
        url:      of the log; empty: of one in `folder`.
        """
        self._control, self._out, self._err = (folder / f"{name}.{kind}" for kind in ("control", "out", "err"))
        command = [sys.executable, "-c", program, url or str(folder / "log"), str(self._control), name]
        with self._out.open("w") as out, self._err.open("w") as err:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err)

    def lines(self) -> list[str]:
        """Whole lines after the first, which says that it is ready."""
        return [line.strip() for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")][1:]

    def wait_until_ready(self) -> None:
        self.wait_until(lambda: self._out.read_text().startswith("ready\n"))

    def wait_for(self, more: int) -> None:
        """Until it has printed so many more lines."""
        expected = len(self.lines()) + more
        self.wait_until(lambda: len(self.lines()) >= expected)

    def wait_until(self, true: Callable[[], bool], seconds: float = DEADLINE_S) -> None:
        """Fails if the process ends."""
        eventually(lambda: true() or self._process.poll() is not None, seconds)
        assert self._process.poll() is None, self._err.read_text()[-3000:]

    @contextmanager
    def in_trouble(self, trouble: str) -> Iterator[None]:
        """It is `stopped`, or its storage does what the trouble says: see `ControlledStore`."""
        if trouble == "stopped":
            os.kill(self._process.pid, signal.SIGSTOP)
        else:
            control_storage(self._control, trouble)
        try:
            yield
        finally:
            control_storage(self._control, "")
            os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def started(program: str, folder: Path, name: str, url: str = "") -> Iterator[Started]:
    process = Started(program, folder, name, url)
    try:
        process.wait_until_ready()
        yield process
    finally:
        process.kill()


def eventually(true: Callable[..., bool], seconds: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
