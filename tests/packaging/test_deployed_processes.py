"""The commands of deploy/ run as processes: names of containers become ports of this machine, and paths folders.

Images, networks and volumes are not tried: no container runs here.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import spark_log
from spark_log import NewTopic
from spark_log.quorum.node.inspection import storage_info
from tests.packaging.commands import environment
from tests.packaging.test_deployment import COMPOSE, DOCKERFILE, QUORUM
from tests.processes import ROOT, Process, free_port
from tests.server.asking import make_certificate

TOKEN = "a-token-of-the-tests"


class Container(Process):
    """`pylog serve` with the command of a container."""

    def __init__(self, command: list[str], address: str, env: Mapping[str, str], stderr: Path) -> None:
        self.address, self._stderr = address, stderr
        self._start(command, env)


def replaced(text: str, names: Mapping[str, object]) -> str:
    """All names in one pass."""
    return re.sub("|".join(map(re.escape, names)), lambda found: str(names[found[0]]), text)


# ------------------------------------------------------------------------------------------------------------- compose


# Promise: deployment.md#compose-with-minio, deployment.md#container
def test_the_coordinators_of_the_compose_file_share_a_log(s3: Any, tmp_path: Path) -> None:
    """In the place of MinIO is moto's server.  One coordinator takes over from the other, and both pass the image's
    health check.
    """
    bucket, env, running = s3(), environment(tmp_path), {}
    ports = {name: free_port() for name in ("one", "two")}
    for name, port in ports.items():
        service, address = COMPOSE["services"][name], f"127.0.0.1:{port}"
        names = {"0.0.0.0:9550": address, f"{name}:9550": address, "http://minio:9000": bucket.options["endpoint_url"]}
        command = ["pylog", *shlex.split(replaced(service["command"], names))]
        variables = env | service["environment"] | {"PYLOG_URL": f"{bucket.url}/main"}
        running[name] = Container(command, address, variables, tmp_path / f"{name}.log")
    try:
        url = f"pylog://{','.join(one.address for one in running.values())}"
        with spark_log.connect(url, bucket.options) as log:
            log.admin.create_topics([NewTopic("orders", 1)])
            log.append("orders", [{"value": b"1"}])
            first = "one" if running["one"].leads else "two"
            assert running.pop(first).terminate() == 0
            log.append("orders", [{"value": b"2"}])
            assert log.read("orders", columns=["value"]).column("value").to_pylist() == [b"1", b"2"]
        ((_, left),) = running.items()
        assert left.leads and health_check(left.address) == 0
        left.stop()
        assert health_check(left.address, wait_s=0.5) != 0
        left.go_on()
    finally:
        for one in running.values():
            one.kill()


# Promise: deployment.md#container
def test_a_coordinator_with_tls_passes_the_health_check_of_the_image(tmp_path: Path) -> None:
    """Its port answers https:// only, with a certificate of an unknown authority."""
    certificate, key = make_certificate(tmp_path)
    address, conf = f"127.0.0.1:{free_port()}", tmp_path / "coordinator.ini"
    conf.write_text(
        f"[coordinator]\nurl = {tmp_path}/log\nlisten = {address}\n[tls]\ncertificate = {certificate}\nkey = {key}\n"
    )
    command = ["pylog", "serve", "--conf", str(conf)]
    running = Container(command, address, environment(tmp_path), tmp_path / "stderr")
    try:
        assert health_check(address) == 0
        running.stop()
        assert health_check(address, wait_s=0.5) != 0
        running.go_on()
    finally:
        running.kill()


def health_check(address: str, wait_s: float = 5) -> int:
    """The exit status of the image's."""
    found = re.search(r"HEALTHCHECK .*?CMD (\[.*?\])\n", DOCKERFILE, re.DOTALL)
    assert found is not None
    command = [
        replaced(word, {"127.0.0.1:9550": address, "timeout=5": f"timeout={wait_s}"})
        for word in yaml.safe_load(found[1])
    ]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


# ---------------------------------------------------------------------------------------------------------- kubernetes


class Pods:
    """The pods of deploy/kubernetes/quorum.yaml, each with a folder for its volume."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._env = folder, environment(folder)
        self.certificate, key = make_certificate(folder)
        (folder / "conf").mkdir()
        (folder / "secrets").mkdir()
        (folder / "secrets/nodes.ini").write_text("secret = 0123456789abcdef\n")
        (folder / "secrets/tokens.ini").write_text(f"[tokens]\nme = admin {TOKEN}\n")
        self._ports = {(node, port): f"127.0.0.1:{free_port()}" for node in range(3) for port in (9550, 9551)}
        self._files = {
            "s3://bucket/records": folder / "records",
            "/etc/pylog-tls/tls.crt": self.certificate,
            "/etc/pylog-tls/tls.key": key,
            "/etc/pylog-tls/ca.crt": self.certificate,
        }
        names = {f"pylog-quorum-{n}.pylog-quorum:{port}": address for (n, port), address in self._ports.items()}
        self._names = self._files | names
        (folder / "conf/coordinator.ini").write_text(QUORUM.of_kind("ConfigMap")["data"]["coordinator.ini"])
        self.running: dict[int, Container] = {}

    @property
    def url(self) -> str:
        clients = ",".join(self._ports[node, 9550] for node in range(3))
        return f"pylog://{clients}?ca={self.certificate}"

    def directory(self, node: int) -> Path:
        return self._folder / f"node-{node}" / "data/quorum"

    def start(self, node: int, **variables: str) -> None:
        """Run the init container, then the container.

        variables:  from config maps.
        """
        folder = self._folder / f"node-{node}"
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        self._shell(node, QUORUM.init["args"][0], variables)
        prepare, _, serve = QUORUM.container["args"][0].partition("exec ")
        self._shell(node, prepare.strip().removesuffix("&&"), variables)
        file = folder / "tmp/coordinator.ini"
        own = {f"0.0.0.0:{port}": self._ports[node, port] for port in (9550, 9551)}
        file.write_text(replaced(file.read_text(), self._names | own | {"/data/": f"{folder}/data/"}))
        command = shlex.split(replaced(serve, {"/tmp/": f"{folder}/tmp/"}))
        self.running[node] = Container(command, self._ports[node, 9550], self._env, folder / "stderr")

    def _shell(self, node: int, script: str, variables: Mapping[str, str]) -> None:
        folder = self._folder / f"node-{node}"
        paths = {
            "/data/": f"{folder}/data/",
            "/tmp/": f"{folder}/tmp/",
            "/etc/pylog/": f"{self._folder}/conf/",
            "/etc/pylog-quorum/": f"{self._folder}/secrets/",
        }
        fixed = {one["name"]: one["value"] for one in QUORUM.init["env"] if "value" in one}
        env = self._env | fixed | {"POD": f"pylog-quorum-{node}", **variables}
        command = ["/bin/sh", "-c", replaced(script, paths)]
        subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=120, check=True)


# Promise: deployment.md#a-quorum-on-kubernetes
def test_the_pods_of_a_quorum_start_and_one_may_lose_its_volume(tmp_path: Path) -> None:
    """First voters are formatted once.  A pod whose volume is new joins under another directory id, without a vote."""
    pods = Pods(tmp_path)
    try:
        for node in range(3):
            pods.start(node, VOTERS="0@aaa,1@bbb,2@ccc")
        with spark_log.connect(pods.url, token=TOKEN) as log:
            log.admin.create_topics([NewTopic("orders", 1)])
            log.append("orders", [{"value": b"1"}])
            pods.running.pop(2).kill()
            shutil.rmtree(pods.directory(2).parent)
            pods.start(2)
            log.append("orders", [{"value": b"2"}])
            assert len(log.read("orders")) == 2
        assert storage_info(str(pods.directory(2)))["directory_id"] != "ccc"
        assert storage_info(str(pods.directory(1)))["directory_id"] == "bbb"
    finally:
        for one in pods.running.values():
            one.kill()
