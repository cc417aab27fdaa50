"""Compiles `PylogSource.java` for the running Spark, and makes Spark use it for `format("pylog")`.

Spark ships Janino, the compiler for its generated code.  So pylog needs no jar for each version of Spark: the driver
compiles the source when a session is registered.  Only the driver uses the classes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import zipfile
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

logger = logging.getLogger("spark_log")

SOURCE = "PylogSource.java"
CLASS = "io.pylog.spark.PylogSource"
SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
LOADER = "org.apache.spark.util.MutableURLClassLoader"
SETTING = "spark.pylog.pushDown"
TRIED = "pylog.pushDown.tried"
"""The property of a JVM in which Spark has been asked to compile the source; the classes cannot be taken out again."""


def compile_planner(spark: Any) -> bool:
    """Make Spark plan reads and writes of `format("pylog")` with `PylogSource.java`; returns whether it does.

    The setting `spark.pylog.pushDown=false` prevents it.  If the running Spark cannot compile or load the source,
    queries read whole records, and a log line at INFO says why.
    """
    jvm = spark._jvm
    if spark.conf.get(SETTING, "true").lower() == "false":
        return False
    if jvm.java.lang.System.getProperty(TRIED) is None:
        jvm.java.lang.System.setProperty(TRIED, load(jvm, spark.version, source()))
    return bool(jvm.java.lang.System.getProperty(TRIED) == "loaded")


def source() -> str:
    """The Java source."""
    return files(__package__).joinpath(SOURCE).read_text(encoding="utf-8")


def load(jvm: Any, version: str, java: str) -> str:
    """Compile a source and give its classes to Spark.  Returns `loaded`, or why that is not possible."""
    try:
        found = loader(jvm)
        if found is None:
            raise TypeError("Spark's class loader takes no classes")
        url = jvm.java.io.File(str(jar(jvm, found, version, java))).toURI().toURL()
        _probe(jvm, url, found)
        found.addURL(url)
    except Exception as error:  # noqa: BLE001  of any kind: internal classes of Spark may be others
        why = str(error).partition("\n\tat ")[0]
        logger.info("pylog reads whole records here, as Spark %s cannot compile its planner: %s", version, why)
        return why
    return "loaded"


def loader(jvm: Any) -> Any:
    """The outermost class loader that takes classes, because all threads of Spark find them there."""
    found, at = None, jvm.java.lang.Thread.currentThread().getContextClassLoader()
    while at is not None:
        if at.getClass().getName() == LOADER:
            found = at
        at = at.getParent()
    return found


def _probe(jvm: Any, url: Any, parent: Any) -> None:
    """Load the class apart from Spark first.  Raises Py4JError if that fails."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = url
    found = jvm.java.lang.Class.forName(CLASS, True, jvm.java.net.URLClassLoader(urls, parent))
    no_types, no_values = (gateway.new_array(kind, 0) for kind in (jvm.java.lang.Class, jvm.java.lang.Object))
    found.getDeclaredConstructor(no_types).newInstance(no_values)


def jar(jvm: Any, parent: Any, version: str, java: str) -> Path:
    """A file with the compiled classes, which is kept for later sessions of this Spark.

    version:  of Spark.
    java:     the source.
    """
    of_java = jvm.java.lang.System.getProperty("java.version")
    name = hashlib.sha256("\n".join((java, version, of_java)).encode()).hexdigest()[:16]
    path = _cache() / f"planner-{name}.jar"
    if not _is_whole(path):
        _write(path, _compiled(jvm, parent, java))
    return path


def _is_whole(path: Path) -> bool:
    """Whether a file is there and undamaged: a full disk or a crash may have cut it."""
    try:
        with zipfile.ZipFile(path) as found:
            return found.testzip() is None
    except (OSError, zipfile.BadZipFile, zlib.error):
        return False


def _cache() -> Path:
    """A folder in which only this user can write."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pylog"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid == os.geteuid() and not found.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="pylog-"))


def _compiled(jvm: Any, parent: Any, java: str) -> dict[str, bytes]:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(parent)
    compiler.cook(java)
    return {str(name): bytes(code) for name, code in dict(compiler.getBytecodes()).items()}


def _write(path: Path, classes: dict[str, bytes]) -> None:
    handle, written = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as jar:
            for name, code in classes.items():
                jar.writestr(name.replace(".", "/") + ".class", code)
            jar.writestr(SERVICE, CLASS + "\n")
        Path(written).replace(path)
    finally:
        Path(written).unlink(missing_ok=True)
