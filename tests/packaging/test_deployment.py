"""deploy/: the files are well-formed, their commands are accepted, and their settings are read; no container is run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from spark_log.net.tokens import parse_tokens
from spark_log.node.serve_config import read_config
from tests.packaging.commands import parse_command
from tests.unit.test_pages import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "coordinator.yaml").read_text(encoding="utf-8")))
TOKENS = "[tokens]\nme = admin a-token-of-the-tests\n"


def of_kind(kind: str) -> Any:
    (found,) = [manifest for manifest in MANIFESTS if manifest["kind"] == kind]
    return found


POD = of_kind("StatefulSet")["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_the_image_copies_what_is_there_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = [word for line in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()]
    assert set(copied) == allowed and all((ROOT / name).exists() for name in copied)


def test_the_image_runs_without_root_and_checks_its_health() -> None:
    assert DOCKERFILE.count("\nFROM ") == 2 and re.search(r"^USER [1-9]", DOCKERFILE, re.MULTILINE)
    assert "HEALTHCHECK" in DOCKERFILE and "/alive" in DOCKERFILE
    command = re.search(r"^CMD (\[.*\])", DOCKERFILE, re.MULTILINE)
    assert command is not None
    parse_command(yaml.safe_load(command[1]))


def test_pylog_accepts_the_commands_of_the_compose_file(tmp_path: Path) -> None:
    """Each coordinator has its address, and settings that `pylog serve` takes."""
    coordinators = {name: one for name, one in COMPOSE["services"].items() if one.get("image") == "pylog"}
    assert len(coordinators) == 2
    for name, service in coordinators.items():
        given = parse_command(shlex.split(service["command"])).params
        assert given["advertise"] == f"{name}:9550" and given["insecure"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_a_pod_starts_with_the_settings_of_the_manifest(tmp_path: Path) -> None:
    """Config map and tokens in one file, as its shell command makes it; the addresses are those of the service."""
    (text,) = CONTAINER["args"]
    before, _, command = text.partition("exec pylog ")
    assert [Path(word).name for word in before.split() if word.startswith("/etc")] == ["coordinator.ini", "tokens.ini"]
    given = parse_command(shlex.split(command)).params
    assert given["advertise"] == f"$(POD).{of_kind('Service')['metadata']['name']}:9550"
    path = tmp_path / "coordinator.ini"
    path.write_text(of_kind("ConfigMap")["data"]["coordinator.ini"] + TOKENS)
    found = read_config(str(path), {"advertise": "pylog-0.pylog:9550"}, {})
    assert found.certificate and found.ca and found.tokens and not found.insecure
    assert parse_tokens({"me": "admin a-token-of-the-tests"})


def test_probes_and_names_of_the_manifest_agree() -> None:
    """Readiness asks for health, liveness only whether the process answers; there is a standby."""
    assert CONTAINER["readinessProbe"]["httpGet"]["path"] == "/health"
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/alive"
    labels = of_kind("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    selectors = [of_kind("Service")["spec"]["selector"]]
    selectors += [of_kind(kind)["spec"]["selector"]["matchLabels"] for kind in ("StatefulSet", "PodDisruptionBudget")]
    assert all(selector == labels for selector in selectors) and of_kind("StatefulSet")["spec"]["replicas"] == 2
    mounted = {mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert mounted == {volume["name"] for volume in POD["volumes"]}
    assert POD["securityContext"]["runAsNonRoot"]
