package io.pylog.spark;

import com.github.luben.zstd.ZstdDecompressCtx;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;
import java.util.zip.CRC32C;
import java.util.zip.Deflater;
import java.util.zip.DeflaterOutputStream;
import net.jpountz.xxhash.XXHashFactory;
import org.apache.arrow.flatbuf.BodyCompression;
import org.apache.arrow.flatbuf.BodyCompressionMethod;
import org.apache.arrow.flatbuf.CompressionType;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.MetadataVersion;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BaseVariableWidthVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.BitVectorHelper;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.NullVector;
import org.apache.arrow.vector.TypeLayout;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.arrow.vector.util.TransferPair;
import org.apache.spark.JobArtifactSet;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.AcceptsLatestSeenOffset;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.RowToColumnConverter;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.storage.PythonStreamBlockId;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/**
 * Reads segments of a log in the JVM.
 *
 * <p>Python decides what is read: it plans a query's tasks, and agrees on the version of the log.
 * The tasks decode the bytes that Python named, as Arrow vectors, which Spark takes without a copy.
 * They return only what they have verified. Whatever they do not understand or cannot read is
 * handed over to Spark's reader in Python, from the record on that they have reached. So an error,
 * a failover or a new plan is Python's, too.
 *
 * <p>Like {@code PylogSource.java}, it uses only what Janino understands. It returns {@code Object}
 * where a generic type would need a bridge method.
 */
public final class PylogReader implements PylogSource.NativeReader {
  /** Tasks of this process of which Python has read a rest. */
  static final AtomicLong LEFT = new AtomicLong();

  /**
   * Bytes that Python is given in one call. Py4J would write a longer call in two parts, and TCP
   * holds back the second one until the first one is acknowledged, which takes 40 ms.
   */
  private static final int PIECE = 6000;

  /** A request of more pieces is given at once. */
  private static final int PIECES_MAX = 64;

  private static final AtomicLong REQUESTS = new AtomicLong();

  private final Function<Object, Object> python;

  PylogReader(Function<Object, Object> python) {
    this.python = python;
  }

  /** Called by Python, with a function that it keeps for the life of the session. */
  public static void install(Function<Object, Object> python) {
    PylogSource.setReader(new PylogReader(python));
  }

  /** The parts of an answer of Python. */
  static List<byte[]> split(byte[] joined) throws IOException {
    return Parts.split(joined);
  }

  /** How many tasks of this process Python has read, in whole or in part: for tests. */
  public static long left() {
    return LEFT.get();
  }

  @Override
  public boolean reads(StructType columns, CaseInsensitiveStringMap options, boolean streaming) {
    String what = streaming ? "check stream" : "check";
    return ask(what, columns, options, null, new ArrayList<byte[]>()) != null;
  }

  @Override
  public Batch batch(
      Batch rows, StructType columns, CaseInsensitiveStringMap options, boolean exactly) {
    return new NativeBatch(this, rows, columns, options, exactly);
  }

  @Override
  public MicroBatchStream stream(
      MicroBatchStream rows, StructType columns, CaseInsensitiveStringMap options) {
    return NativeStream.of(this, rows, columns, options);
  }

  /** The tasks that Python has planned, with what Java needs for them; without, if Python reads. */
  InputPartition[] tasks(
      String what,
      StructType columns,
      CaseInsensitiveStringMap options,
      String query,
      InputPartition[] planned) {
    ship(SparkContext.getOrCreate());
    List<byte[]> pickles = new ArrayList<byte[]>();
    for (int i = 0; i < planned.length; i++) {
      pickles.add(NativeTask.pickle(planned[i]));
    }
    List<byte[]> answer = ask(what, columns, options, query, pickles);
    if (answer == null || answer.size() != 2 * planned.length) {
      return planned;
    }
    InputPartition[] tasks = new InputPartition[planned.length];
    for (int i = 0; i < planned.length; i++) {
      byte[] reads = (byte[]) answer.get(2 * i);
      byte[] pinned = (byte[]) answer.get(2 * i + 1);
      tasks[i] = new NativeTask(query, reads, pinned, planned[i]);
    }
    return tasks;
  }

  /**
   * Gives the classes to the executors. If artifacts are isolated, each session and each stream has
   * its own jars.
   */
  static void ship(SparkContext context) {
    String jar = System.getProperty("pylog.jar");
    String shipped = JobArtifactSet.getActiveOrDefault(context).jars().keys().mkString();
    if (!context.isLocal() && !shipped.contains(new File(jar).getName())) {
      context.addJar(jar);
    }
  }

  /** What Python says to these pickles; null: this is left to Python. */
  List<byte[]> ask(
      String what,
      StructType columns,
      CaseInsensitiveStringMap options,
      String query,
      List<byte[]> pickles) {
    List<byte[]> request = new ArrayList<byte[]>();
    request.add(text(what));
    request.add(text(columns.json()));
    request.add(text(query == null ? "" : query));
    Object[] names = options.asCaseSensitiveMap().keySet().toArray();
    request.add(text(Integer.toString(names.length)));
    for (int i = 0; i < names.length; i++) {
      request.add(text((String) names[i]));
      request.add(text((String) options.get(names[i])));
    }
    request.addAll(pickles);
    try {
      byte[] answer = call(Parts.packed(request));
      return answer == null ? null : Parts.split(answer);
    } catch (Exception error) {
      NativeTask.LOG.info(
          "pylog reads with Python, which does not plan for this process: {}", error);
      return null;
    }
  }

  /** Gives Python a request in pieces: each has the number of the request, and whether it ends. */
  private byte[] call(byte[] request) {
    long number = REQUESTS.incrementAndGet();
    int size = request.length > PIECES_MAX * PIECE ? request.length : PIECE;
    Object answer = null;
    for (int at = 0; at < request.length; at += size) {
      int end = Math.min(at + size, request.length);
      ByteBuffer piece = ByteBuffer.allocate(Long.BYTES + 1 + end - at).putLong(number);
      piece.put((byte) (end == request.length ? 1 : 0)).put(request, at, end - at);
      answer = python.apply(piece.array());
    }
    return (byte[]) answer;
  }

  private static byte[] text(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }
}

/** Several byte strings as one. */
final class Parts {
  private Parts() {}

  /** Compressed: pickles of tasks have much in common. */
  static byte[] packed(List<byte[]> parts) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    Deflater fast = new Deflater(Deflater.BEST_SPEED);
    DataOutputStream out = new DataOutputStream(new DeflaterOutputStream(bytes, fast, 1 << 13));
    for (int i = 0; i < parts.size(); i++) {
      byte[] part = (byte[]) parts.get(i);
      out.writeInt(part.length);
      out.write(part);
    }
    out.close();
    fast.end();
    return bytes.toByteArray();
  }

  static List<byte[]> split(byte[] joined) throws IOException {
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(joined));
    List<byte[]> parts = new ArrayList<byte[]>();
    while (in.available() > 0) {
      byte[] part = new byte[in.readInt()];
      in.readFully(part);
      parts.add(part);
    }
    return parts;
  }
}

/** A batch read whose tasks are planned for the query that runs them. */
final class NativeBatch implements Batch {
  private final PylogReader reader;
  private final Batch rows;
  private final StructType columns;
  private final CaseInsensitiveStringMap options;
  private final boolean exactly;

  NativeBatch(
      PylogReader reader,
      Batch rows,
      StructType columns,
      CaseInsensitiveStringMap options,
      boolean exactly) {
    this.reader = reader;
    this.rows = rows;
    this.columns = columns;
    this.options = options;
    this.exactly = exactly;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    InputPartition[] planned = rows.planInputPartitions();
    SparkContext context = SparkContext.getOrCreate();
    String query =
        NativeTask.query(
            context.getLocalProperty(NativeTask.EXECUTION),
            context.getLocalProperty(NativeTask.APPLICATION),
            context.getLocalProperty(NativeTask.STARTED));
    if (query == null) {
      return planned;
    }
    return reader.tasks(exactly ? "plan exactly" : "plan", columns, options, query, planned);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new NativeFactory(rows.createReaderFactory(), columns);
  }
}

/** A stream whose tasks are read in the JVM. Spark's stream for Python sources decides all else. */
class NativeStream implements MicroBatchStream {
  final MicroBatchStream rows;
  private final PylogReader reader;
  private final StructType columns;
  private final CaseInsensitiveStringMap options;

  NativeStream(
      PylogReader reader,
      MicroBatchStream rows,
      StructType columns,
      CaseInsensitiveStringMap options) {
    this.reader = reader;
    this.rows = rows;
    this.columns = columns;
    this.options = options;
  }

  /** With the abilities of Spark's stream, which differ between versions. */
  static MicroBatchStream of(
      PylogReader reader,
      MicroBatchStream rows,
      StructType columns,
      CaseInsensitiveStringMap options) {
    if (rows instanceof SupportsTriggerAvailableNow) {
      return new LimitedStream(reader, rows, columns, options);
    }
    return new SeenStream(reader, rows, columns, options);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    InputPartition[] planned = rows.planInputPartitions(start, end);
    return reader.tasks("plan stream", columns, options, null, planned);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new NativeFactory(rows.createReaderFactory(), columns);
  }

  @Override
  public Offset initialOffset() {
    return rows.initialOffset();
  }

  @Override
  public Offset latestOffset() {
    return rows.latestOffset();
  }

  @Override
  public Offset deserializeOffset(String json) {
    return rows.deserializeOffset(json);
  }

  @Override
  public void commit(Offset end) {
    rows.commit(end);
  }

  @Override
  public void stop() {
    rows.stop();
  }

  @Override
  public String toString() {
    return rows.toString();
  }
}

/** Since Spark 4.2, which asks Python for limits. */
final class LimitedStream extends NativeStream implements SupportsTriggerAvailableNow {
  LimitedStream(
      PylogReader reader,
      MicroBatchStream rows,
      StructType columns,
      CaseInsensitiveStringMap options) {
    super(reader, rows, columns, options);
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    ((SupportsTriggerAvailableNow) rows).prepareForTriggerAvailableNow();
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    return ((SupportsAdmissionControl) rows).latestOffset(start, limit);
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    return ((SupportsAdmissionControl) rows).getDefaultReadLimit();
  }

  @Override
  public Offset reportLatestOffset() {
    return ((SupportsAdmissionControl) rows).reportLatestOffset();
  }
}

/** Before Spark 4.2. */
final class SeenStream extends NativeStream implements AcceptsLatestSeenOffset {
  SeenStream(
      PylogReader reader,
      MicroBatchStream rows,
      StructType columns,
      CaseInsensitiveStringMap options) {
    super(reader, rows, columns, options);
  }

  @Override
  public void setLatestSeenOffset(Offset offset) {
    ((AcceptsLatestSeenOffset) rows).setLatestSeenOffset(offset);
  }
}

/** What one task reads, in both forms. */
final class NativeTask implements InputPartition {
  private static final long serialVersionUID = 1L;
  static final Logger LOG = LoggerFactory.getLogger("io.pylog.spark");
  static final String EXECUTION = "spark.sql.execution.id";
  static final String APPLICATION = "spark.app.id";
  static final String STARTED = "spark.app.startTime";

  /** Null for a micro-batch, whose tasks are for all queries of it. */
  final String query;

  final byte[] reads;

  /** The same reads for Python: a pickle. */
  final byte[] pinned;

  /** For other queries: Python agrees on a version for them. */
  final InputPartition planned;

  NativeTask(String query, byte[] reads, byte[] pinned, InputPartition planned) {
    this.query = query;
    this.reads = reads;
    this.pinned = pinned;
    this.planned = planned;
  }

  /** Whether it was planned for the query of the running task: a frame can be run again. */
  boolean isForThisQuery() {
    TaskContext context = TaskContext.get();
    return query == null || query.equals(
        query(
            context.getLocalProperty(EXECUTION),
            context.getLocalProperty(APPLICATION),
            context.getLocalProperty(STARTED)));
  }

  private PythonStreamingInputPartition streaming(byte[] task) {
    int index = ((PythonStreamingInputPartition) planned).index();
    return new PythonStreamingInputPartition(index, task, Option.apply((PythonStreamBlockId) null));
  }

  /** The task, as Python has pickled it. */
  static byte[] pickle(InputPartition planned) {
    return planned instanceof PythonInputPartition
        ? ((PythonInputPartition) planned).pickedPartition()
        : ((PythonStreamingInputPartition) planned).pickedPartition();
  }

  /** The name of a query, as Python has it; null for a job that is not a query. */
  static String query(String execution, String application, String started) {
    if (execution == null || application == null) {
      return null;
    }
    return application + "-" + (started == null ? "0" : started) + "-" + execution;
  }

  /**
   * For Python: the reads from a position on. Without a read, only whether records were erased.
   *
   * <p>It is a pickle that calls {@code rest_of(pinned, read, offset)}, which returns a task.
   */
  InputPartition rest(int read, long offset) throws IOException {
    ByteBuffer numbers = ByteBuffer.allocate(15).order(ByteOrder.LITTLE_ENDIAN);
    numbers.put((byte) 'J').putInt(read).put((byte) 0x8a).put((byte) 8).putLong(offset);
    ByteBuffer length = ByteBuffer.allocate(5).order(ByteOrder.LITTLE_ENDIAN);
    length.put((byte) 'B').putInt(pinned.length);
    ByteArrayOutputStream pickle = new ByteArrayOutputStream();
    pickle.write(new byte[] {(byte) 0x80, 3});
    pickle.write(
        "cpyspark_pylog.source.native_task\nrest_of\n(".getBytes(StandardCharsets.US_ASCII));
    pickle.write(length.array());
    pickle.write(pinned);
    pickle.write(numbers.array());
    pickle.write(new byte[] {'t', 'R', '.'});
    byte[] task = pickle.toByteArray();
    return planned instanceof PythonInputPartition
        ? (InputPartition) new PythonInputPartition(((PythonInputPartition) planned).index(), task)
        : (InputPartition) streaming(task);
  }
}

/** Makes the readers of tasks. */
final class NativeFactory implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;
  private final PartitionReaderFactory python;
  private final StructType columns;

  NativeFactory(PartitionReaderFactory python, StructType columns) {
    this.python = python;
    this.columns = columns;
  }

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return true;
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    InputPartition planned =
        partition instanceof NativeTask ? ((NativeTask) partition).planned : partition;
    return python.createReader(planned);
  }

  @Override
  @SuppressWarnings("unchecked")
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    Object reader =
        partition instanceof NativeTask && ((NativeTask) partition).isForThisQuery()
            ? (Object) new TaskReader((NativeTask) partition, python, columns)
            : (Object) new RowBatches(createReader(partition), columns);
    return (PartitionReader<ColumnarBatch>) reader;
  }
}

/** Reads a task; what it cannot read is read by Python. */
final class TaskReader implements PartitionReader<Object> {
  private final NativeTask task;
  private final PartitionReaderFactory python;
  private final StructType columns;
  private final SegmentReader segments;
  private RowBatches rest;
  private long lookedMs;

  TaskReader(NativeTask task, PartitionReaderFactory python, StructType columns) {
    this.task = task;
    this.python = python;
    this.columns = columns;
    this.segments = new SegmentReader(task.reads, columns);
    this.lookedMs = segments.pinnedMs;
  }

  @Override
  public boolean next() throws IOException {
    if (rest == null) {
      try {
        if (!erased()) {
          return segments.next();
        }
        leave("records were erased meanwhile");
      } catch (Exception error) {
        TaskContext context = TaskContext.get();
        if (Thread.currentThread().isInterrupted() || context != null && context.isInterrupted()) {
          throw new IOException(error);
        }
        leave(error.toString());
      } catch (LinkageError error) {
        leave(error.toString());
      } catch (VirtualMachineError error) {
        // Too little memory or stack for odd bytes would end the executor.
        leave(error.toString());
      }
    }
    return rest.next();
  }

  /** Leaves the rest to Python. */
  private void leave(String why) throws IOException {
    NativeTask.LOG.info("Python reads the rest of this task: {}", why);
    InputPartition left = task.rest(segments.read(), segments.offset());
    segments.close();
    rest = new RowBatches(python.createReader(left), columns);
  }

  /** Whether records were erased since Python looked; it is asked once a second. */
  private boolean erased() throws IOException {
    long now = System.currentTimeMillis();
    if (segments.isAtEnd() || Math.abs(now - lookedMs) < segments.lookMs) {
      return false;
    }
    lookedMs = now;
    PartitionReader<InternalRow> found = python.createReader(task.rest(-1, now));
    try {
      return found.next();
    } finally {
      found.close();
    }
  }

  @Override
  public Object get() {
    return rest == null ? segments.batch() : rest.get();
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return rest == null ? new CustomTaskMetric[0] : rest.currentMetricsValues();
  }

  @Override
  public void close() throws IOException {
    segments.close();
    if (rest != null) {
      rest.close();
    }
  }
}

/** Rows of Python's reader as batches. */
final class RowBatches implements PartitionReader<Object> {
  private static final int ROWS_MAX = 4096;
  private static final int BYTES_MAX = 4 << 20;
  private final PartitionReader<InternalRow> rows;
  private final StructType columns;
  private final RowToColumnConverter converter;
  private final WritableColumnVector[] vectors;
  private final ColumnarBatch batch;

  RowBatches(PartitionReader<InternalRow> rows, StructType columns) {
    PylogReader.LEFT.incrementAndGet();
    this.rows = rows;
    this.columns = columns;
    converter = new RowToColumnConverter(columns);
    vectors = OnHeapColumnVector.allocateColumns(ROWS_MAX, columns);
    batch = new ColumnarBatch((ColumnVector[]) vectors);
  }

  @Override
  public boolean next() throws IOException {
    for (int i = 0; i < vectors.length; i++) {
      vectors[i].reset();
    }
    int count = 0;
    while (count < ROWS_MAX && size() < BYTES_MAX && rows.next()) {
      converter.convert((InternalRow) rows.get(), vectors);
      count++;
    }
    batch.setNumRows(count);
    return count > 0;
  }

  private long size() {
    long size = 0;
    for (int i = 0; i < vectors.length; i++) {
      size += size(vectors[i], columns.fields()[i].dataType());
    }
    return size;
  }

  /** The bytes of values of variable length, and the number of elements. */
  private static long size(WritableColumnVector vector, DataType type) {
    if (type instanceof BinaryType || type instanceof StringType) {
      return vector.getChild(0).getElementsAppended();
    }
    if (type instanceof ArrayType) {
      WritableColumnVector elements = vector.getChild(0);
      return elements.getElementsAppended() + size(elements, ((ArrayType) type).elementType());
    }
    if (type instanceof MapType) {
      MapType map = (MapType) type;
      return vector.getChild(0).getElementsAppended()
          + size(vector.getChild(0), map.keyType())
          + size(vector.getChild(1), map.valueType());
    }
    long size = 0;
    for (int i = 0; type instanceof StructType && i < ((StructType) type).length(); i++) {
      size += size(vector.getChild(i), ((StructType) type).fields()[i].dataType());
    }
    return size;
  }

  @Override
  public Object get() {
    return batch;
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return rows.currentMetricsValues();
  }

  @Override
  public void close() throws IOException {
    batch.close();
    rows.close();
  }
}

/** Bytes that are not as expected, or that are for Python. */
final class NotNative extends IOException {
  private static final long serialVersionUID = 1L;

  NotNative(String why) {
    super(why);
  }

  static void check(boolean expected, String why) throws NotNative {
    if (!expected) {
      throw new NotNative(why);
    }
  }
}

/** A part of a slice, as Python encodes it. */
final class SliceRead {
  /** The name of the object. */
  final String name;

  /** The folders that may have it, in the order in which they are tried. */
  final String[] roots;

  /** How long each of them is waited for; 0: the only one, for as long as it takes. */
  final int waitMs;

  final String topic;
  final int partition;
  final long start;
  final long end;
  final long sliceStart;
  final long sliceEnd;
  final long position;
  final int length;
  final long crc;
  final int batches;
  final int timeKind;

  /** The time of all records if the log gave it. */
  final long time;

  final long indexPosition;
  final long objectSize;

  /** Records whose times are outside of these may be skipped. */
  final long windowStart;

  final long windowLast;

  SliceRead(DataInputStream in) throws IOException {
    name = text(in);
    roots = new String[in.readInt()];
    for (int i = 0; i < roots.length; i++) {
      roots[i] = text(in);
    }
    waitMs = in.readInt();
    topic = text(in);
    partition = in.readInt();
    start = in.readLong();
    end = in.readLong();
    sliceStart = in.readLong();
    sliceEnd = in.readLong();
    position = in.readLong();
    length = in.readInt();
    crc = in.readLong();
    batches = in.readInt();
    timeKind = in.readInt();
    time = in.readLong();
    indexPosition = in.readLong();
    objectSize = in.readLong();
    windowStart = in.readLong();
    windowLast = in.readLong();
  }

  static String text(DataInputStream in) throws IOException {
    byte[] bytes = new byte[in.readInt()];
    in.readFully(bytes);
    return new String(bytes, StandardCharsets.UTF_8);
  }

  boolean hasTime(long micros) {
    return micros >= windowStart && micros <= windowLast;
  }

  boolean isWhole() {
    return start == sliceStart && end == sliceEnd;
  }

  long span() {
    return sliceEnd - sliceStart;
  }
}

/** The records of some slices, batch by batch. */
final class SegmentReader {
  /** A slice up to this size is read at once, and checked by one checksum. */
  private static final int WHOLE_MAX = 4 << 20;

  private static final int APPEND_TIME = 1;

  /** Parts of a batch whose records have the wanted times: more are left to Python. */
  private static final int PARTS_MAX = 500;

  final long pinnedMs;
  final long lookMs;
  private final SliceRead[] reads;
  private final StructType columns;
  private final BufferAllocator allocator;
  private final ObjectFile file = new ObjectFile();
  private final Decoder decoder;
  private final List<FieldVector> cut = new ArrayList<FieldVector>();

  /** The column of times, by which records are chosen; -1 if Spark does so. */
  private int times = -1;

  /** The row with which the rest of the decoded batch begins; 0: it has none. */
  private int rest;

  private int parts;
  private int read = 0;
  private long offset;
  private Run run;
  private ColumnarBatch batch;
  private boolean closed;

  SegmentReader(byte[] plan, StructType columns) {
    String[] stored;
    try {
      DataInputStream in = new DataInputStream(new ByteArrayInputStream(plan));
      pinnedMs = in.readLong();
      lookMs = in.readLong();
      times = in.readBoolean() ? columns.length() : -1;
      stored = new String[columns.length() + (times < 0 ? 0 : 1)];
      for (int i = 0; i < columns.length(); i++) {
        stored[i] = SliceRead.text(in);
      }
      reads = new SliceRead[in.readInt()];
      for (int i = 0; i < reads.length; i++) {
        reads[i] = new SliceRead(in);
      }
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
    this.columns = columns;
    offset = reads.length == 0 ? 0 : reads[0].start;
    allocator = ArrowUtils.rootAllocator().newChildAllocator("pylog", 0, Long.MAX_VALUE);
    StructType decoded = columns;
    if (times >= 0) {
      decoded = columns.add("timestamp", DataTypes.TimestampType);
      stored[times] = "timestamp";
    }
    decoder = new Decoder(allocator, decoded, stored);
  }

  /** The read that is not finished yet. */
  int read() {
    return read;
  }

  /** Where that read continues. */
  long offset() {
    return offset;
  }

  boolean isAtEnd() {
    return read == reads.length;
  }

  Object batch() {
    return batch;
  }

  boolean next() throws IOException {
    while (read < reads.length) {
      if (run == null) {
        run = opened(reads[read]);
      }
      if (rest > 0 || run.next()) {
        parts = rest > 0 ? parts + 1 : 0;
        NotNative.check(PARTS_MAX > parts, "records are not in the order of their times");
        if (take(reads[read])) {
          return true;
        }
      } else {
        finish();
      }
    }
    return false;
  }

  private void finish() {
    run.close();
    run = null;
    read++;
    offset = read < reads.length ? reads[read].start : 0;
  }

  private Run opened(SliceRead wanted) throws IOException {
    boolean atOnce = wanted.batches == 1 || wanted.isWhole();
    if (atOnce && wanted.length <= WHOLE_MAX || wanted.batches == 1) {
      return new WholeRun(wanted, file, decoder, allocator);
    }
    return new IndexedRun(wanted, file, decoder, allocator);
  }

  /** Makes the part of the decoded batch that is read the current one; false if there is none. */
  private boolean take(SliceRead wanted) throws IOException {
    long base = wanted.sliceStart;
    int low = Math.max(decoder.rowAt(wanted.start - base), rest);
    int high = decoder.rowAt(wanted.end - base);
    rest = 0;
    if (times >= 0 && wanted.timeKind != APPEND_TIME) {
      ArrowBuf found = decoder.vector(times).getDataBuffer();
      while (low < high && !wanted.hasTime(found.getLong(8L * low))) {
        low++;
      }
      int end = low;
      while (end < high && wanted.hasTime(found.getLong(8L * end))) {
        end++;
      }
      rest = end < high ? end : 0;
      high = end;
    }
    if (low >= high) {
      return false;
    }
    closeCut();
    int rows = high - low;
    ColumnVector[] vectors = new ColumnVector[columns.length()];
    for (int i = 0; i < vectors.length; i++) {
      vectors[i] = column(i, wanted, low, rows);
    }
    batch = new ColumnarBatch(vectors, rows);
    offset = base + decoder.offsetAt(high - 1) + 1;
    return true;
  }

  private ColumnVector column(int i, SliceRead wanted, int low, int rows) throws IOException {
    String name = columns.fields()[i].name();
    if (name.equals("offset")) {
      return offsets(wanted.sliceStart, low, rows);
    }
    if (name.equals("topic")) {
      ConstantColumnVector topic = constant(rows, DataTypes.StringType);
      topic.setUtf8String(UTF8String.fromString(wanted.topic));
      return topic;
    }
    if (name.equals("partition") || name.equals("timestampType")) {
      ConstantColumnVector number = constant(rows, DataTypes.IntegerType);
      number.setInt(name.equals("partition") ? wanted.partition : wanted.timeKind == 0 ? 0 : 1);
      return number;
    }
    if (name.equals("timestamp") && wanted.timeKind == APPEND_TIME) {
      ConstantColumnVector time = constant(rows, DataTypes.TimestampType);
      time.setLong(wanted.time);
      return time;
    }
    return new ArrowColumnVector(part(decoder.vector(i), low, rows));
  }

  private static ConstantColumnVector constant(int rows, DataType type) {
    ConstantColumnVector made = new ConstantColumnVector(rows, type);
    made.setNotNull();
    return made;
  }

  private ColumnVector offsets(long base, int low, int rows) {
    OnHeapColumnVector made = new OnHeapColumnVector(rows, DataTypes.LongType);
    for (int i = 0; i < rows; i++) {
      made.putLong(i, base + decoder.offsetAt(low + i));
    }
    return made;
  }

  private FieldVector part(FieldVector whole, int low, int rows) {
    if (rows == whole.getValueCount()) {
      return whole;
    }
    TransferPair pair = whole.getTransferPair(allocator);
    pair.splitAndTransfer(low, rows);
    FieldVector part = (FieldVector) pair.getTo();
    cut.add(part);
    return part;
  }

  private void closeCut() {
    for (int i = 0; i < cut.size(); i++) {
      ((FieldVector) cut.get(i)).close();
    }
    cut.clear();
  }

  void close() throws IOException {
    if (closed) {
      return;
    }
    closed = true;
    closeCut();
    if (run != null) {
      run.close();
    }
    decoder.close();
    file.close();
    allocator.close();
  }
}

/** The file of an object, which is kept open from one slice to the next. */
final class ObjectFile {
  private String name;
  private FileChannel channel;

  /** The bytes, which the caller releases. */
  ArrowBuf bytes(SliceRead wanted, long position, int length, BufferAllocator allocator)
      throws IOException {
    if (wanted.waitMs > 0) {
      return Copies.bytes(wanted, position, length, allocator);
    }
    if (!wanted.name.equals(name)) {
      close();
      channel = opened(wanted.roots[0] + "/" + wanted.name);
      name = wanted.name;
    }
    ArrowBuf found = allocator.buffer(length);
    boolean whole = false;
    try {
      fill(found.nioBuffer(0, length), channel, position);
      whole = true;
      return found;
    } finally {
      if (!whole) {
        found.close();
      }
    }
  }

  static FileChannel opened(String path) throws IOException {
    return FileChannel.open(Paths.get(path), new OpenOption[] {StandardOpenOption.READ});
  }

  static void fill(ByteBuffer into, FileChannel channel, long position) throws IOException {
    long at = position;
    int count = 1;
    while (into.hasRemaining() && count > 0) {
      count = channel.read(into, at);
      at += count;
    }
    NotNative.check(!into.hasRemaining(), "an object is cut off");
  }

  static void check(ArrowBuf bytes, int at, int length, long expected) throws NotNative {
    CRC32C crc = new CRC32C();
    crc.update(bytes.nioBuffer(at, length));
    NotNative.check(crc.getValue() == expected, "the checksum of the bytes is another one");
  }

  void close() throws IOException {
    name = null;
    if (channel != null) {
      channel.close();
    }
  }
}

/** Copies of an object on several roots: one that fails or hangs is passed over, as in Python. */
final class Copies implements Callable<Object> {
  /** How long other roots are tried before one that did not answer. */
  private static final long LATE_MS = 30000;

  /** How often a root that is passed over is worth a warning. */
  private static final long WARN_MS = 600000;

  private static final Map<String, Long> LATE = new ConcurrentHashMap<String, Long>();
  private static final Map<String, Long> WARNED = new ConcurrentHashMap<String, Long>();
  private final String path;
  private final long position;
  private final int length;

  private Copies(String path, long position, int length) {
    this.path = path;
    this.position = position;
    this.length = length;
  }

  /** The bytes, which the caller releases, from the first root that has them. */
  static ArrowBuf bytes(SliceRead wanted, long position, int length, BufferAllocator allocator)
      throws IOException {
    String[] roots = inOrder(wanted.roots);
    IOException last = null;
    for (int i = 0; i < roots.length; i++) {
      try {
        Copies copy = new Copies(roots[i] + "/" + wanted.name, position, length);
        ByteBuffer found = copy.within(wanted.waitMs);
        ArrowBuf bytes = allocator.buffer(length);
        bytes.setBytes(0, found);
        return bytes;
      } catch (TimeoutException late) {
        LATE.put(roots[i], Long.valueOf(System.currentTimeMillis() + LATE_MS));
        last = new NotNative("it did not answer within " + wanted.waitMs + " ms");
      } catch (IOException error) {
        last = error;
      }
      if (i + 1 < roots.length) {
        warn(roots[i], wanted.name, last);
      }
    }
    throw last;
  }

  /** Those that did not answer lately come last. */
  private static String[] inOrder(String[] roots) {
    List<String> prompt = new ArrayList<String>();
    List<String> late = new ArrayList<String>();
    for (int i = 0; i < roots.length; i++) {
      Long until = (Long) LATE.get(roots[i]);
      if (until != null && until.longValue() > System.currentTimeMillis()) {
        late.add(roots[i]);
      } else {
        prompt.add(roots[i]);
      }
    }
    prompt.addAll(late);
    return (String[]) prompt.toArray(new String[0]);
  }

  private static void warn(String root, String name, IOException why) {
    Long before = (Long) WARNED.get(root);
    long now = System.currentTimeMillis();
    if (before == null || now - before.longValue() > WARN_MS) {
      WARNED.put(root, Long.valueOf(now));
      NativeTask.LOG.warn(
          "another copy of {} is read, because {} has none that can be read: {}."
              + " `pylog verify --deep --repair` replaces bad copies",
          new Object[] {name, root, why.toString()});
    }
  }

  /** A read that hangs goes on in its thread, which is left alone, as is its buffer. */
  private ByteBuffer within(int waitMs) throws IOException, TimeoutException {
    FutureTask<Object> task = new FutureTask<Object>(this);
    Thread thread = new Thread(task, "pylog-root");
    thread.setDaemon(true);
    thread.start();
    try {
      return (ByteBuffer) task.get(waitMs, java.util.concurrent.TimeUnit.MILLISECONDS);
    } catch (ExecutionException error) {
      throw new IOException(error.getCause());
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException(error);
    }
  }

  @Override
  public Object call() throws IOException {
    FileChannel channel = ObjectFile.opened(path);
    try {
      ByteBuffer found = ByteBuffer.allocate(length);
      ObjectFile.fill(found, channel, position);
      found.flip();
      return found;
    } finally {
      channel.close();
    }
  }
}

/** Decodes the batches of a run, one after the other. */
interface Run {
  /** False at the end. */
  boolean next() throws IOException;

  void close();
}

/** A run that is read at once: its checksum proves all of it. */
final class WholeRun implements Run {
  private final SliceRead read;
  private final Decoder decoder;
  private final ArrowBuf bytes;
  private final RunSchema schema;
  private int at;
  private long end = 0;

  WholeRun(SliceRead read, ObjectFile file, Decoder decoder, BufferAllocator allocator)
      throws IOException {
    this.read = read;
    this.decoder = decoder;
    bytes = file.bytes(read, read.position, read.length, allocator);
    boolean known = false;
    try {
      ObjectFile.check(bytes, 0, read.length, read.crc);
      IpcMessage message = new IpcMessage(bytes, 0, read.length);
      schema = decoder.schema(message);
      at = message.end;
      known = true;
    } finally {
      if (!known) {
        bytes.close();
      }
    }
  }

  @Override
  public boolean next() throws IOException {
    IpcMessage message = new IpcMessage(bytes, at, read.length);
    if (message.isEnd()) {
      NotNative.check(
          end == read.span() || schema.holes && end < read.span(), "a run has other offsets");
      return false;
    }
    decoder.decode(message, schema, end);
    long first = decoder.offsetAt(0);
    NotNative.check(first >= end, "the offsets of a run do not ascend");
    end = decoder.offsetAt(decoder.rows() - 1) + 1;
    NotNative.check(end <= read.span(), "a run has more records than offsets");
    at = message.end;
    return true;
  }

  @Override
  public void close() {
    bytes.close();
  }
}

/** Those batches of a run that are read, which are found by the object's index. */
final class IndexedRun implements Run {
  private final SliceRead read;
  private final ObjectFile file;
  private final Decoder decoder;
  private final BufferAllocator allocator;
  private final Index index;
  private int row;
  private final int end;

  IndexedRun(SliceRead read, ObjectFile file, Decoder decoder, BufferAllocator allocator)
      throws IOException {
    this.read = read;
    this.file = file;
    this.decoder = decoder;
    this.allocator = allocator;
    index = decoder.index(read, file);
    row = index.rowOf(read.position);
    end = row + read.batches;
    index.check(read, row, decoder);
  }

  @Override
  public boolean next() throws IOException {
    while (row < end && isSkipped()) {
      row++;
    }
    if (row == end) {
      return false;
    }
    int length = (int) index.lengths[row];
    ArrowBuf bytes = file.bytes(read, index.positions[row], length, allocator);
    try {
      ObjectFile.check(bytes, 0, length, index.checksums[row]);
      IpcMessage message = new IpcMessage(bytes, 0, length);
      NotNative.check(!message.isEnd() && message.end == length, "a batch has another length");
      decoder.decode(message, index.schema(row, decoder), index.firsts[row]);
    } finally {
      bytes.close();
    }
    boolean same =
        decoder.rows() == index.rows[row]
            && decoder.offsetAt(0) == index.firsts[row]
            && decoder.offsetAt(decoder.rows() - 1) == index.lasts[row];
    NotNative.check(same, "a batch has other offsets than the index says");
    row++;
    return true;
  }

  private boolean isSkipped() {
    return index.lasts[row] < read.start - read.sliceStart
        || index.firsts[row] >= read.end - read.sliceStart
        || index.latest[row] < read.windowStart
        || index.earliest[row] > read.windowLast;
  }

  @Override
  public void close() {}
}

/** The batches of an object, as its end lists them. */
final class Index {
  private static final int TAIL = 24;
  private static final String SCHEMA = "pylog.schema.";
  private static final String[] NUMBERS = {
    "position", "length", "first", "last", "rows", "min_us", "max_us"
  };
  final String name;
  final long[] positions;
  final long[] lengths;
  final long[] firsts;
  final long[] lasts;
  final long[] rows;
  final long[] earliest;
  final long[] latest;
  final long[] checksums;
  private final long[] schemas;
  private final Map<String, String> messages;

  Index(SliceRead read, ObjectFile file, BufferAllocator allocator, Decoder decoder)
      throws IOException {
    name = read.name;
    long size = read.objectSize - read.indexPosition;
    boolean fits = TAIL < size && Integer.MAX_VALUE > size;
    NotNative.check(fits, "an index of " + size + " bytes");
    ArrowBuf bytes = file.bytes(read, read.indexPosition, (int) size, allocator);
    try {
      int length = (int) size - TAIL;
      byte[] magic = new byte[8];
      bytes.getBytes(length + 16L, magic);
      boolean known = new String(magic, StandardCharsets.US_ASCII).equals("PYLOGSEG");
      NotNative.check(known && bytes.getInt(length + 12L) == 1, "another version of the format");
      NotNative.check(bytes.getLong(length) == length, "the index has another length");
      ObjectFile.check(bytes, 0, length, bytes.getInt(length + 8L) & 0xffffffffL);
      IpcMessage first = new IpcMessage(bytes, 0, length);
      Schema schema = first.schema();
      messages = schema.getCustomMetadata();
      IpcMessage batch = new IpcMessage(bytes, first.end, length);
      NotNative.check(new IpcMessage(bytes, batch.end, length).isEnd(), "an index of two batches");
      BatchColumns found = new BatchColumns(schema, batch, decoder);
      long[][] numbers = new long[NUMBERS.length][];
      for (int i = 0; i < numbers.length; i++) {
        numbers[i] = found.numbers(NUMBERS[i], 64, true);
      }
      positions = numbers[0];
      lengths = numbers[1];
      firsts = numbers[2];
      lasts = numbers[3];
      rows = numbers[4];
      earliest = numbers[5];
      latest = numbers[6];
      checksums = found.numbers("crc32c", 32, false);
      schemas = found.numbers("schema", 32, true);
    } finally {
      bytes.close();
    }
  }

  /** The first batch of a run. */
  int rowOf(long position) throws NotNative {
    int row = Arrays.binarySearch(positions, position);
    if (row < 0) {
      row = -row - 1;
    }
    return row;
  }

  /** Whether the batches of a run are those that the metadata log knows. */
  void check(SliceRead read, int row, Decoder decoder) throws IOException {
    long stop = read.position + read.length;
    int end = row + read.batches;
    NotNative.check(end <= positions.length, "the index has fewer batches");
    NotNative.check(end == positions.length || positions[end] >= stop, "it has more batches");
    long before = -1;
    long count = 0;
    for (int i = row; i < end; i++) {
      boolean inPlace =
          lengths[i] > 0 && positions[i] >= read.position && positions[i] + lengths[i] <= stop;
      boolean ascends = i == row || positions[i] >= positions[i - 1] + lengths[i - 1];
      NotNative.check(inPlace && ascends, "the index lists batches outside of their run");
      boolean inOrder = firsts[i] > before && lasts[i] < read.span();
      boolean fits = rows[i] >= 1 && rows[i] <= lasts[i] - firsts[i] + 1;
      NotNative.check(inOrder && fits, "the index lists other offsets than the log");
      before = lasts[i];
      count += rows[i];
    }
    boolean whole = count == read.span() || row == end || schema(row, decoder).holes;
    NotNative.check(whole, "the index lists fewer records than the log");
  }

  RunSchema schema(int row, Decoder decoder) throws IOException {
    String message = (String) messages.get(SCHEMA + schemas[row]);
    NotNative.check(message != null, "the index lacks a schema");
    return decoder.schema(Base64.getDecoder().decode(message));
  }
}

/** A message of an Arrow stream, or the end of the stream. */
final class IpcMessage {
  /** Bytes that a few bytes may become when they are decoded, and how many each may become. */
  static final long DECODED_FREE = 16 << 20;

  static final long DECODED_RATIO = 100;
  final ArrowBuf bytes;
  final int start;
  final int end;

  /** Where its buffers are. */
  final int body;

  private final Message message;

  IpcMessage(ArrowBuf bytes, int at, int limit) throws NotNative {
    this.bytes = bytes;
    start = at;
    if (at == limit) {
      message = null;
      body = at;
      end = at;
      return;
    }
    NotNative.check(at + 8 <= limit && bytes.getInt(at) == -1, "no message begins here");
    int length = bytes.getInt(at + 4L);
    NotNative.check(length >= 0 && length <= limit - at - 8, "a message is cut off");
    body = at + 8 + length;
    if (length == 0) {
      message = null;
      end = body;
      return;
    }
    ByteBuffer metadata = (ByteBuffer) bytes.nioBuffer(at + 8L, length).slice();
    message = Message.getRootAsMessage(metadata.order(ByteOrder.LITTLE_ENDIAN));
    NotNative.check(message.version() == MetadataVersion.V5, "another version of Arrow's metadata");
    long rest = message.bodyLength();
    NotNative.check(rest >= 0 && rest <= limit - body, "the body of a message is cut off");
    end = body + (int) rest;
  }

  boolean isEnd() {
    return message == null;
  }

  Schema schema() throws IOException {
    NotNative.check(
        message != null && message.headerType() == MessageHeader.Schema, "no schema begins a run");
    org.apache.arrow.flatbuf.Schema found =
        (org.apache.arrow.flatbuf.Schema) message.header(new org.apache.arrow.flatbuf.Schema());
    return Schema.convertSchema(found);
  }

  RecordBatch records() throws NotNative {
    NotNative.check(
        message != null && message.headerType() == MessageHeader.RecordBatch, "not a batch");
    return (RecordBatch) message.header(new RecordBatch());
  }

  /** Whether it may become so many bytes. */
  void checkDecoded(long declared) throws NotNative {
    long most = Math.max(DECODED_FREE, DECODED_RATIO * (end - start));
    NotNative.check(declared <= most, "a message declares " + declared + " decoded bytes");
  }
}

/** The buffers of a batch by column. */
final class BatchColumns {
  private final Map<String, int[]> places = new HashMap<String, int[]>();
  private final Map<String, Field> fields = new HashMap<String, Field>();
  private final RecordBatch records;
  private final IpcMessage message;
  private final Decoder decoder;
  private final int codec;

  BatchColumns(Schema schema, IpcMessage message, Decoder decoder) throws IOException {
    this.message = message;
    this.decoder = decoder;
    records = message.records();
    BodyCompression compression = records.compression();
    codec = compression == null ? -1 : (int) compression.codec();
    NotNative.check(
        compression == null || compression.method() == BodyCompressionMethod.BUFFER,
        "an unknown compression");
    int[] at = {0, 0};
    for (int i = 0; i < schema.getFields().size(); i++) {
      Field field = (Field) schema.getFields().get(i);
      places.put(field.getName(), new int[] {at[0], at[1]});
      fields.put(field.getName(), field);
      count(field, at);
    }
    NotNative.check(
        at[0] == records.nodesLength() && at[1] == records.buffersLength(),
        "a batch has other columns than its schema");
    checkSizes();
  }

  private static void count(Field field, int[] at) throws NotNative {
    NotNative.check(field.getDictionary() == null, "a column with dictionary messages");
    at[0]++;
    at[1] += TypeLayout.getTypeBufferCount(field.getType());
    for (int i = 0; i < field.getChildren().size(); i++) {
      count((Field) field.getChildren().get(i), at);
    }
  }

  /** Before anything is decoded: each buffer is in the body, and they do not become too many. */
  private void checkSizes() throws NotNative {
    long declared = 0;
    for (int i = 0; i < records.buffersLength(); i++) {
      long at = records.buffers(i).offset();
      long length = records.buffers(i).length();
      boolean inside = at >= 0 && length >= 0 && at <= message.end - message.body - length;
      NotNative.check(at % 8 == 0, "a buffer at an odd position");
      NotNative.check(inside && (codec < 0 || length == 0 || length >= 8), "a buffer is outside");
      long size = codec < 0 || length == 0 ? -1 : message.bytes.getLong(message.body + at);
      NotNative.check(size >= -1 && size <= Integer.MAX_VALUE, "a buffer has an impossible size");
      NotNative.check(size != 0, "a buffer of nothing was compressed");
      declared += size < 0 ? length : size;
    }
    message.checkDecoded(declared);
  }

  int rows() throws NotNative {
    long rows = records.length();
    NotNative.check(rows >= 0 && rows <= Integer.MAX_VALUE / 8, "a batch of " + rows + " rows");
    return (int) rows;
  }

  Field field(String name) {
    return (Field) fields.get(name);
  }

  /** The numbers of its first node and of its first buffer. */
  int[] place(String name) {
    return (int[]) ((int[]) places.get(name)).clone();
  }

  int nulls(String name) throws NotNative {
    int node = place(name)[0];
    NotNative.check(length(node) == rows(), "a column has another length than its batch");
    return nulls(node);
  }

  int nulls(int node) throws NotNative {
    long nulls = records.nodes(node).nullCount();
    NotNative.check(nulls >= 0 && nulls <= length(node), "a column has more nulls than rows");
    return (int) nulls;
  }

  int length(int node) throws NotNative {
    long length = records.nodes(node).length();
    NotNative.check(length >= 0 && length <= Integer.MAX_VALUE / 8, "a column is too long");
    return (int) length;
  }

  /** Whether the values that dictionaries stand for may have so many bytes. */
  void checkDecoded(long bytes) throws NotNative {
    message.checkDecoded(bytes);
  }

  /** A decoded buffer, which the caller releases. */
  ArrowBuf buffer(int i) throws IOException {
    int at = message.body + (int) records.buffers(i).offset();
    int length = (int) records.buffers(i).length();
    return decoder.decoded(message.bytes, at, length, codec);
  }

  /** Of a column of integers without nulls. */
  long[] numbers(String name, int bits, boolean signed) throws IOException {
    Field field = (Field) fields.get(name);
    NotNative.check(
        field != null && field.getType().equals(new ArrowType.Int(bits, signed)),
        "no column " + name);
    NotNative.check(nulls(name) == 0, "nulls in column " + name);
    ArrowBuf values = buffer(place(name)[1] + 1);
    try {
      NotNative.check(values.capacity() >= (long) rows() * (bits / 8), "too few numbers");
      long[] found = new long[rows()];
      for (int i = 0; i < found.length; i++) {
        found[i] =
            bits == 64
                ? values.getLong(8L * i)
                : signed ? values.getInt(4L * i) : values.getInt(4L * i) & 0xffffffffL;
      }
      return found;
    } finally {
      values.close();
    }
  }
}

/** The columns of a run, and what a query's columns are read from. */
final class RunSchema {
  static final String TOMBSTONE = "tombstone";
  private static final String DATA = "value.";
  private static final String VERSION = "pylog.schema.id";
  private static final ArrowType BINARY = new ArrowType.Binary();
  private final Map<String, Field> fields = new HashMap<String, Field>();
  final Schema schema;

  /** Whether offsets are stored, because some have no record. */
  final boolean holes;

  private final boolean typed;
  private final StructType columns;
  private final String[] stored;
  private Field[] vectors;

  /** What is not as expected is left to Python. */
  RunSchema(Schema schema, StructType columns, String[] stored) throws NotNative {
    this.schema = schema;
    this.columns = columns;
    this.stored = stored;
    boolean known = true;
    for (int i = 0; i < schema.getFields().size(); i++) {
      Field field = (Field) schema.getFields().get(i);
      fields.put(field.getName(), field);
      boolean plain = field.getMetadata().isEmpty() || isDictionary(field);
      known &= plain && field.isNullable() && isKnown(field);
    }
    Map<String, String> metadata = schema.getCustomMetadata();
    typed = isOf(TOMBSTONE, new ArrowType.Bool());
    known &= typed ? metadata.size() == 1 && metadata.containsKey(VERSION) : metadata.isEmpty();
    known &= typed != fields.containsKey("value") && isOf("key", BINARY);
    known &= isOf("timestamp", new ArrowType.Timestamp(TimeUnit.MICROSECOND, "UTC"));
    NotNative.check(known && fields.size() == schema.getFields().size(), "a run with other columns");
    holes = fields.containsKey("offset");
  }

  /**
   * By column of the query, what its vector is; null for one that is not stored. Values of another
   * type than the query's are left to Python. A run without records may have any.
   */
  Field[] vectors() throws NotNative {
    if (vectors == null) {
      Field[] found = new Field[stored.length];
      for (int i = 0; i < stored.length; i++) {
        found[i] = vector(stored[i], columns.fields()[i].dataType());
      }
      vectors = found;
    }
    return vectors;
  }

  private boolean isOf(String name, ArrowType type) {
    return fields.containsKey(name) && type.equals(((Field) fields.get(name)).getType());
  }

  private boolean isKnown(Field field) {
    String name = field.getName();
    if (name.startsWith(DATA)) {
      return ArrowUtils.fromArrowField(field) != null;
    }
    return name.equals("key")
        || name.equals("timestamp")
        || name.equals("headers")
        || name.equals(TOMBSTONE)
        || name.equals("value") && isOf("value", BINARY)
        || name.equals("offset") && isOf("offset", new ArrowType.Int(64, true));
  }

  private Field vector(String name, DataType type) throws NotNative {
    if (name.isEmpty()) {
      return null;
    }
    boolean struct = name.equals("value") && type instanceof StructType;
    boolean data = struct || name.startsWith(DATA);
    NotNative.check(typed ? !name.equals("value") || struct : !data, "values in another form");
    if (!struct) {
      return column(name, name, type);
    }
    List<Field> inside = new ArrayList<Field>();
    StructField[] wanted = ((StructType) type).fields();
    for (int i = 0; i < wanted.length; i++) {
      inside.add(column(DATA + wanted[i].name(), wanted[i].name(), wanted[i].dataType()));
    }
    return new Field(name, FieldType.nullable(new ArrowType.Struct()), inside);
  }

  /** A column as Spark reads it: nulls if the run does not have it. */
  private Field column(String stored, String name, DataType type) throws NotNative {
    Field field = (Field) fields.get(stored);
    if (field == null) {
      return new Field(name, FieldType.nullable(new ArrowType.Null()), new ArrayList<Field>());
    }
    Field plain = isDictionary(field) ? values(field) : field;
    if (type instanceof StringType && plain.getType().equals(BINARY) && !stored.startsWith(DATA)) {
      // The bytes of a key or a value as text, without a check: as Spark's cast.
      return new Field(name, FieldType.nullable(new ArrowType.Utf8()), plain.getChildren());
    }
    boolean same = DataType.equalsIgnoreNullability(ArrowUtils.fromArrowField(plain), type);
    NotNative.check(same, "column " + stored + " has another type");
    return new Field(name, FieldType.nullable(plain.getType()), plain.getChildren());
  }

  /** Whether a column is stored as numbers of values: {@code struct<number, values: list>}. */
  static boolean isDictionary(Field field) {
    return field.getMetadata().containsKey("pylog.dictionary");
  }

  private static Field values(Field dictionary) throws NotNative {
    List<Field> inside = dictionary.getChildren();
    boolean known =
        inside.size() == 2
            && ((Field) inside.get(0)).getType().equals(new ArrowType.Int(16, true))
            && ((Field) inside.get(1)).getType().equals(new ArrowType.List());
    NotNative.check(known, "an unknown dictionary");
    Field values = (Field) ((Field) inside.get(1)).getChildren().get(0);
    boolean texts = values.getType().equals(new ArrowType.Utf8());
    NotNative.check(texts || values.getType().equals(BINARY), "an unknown dictionary");
    return values;
  }
}

/** Decodes a batch: only the columns that are wanted. */
final class Decoder {
  private static final int SCHEMAS_MAX = 100;
  private final BufferAllocator allocator;
  private final StructType wanted;
  private final String[] stored;
  private final FieldVector[] vectors;
  private final Map<ByteBuffer, RunSchema> schemas = new HashMap<ByteBuffer, RunSchema>();
  private ZstdDecompressCtx zstd;
  private Index index;
  private int rows;
  private long first;

  /** The offset of each row, relative to the run's base; null: they follow `first`. */
  private long[] offsets;

  Decoder(BufferAllocator allocator, StructType wanted, String[] stored) {
    this.allocator = allocator;
    this.wanted = wanted;
    this.stored = stored;
    vectors = new FieldVector[stored.length];
  }

  int rows() {
    return rows;
  }

  long offsetAt(int row) {
    return offsets == null ? first + row : offsets[row];
  }

  /** The first row with this offset or a greater one. */
  int rowAt(long offset) {
    if (offsets == null) {
      return (int) Math.max(0, Math.min(rows, offset - first));
    }
    int row = Arrays.binarySearch(offsets, offset);
    return row < 0 ? -row - 1 : row;
  }

  /** The values of a wanted column. */
  FieldVector vector(int column) {
    return vectors[column];
  }

  /** The index of an object, which is kept until another one is read. */
  Index index(SliceRead read, ObjectFile file) throws IOException {
    if (index == null || !index.name.equals(read.name)) {
      index = new Index(read, file, allocator, this);
    }
    return index;
  }

  RunSchema schema(IpcMessage message) throws IOException {
    byte[] bytes = new byte[message.end - message.start];
    message.bytes.getBytes(message.start, bytes);
    return schema(bytes);
  }

  RunSchema schema(byte[] message) throws IOException {
    ByteBuffer key = ByteBuffer.wrap(message);
    RunSchema known = (RunSchema) schemas.get(key);
    if (known == null) {
      ArrowBuf bytes = allocator.buffer(message.length);
      try {
        bytes.setBytes(0, message);
        Schema schema = new IpcMessage(bytes, 0, message.length).schema();
        known = new RunSchema(schema, wanted, stored);
      } finally {
        bytes.close();
      }
      if (schemas.size() == SCHEMAS_MAX) {
        schemas.clear();
      }
      schemas.put(key, known);
    }
    return known;
  }

  void decode(IpcMessage message, RunSchema schema, long start) throws IOException {
    BatchColumns columns = new BatchColumns(schema.schema, message, this);
    rows = columns.rows();
    NotNative.check(rows > 0, "a batch without records");
    first = start;
    offsets = schema.holes ? columns.numbers("offset", 64, true) : null;
    for (int i = 1; offsets != null && i < rows; i++) {
      NotNative.check(offsets[i] > offsets[i - 1], "the offsets of a batch are not in order");
    }
    VectorFiller filler = new VectorFiller(columns, allocator);
    Field[] fields = schema.vectors();
    for (int i = 0; i < fields.length; i++) {
      if (fields[i] != null) {
        filler.fill(vector(i, fields[i]), stored[i]);
      }
    }
  }

  /** Spark may have closed the vector of the batch before, which takes its fields away. */
  private FieldVector vector(int i, Field field) {
    if (vectors[i] != null) {
      vectors[i].close();
    }
    vectors[i] = field.createVector(allocator);
    return vectors[i];
  }

  /** A buffer as it was before it was compressed, which the caller releases. */
  ArrowBuf decoded(ArrowBuf bytes, int at, int length, int codec) throws IOException {
    if (length == 0 || codec < 0 || bytes.getLong(at) == -1) {
      int skip = length == 0 || codec < 0 ? 0 : 8;
      ArrowBuf part = bytes.slice(at + skip, length - skip);
      part.getReferenceManager().retain();
      return part;
    }
    int size = (int) bytes.getLong(at);
    ArrowBuf found = allocator.buffer(size);
    boolean done = false;
    try {
      if (codec == CompressionType.ZSTD) {
        fromZstd(bytes, at + 8, length - 8, found, size);
      } else {
        NotNative.check(codec == CompressionType.LZ4_FRAME, "an unknown compression");
        byte[] packed = new byte[length - 8];
        bytes.getBytes(at + 8L, packed);
        found.setBytes(0, Lz4.frame(packed, size));
      }
      done = true;
      return found.slice(0, size);
    } finally {
      if (!done) {
        found.close();
      }
    }
  }

  private void fromZstd(ArrowBuf bytes, int at, int length, ArrowBuf into, int size)
      throws NotNative {
    if (zstd == null) {
      zstd = new ZstdDecompressCtx();
    }
    ByteBuffer source = bytes.nioBuffer(at, length);
    ByteBuffer target = into.nioBuffer(0, size);
    int count =
        zstd.decompressDirectByteBuffer(
            target, target.position(), size, source, source.position(), length);
    NotNative.check(count == size, "a buffer has another size than it declares");
  }

  void close() {
    for (int i = 0; i < vectors.length; i++) {
      if (vectors[i] != null) {
        vectors[i].close();
      }
    }
    if (zstd != null) {
      zstd.close();
    }
  }
}

/** Fills vectors with the columns of a batch, and checks them: Spark reads them without a check. */
final class VectorFiller {
  private final BatchColumns columns;
  private final BufferAllocator allocator;
  private final int rows;

  /** Bytes that the values of dictionaries have in all rows. */
  private long expanded = 0;

  VectorFiller(BatchColumns columns, BufferAllocator allocator) throws NotNative {
    this.columns = columns;
    this.allocator = allocator;
    rows = columns.rows();
  }

  /** With a stored column; of {@code value} as a struct, each field with its own. */
  void fill(FieldVector vector, String stored) throws IOException {
    if (!(vector instanceof StructVector) || !stored.equals("value")) {
      fillColumn(vector, stored);
      return;
    }
    List<FieldVector> inside = vector.getChildrenFromFields();
    for (int i = 0; i < inside.size(); i++) {
      FieldVector field = (FieldVector) inside.get(i);
      fillColumn(field, "value." + field.getName());
    }
    NotNative.check(columns.nulls(RunSchema.TOMBSTONE) == 0, "nulls in column tombstone");
    ArrowBuf bits = columns.buffer(columns.place(RunSchema.TOMBSTONE)[1] + 1);
    try {
      NotNative.check(bits.capacity() >= (rows + 7) / 8, "too few tombstones");
      load(vector, null, bits);
    } finally {
      bits.close();
    }
  }

  private void fillColumn(FieldVector vector, String stored) throws IOException {
    if (vector instanceof NullVector) {
      vector.setValueCount(rows);
      return;
    }
    columns.nulls(stored);
    if (RunSchema.isDictionary(columns.field(stored))) {
      fillFromDictionary(vector, columns.place(stored));
    } else {
      fill(vector, columns.place(stored), rows);
    }
    if (stored.equals("headers")) {
      nullIfEmpty((ListVector) vector);
    }
  }

  /** The vector and those inside of it, which have so many values at least. */
  private void fill(FieldVector vector, int[] place, int least) throws IOException {
    ArrowType type = vector.getField().getType();
    int length = columns.length(place[0]);
    NotNative.check(length >= least, "a column has too few values");
    int nulls = columns.nulls(place[0]++);
    int count = TypeLayout.getTypeBufferCount(type);
    int inside = length;
    ArrowBuf[] buffers = new ArrowBuf[count];
    try {
      for (int i = 0; i < count; i++) {
        buffers[i] = columns.buffer(place[1]++);
      }
      checkNulls(buffers[0], length, nulls);
      if (type instanceof ArrowType.List || type instanceof ArrowType.Map) {
        inside = checkEnds(buffers[1], length);
      } else if (vector instanceof BaseVariableWidthVector) {
        long end = checkEnds(buffers[1], length);
        NotNative.check(end <= buffers[2].capacity(), "values are cut off");
      } else if (!(type instanceof ArrowType.Struct)) {
        NotNative.check(buffers[1].capacity() >= size(vector, length), "too few values");
      }
      vector.loadFieldBuffers(new ArrowFieldNode(length, nulls), Arrays.asList(buffers));
    } finally {
      close(buffers);
    }
    List<FieldVector> children = vector.getChildrenFromFields();
    for (int i = 0; i < children.size(); i++) {
      fill((FieldVector) children.get(i), place, inside);
    }
  }

  /** Whether the bits say as many nulls as the batch: Arrow's readers differ in which they take. */
  private static void checkNulls(ArrowBuf bits, int length, int nulls) throws NotNative {
    if (bits.capacity() == 0) {
      NotNative.check(nulls == 0, "nulls without validity bits");
      return;
    }
    NotNative.check(bits.capacity() >= (length + 7) / 8, "too few validity bits");
    NotNative.check(BitVectorHelper.getNullCount(bits, length) == nulls, "another number of nulls");
  }

  private static long size(FieldVector vector, int length) throws NotNative {
    if (vector instanceof BitVector) {
      return (length + 7) / 8;
    }
    NotNative.check(vector instanceof BaseFixedWidthVector, "a column of an unknown type");
    return (long) length * ((BaseFixedWidthVector) vector).getTypeWidth();
  }

  /** Where values or lists end: they are in order. Returns the last one. */
  private static int checkEnds(ArrowBuf ends, int length) throws NotNative {
    if (length == 0) {
      return 0;
    }
    NotNative.check(ends.capacity() >= 4L * (length + 1), "too few positions of values");
    long address = ends.memoryAddress();
    int before = 0;
    for (int i = 0; i <= length; i++) {
      int at = Platform.getInt(null, address + 4L * i);
      NotNative.check(at >= before, "the positions of values are not in order");
      before = at;
    }
    return before;
  }

  private void nullIfEmpty(ListVector vector) throws IOException {
    ArrowBuf empty = allocator.buffer((rows + 7) / 8);
    try {
      empty.setZero(0, empty.capacity());
      for (int row = 0; row < rows; row++) {
        if (vector.isNull(row) || vector.getElementEndIndex(row) == vector.getElementStartIndex(row)) {
          BitVectorHelper.setBit(empty, row);
        }
      }
      ArrowBuf ends = vector.getOffsetBuffer();
      ends.getReferenceManager().retain();
      try {
        load(vector, ends, empty);
      } finally {
        ends.close();
      }
    } finally {
      empty.close();
    }
  }

  /** Null where a bit is set. */
  private void load(FieldVector vector, ArrowBuf ends, ArrowBuf nulls) {
    int bytes = (rows + 7) / 8;
    ArrowBuf there = allocator.buffer(bytes);
    try {
      for (int i = 0; i < bytes; i++) {
        there.setByte(i, ~nulls.getByte(i));
      }
      List<ArrowBuf> buffers = new ArrayList<ArrowBuf>();
      buffers.add(there);
      if (ends != null) {
        buffers.add(ends);
      }
      int count = BitVectorHelper.getNullCount(there, rows);
      vector.loadFieldBuffers(new ArrowFieldNode(rows, count), buffers);
    } finally {
      there.close();
    }
  }

  /** Of {@code struct<number, values: list>}, whose lists have the values of all rows. */
  private void fillFromDictionary(FieldVector vector, int[] place) throws IOException {
    int node = place[0];
    int count = columns.length(node + 3);
    boolean rightSize = columns.length(node + 1) == rows && columns.length(node + 2) == rows;
    NotNative.check(rightSize, "a dictionary has another length than its batch");
    int others = columns.nulls(node) + columns.nulls(node + 2) + columns.nulls(node + 3);
    NotNative.check(others == 0, "nulls in a dictionary");
    ArrowBuf[] buffers = new ArrowBuf[8];
    try {
      for (int i = 1; i < 8; i++) {
        buffers[i] = columns.buffer(place[1] + i);
      }
      int nulls = columns.nulls(node + 1);
      checkNulls(buffers[1], rows, nulls);
      NotNative.check(buffers[2].capacity() >= 2L * rows, "too few numbers");
      NotNative.check(checkEnds(buffers[4], rows) <= count, "lists are cut off");
      NotNative.check(checkEnds(buffers[6], count) <= buffers[7].capacity(), "values are cut off");
      expand(vector, buffers, nulls);
    } finally {
      close(buffers);
    }
  }

  private void expand(FieldVector vector, ArrowBuf[] buffers, int nulls) throws IOException {
    int first = buffers[4].getInt(0);
    int count = buffers[4].getInt(4L * rows) - first;
    int[] places = new int[rows];
    long size = 0;
    for (int row = 0; row < rows; row++) {
      boolean there = nulls == 0 || BitVectorHelper.get(buffers[1], row) == 1;
      int number = there ? (int) buffers[2].getShort(2L * row) : 0;
      NotNative.check(!there || number >= 0 && count > number, "a number without a value");
      places[row] = there ? first + number : -1;
      size += there ? length(buffers[6], places[row]) : 0;
    }
    expanded += size;
    columns.checkDecoded(expanded);
    NotNative.check(size <= Integer.MAX_VALUE, "too many bytes");
    ArrowBuf[] made = {buffers[1], allocator.buffer(4L * (rows + 1)), allocator.buffer(size)};
    try {
      int end = 0;
      made[1].setInt(0, 0);
      for (int row = 0; row < rows; row++) {
        if (places[row] >= 0) {
          int length = length(buffers[6], places[row]);
          made[2].setBytes(end, buffers[7], buffers[6].getInt(4L * places[row]), length);
          end += length;
        }
        made[1].setInt(4L * (row + 1), end);
      }
      vector.loadFieldBuffers(new ArrowFieldNode(rows, nulls), Arrays.asList(made));
    } finally {
      made[1].close();
      made[2].close();
    }
  }

  private static int length(ArrowBuf ends, int value) {
    return ends.getInt(4L * (value + 1)) - ends.getInt(4L * value);
  }

  private static void close(ArrowBuf[] buffers) {
    for (int i = 0; i < buffers.length; i++) {
      if (buffers[i] != null) {
        buffers[i].close();
      }
    }
  }
}

/** LZ4 frames, whose blocks may refer to earlier ones: Spark's library cannot decode these. */
final class Lz4 {
  private static final int MAGIC = 0x184d2204;

  /** Flags of a frame: its blocks do not refer to earlier ones; it says its size. */
  private static final int INDEPENDENT = 0x20;

  private static final int SIZED = 8;

  private Lz4() {}

  static byte[] frame(byte[] packed, int size) throws NotNative {
    ByteBuffer in = ByteBuffer.wrap(packed).order(ByteOrder.LITTLE_ENDIAN);
    NotNative.check(packed.length >= 7 && in.getInt() == MAGIC, "not an lz4 frame");
    int flags = in.get();
    NotNative.check((flags & ~(INDEPENDENT | SIZED)) == 0x40, "an lz4 frame of another kind");
    in.position(in.position() + ((flags & SIZED) == 0 ? 1 : 9));
    int sum = XXHashFactory.safeInstance().hash32().hash(packed, 4, in.position() - 4, 0);
    NotNative.check(in.get() == (byte) (sum >> 8), "the head of an lz4 frame has another checksum");
    byte[] found = new byte[size];
    int end = 0;
    int block = in.getInt();
    while (block != 0) {
      int length = block & 0x7fffffff;
      NotNative.check(length <= in.remaining(), "an lz4 block is cut off");
      if (block < 0) {
        in.get(found, end, length);
        end += length;
      } else {
        end = decode(packed, in.position(), length, found, end);
        in.position(in.position() + length);
      }
      block = in.getInt();
    }
    boolean whole = end == size && !in.hasRemaining();
    NotNative.check(whole, "an lz4 frame has another size than it declares");
    return found;
  }

  /** Returns the end of what it has written. An array's bounds are checked by Java. */
  private static int decode(byte[] in, int from, int length, byte[] out, int to) throws NotNative {
    int at = from;
    int stop = from + length;
    int end = to;
    while (at < stop) {
      int token = in[at++] & 0xff;
      int count = token >>> 4;
      if (count == 15) {
        int more = 255;
        while (more == 255) {
          more = in[at++] & 0xff;
          count += more;
        }
      }
      System.arraycopy(in, at, out, end, count);
      at += count;
      end += count;
      if (at >= stop) {
        NotNative.check(at == stop, "an lz4 block is cut off");
        return end;
      }
      int back = in[at] & 0xff | (in[at + 1] & 0xff) << 8;
      at += 2;
      NotNative.check(back > 0 && back <= end, "an lz4 block refers to bytes before it");
      count = token & 15;
      if (count == 15) {
        int more = 255;
        while (more == 255) {
          more = in[at++] & 0xff;
          count += more;
        }
      }
      end = repeat(out, end, back, count + 4);
    }
    throw new NotNative("an lz4 block does not end with literals");
  }

  private static int repeat(byte[] out, int end, int back, int count) {
    if (back >= count) {
      System.arraycopy(out, end - back, out, end, count);
    } else {
      for (int i = 0; i < count; i++) {
        out[end + i] = out[end + i - back];
      }
    }
    return end + count;
  }
}
