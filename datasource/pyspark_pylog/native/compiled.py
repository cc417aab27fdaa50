"""Compiles pylog's Java for the running Spark, and makes Spark use it for `format("pylog")`.

Spark ships Janino, the compiler for its generated code.  So pylog needs no jar for each version of Spark: the driver
compiles the sources when a session is registered.  `PylogSource.java` plans queries in the driver.  `PylogReader.java`
reads in executors, too, which get the classes from the driver.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from spark_log.log_lines import logger

SOURCES = ("PylogSource.java", "PylogReader.java", "PylogWriter.java")
CLASS = "io.pylog.spark.PylogSource"
READER = "io.pylog.spark.PylogReader"
WRITER = "io.pylog.spark.PylogWriter"
SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
LOADER = "org.apache.spark.util.MutableURLClassLoader"
SETTING, NATIVE = "spark.pylog.pushDown", "spark.pylog.nativeRead"
TRIED, JAR, DRIVER = "pylog.pushDown.tried", "pylog.jar", "pylog.nativeRead.driver"
"""Properties of a JVM: in `TRIED`, Spark has been asked to compile the sources, and the classes cannot be taken out
again; the file of the classes, for executors; and the process that plans native reads.
"""
PLANS, READS, WRITES = "plans", "reads", "writes"
"""The abilities of the classes in a JVM: they plan queries, or read, too, or write, too."""


def compile_planner(spark: Any) -> bool:
    """Make Spark plan reads and writes of `format("pylog")` with pylog's Java; returns whether it does.

    The setting `spark.pylog.pushDown=false` prevents it.  If the running Spark cannot compile or load the sources,
    queries read whole records, or with Python, and a log line at INFO says why.
    """
    jvm = spark._jvm
    if _is_off(spark, SETTING):
        return False
    properties = jvm.java.lang.System
    if properties.getProperty(TRIED) is None:
        properties.setProperty(TRIED, load(jvm, spark.version, sources()))
    found = properties.getProperty(TRIED)
    if found in (READS, WRITES) and not _is_off(spark, NATIVE):
        _plan_in_this_process(spark, writes=found == WRITES)
    return found in (PLANS, READS, WRITES)


def _is_off(spark: Any, setting: str) -> bool:
    return str(spark.conf.get(setting, "true")).lower() == "false"


def sources() -> tuple[str, ...]:
    """The Java sources: the planner, the reader, which needs it, and the writer, which needs both."""
    return tuple(files(__package__).joinpath(name).read_text(encoding="utf-8") for name in SOURCES)


def load(jvm: Any, version: str, java: Sequence[str]) -> str:
    """Compile sources and give their classes to Spark.

    Returns `PLANS`, `READS` or `WRITES`, or why none of them is possible.
    """
    of_writer = _add(jvm, version, java)
    if not of_writer:
        return WRITES
    why = _add(jvm, version, java[:2])
    if not why:
        logger.info("pylog writes with Python here, as Spark %s cannot compile its writer: %s", version, of_writer)
        return READS
    of_planner = _add(jvm, version, java[:1])
    if not of_planner:
        logger.info("pylog reads with Python here, as Spark %s cannot compile its reader: %s", version, why)
        return PLANS
    logger.info("pylog reads whole records here, as Spark %s cannot compile its planner: %s", version, of_planner)
    return of_planner


def _add(jvm: Any, version: str, java: Sequence[str]) -> str:
    """Give Spark the classes of sources.  Returns why that is not possible; empty if it is done."""
    try:
        found = loader(jvm)
        if found is None:
            raise TypeError("Spark's class loader takes no classes")
        path = jar(jvm, found, version, java)
        url = jvm.java.io.File(str(path)).toURI().toURL()
        for name in (CLASS, READER, WRITER)[: len(java)]:
            _probe(jvm, url, found, name)
        found.addURL(url)
    except Exception as error:  # noqa: BLE001  of any kind: internal classes of Spark may be others
        return _reason(error)
    jvm.java.lang.System.setProperty(JAR, str(path))
    return ""


def _reason(error: Exception) -> str:
    """The message of an error in one line; of an error of Java, without the introduction of Py4J and the stack."""
    text = str(error).partition("\n\tat ")[0]
    return " ".join((text.partition("\n: ")[2] or text).split())


def _plan_in_this_process(spark: Any, *, writes: bool) -> None:
    """Give the JVM the planner of this process.

    writes:  of writes, too.
    """
    from pyspark import java_gateway

    from pyspark_pylog.native.plan import NativePlanner

    callbacks: Any = java_gateway
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    properties, driver = jvm.java.lang.System, f"{os.getpid()}-{id(gateway)}"
    if properties.getProperty(DRIVER) == driver:
        return
    try:
        callbacks.ensure_callback_server_started(gateway)
        getattr(jvm, READER).install(NativePlanner())
        if writes:
            getattr(jvm, WRITER).install()
    except Exception as error:  # noqa: BLE001  of any kind: a platform may not allow callbacks
        logger.info("pylog reads with Python here, as Spark cannot call this process: %s", error)
    properties.setProperty(DRIVER, driver)


def loader(jvm: Any) -> Any:
    """The outermost class loader that takes classes, because all threads of Spark find them there."""
    found, at = None, jvm.java.lang.Thread.currentThread().getContextClassLoader()
    while at is not None:
        if at.getClass().getName() == LOADER:
            found = at
        at = at.getParent()
    return found


def _probe(jvm: Any, url: Any, parent: Any, name: str) -> None:
    """Load a class apart from Spark first.  Raises Py4JError if that fails."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = url
    jvm.java.lang.Class.forName(name, True, jvm.java.net.URLClassLoader(urls, parent))


def jar(jvm: Any, parent: Any, version: str, java: Sequence[str]) -> Path:
    """A file with the compiled classes, which is kept for later sessions of this Spark.

    version:  of Spark.
    java:     the sources, each after those that it needs.
    """
    of_java = jvm.java.lang.System.getProperty("java.version")
    name = hashlib.sha256("\n".join((*java, version, of_java)).encode()).hexdigest()[:16]
    path = _cache() / f"planner-{name}.jar"
    if not _is_sound(path):
        _write(path, _compiled(jvm, parent, java))
    return path


def _is_sound(path: Path) -> bool:
    """Whether a file is there that this user has written, and nobody has changed: a full disk may have cut it."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or not _only_mine(found):
            return False
        with zipfile.ZipFile(path) as jar:
            return jar.comment == _digest({name: jar.read(name) for name in jar.namelist()})
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        return False


def _only_mine(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _digest(files: Mapping[str, bytes]) -> bytes:
    found = hashlib.sha256()
    for name, data in sorted(files.items()):
        found.update(b"%s %d\n" % (name.encode(), len(data)) + data)
    return found.hexdigest().encode()


def _cache() -> Path:
    """A folder in which only this user can write, and that nobody else can exchange for another one."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pylog"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        if _only_mine(folder.stat()) and os.access(folder, os.W_OK) and not any(map(_is_open, folder.parents)):
            return folder
        logger.info("pylog compiles its Java in each session, because other users can write in %s, or above", folder)
    except (OSError, RuntimeError):
        pass
    own = Path(tempfile.mkdtemp(prefix="pylog-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def _is_open(folder: Path) -> bool:
    """Whether other users can rename what is in a folder: with the sticky bit, only what is theirs."""
    found = folder.stat()
    return found.st_uid not in (0, os.geteuid()) or bool(found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX)


def _compiled(jvm: Any, parent: Any, java: Sequence[str]) -> dict[str, bytes]:
    classes: dict[str, bytes] = {}
    for source in java:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(parent)
        compiler.cook(source)
        classes |= {str(name): bytes(code) for name, code in dict(compiler.getBytecodes()).items()}
        parent = compiler.getClassLoader()
    return classes


def _write(path: Path, classes: dict[str, bytes]) -> None:
    files = {f"{name.replace('.', '/')}.class": code for name, code in classes.items()}
    files[SERVICE] = f"{CLASS}\n".encode()
    handle, written = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as jar:
            for name, data in files.items():
                jar.writestr(name, data)
            jar.comment = _digest(files)
        Path(written).replace(path)
    finally:
        Path(written).unlink(missing_ok=True)
