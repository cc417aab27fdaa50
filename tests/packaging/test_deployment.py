"""deploy/: the files are well-formed, and their settings are read; test_deployed_processes runs their commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_log.serve.serve_config import read_config
from spark_log.server.tokens import parse_tokens
from tests.packaging.commands import parse_command
from tests.unit.test_pages import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
TOKENS = "[tokens]\nme = admin a-token-of-the-tests\n"


class Manifest:
    """A file of deploy/kubernetes with one stateful set of one container."""

    def __init__(self, name: str) -> None:
        text = (DEPLOY / "kubernetes" / name).read_text(encoding="utf-8")
        self.documents: list[dict[str, Any]] = list(yaml.safe_load_all(text))
        self.set = self.of_kind("StatefulSet")["spec"]
        self.pod = self.set["template"]["spec"]
        (self.container,) = self.pod["containers"]

    def of_kind(self, kind: str) -> Any:
        (found,) = [document for document in self.documents if document["kind"] == kind]
        return found

    @property
    def init(self) -> Any:
        (found,) = self.pod["initContainers"]
        return found


COORDINATOR, QUORUM = Manifest("coordinator.yaml"), Manifest("quorum.yaml")


# Promise: deployment.md#container
def test_the_image_copies_what_is_there_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = [word for line in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()]
    assert set(copied) == allowed and all((ROOT / name).exists() for name in copied)


# Promise: deployment.md#container
def test_the_image_runs_without_root_and_checks_its_health() -> None:
    assert DOCKERFILE.count("\nFROM ") == 2 and re.search(r"^USER [1-9]", DOCKERFILE, re.MULTILINE)
    assert "HEALTHCHECK" in DOCKERFILE and "/alive" in DOCKERFILE
    command = re.search(r"^CMD (\[.*\])", DOCKERFILE, re.MULTILINE)
    assert command is not None
    parse_command(yaml.safe_load(command[1]))


# Promise: deployment.md#compose-with-minio
def test_the_compose_file_opens_no_port_to_other_machines() -> None:
    """It has neither tokens nor TLS."""
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert len(ports) == 2 and all(port.startswith("127.0.0.1:") for port in ports)


# Promise: deployment.md#kubernetes
def test_a_pod_starts_with_the_settings_of_the_manifest(tmp_path: Path) -> None:
    """Config map and tokens in one file, as its shell command makes it; the addresses are those of the service."""
    (text,) = COORDINATOR.container["args"]
    before, _, command = text.partition("exec pylog ")
    assert [Path(word).name for word in before.split() if word.startswith("/etc")] == ["coordinator.ini", "tokens.ini"]
    given = parse_command(shlex.split(command)).params
    assert given["advertise"] == f"$(POD).{COORDINATOR.of_kind('Service')['metadata']['name']}:9550"
    path = tmp_path / "coordinator.ini"
    path.write_text(COORDINATOR.of_kind("ConfigMap")["data"]["coordinator.ini"] + TOKENS)
    found = read_config(str(path), {"advertise": "pylog-0.pylog:9550"}, {})
    assert found.certificate and found.ca and found.tokens and not found.insecure
    assert parse_tokens({"me": "admin a-token-of-the-tests"})


# Promise: deployment.md#kubernetes
@pytest.mark.parametrize("manifest", [COORDINATOR, QUORUM], ids=["coordinator", "quorum"])
def test_probes_and_names_of_a_manifest_agree(manifest: Manifest) -> None:
    """Readiness asks for health, liveness only whether the process answers; at most one pod is evicted at a time.  A
    process that opens a log does not answer yet, and is not killed.
    """
    assert manifest.container["readinessProbe"]["httpGet"]["path"] == "/health"
    assert manifest.container["livenessProbe"]["httpGet"]["path"] == "/alive"
    startup = manifest.container["startupProbe"]
    assert startup["httpGet"]["path"] == "/alive" and startup["periodSeconds"] * startup["failureThreshold"] >= 300
    labels = manifest.set["template"]["metadata"]["labels"]
    selectors = [manifest.of_kind("Service")["spec"]["selector"], manifest.set["selector"]["matchLabels"]]
    selectors.append(manifest.of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
    assert all(selector == labels for selector in selectors)
    assert manifest.of_kind("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    volumes = {volume["name"] for volume in manifest.pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in manifest.set.get("volumeClaimTemplates", ())}
    assert {mount["name"] for mount in manifest.container["volumeMounts"]} == volumes
    assert manifest.pod["securityContext"]["runAsNonRoot"]


# Promise: deployment.md#a-quorum-on-kubernetes
def test_there_is_a_standby_and_a_node_for_each_peer() -> None:
    """The peers of the quorum are its pods, numbered as Kubernetes numbers them."""
    assert COORDINATOR.set["replicas"] == 2
    peers = re.search(r"^peers = (.*)$", QUORUM.of_kind("ConfigMap")["data"]["coordinator.ini"], re.MULTILINE)
    assert peers is not None
    name = QUORUM.of_kind("Service")["metadata"]["name"]
    expected = [f"{n}@{name}-{n}.{QUORUM.set['serviceName']}:9551" for n in range(QUORUM.set["replicas"])]
    assert peers[1].split(",") == expected


# Promise: deployment.md#kubernetes
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_kubernetes_knows_each_field_of_the_manifests(version: str) -> None:
    """By the schemas of an old and a new version: no field is unknown, missing or of another type."""
    schemas = pytest.importorskip("kubernetes_validate")
    for document in (*COORDINATOR.documents, *QUORUM.documents):
        schemas.validate(document, version, strict=True)
    wrong = COORDINATOR.of_kind("PodDisruptionBudget")
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong | {"spec": {"maxunavailable": 1}}, version, strict=True)
