"""Hadoop's own resource manager and node managers in a process, from the artifact that Hadoop publishes for tests.

The jar (56 MB) is fetched the first time, and kept for the user.  All else is in Spark's jars, of the same version.

    python -m tests.servers.yarn FOLDER

writes the cluster's configuration to FOLDER/conf, prints `ready`, and runs until its input ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

from simulation.harness.kafka import retrieve

ROOT = Path(__file__).parents[2]
JARS = Path(pyspark.__file__).parent / "jars"
NODES = 2
CONF = {
    "fs.defaultFS": "file:///",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.nodemanager.resource.memory-mb": "6144",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
    "yarn.nodemanager.delete.debug-delay-sec": "600",
    "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.5",
}


def fetched() -> list[str]:
    """The jars with the servers, and of the classes that they need."""
    (client,) = JARS.glob("hadoop-client-api-*.jar")
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    jars = [
        f"org.apache.hadoop:hadoop-client-minicluster:{hadoop}",
        "org.junit.jupiter:junit-jupiter-api:5.11.4",
        "org.junit.platform:junit-platform-commons:1.11.4",
        "org.opentest4j:opentest4j:1.3.0",
        *(f"org.bouncycastle:{name}-jdk18on:1.82" for name in ("bcprov", "bcpkix", "bcutil")),
    ]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pylog-tests" / "yarn"
    cache.mkdir(parents=True, exist_ok=True)
    return retrieve(cache, "minicluster", jars, transitive=False).split(",")


@contextmanager
def yarn(folder: Path) -> Iterator[Path]:
    """A cluster with two nodes; its configuration, for `HADOOP_CONF_DIR`."""
    fetched()
    command = [sys.executable, "-m", "tests.servers.yarn", str(folder)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # its containers get it
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", (folder / "log").read_text()[-3000:]
        yield folder / "conf"
    finally:
        process.kill()  # the JVM ends when its input does
        process.communicate()


def _jvm(folder: Path) -> Any:
    """A JVM with Hadoop's classes; it ends with this process."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    jars = [*fetched(), *map(str, JARS.glob("*.jar"))]
    (py4j,) = (jar for jar in jars if Path(jar).name.startswith("py4j"))
    port = launch_gateway(
        classpath=os.pathsep.join(jars),
        jarpath=py4j,
        javaopts=["-Xmx768m", f"-Dtest.build.data={folder / 'nodes'}"],
        die_on_exit=True,
        redirect_stdout=sys.stderr,
        redirect_stderr=sys.stderr,
    )
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True)).jvm


def _serve(folder: Path) -> None:
    jvm = _jvm(folder)
    conf = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
    for name, value in CONF.items():
        conf.set(name, value)
    cluster = jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("pylog", NODES, 1, 1)
    cluster.init(conf)
    cluster.start()
    (folder / "conf").mkdir()
    for name in ("yarn-site.xml", "core-site.xml"):
        out = jvm.java.io.FileOutputStream(str(folder / "conf" / name))
        cluster.getConfig().writeXml(out)
        out.close()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(Path(sys.argv[1]).resolve())
