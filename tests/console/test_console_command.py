"""`pylog console` as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import spark_log
from tests.cli.commands import ROOT
from tests.console.console_requests import Asking
from tests.console.test_console_changes import send
from tests.server.asking import eventually


# Promise: cli.md#pylog-console, console.md#the-console
def test_the_command_opens_a_browser_and_serves_until_it_is_stopped(tmp_path: Path) -> None:
    """It answers with the token of the address, and ends on SIGTERM.

    All users of the machine see the browser's arguments: it gets a file, which only this user can read and which leads
    to the address.
    """
    with spark_log.connect(tmp_path / "log", durability="os") as log:
        log.append("orders", [{"value": "x"}])
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    steps = ('echo "$1"', 'cat "$file"', "echo", 'stat -c %a "$(dirname "$file")"')
    browser.write_text(f"#!/bin/sh\nfile=${{1#file://}}\n({'; '.join(steps)}) > {seen}.part\nmv {seen}.part {seen}\n")
    browser.chmod(0o755)
    command = [sys.executable, "-m", "spark_log.cli", "console", "-u", str(tmp_path / "log"), "--listen", "0", "--open"]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "BROWSER": f"{browser} %s"}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        site, _, token = address.partition("#token=")
        try:
            asked = urllib.request.Request(f"{site}api/topics", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(asked, timeout=60) as found:
                assert [row["topic"] for row in json.loads(found.read())["topics"]] == ["orders"]
            eventually(seen.exists, 60)
            samples = tmp_path / "state" / "pylog" / "console"
            eventually(lambda: len(list(samples.glob("*.samples"))) == 1, 60)
        finally:
            process.terminate()
        assert process.wait(60) == 0
    argument, page, mode = seen.read_text().splitlines()
    assert address not in argument and f'url={address}"' in page and mode == "700"
    assert not Path(argument.removeprefix("file://")).exists()


# Promise: console.md#the-console
def test_the_command_shows_several_logs(tmp_path: Path) -> None:
    """Each by its number; without one, the first.  A log that is named twice is one."""
    urls = [str(tmp_path / name) for name in ("first", "second")]
    for n, url in enumerate(urls):
        with spark_log.connect(url, durability="os") as log:
            log.append(f"topic-{n}", [{"value": "x"}])
    command = [sys.executable, "-m", "spark_log.cli", "console", "--listen", "0"]
    command += [part for url in (*urls, urls[0]) for part in ("-u", url)]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address, _, token = process.stdout.readline().strip().partition("#token=")

        def ask(path: str) -> str:
            asked = urllib.request.Request(
                f"{address.removesuffix('console/')}{path}", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(asked, timeout=60) as found:
                return str(found.read().decode())

        try:
            for query, n in (("", 0), ("?log=0", 0), ("?log=1", 1)):
                assert [row["topic"] for row in json.loads(ask(f"console/api/topics{query}"))["topics"]] == [
                    f"topic-{n}"
                ]
                assert f'topic="topic-{n}"' in ask(f"metrics{query}")
            assert [url.rpartition("/")[2] for url in json.loads(ask("console/api/me?log=1"))["logs"]] == [
                "first",
                "second",
            ]
            with urllib.request.urlopen(f"{address.removesuffix('console/')}?log=1", timeout=60) as page:
                assert page.url == f"{address}?log=1"
            for wrong in ("2", "-1", "x", "00"):
                with pytest.raises(urllib.error.HTTPError, match="400") as refused:
                    ask(f"console/api/topics?log={wrong}")
                refused.value.close()
        finally:
            process.terminate()
        assert process.wait(60) == 0


# Promise: console.md#change-the-log
def test_admin_changes_the_log_and_audits_it(tmp_path: Path) -> None:
    """With the printed token alone: that of a file reads.  Each change is a line on standard error."""
    url, file, reader = str(tmp_path / "log"), tmp_path / "token", "a-token-for-prometheus"
    file.write_text(reader, encoding="utf-8")
    with spark_log.connect(url, durability="os") as log:
        log.append("orders", [{"value": "x"}])
        cluster_id = log.cluster_id
    command = [sys.executable, "-m", "spark_log.cli", "console", "-u", url, "--listen", "0", "--admin"]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen(
        [*command, "--token-file", str(file)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline().strip()
        address, _, token = line.removeprefix("http://").partition("/console/#token=")
        try:
            assert Asking(address, reader)("me")["may_change"] is False
            planned = Asking(address, token)("plan", action="delete", topic="orders")["command"]
            assert send(address, reader, cluster_id, planned)["error"] == "AuthorizationFailed"
            assert send(address, token, cluster_id, planned).get("failure") is None
        finally:
            process.terminate()
        assert process.wait(60) == 0
        audited = [json.loads(line) for line in process.stderr if line.startswith("{")]
    assert [(one["principal"], one["change"], one["topics"], one["outcome"]) for one in audited] == [
        ("console", "delete_topic", ["orders"], "done")
    ]
    with spark_log.connect(url) as log:
        assert log.admin.list_topics() == []
