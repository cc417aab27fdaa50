"""Servers of object stores that Go builds, as processes that are started and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import free_port

START_S = 60


class Server:
    """A server process, whose objects are files in a folder."""

    program: str
    package: str
    """Of Go, with its version."""
    health: str
    """The path of a request that succeeds when the server answers."""
    puts: tuple[tuple[str, str], ...]
    """Requests that put objects: their method, and a part of their path."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def built(cls) -> Path:
        """Where the server is, or would be."""
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        return cache / "pylog-tests" / f"{cls.program}-{cls.package.rpartition('@')[2]}" / cls.program

    @classmethod
    def fetched(cls) -> Path:
        """The server, which Go builds if it is missing; the test is skipped without Go."""
        if not cls.built().exists():
            if not shutil.which("go"):
                pytest.skip(f"{cls.program} is built with Go, which is not installed")
            new = cls.built().parent.with_suffix(".new")
            new.mkdir(parents=True, exist_ok=True)
            (new / "go.mod").write_text("module tests\n")  # `go install` refuses packages whose module replaces others
            for command in (["get", cls.package], ["build", "-o", cls.program, cls.package.partition("@")[0]]):
                subprocess.run(["go", *command], cwd=new, check=True)
            new.rename(cls.built().parent)
        return cls.built()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """Storage options of its clients."""
        raise NotImplementedError

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that give clients the same without options."""
        raise NotImplementedError

    def bucket(self, name: str) -> str:
        """The URL of a new bucket."""
        raise NotImplementedError

    def arguments(self, objects: Path) -> list[str]:
        """Of the server's command."""
        raise NotImplementedError

    def secrets(self) -> Mapping[str, str]:
        """The server's own environment."""
        return {}

    def start(self) -> None:
        """Until it answers."""
        objects = self._folder / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            command = [self.fetched(), *self.arguments(objects)]
            env = {**os.environ, **self.secrets()}
            self._process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        end = time.monotonic() + START_S
        while not self._answers():
            said = (self._folder / "log").read_text()
            assert self._process.poll() is None and time.monotonic() < end, f"{self.program} does not start: {said}"
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + self.health, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """SIGKILL: what it was doing stays as it is."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """The server, which answers."""
    server.start()
    try:
        yield server
    finally:
        server.kill()
