package io.pylog.spark;

import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdCompressCtx;
import com.google.flatbuffers.FlatBufferBuilder;
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.Serializable;
import java.lang.reflect.Constructor;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.attribute.FileAttribute;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32C;
import net.jpountz.lz4.LZ4Compressor;
import net.jpountz.lz4.LZ4Factory;
import org.apache.arrow.flatbuf.BodyCompression;
import org.apache.arrow.flatbuf.BodyCompressionMethod;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.CompressionType;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.MetadataVersion;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.Utils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Encodes the rows of a write in the JVM.
 *
 * <p>A task checks its rows, chooses their partitions, and encodes them as Arrow messages, in a
 * file. It then gives the file to Spark's writer in Python, which lays out the object, stores it
 * and reports it, as it does with rows. At the first row that Java does not write, Python gets the
 * rows from there on. So errors, dead letters, storage and commits are Python's.
 *
 * <p>Like {@code PylogSource.java}, it uses only what Janino understands.
 */
public final class PylogWriter implements PylogSource.NativeWriter {
  static final Logger LOG = LoggerFactory.getLogger("io.pylog.spark");

  /** Tasks of this process whose rows were all encoded here. */
  static final AtomicLong ENCODED = new AtomicLong();

  /** Called by Python when a session is registered. */
  public static void install() {
    PylogSource.setWriter(new PylogWriter());
  }

  /** How many tasks of this process were encoded here to their last row: for tests. */
  public static long encoded() {
    return ENCODED.get();
  }

  @Override
  public BatchWrite batch(BatchWrite python, LogicalWriteInfo info) {
    return new NativeWrite(this, python, info);
  }

  @Override
  public StreamingWrite stream(StreamingWrite python, LogicalWriteInfo info) {
    return new NativeStreamingWrite(this, python, info);
  }

  /** The writers of the tasks; those of Python, if it writes this. */
  Object factory(Object python, LogicalWriteInfo info) {
    boolean known =
        python instanceof PythonBatchWriterFactory
            && ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN
            && Platform.unaligned()
            && !conf().getBoolean("spark.io.encryption.enabled", false);
    if (!known) {
      return python;
    }
    try {
      byte[] function = ((PythonBatchWriterFactory) python).pickledWriteFunc();
      WriteRules rules = WriteRules.in(function, info.schema());
      if (rules == null) {
        return python;
      }
      PylogReader.ship(SparkContext.getOrCreate());
      Object other = withColumns(python, rules.handedOver());
      return python instanceof StreamingDataWriterFactory
          ? (Object) new NativeStreamFactory((StreamingDataWriterFactory) other, rules)
          : new NativeWriterFactory((DataWriterFactory) other, rules);
    } catch (Exception error) {
      PylogWriter.LOG.info("Python writes this: {}", error.toString());
      return python;
    }
  }

  static SparkConf conf() {
    return SparkContext.getOrCreate().getConf();
  }

  /** Python's writers for other columns. Its constructor differs between versions of Spark. */
  private static Object withColumns(Object python, StructType columns) throws Exception {
    scala.Product parts = (scala.Product) python;
    Object[] given = new Object[parts.productArity()];
    for (int i = 0; i < given.length; i++) {
      Object part = parts.productElement(i);
      given[i] = part instanceof StructType ? columns : part;
    }
    Constructor<?> constructor = python.getClass().getConstructors()[0];
    return constructor.newInstance(given);
  }
}

/** A batch write whose rows are encoded in the JVM. */
final class NativeWrite implements BatchWrite {
  private final PylogWriter writer;
  private final BatchWrite python;
  private final LogicalWriteInfo info;

  NativeWrite(PylogWriter writer, BatchWrite python, LogicalWriteInfo info) {
    this.writer = writer;
    this.python = python;
    this.info = info;
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
    return (DataWriterFactory) writer.factory(python.createBatchWriterFactory(physical), info);
  }

  @Override
  public boolean useCommitCoordinator() {
    return python.useCommitCoordinator();
  }

  @Override
  public void onDataWriterCommit(WriterCommitMessage message) {
    python.onDataWriterCommit(message);
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    python.commit(messages);
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    python.abort(messages);
  }
}

/** A stream whose rows are encoded in the JVM. Python commits each micro-batch. */
final class NativeStreamingWrite implements StreamingWrite {
  private final PylogWriter writer;
  private final StreamingWrite python;
  private final LogicalWriteInfo info;

  NativeStreamingWrite(PylogWriter writer, StreamingWrite python, LogicalWriteInfo info) {
    this.writer = writer;
    this.python = python;
    this.info = info;
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
    Object made = python.createStreamingWriterFactory(physical);
    return (StreamingDataWriterFactory) writer.factory(made, info);
  }

  @Override
  public boolean useCommitCoordinator() {
    return python.useCommitCoordinator();
  }

  @Override
  public void commit(long batch, WriterCommitMessage[] messages) {
    python.commit(batch, messages);
  }

  @Override
  public void abort(long batch, WriterCommitMessage[] messages) {
    python.abort(batch, messages);
  }
}

/** Makes the writers of tasks. */
final class NativeWriterFactory implements DataWriterFactory {
  private static final long serialVersionUID = 1L;
  private final DataWriterFactory python;
  private final WriteRules rules;

  NativeWriterFactory(DataWriterFactory python, WriteRules rules) {
    this.python = python;
    this.rules = rules;
  }

  @Override
  @SuppressWarnings("unchecked")
  public DataWriter<InternalRow> createWriter(int partition, long task) {
    Object writer = new NativeWriter(python.createWriter(partition, task), rules);
    return (DataWriter<InternalRow>) writer;
  }
}

/** Makes the writers of the tasks of a micro-batch. */
final class NativeStreamFactory implements StreamingDataWriterFactory {
  private static final long serialVersionUID = 1L;
  private final StreamingDataWriterFactory python;
  private final WriteRules rules;

  NativeStreamFactory(StreamingDataWriterFactory python, WriteRules rules) {
    this.python = python;
    this.rules = rules;
  }

  @Override
  @SuppressWarnings("unchecked")
  public DataWriter<InternalRow> createWriter(int partition, long task, long batch) {
    Object writer = new NativeWriter(python.createWriter(partition, task, batch), rules);
    return (DataWriter<InternalRow>) writer;
  }
}

/** Encodes the rows of a task, and gives them to Python. */
final class NativeWriter implements DataWriter<Object> {
  private final DataWriter<InternalRow> python;
  private final WriteRules rules;

  NativeWriter(DataWriter<InternalRow> python, WriteRules rules) {
    this.python = python;
    this.rules = rules;
  }

  @Override
  @SuppressWarnings("unchecked")
  public void writeAll(Iterator<Object> rows) throws IOException {
    TaskRows task = TaskRows.of(rules);
    try {
      Object rest = task.takeAll(rows);
      python.writeAll((Iterator<InternalRow>) rest);
    } finally {
      task.close();
    }
  }

  @Override
  public void write(Object row) {
    throw new UnsupportedOperationException("Spark writes all rows of a task at once");
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    return python.commit();
  }

  @Override
  public void abort() throws IOException {
    python.abort();
  }

  @Override
  public void close() throws IOException {
    python.close();
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return python.currentMetricsValues();
  }
}

/** What Python has decided about a write. */
final class WriteRules implements Serializable {
  private static final long serialVersionUID = 1L;

  /** Of the columns that Python gets from Java: the last one, for what is encoded. */
  static final String ENCODED = "pylog.encoded";

  static final int ZSTD = 1;
  static final int LZ4 = 2;
  static final int MURMUR2 = 0;
  static final int STICKY = 1;
  final int partitioner;
  final int stickyBytes;
  final int batchRows;
  final int batchBytes;

  /** Raw bytes of rows that wait to be sorted. */
  final int heldBytes;

  /** Rows that Spark sends to Python at once: they are checked together. */
  final int checkedRows;

  /** Where Spark keeps temporary files, unless an executor's environment says it. */
  final String folders;

  /** Of an executor, as the settings say; otherwise 0. */
  final int cores;

  final TopicRules[] topics;

  /** Partitions of all topics, which follow one another. */
  final int destinations;

  final StructType frame;

  /** The written columns. */
  final StructType columns;

  /** Their indexes in the frame. */
  final int[] indexes;

  /** Such an index; -1 for a column that the frame does not have. */
  final int key;

  final int value;
  final int timestamp;
  final int partition;
  final int headers;

  /** Of a column with the topic of each row. */
  final int topic;

  final boolean isKeyText;
  final boolean isValueText;
  final boolean hasMillis;

  /** Before the rules in the pickle of Python's writer; their checksum and their length follow. */
  private static final byte[] MARK = "pylog.write.rules".getBytes(StandardCharsets.UTF_8);

  /** The rules in what Spark sends to tasks in Python; null if there are none. */
  static WriteRules in(byte[] function, StructType frame) throws IOException {
    int last = function.length - MARK.length - 8;
    for (int at = 0; at <= last; at++) {
      boolean isMark = Arrays.equals(function, at, at + MARK.length, MARK, 0, MARK.length);
      byte[] joined = isMark ? checked(function, at + MARK.length) : null;
      if (joined != null) {
        return new WriteRules(PylogReader.split(joined), frame);
      }
    }
    return null;
  }

  /** The rules at a place; null if other bytes are there. */
  private static byte[] checked(byte[] function, int at) {
    ByteBuffer rest = ByteBuffer.wrap(function, at, function.length - at);
    long expected = rest.getInt() & 0xffffffffL;
    int length = rest.getInt();
    if (length <= 0 || length > rest.remaining()) {
      return null;
    }
    byte[] joined = new byte[length];
    rest.get(joined);
    CRC32C crc = new CRC32C();
    crc.update(joined, 0, length);
    return crc.getValue() == expected ? joined : null;
  }

  /** The first part has the rules of all rows; columns and topics follow. */
  private WriteRules(List<byte[]> parts, StructType frame) throws IOException {
    DataInputStream numbers = numbers(parts, 0);
    partitioner = numbers.readInt();
    stickyBytes = numbers.readInt();
    batchRows = numbers.readInt();
    batchBytes = numbers.readInt();
    heldBytes = numbers.readInt();
    StructField[] written = new StructField[numbers.readInt()];
    for (int i = 0; i < written.length; i++) {
      String name = new String((byte[]) parts.get(i + 1), StandardCharsets.UTF_8);
      written[i] = frame.fields()[frame.fieldIndex(name)];
    }
    columns = new StructType(written);
    this.frame = frame;
    topics = new TopicRules[parts.size() - 1 - written.length];
    int sum = 0;
    for (int i = 0; i < topics.length; i++) {
      topics[i] = new TopicRules(numbers(parts, 1 + written.length + i), sum);
      sum += topics[i].partitions;
    }
    destinations = sum;
    int sent = SQLConf.get().arrowMaxRecordsPerBatch();
    checkedRows = sent > 0 ? Math.min(sent, 1 << 16) : 1 << 16;
    String temporary = System.getProperty("java.io.tmpdir");
    folders = PylogWriter.conf().get("spark.local.dir", temporary);
    SparkContext context = SparkContext.getOrCreate();
    int slots = context.isLocal() ? context.defaultParallelism() : 0;
    cores = PylogWriter.conf().getInt("spark.executor.cores", slots);
    indexes = new int[columns.length()];
    for (int i = 0; i < indexes.length; i++) {
      indexes[i] = frame.fieldIndex(columns.fieldNames()[i]);
    }
    key = index("key", frame);
    value = index("value", frame);
    timestamp = index("timestamp", frame);
    partition = index("partition", frame);
    headers = index("headers", frame);
    topic = index("topic", frame);
    isKeyText = key >= 0 && !(frame.fields()[key].dataType() instanceof BinaryType);
    isValueText = !(frame.fields()[value].dataType() instanceof BinaryType);
    hasMillis = timestamp >= 0 && frame.fields()[timestamp].dataType() instanceof LongType;
  }

  private static DataInputStream numbers(List<byte[]> parts, int part) {
    return new DataInputStream(new ByteArrayInputStream((byte[]) parts.get(part)));
  }

  private int index(String name, StructType frame) {
    return Arrays.asList(columns.fieldNames()).contains(name) ? frame.fieldIndex(name) : -1;
  }

  /** The columns that Python gets. */
  StructType handedOver() {
    StructField[] all = new StructField[columns.length() + 1];
    for (int i = 0; i < columns.length(); i++) {
      StructField field = columns.fields()[i];
      all[i] = DataTypes.createStructField(field.name(), field.dataType(), true);
    }
    all[columns.length()] = DataTypes.createStructField(ENCODED, DataTypes.BinaryType, true);
    return new StructType(all);
  }
}

/** What a topic takes. */
final class TopicRules implements Serializable {
  private static final long serialVersionUID = 1L;
  final int codec;
  final int level;
  final int partitions;

  /** Raw bytes of a record. */
  final int recordMax;

  final boolean compacted;
  final long beforeMaxMs;
  final long afterMaxMs;
  final String name;

  /** The number of its partition 0 among those of all topics. */
  final int first;

  TopicRules(DataInputStream in, int first) throws IOException {
    codec = in.readInt();
    level = in.readInt();
    partitions = in.readInt();
    recordMax = in.readInt();
    compacted = in.readInt() != 0;
    beforeMaxMs = in.readLong();
    afterMaxMs = in.readLong();
    byte[] text = new byte[in.available()];
    in.readFully(text);
    name = new String(text, StandardCharsets.UTF_8);
    this.first = first;
  }
}

/** Rows in one array, each with a number: the bytes of its key, its value and its headers. */
final class Records {
  /** Raw bytes of a record beside key and value. */
  static final int OVERHEAD = 16;

  static final long NO_TIME = Long.MIN_VALUE;
  static final int NO_PARTITION = Integer.MIN_VALUE;
  private static final long BASE = (long) Platform.BYTE_ARRAY_OFFSET;
  private final WriteRules rules;

  /** Null until there is a row in another form. */
  private UnsafeProjection unsafe;

  /** Null until a row names its topic. */
  private Map<UTF8String, Integer> topicNumbers;

  private UTF8String[] names;
  private int lastTopic;
  int count;
  int end;
  byte[] data = new byte[1 << 16];
  int[] starts = new int[1 << 10];

  /** Lengths; -1 for a null. */
  int[] keys = new int[1 << 10];

  int[] values = new int[1 << 10];

  /** Lengths of the headers, which are an array of Spark. */
  int[] headers = new int[1 << 10];

  /** Microseconds. */
  long[] times = new long[1 << 10];

  int[] topics = new int[1 << 10];
  int[] partitions = new int[1 << 10];

  Records(WriteRules rules) {
    this.rules = rules;
  }

  /** Adds a row; false if it is left to Python. */
  boolean add(InternalRow any) {
    UnsafeRow row = any instanceof UnsafeRow ? (UnsafeRow) any : unsafe(any);
    int topic = rules.topic < 0 ? 0 : topic(row);
    long time = NO_TIME;
    int partition = NO_PARTITION;
    if (rules.timestamp >= 0 && !row.isNullAt(rules.timestamp)) {
      time = row.getLong(rules.timestamp);
      long most = rules.hasMillis ? Long.MAX_VALUE / 1000 : Long.MAX_VALUE;
      if (time > most || time < -most) {
        return false;
      }
      time = rules.hasMillis ? time * 1000 : time;
    }
    if (rules.partition >= 0 && !row.isNullAt(rules.partition)) {
      partition = row.getInt(rules.partition);
      if (partition < 0) {
        return false;
      }
    }
    boolean hasKey = rules.key >= 0 && !row.isNullAt(rules.key);
    boolean hasValue = !row.isNullAt(rules.value);
    boolean hasHeaders = rules.headers >= 0 && !row.isNullAt(rules.headers);
    long key = hasKey ? row.getLong(rules.key) : 0;
    long value = hasValue ? row.getLong(rules.value) : 0;
    UnsafeArrayData array = hasHeaders ? row.getArray(rules.headers) : null;
    int arrayBytes = hasHeaders ? array.getSizeInBytes() : 0;
    long size = (long) (int) key + (int) value + OVERHEAD + (hasHeaders ? size(array) : 0);
    if (topic < 0 || size > rules.topics[topic].recordMax) {
      return false;
    }
    makeRoom((int) key + (int) value + arrayBytes);
    copy(row, key, end);
    copy(row, value, end + (int) key);
    if (hasHeaders) {
      array.writeToMemory(data, BASE + end + (int) key + (int) value);
    }
    topics[count] = topic;
    times[count] = time;
    partitions[count] = partition;
    added(hasKey ? (int) key : -1, hasValue ? (int) value : -1, hasHeaders ? arrayBytes : -1);
    return true;
  }

  private UnsafeRow unsafe(InternalRow row) {
    if (unsafe == null) {
      unsafe = UnsafeProjection.create(rules.frame);
    }
    return unsafe.apply(row);
  }

  /** The number of the topic of a row; -1 if Java has no rules for it. */
  private int topic(UnsafeRow row) {
    if (topicNumbers == null) {
      topicNumbers = new HashMap<UTF8String, Integer>();
      names = new UTF8String[rules.topics.length];
      for (int i = 0; i < names.length; i++) {
        names[i] = UTF8String.fromString(rules.topics[i].name);
        topicNumbers.put(names[i], Integer.valueOf(i));
      }
    }
    UTF8String name = row.getUTF8String(rules.topic);
    if (!names[lastTopic].equals(name)) {
      Integer found = name == null ? null : (Integer) topicNumbers.get(name);
      if (found == null) {
        return -1;
      }
      lastTopic = found.intValue();
    }
    return lastTopic;
  }

  /** Raw bytes of headers; more than any record has if one of them is left to Python. */
  private static long size(UnsafeArrayData headers) {
    long size = 0;
    for (int i = 0; i < headers.numElements(); i++) {
      UnsafeRow header = headers.isNullAt(i) ? null : headers.getStruct(i, 2);
      if (header == null || header.isNullAt(0) || !header.getUTF8String(0).isValid()) {
        return Integer.MAX_VALUE;
      }
      size += (int) header.getLong(0) + (int) header.getLong(1) + OVERHEAD;
    }
    return size;
  }

  /** Copies a field, which a row has as its place and its length. */
  private void copy(UnsafeRow row, long field, int to) {
    long from = row.getBaseOffset() + (field >>> 32);
    if (row.getBaseObject() instanceof byte[]) {
      int start = (int) (from - Platform.BYTE_ARRAY_OFFSET);
      System.arraycopy((byte[]) row.getBaseObject(), start, data, to, (int) field);
    } else {
      long place = (long) Platform.BYTE_ARRAY_OFFSET + to;
      Platform.copyMemory(row.getBaseObject(), from, data, place, (int) field);
    }
  }

  /** Copies a record of others. */
  void add(Records from, int row) {
    int size = from.bytes(row);
    makeRoom(size);
    System.arraycopy(from.data, from.starts[row], data, end, size);
    topics[count] = from.topics[row];
    times[count] = from.times[row];
    partitions[count] = from.partitions[row];
    added(from.keys[row], from.values[row], from.headers[row]);
  }

  /** Makes room for a record of so many bytes. */
  private void makeRoom(int size) {
    if (end + size > data.length) {
      data = Arrays.copyOf(data, Math.max(2 * data.length, end + size));
    }
    if (count == starts.length) {
      starts = Arrays.copyOf(starts, 2 * count);
      keys = Arrays.copyOf(keys, 2 * count);
      values = Arrays.copyOf(values, 2 * count);
      headers = Arrays.copyOf(headers, 2 * count);
      times = Arrays.copyOf(times, 2 * count);
      topics = Arrays.copyOf(topics, 2 * count);
      partitions = Arrays.copyOf(partitions, 2 * count);
    }
  }

  private void added(int key, int value, int array) {
    starts[count] = end;
    keys[count] = key;
    values[count] = value;
    headers[count] = array;
    end += bytes(count);
    count++;
  }

  /** Bytes of key and value. */
  int payload(int row) {
    return Math.max(keys[row], 0) + Math.max(values[row], 0);
  }

  /** Bytes of a record, with its headers as Spark has them. */
  int bytes(int row) {
    return payload(row) + Math.max(headers[row], 0);
  }

  /** The headers of a record, which this object has; null if there are none. */
  UnsafeArrayData headers(int row) {
    if (headers[row] < 0) {
      return null;
    }
    UnsafeArrayData found = new UnsafeArrayData();
    found.pointTo(data, BASE + starts[row] + payload(row), headers[row]);
    return found;
  }

  /** The number of the partition of a record among those of all topics. */
  int destination(int row) {
    return rules.topics[topics[row]].first + partitions[row];
  }

  long size() {
    return end + (long) OVERHEAD * count;
  }

  /** Whether the topic takes a record, which has a size that it takes. */
  boolean isGood(int row, long nowMs) {
    TopicRules topic = rules.topics[topics[row]];
    long ms = times[row] == NO_TIME ? nowMs : Math.floorDiv(times[row], 1000L);
    return nowMs - ms <= topic.beforeMaxMs
        && ms - nowMs <= topic.afterMaxMs
        && (keys[row] >= 0 || !topic.compacted)
        && partitions[row] < topic.partitions;
  }

  /** The row as Python gets it. */
  GenericInternalRow row(int row) {
    String[] names = rules.columns.fieldNames();
    Object[] found = new Object[names.length + 1];
    for (int i = 0; i < names.length; i++) {
      if (names[i].equals("key")) {
        found[i] = bytes(starts[row], keys[row], rules.isKeyText);
      } else if (names[i].equals("value")) {
        found[i] = bytes(starts[row] + Math.max(keys[row], 0), values[row], rules.isValueText);
      } else if (names[i].equals("timestamp")) {
        long time = rules.hasMillis ? times[row] / 1000 : times[row];
        found[i] = times[row] == NO_TIME ? null : Long.valueOf(time);
      } else if (names[i].equals("headers")) {
        found[i] = headers(row);
      } else if (names[i].equals("topic")) {
        found[i] = UTF8String.fromString(rules.topics[topics[row]].name);
      } else {
        int number = partitions[row];
        found[i] = number == NO_PARTITION ? null : Integer.valueOf(number);
      }
    }
    return new GenericInternalRow(found);
  }

  private Object bytes(int start, int length, boolean isText) {
    if (length < 0) {
      return null;
    }
    byte[] copy = Arrays.copyOfRange(data, start, start + length);
    return isText ? (Object) UTF8String.fromBytes(copy) : copy;
  }
}

/** Chooses partitions of a topic as Kafka does: by the hash of a key, or some in a row to one. */
final class Partitioner {
  private static final int M = 0x5bd1e995;
  private final WriteRules rules;
  private final int partitions;
  private final Random random = new Random();
  private int current = -1;
  private long produced;
  private int next;

  Partitioner(WriteRules rules, int partitions) {
    this.rules = rules;
    this.partitions = partitions;
  }

  int partition(Records records, int row) {
    int key = records.keys[row];
    if (rules.partitioner != WriteRules.MURMUR2 && rules.partitioner != WriteRules.STICKY) {
      int chosen = next;
      next = (next + 1) % partitions;
      return chosen;
    }
    if (partitions == 1) {
      return 0;
    }
    return rules.partitioner == WriteRules.MURMUR2 && key >= 0
        ? (murmur2(records.data, records.starts[row], key) & 0x7fffffff) % partitions
        : sticky(Math.max(records.payload(row), 1));
  }

  /** The record that reaches the limit is the last one for the current partition. */
  private int sticky(int bytes) {
    if (current < 0) {
      current = random.nextInt(partitions);
      produced = 0;
    }
    int chosen = current;
    produced += bytes;
    if (produced >= rules.stickyBytes) {
      current = -1;
    }
    return chosen;
  }

  static int murmur2(byte[] data, int start, int length) {
    int hash = 0x9747b28c ^ length;
    int whole = start + (length & ~3);
    for (int at = start; at < whole; at += 4) {
      int k = Platform.getInt(data, (long) Platform.BYTE_ARRAY_OFFSET + at) * M;
      hash = hash * M ^ (k ^ k >>> 24) * M;
    }
    int rest = length & 3;
    if (rest > 0) {
      int last = data[whole] & 0xff;
      last |= rest > 1 ? (data[whole + 1] & 0xff) << 8 : 0;
      last |= rest > 2 ? (data[whole + 2] & 0xff) << 16 : 0;
      hash = (hash ^ last) * M;
    }
    hash = (hash ^ hash >>> 13) * M;
    return hash ^ hash >>> 15;
  }
}

/** The rows of a task, on their way to encoded batches of their partitions. */
final class TaskRows {
  /** Small rows take ten times their raw bytes; Spark needs the larger part of the heap. */
  private static final int HEAP_PARTS = 24;

  /** With less, or with less for each partition, batches would be short, and reads slow. */
  private static final int HELD_LEAST = 4 << 20;

  private static final int PARTITION_LEAST = 128 << 10;

  /**
   * A task of fewer than so many parts of what Spark sends to Python is small: a file of its rows
   * costs more than it saves.
   */
  private static final int SMALL_PARTS = 10;

  /** Tasks of this process that encode. */
  private static final AtomicInteger RUNNING = new AtomicInteger();

  private final WriteRules rules;

  /** By topic; null for one that has no rows yet. */
  private final Partitioner[] partitioners;

  private final BatchEncoder encoder;
  private Records records;

  /** Empty, with the room of records that were encoded. */
  private Records spare;

  private final int[] counts;
  private int occupied;

  /** The number of the first record whose partition is not chosen yet. */
  private int checked;

  /** Rows of the task before it. */
  private long before;

  /** Raw bytes of rows that wait to be sorted. */
  private final long heldBytes;

  private TaskRows(WriteRules rules, BatchEncoder encoder, long heldBytes) {
    this.rules = rules;
    this.encoder = encoder;
    this.heldBytes = heldBytes;
    partitioners = new Partitioner[rules.topics.length];
    records = new Records(rules);
    spare = new Records(rules);
    counts = new int[rules.destinations];
  }

  /**
   * Without an encoder, if a library, a folder or memory is missing, or if the task has failed
   * before, whatever the reason: all rows are left to Python.
   */
  static TaskRows of(WriteRules rules) {
    long held = Math.min(rules.heldBytes, heap(rules));
    long least = Math.max(HELD_LEAST, (long) PARTITION_LEAST * rules.destinations);
    BatchEncoder encoder = null;
    try {
      if (held >= Math.min(rules.heldBytes, least) && TaskContext.get().attemptNumber() == 0) {
        encoder = new BatchEncoder(rules);
        RUNNING.incrementAndGet();
      }
    } catch (Exception error) {
      PylogWriter.LOG.info("Python writes the rows of this task: {}", error.toString());
    } catch (LinkageError error) {
      PylogWriter.LOG.info("Python writes the rows of this task: {}", error.toString());
    }
    return new TaskRows(rules, encoder, held);
  }

  /** The part of a task. Spark knows nothing of these bytes, and tasks run side by side. */
  private static long heap(WriteRules rules) {
    Runtime runtime = Runtime.getRuntime();
    int cores = rules.cores > 0 ? rules.cores : runtime.availableProcessors();
    return runtime.maxMemory() / HEAP_PARTS / Math.max(cores, RUNNING.get() + 1);
  }

  /** Takes rows. Returns what Python gets: those from the first one on that are left to it. */
  RestRows takeAll(Iterator<Object> rows) throws IOException {
    while (encoder != null && rows.hasNext()) {
      InternalRow row = (InternalRow) rows.next();
      if (!records.add(row)) {
        return left(row, rows);
      }
      boolean due = records.count - checked == rules.checkedRows;
      if ((due || records.size() >= heldBytes) && !check()) {
        return left(null, rows);
      }
    }
    if (before == 0 && records.count < rules.checkedRows / SMALL_PARTS) {
      return unencoded(records, null, rows);
    }
    boolean known = encoder != null && check();
    RestRows rest = left(null, rows);
    if (known && !encoder.isFull) {
      PylogWriter.ENCODED.incrementAndGet();
    }
    return rest;
  }

  private RestRows unencoded(Records records, InternalRow row, Iterator<Object> rows) {
    return new RestRows(rules, RestRows.head(0, "", new byte[0]), records, row, rows);
  }

  private RestRows left(InternalRow row, Iterator<Object> rows) throws IOException {
    Records unchecked = new Records(rules);
    for (int i = checked; i < records.count; i++) {
      unchecked.add(records, i);
    }
    records.count = checked;
    if (encoder == null) {
      return unencoded(unchecked, row, rows);
    }
    encode(true);
    before -= records.count;
    for (int i = 0; i < unchecked.count; i++) {
      records.add(unchecked, i);
    }
    byte[] head = RestRows.head(before, encoder.finish(), encoder.batches());
    return new RestRows(rules, head, records, row, rows);
  }

  /**
   * Checks the latest records and chooses their partitions. False if Python gets the others: one
   * of them is bad, or the file is full.
   */
  private boolean check() {
    long nowMs = System.currentTimeMillis();
    for (int i = checked; i < records.count; i++) {
      if (!records.isGood(i, nowMs)) {
        return false;
      }
    }
    for (int i = checked; i < records.count; i++) {
      if (records.times[i] == Records.NO_TIME) {
        records.times[i] = nowMs * 1000;
      }
      if (records.partitions[i] == Records.NO_PARTITION) {
        records.partitions[i] = partitioner(records.topics[i]).partition(records, i);
      }
      if (counts[records.destination(i)]++ == 0) {
        occupied++;
      }
    }
    before += records.count - checked;
    checked = records.count;
    if (records.size() >= heldBytes || records.count >= fullBatch() * (long) occupied) {
      encode(false);
    }
    return !encoder.isFull;
  }

  private Partitioner partitioner(int topic) {
    if (partitioners[topic] == null) {
      partitioners[topic] = new Partitioner(rules, rules.topics[topic].partitions);
    }
    return partitioners[topic];
  }

  /** Rows of a full batch: slightly fewer than fit on average, because sizes vary. */
  private long fullBatch() {
    long fitting = (long) (0.9 * rules.batchBytes * records.count) / Math.max(records.size(), 1);
    return Math.max(Math.min(rules.batchRows, fitting), 1);
  }

  /**
   * Encodes batches that are at least half full. The largest of the others follow if rows take too
   * much memory, until they have half of it; or all.
   */
  private void encode(boolean all) {
    int[] ends = new int[rules.destinations];
    int sum = 0;
    for (int p = 0; p < ends.length; p++) {
      ends[p] = sum;
      sum += counts[p];
    }
    int[] order = new int[records.count];
    for (int i = 0; i < order.length; i++) {
      order[ends[records.destination(i)]++] = i;
    }
    int[] starts = new int[ends.length];
    long[] sizes = new long[ends.length]; // with the partition in the lower bits
    long left = 0;
    for (int p = 0; p < ends.length; p++) {
      starts[p] = encodeFull(order, ends[p] - counts[p], ends[p], all);
      long size = 0;
      for (int i = starts[p]; i < ends[p]; i++) {
        size += records.bytes(order[i]) + Records.OVERHEAD;
      }
      sizes[p] = size << 31 | p;
      left += size;
    }
    long most = records.size() >= heldBytes ? heldBytes / 2 : Long.MAX_VALUE;
    Arrays.sort(sizes);
    for (int i = sizes.length - 1; left > most; i--) {
      int p = (int) (sizes[i] & Integer.MAX_VALUE);
      starts[p] = encodeFull(order, starts[p], ends[p], true);
      left -= sizes[i] >> 31;
    }
    keep(order, starts, ends);
  }

  /** Encodes records of a partition in order; returns the index of the first one that stays. */
  private int encodeFull(int[] order, int start, int end, boolean all) {
    int at = start;
    while (at < end) {
      int stop = at;
      long size = 0;
      while (stop < end && stop - at < rules.batchRows) {
        int bytes = records.bytes(order[stop]) + Records.OVERHEAD;
        if (stop > at && size + bytes > rules.batchBytes) {
          break;
        }
        size += bytes;
        stop++;
      }
      boolean half = 2 * (stop - at) >= rules.batchRows || 2 * size >= rules.batchBytes;
      boolean waits = !all && !half && stop == end;
      if (waits || !encoder.encode(records, order, at, stop)) {
        break;
      }
      at = stop;
    }
    return at;
  }

  private void keep(int[] order, int[] starts, int[] ends) {
    Records kept = spare;
    occupied = 0;
    for (int p = 0; p < ends.length; p++) {
      counts[p] = ends[p] - starts[p];
      occupied += counts[p] > 0 ? 1 : 0;
      for (int i = starts[p]; i < ends[p]; i++) {
        kept.add(records, order[i]);
      }
    }
    spare = records;
    spare.count = 0;
    spare.end = 0;
    records = kept;
    checked = records.count;
  }

  void close() {
    if (encoder != null) {
      RUNNING.decrementAndGet();
      encoder.close();
    }
  }
}

/** Writes batches of records as Arrow messages to a file of this task. */
final class BatchEncoder {
  private static final long BASE = (long) Platform.BYTE_ARRAY_OFFSET;

  /** The buffers of key, value and timestamp. */
  private static final int BUFFERS = 8;

  /** With those of headers. */
  private static final int ALL_BUFFERS = 17;

  /** Of a batch: it has headers; some of its records have no key. */
  private static final int HEADERS = 1;

  private static final int KEYLESS = 2;

  /** Bytes of what Python learns about a batch. */
  private static final int ENTRY = 56;

  private final WriteRules rules;
  private final ZstdCompressCtx zstd = new ZstdCompressCtx();

  /** Compresses the batch if it is not null; otherwise {@code zstd} does. */
  private Lz4Frame lz4;

  /** Since the first batch with headers. Python adds the column to those before it. */
  private boolean hasHeaders;

  /** Null until there is a batch. */
  private File file;

  private OutputStream out;

  /** The file could not be written: nothing else is encoded. */
  boolean isFull;

  private long position;
  private ByteBuffer batches = little(1 << 12);

  /** The buffers of a batch, and their ends. */
  private byte[] raw = new byte[1 << 16];

  private final int[] ends = new int[ALL_BUFFERS];

  /** The body of a message. */
  private byte[] body = new byte[1 << 16];

  BatchEncoder(WriteRules rules) {
    this.rules = rules;
  }

  @SuppressWarnings("rawtypes")
  private void open() throws IOException {
    SparkConf conf = new SparkConf().set("spark.local.dir", rules.folders);
    String folder = Utils.getLocalDir(conf);
    // Unlike a file of java.io.File, nobody else can read it.
    Path made = Files.createTempFile(Paths.get(folder), "pylog-", ".rows", new FileAttribute[0]);
    file = made.toFile();
    out = new FileOutputStream(file);
  }

  /**
   * Encodes records of one partition: those whose numbers are in a part of an array. False, and
   * nothing is encoded, if the file has no room.
   */
  boolean encode(Records records, int[] order, int start, int end) {
    if (isFull) {
      return false;
    }
    int rows = end - start;
    int keyNulls = lay(0, records, true, order, start, end);
    int valueNulls = lay(3, records, false, order, start, end);
    long least = Long.MAX_VALUE;
    long most = Long.MIN_VALUE;
    int at = begin(6, 0);
    room(at + 8 * rows);
    for (int i = start; i < end; i++) {
      long time = records.times[order[i]];
      Platform.putLong(raw, BASE + at, time);
      at += 8;
      least = Math.min(least, time);
      most = Math.max(most, time);
    }
    ends[7] = at;
    for (int i = start; rules.headers >= 0 && !hasHeaders && i < end; i++) {
      UnsafeArrayData headers = records.headers(order[i]);
      hasHeaders = headers != null && headers.numElements() > 0;
    }
    int[] nodes = {rows, keyNulls, rows, valueNulls, rows, 0};
    if (hasHeaders) {
      nodes = layHeaders(nodes, records, order, start, end);
    }
    int topic = records.topics[order[start]];
    if (batches.remaining() < ENTRY) {
      batches = little(2 * batches.capacity()).put((ByteBuffer) batches.flip());
    }
    int entry = batches.position();
    batches.putInt(topic).putInt(records.partitions[order[start]]).putInt(rows);
    batches.putInt((hasHeaders ? HEADERS : 0) | (keyNulls > 0 ? KEYLESS : 0));
    batches.putLong(least).putLong(most);
    if (!write(rules.topics[topic], nodes)) {
      batches.position(entry);
      return false;
    }
    return true;
  }

  /** Makes a buffer of that many bytes, and returns where the next one starts. */
  private int begin(int buffer, int bytes) {
    int start = buffer == 0 ? 0 : ends[buffer - 1];
    room(start + bytes);
    ends[buffer] = start + bytes;
    return ends[buffer];
  }

  private void room(int bytes) {
    if (bytes > raw.length) {
      raw = Arrays.copyOf(raw, Math.max(2 * raw.length, bytes));
    }
  }

  /** The buffers of a binary column: bits of what is there, offsets, bytes. Returns its nulls. */
  private int lay(int buffer, Records records, boolean ofKeys, int[] order, int start, int end) {
    int rows = end - start;
    int[] lengths = ofKeys ? records.keys : records.values;
    int nulls = 0;
    int total = 0;
    for (int i = start; i < end; i++) {
      int length = lengths[order[i]];
      nulls += length < 0 ? 1 : 0;
      total += Math.max(length, 0);
    }
    int bits = buffer == 0 ? 0 : ends[buffer - 1];
    int offsets = begin(buffer, nulls == 0 ? 0 : (rows + 7) / 8);
    int bytes = begin(buffer + 1, 4 * (rows + 1));
    begin(buffer + 2, total);
    Arrays.fill(raw, bits, offsets, (byte) 0);
    Platform.putInt(raw, BASE + offsets, 0);
    int at = 0;
    for (int i = start; i < end; i++) {
      int row = order[i];
      int length = lengths[row];
      if (length > 0) {
        int from = records.starts[row] + (ofKeys ? 0 : Math.max(records.keys[row], 0));
        System.arraycopy(records.data, from, raw, bytes + at, length);
        at += length;
      }
      int number = i - start;
      if (nulls > 0 && length >= 0) {
        set(bits, number);
      }
      Platform.putInt(raw, BASE + offsets + 4L * (number + 1), at);
    }
    return nulls;
  }

  private void set(int bits, int number) {
    raw[bits + (number >> 3)] |= (byte) (1 << (number & 7));
  }

  /** The buffers of headers: lists of structs of a key and a value. Returns all nodes. */
  private int[] layHeaders(int[] before, Records records, int[] order, int start, int end) {
    int rows = end - start;
    int nulls = 0;
    int count = 0;
    int valueNulls = 0;
    int keyBytes = 0;
    int valueBytes = 0;
    for (int i = start; i < end; i++) {
      UnsafeArrayData headers = records.headers(order[i]);
      nulls += headers == null ? 1 : 0;
      for (int j = 0; headers != null && j < headers.numElements(); j++) {
        UnsafeRow header = headers.getStruct(j, 2);
        count++;
        keyBytes += (int) header.getLong(0);
        valueBytes += (int) header.getLong(1);
        valueNulls += header.isNullAt(1) ? 1 : 0;
      }
    }
    int bits = ends[7];
    int lists = begin(8, nulls == 0 ? 0 : (rows + 7) / 8);
    begin(9, 4 * (rows + 1));
    begin(10, 0);
    int keyEnds = begin(11, 0);
    int keys = begin(12, 4 * (count + 1));
    int valueBits = begin(13, keyBytes);
    int valueEnds = begin(14, valueNulls == 0 ? 0 : (count + 7) / 8);
    int values = begin(15, 4 * (count + 1));
    begin(16, valueBytes);
    Arrays.fill(raw, bits, lists + 4, (byte) 0);
    Arrays.fill(raw, keyEnds, keyEnds + 4, (byte) 0);
    Arrays.fill(raw, valueBits, valueEnds + 4, (byte) 0);
    int number = 0;
    int keyAt = keys;
    int valueAt = values;
    for (int i = start; i < end; i++) {
      UnsafeArrayData headers = records.headers(order[i]);
      if (nulls > 0 && headers != null) {
        set(bits, i - start);
      }
      for (int j = 0; headers != null && j < headers.numElements(); j++) {
        UnsafeRow header = headers.getStruct(j, 2);
        keyAt = copy(header, 0, keyAt);
        valueAt = copy(header, 1, valueAt);
        if (valueNulls > 0 && !header.isNullAt(1)) {
          set(valueBits, number);
        }
        number++;
        Platform.putInt(raw, BASE + keyEnds + 4L * number, keyAt - keys);
        Platform.putInt(raw, BASE + valueEnds + 4L * number, valueAt - values);
      }
      Platform.putInt(raw, BASE + lists + 4L * (i - start + 1), number);
    }
    int[] nodes = Arrays.copyOf(before, before.length + 8);
    int[] more = {rows, nulls, count, 0, count, 0, count, valueNulls};
    System.arraycopy(more, 0, nodes, before.length, more.length);
    return nodes;
  }

  /** Copies a field, and returns its end. */
  private int copy(UnsafeRow row, int field, int to) {
    long found = row.getLong(field);
    long from = row.getBaseOffset() + (found >>> 32);
    Platform.copyMemory(row.getBaseObject(), from, raw, BASE + to, (int) found);
    return to + (int) found;
  }

  /** Writes the message of the buffers, and notes it; false if that fails. */
  private boolean write(TopicRules topic, int[] nodes) {
    lz4 = topic.codec == WriteRules.LZ4 ? new Lz4Frame(topic.level) : null;
    if (lz4 == null) {
      zstd.setLevel(topic.level);
    }
    int[] lengths = new int[hasHeaders ? ALL_BUFFERS : BUFFERS];
    int size = fill(lengths);
    byte[] head = head(nodes, lengths, size, topic.codec);
    CRC32C crc = new CRC32C();
    crc.update(head, 0, head.length);
    crc.update(body, 0, size);
    try {
      if (out == null) {
        open();
      }
      out.write(head, 0, head.length);
      out.write(body, 0, size);
    } catch (IOException error) {
      isFull = true;
      PylogWriter.LOG.warn(
          "Python writes the other rows of this task: {}: {}", file, error.toString());
      return false;
    }
    batches.putLong(position).putLong(head.length + size).putLong(crc.getValue());
    position += head.length + size;
    return true;
  }

  /** Fills the body, and tells the lengths of its buffers; returns its size. */
  private int fill(int[] lengths) {
    int at = 0;
    for (int i = 0; i < lengths.length; i++) {
      int start = i == 0 ? 0 : ends[i - 1];
      int length = ends[i] - start;
      int most = at + 24 + bound(length);
      if (most > body.length) {
        body = Arrays.copyOf(body, Math.max(2 * body.length, most));
      }
      lengths[i] = length == 0 ? 0 : packed(at, start, length);
      int end = at + lengths[i];
      at = padded(end);
      Arrays.fill(body, end, at, (byte) 0);
    }
    return at;
  }

  private int bound(int length) {
    return lz4 == null ? (int) Zstd.compressBound(length) : lz4.bound(length);
  }

  private int copied(int at, int start, int length) {
    System.arraycopy(raw, start, body, at, length);
    return length;
  }

  /** A compressed buffer begins with its raw length; -1: it is as it was, which is shorter. */
  private int packed(int at, int start, int length) {
    int room = body.length - at - 8;
    int found =
        lz4 == null
            ? zstd.compressByteArray(body, at + 8, room, raw, start, length)
            : lz4.compress(raw, start, length, body, at + 8);
    Platform.putLong(body, BASE + at, found < length ? length : -1);
    return 8 + (found < length ? found : copied(at + 8, start, length));
  }

  /** The head of a message: mark, length, and metadata. */
  private static byte[] head(int[] counts, int[] lengths, int size, int codec) {
    FlatBufferBuilder builder = new FlatBufferBuilder(512);
    RecordBatch.startNodesVector(builder, counts.length / 2);
    for (int i = counts.length - 2; i >= 0; i -= 2) {
      FieldNode.createFieldNode(builder, counts[i], counts[i + 1]);
    }
    int nodes = builder.endVector();
    int at = size;
    RecordBatch.startBuffersVector(builder, lengths.length);
    for (int i = lengths.length - 1; i >= 0; i--) {
      at -= padded(lengths[i]);
      Buffer.createBuffer(builder, at, lengths[i]);
    }
    int buffers = builder.endVector();
    byte type = codec == WriteRules.ZSTD ? CompressionType.ZSTD : CompressionType.LZ4_FRAME;
    int compression =
        BodyCompression.createBodyCompression(builder, type, BodyCompressionMethod.BUFFER);
    RecordBatch.startRecordBatch(builder);
    RecordBatch.addLength(builder, counts[0]);
    RecordBatch.addNodes(builder, nodes);
    RecordBatch.addBuffers(builder, buffers);
    RecordBatch.addCompression(builder, compression);
    int batch = RecordBatch.endRecordBatch(builder);
    Message.startMessage(builder);
    Message.addVersion(builder, MetadataVersion.V5);
    Message.addHeaderType(builder, MessageHeader.RecordBatch);
    Message.addHeader(builder, batch);
    Message.addBodyLength(builder, size);
    builder.finish(Message.endMessage(builder));
    byte[] metadata = builder.sizedByteArray();
    int length = padded(metadata.length);
    return little(8 + length).putInt(-1).putInt(length).put(metadata).array();
  }

  private static int padded(int length) {
    return (length + 7) & ~7;
  }

  static ByteBuffer little(int bytes) {
    return ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
  }

  /** The file, which is complete; empty if there is none. */
  String finish() throws IOException {
    if (out == null) {
      return "";
    }
    out.close();
    return file.getPath();
  }

  /** Where the messages are in the file, and what they have. */
  byte[] batches() {
    return Arrays.copyOf(batches.array(), batches.position());
  }

  void close() {
    zstd.close();
    if (out == null) {
      return;
    }
    try {
      out.close();
    } catch (IOException error) {
      PylogWriter.LOG.debug("{}: {}", file, error);
    }
    file.delete();
  }
}

/** Compresses to lz4 frames with independent blocks. */
final class Lz4Frame {
  /** Mark, flags, the largest size of a block, and the checksum of these two bytes. */
  private static final byte[] HEAD = {4, 0x22, 0x4d, 0x18, 0x60, 0x70, 0x73};

  private static final int BLOCK = 4 << 20;

  /** Of the length of a block that is not compressed. */
  private static final int PLAIN = 0x80000000;

  private final LZ4Compressor compressor;

  Lz4Frame(int level) {
    LZ4Factory made = LZ4Factory.fastestInstance();
    compressor = level < 3 ? made.fastCompressor() : made.highCompressor(level);
  }

  int bound(int length) {
    int blocks = (length + BLOCK - 1) / BLOCK;
    return HEAD.length + 4 + blocks * 4 + length + length / 255 + 16 * blocks;
  }

  /** Returns the length of the frame. */
  int compress(byte[] raw, int start, int length, byte[] to, int at) {
    ByteBuffer out = ByteBuffer.wrap(to).order(ByteOrder.LITTLE_ENDIAN);
    out.position(at);
    out.put(HEAD);
    for (int done = 0; done < length; done += BLOCK) {
      int size = Math.min(BLOCK, length - done);
      int place = out.position() + 4;
      int found = compressor.compress(raw, start + done, size, to, place, to.length - place);
      if (found < size) {
        out.putInt(found);
      } else {
        found = size;
        out.putInt(size | PLAIN);
        System.arraycopy(raw, start + done, to, place, size);
      }
      out.position(place + found);
    }
    out.putInt(0);
    return out.position() - at;
  }
}

/** The rows that Python gets. The first of them has what is encoded; it may be nothing else. */
final class RestRows implements Iterator<Object> {
  private static final int FLAGS = 8;
  private static final int ROW = 1;
  private final WriteRules rules;
  private final byte[] head;
  private final Records records;
  private int at;
  private InternalRow row;
  private final Iterator<Object> rest;
  private boolean isBegun;

  RestRows(
      WriteRules rules, byte[] head, Records records, InternalRow row, Iterator<Object> rest) {
    this.rules = rules;
    this.head = head;
    this.records = records;
    this.row = row;
    this.rest = rest;
  }

  /** What is encoded: the number of rows, a flag, and the file with its batches. */
  static byte[] head(long before, String file, byte[] batches) {
    byte[] path = file.getBytes(StandardCharsets.UTF_8);
    ByteBuffer all = BatchEncoder.little(FLAGS + 5 + path.length + batches.length);
    all.putLong(before).put((byte) 0);
    all.putInt(path.length).put(path).put(batches);
    return all.array();
  }

  @Override
  public boolean hasNext() {
    return !isBegun || hasRow();
  }

  private boolean hasRow() {
    return at < records.count || row != null || rest.hasNext();
  }

  @Override
  public Object next() {
    boolean isRow = hasRow();
    GenericInternalRow found = isRow ? row() : new GenericInternalRow(rules.columns.length() + 1);
    if (!isBegun) {
      isBegun = true;
      head[FLAGS] |= (byte) (isRow ? ROW : 0);
      found.update(rules.columns.length(), head);
    }
    return found;
  }

  private GenericInternalRow row() {
    if (at < records.count) {
      return records.row(at++);
    }
    InternalRow from = row == null ? (InternalRow) rest.next() : row;
    row = null;
    StructField[] columns = rules.columns.fields();
    GenericInternalRow found = new GenericInternalRow(columns.length + 1);
    for (int i = 0; i < columns.length; i++) {
      int index = rules.indexes[i];
      found.update(i, from.isNullAt(index) ? null : from.get(index, columns[i].dataType()));
    }
    return found;
  }
}
