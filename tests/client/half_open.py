"""A proxy whose connections go dead without being closed, as behind a firewall that forgets them."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Forwards connections to a local port."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._live: set[tuple[socket.socket, socket.socket]] = set()
        self._dead: set[tuple[socket.socket, socket.socket]] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def forget(self) -> None:
        """From now on, open connections pass nothing on; new ones work."""
        self._dead |= self._live

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._door.close()
        for pair in tuple(self._live):
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                try:
                    pair = near, socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    near.close()
                    continue
                self._live.add(pair)
                for source, target in (pair, pair[::-1]):
                    threading.Thread(target=self._forward, args=(source, target, pair), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if pair not in self._dead:
                    target.sendall(data)
            if pair not in self._dead:
                target.shutdown(socket.SHUT_WR)
