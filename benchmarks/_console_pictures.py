"""Take the pictures of docs/console.md: the console in a browser, on a log that is written and read meanwhile.

    python benchmarks/_console_pictures.py [--seconds 420]

The console samples rates and lags every 15 seconds, so a chart needs some minutes of traffic.  Needs Chromium.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import spark_log
from spark_log.console.of_coordinator import pages_of
from tests.console.browser import Browser, browser
from tests.services import Services

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
TOPICS = {"orders": 3, "clicks": 2, "payments": 1, "customers": 2, "orders.dead-letters": 1}
READY = "document.querySelector('main')?.dataset.ready === location.hash"
LOOK_S = 10
"""A look at the console, which takes its first sample then."""


def order(rng: random.Random, number: int) -> dict[str, object]:
    items = [
        {"sku": f"A-{rng.randrange(100)}", "quantity": rng.randrange(1, 5), "price": rng.randrange(100, 9999) / 100}
        for _ in range(rng.randrange(1, 4))
    ]
    customer = f"customer-{rng.randrange(300)}"
    value = json.dumps({"order_id": 10**16 + number, "customer": customer, "items": items})
    headers = [("trace-id", f"{rng.getrandbits(64):016x}".encode()), ("source", b"web")]
    return {"key": customer, "value": value, "headers": headers}


def write(log: spark_log.Log, stop: threading.Event) -> None:
    """Orders and what follows from them, at a rate that rises and falls."""
    rng, number, began = random.Random(7), 0, time.monotonic()
    while not stop.wait(0.5):
        wave = 1 + 0.6 * math.sin((time.monotonic() - began) / 40) + rng.random() * 0.4
        rows = [order(rng, number + n) for n in range(int(60 * wave))]
        number += len(rows)
        log.append("orders", rows)
        log.append("clicks", [{"value": json.dumps({"page": rng.randrange(50)})} for _ in range(int(25 * wave))])
        log.append("payments", [{"key": row["key"], "value": "1"} for row in rows[::4]])
        if rng.random() < 0.2:
            log.append("customers", [{"key": f"customer-{rng.randrange(300)}", "value": "{}"}])
            log.append("orders.dead-letters", [{"value": "not JSON"}])


def read(log: spark_log.Log, group: str, client: str, most: int, stop: threading.Event) -> None:
    """A member of a group that reads at most so many records a second, so it falls behind when many are written."""
    settings = {"group_id": group, "client_id": client, "auto_offset_reset": "earliest", "max_poll_records": most}
    with log.consumer("orders", **settings) as consumer:
        while not stop.wait(1.0):
            consumer.poll(timeout_ms=500)
            consumer.commit()


def show(page: Browser, to: str) -> None:
    page.value(f"location.hash = {to!r}")
    page.until(READY)
    time.sleep(1)


def take(page: Browser, address: str, seconds: float) -> None:
    """Wait for samples, and take the pictures."""
    page.size(1280, 800)
    page.scheme("light")
    page.open(f"http://{address}/")
    page.until(READY)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(LOOK_S, max(0.0, end - time.monotonic())))
    show(page, "#/topics")
    for name, to in (("overview", "#/"), ("group", "#/groups/billing")):
        show(page, to)
        assert "Not enough samples" not in page.text()
        page.picture(FOLDER / f"console_{name}.png")
    show(page, "#/topics/orders/records")
    page.press("j", "j", "Enter")
    page.shows("trace-id")
    time.sleep(1)
    page.picture(FOLDER / "console_record.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=420)
    seconds, stop, services = parser.parse_args().seconds, threading.Event(), Services()
    with tempfile.TemporaryDirectory(prefix="pylog-") as folder:
        running = services.start(Path(folder) / "log", pages=pages_of)
        with spark_log.connect(f"pylog://{running.coordinator.address}") as log:
            log.admin.create_topics([spark_log.NewTopic(name, count) for name, count in TOPICS.items()])
            steps: list[Callable[[], None]] = [lambda: write(log, stop)]
            steps += [lambda n=n: read(log, "billing", f"billing-{n}", 60, stop) for n in (1, 2)]
            steps += [lambda: read(log, "analytics", "analytics-1", 110, stop)]
            threads = [threading.Thread(target=step) for step in steps]
            for thread in threads:
                thread.start()
            try:
                with browser(Path(folder) / "chromium") as page:
                    take(page, str(running.coordinator.address), seconds)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
        services.close()


if __name__ == "__main__":
    main()
