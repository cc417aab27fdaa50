"""Alerts and dashboard in conf/ use metrics that coordinators, nodes of a quorum and queries export."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from pyspark_pylog.progress.openmetrics import METRICS, PREFIX

from spark_log.quorum.node.node_metrics import metrics_text
from spark_log.serve.serve import Running
from spark_log.server.quorum.root_snapshots import copy_age_text
from tests.unit.quorum.node.test_node_tools import LEADS
from tests.unit.test_pages import ROOT, anchors

CONF = ROOT / "conf"
ALERTS = CONF / "prometheus-alerts.yml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((CONF / "grafana-dashboard.json").read_text(encoding="utf-8"))
OF_HISTOGRAMS = re.compile(r"_(?:bucket|sum|count)$")
SELECTORS = {"instance", "job", "le"}
"""Labels of Prometheus, and that of a histogram."""
LABELS_OF_QUERIES = {"query", "id", "source", "topic", "partition"}


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in RULES)
    yield from (target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ()))


@pytest.fixture(scope="module")
def types(small: Running) -> dict[str, str]:
    """Type by name, as a scrape gives them; a histogram's is that of its counters."""
    with urllib.request.urlopen(f"http://{small.coordinator.address}/metrics", timeout=20) as answer:
        text = answer.read().decode() + metrics_text(LEADS) + copy_age_text(0)
    found = {PREFIX + name: "gauge" for name in METRICS}
    for family in text_string_to_metric_families(text):
        if family.type == "histogram":
            found.update({f"{family.name}_{part}": "counter" for part in ("bucket", "sum", "count")})
        else:
            found[family.name + ("_total" if family.type == "counter" else "")] = family.type
    return found


# Promise: operations.md#operate-a-log
def test_every_expression_uses_metrics_that_are_exported(types: dict[str, str]) -> None:
    """By their names, which a scrape of a coordinator, of a node and of the listener has."""
    for expression in expressions():
        used = set(re.findall(r"\bpylog_\w+", expression))
        assert used and used <= set(types), expression


# Promise: operations.md#operate-a-log
def test_rates_are_of_counters_and_slopes_of_gauges(types: dict[str, str]) -> None:
    """The rate of a gauge, or the slope of a counter that was restarted, is a wrong number without an error."""
    wanted = {"rate": "counter", "increase": "counter", "deriv": "gauge", "changes": "gauge"}
    calls = [call for text in expressions() for call in re.findall(r"\b(rate|increase|deriv|changes)\((\w+)", text)]
    assert calls
    assert [(function, name) for function, name in calls if types[name] != wanted[function]] == []
    used = [name for text in expressions() for name in re.findall(r"\bpylog_\w+", text)]
    assert {name for name in used if types[name] == "counter"} <= {name for _, name in calls}


def labels_of_metrics() -> dict[str, set[str]]:
    """By metric, as the table of docs/monitoring.md has them."""
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    named = re.findall(r"`(pylog_\w+)(?:\{([\w,]+)\})?`", page.partition("| metric |")[2].partition("\n\n")[0])
    found = {name: set(filter(None, labels.split(","))) for name, labels in named}
    found |= {PREFIX + name: LABELS_OF_QUERIES for name in METRICS}
    return found | {f"pylog_quorum_{name}": {"node"} for name in ("lag", "connected", "fetch_age_seconds")}


# Promise: monitoring.md#monitoring, operations.md#operate-a-log
def test_labels_are_those_of_the_metrics() -> None:
    """In `by (…)`, in selectors, and in the texts of alerts and legends."""
    known = labels_of_metrics()
    texts = [(rule["expr"], json.dumps(rule["annotations"])) for rule in RULES]
    texts += [
        (target["expr"], target["legendFormat"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
    ]
    for expression, text in texts:
        names = re.findall(r"\bpylog_\w+", expression)
        allowed = {label for name in names for label in known.get(OF_HISTOGRAMS.sub("", name), ())} | SELECTORS
        groups = [label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")]
        shown = re.findall(r"\{\{(?: ?\$labels\.)?(\w+) ?\}\}", text)
        assert {*groups, *shown, *re.findall(r"[{,](\w+)=", expression)} <= allowed, expression


def promtool(folder: Path, *arguments: str) -> None:
    """Run Prometheus's own tool, which must succeed."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("Debian's package prometheus is not installed")
    done = subprocess.run([tool, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Promise: operations.md#operate-a-log
def test_prometheus_reads_the_alerts_and_the_dashboard(tmp_path: Path) -> None:
    """Each panel's expression as a rule, with values for Grafana's variables."""
    texts = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$__rate_interval", "1m").replace("$job", "orders")}
        for number, text in enumerate(texts)
    ]
    (tmp_path / "dashboard.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool(tmp_path, "check", "rules", str(ALERTS), "dashboard.yml")


# Promise: operations.md#when-an-alert-fires
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """By Prometheus's own evaluation of series, those of healthy logs among them."""
    shutil.copy(ALERTS, tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    promtool(tmp_path, "test", "rules", "alerts_test.yml")


def test_every_alert_says_what_prometheus_needs() -> None:
    """A name, a severity, a summary, and durations that Prometheus reads; no name is used twice."""
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert re.fullmatch(r"[0-9]+[smh]", rule.get("for", "1m")), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]


# Promise: operations.md#when-an-alert-fires
def test_every_alert_has_an_entry_in_the_runbook() -> None:
    """The link in the alert leads to a heading of the page, which has no entry for an alert that is gone."""
    entries = {anchor for anchor in anchors(ROOT / "docs" / "operations.md") if anchor.startswith("pylog")}
    links = {rule["annotations"]["runbook"] for rule in RULES}
    assert links == {f"docs/operations.md#{entry}" for entry in entries}
    assert all(rule["annotations"]["runbook"].endswith(f"#{rule['alert'].lower()}") for rule in RULES)


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    """On Grafana's 24 columns, each with an id and at least one expression, or a row."""
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert all(panel.get("targets") or panel["type"] == "row" for panel in panels)


def test_variables_of_the_dashboard_are_defined() -> None:
    """Those of Grafana begin with two underscores."""
    text = (CONF / "grafana-dashboard.json").read_text(encoding="utf-8")
    used = {name for name in re.findall(r"\$\{?(\w+)", text) if not name.startswith("__")}
    assert used == {one["name"] for one in DASHBOARD["templating"]["list"]}
