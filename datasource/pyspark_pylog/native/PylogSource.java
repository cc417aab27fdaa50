package io.pylog.spark;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.IsNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.Not;
import org.apache.spark.sql.sources.Or;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Plans reads and writes of {@code format("pylog")} on the driver.
 *
 * <p>Spark's own classes for a Python source read all columns of all records, and reject update
 * mode. These wrap them: a scan reads the columns of its query, and a filter becomes the option
 * {@code where}. Spark compiles this file when a session registers pylog, so it uses only what
 * Janino understands: no lambdas, and casts where generic types would be inferred.
 */
public final class PylogSource implements TableProvider, DataSourceRegister {
  static final String NAME = "pylog";
  static final String OPTION = "pushDown";
  static final String SETTING = "spark.pylog.pushDown";
  private static final String NATIVE_OPTION = "nativeRead";
  private static final String NATIVE_SETTING = "spark.pylog.nativeRead";
  private static volatile NativeReader reader;
  private static volatile NativeWriter writer;

  private final PythonDataSourceV2 python = python();

  @Override
  public String shortName() {
    return NAME;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return python.inferSchema(options);
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> options) {
    return new PylogTable(python, python.getTable(schema, partitioning, options), schema);
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  static PythonDataSourceV2 python() {
    PythonDataSourceV2 made = new PythonDataSourceV2();
    made.setShortName(NAME);
    return made;
  }

  /**
   * Whether a query is planned here; otherwise it is planned as Spark plans other Python sources.
   */
  static boolean pushesDown(CaseInsensitiveStringMap options) {
    return isSet(options, OPTION, SETTING);
  }

  private static boolean isSet(CaseInsensitiveStringMap options, String option, String setting) {
    String value = SQLConf.get().getConfString(setting, "true");
    if (!value.equalsIgnoreCase("true") && !value.equalsIgnoreCase("false")) {
      throw new IllegalArgumentException(
          "setting " + setting + ": '" + value + "' is not true or false");
    }
    return options.getBoolean(option, Boolean.parseBoolean(value));
  }

  static void setReader(NativeReader made) {
    reader = made;
  }

  static void setWriter(NativeWriter made) {
    writer = made;
  }

  /** What encodes the rows of a write; null if nothing does. */
  static NativeWriter writer(CaseInsensitiveStringMap options) {
    return isSet(options, NATIVE_OPTION, NATIVE_SETTING) ? writer : null;
  }

  /** What reads a batch or a stream without Python; null if nothing does. */
  static NativeReader reader(
      StructType columns, CaseInsensitiveStringMap options, boolean streaming) {
    NativeReader found = reader;
    boolean reads =
        isSet(options, NATIVE_OPTION, NATIVE_SETTING)
            && found != null
            && found.reads(columns, options, streaming);
    return reads ? found : null;
  }

  /** Reads without Python, which plans ({@code PylogReader.java}). */
  public interface NativeReader {
    /** Whether it reads these columns of this log. */
    boolean reads(StructType columns, CaseInsensitiveStringMap options, boolean streaming);

    /**
     * A batch with the rows of another one, as columns.
     *
     * @param exactly the condition {@code where} is not evaluated again by Spark
     */
    Batch batch(
        Batch rows, StructType columns, CaseInsensitiveStringMap options, boolean exactly);

    /** A stream with the rows of another one, as columns. */
    MicroBatchStream stream(
        MicroBatchStream rows, StructType columns, CaseInsensitiveStringMap options);
  }

  /** Encodes rows for Python, which writes them ({@code PylogWriter.java}). */
  public interface NativeWriter {
    /** A write of the same rows. */
    BatchWrite batch(BatchWrite python, LogicalWriteInfo info);

    /** A write of the same rows of each micro-batch. */
    StreamingWrite stream(StreamingWrite python, LogicalWriteInfo info);
  }
}

/** What a {@code load()} or a write refers to. */
final class PylogTable implements SupportsRead, SupportsWrite {
  /**
   * Scans of one frame whose plans are kept: a query that is run again need not be planned again.
   */
  private static final int KEPT = 4;

  private final PythonDataSourceV2 python;
  private final Table inner;
  private final StructType schema;
  private final Map<String, PythonDataSourceV2> planned =
      new LinkedHashMap<String, PythonDataSourceV2>();

  PylogTable(PythonDataSourceV2 python, Table inner, StructType schema) {
    this.python = python;
    this.inner = inner;
    this.schema = schema;
  }

  @Override
  public String name() {
    return PylogSource.NAME;
  }

  @Override
  public StructType schema() {
    return schema;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return inner.capabilities();
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    ScanBuilder builder = ((SupportsRead) inner).newScanBuilder(options);
    if (!PylogSource.pushesDown(options)) {
      return builder;
    }
    return Positions.areFixed(options)
        ? new PylogScanBuilder(this, builder, schema, options)
        : new WholeScanBuilder(builder, schema, options);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    WriteBuilder builder = ((SupportsWrite) inner).newWriteBuilder(info);
    return PylogSource.pushesDown(info.options()) ? new PylogWriteBuilder(builder, info) : builder;
  }

  /** A scan with its own source: Spark keeps one plan for each source, whatever the query is. */
  synchronized Scan scan(StructType columns, CaseInsensitiveStringMap options, String where) {
    String key = columns.json() + where;
    PythonDataSourceV2 source = (PythonDataSourceV2) planned.remove(key);
    if (source == null) {
      source = where.isEmpty() ? new SameOptions(python, schema) : PylogSource.python();
    }
    planned.put(key, source);
    if (planned.size() > KEPT) {
      planned.remove((String) planned.keySet().iterator().next());
    }
    Table table = source.getTable(columns, new Transform[0], options.asCaseSensitiveMap());
    return ((SupportsRead) table).newScanBuilder(options).build();
  }
}

/** A source for other columns, whose options were already checked. */
final class SameOptions extends PythonDataSourceV2 {
  private final PythonDataSourceV2 first;
  private final StructType schema;

  SameOptions(PythonDataSourceV2 first, StructType schema) {
    this.first = first;
    this.schema = schema;
    setShortName(PylogSource.NAME);
  }

  @Override
  public PythonDataSourceCreationResult getOrCreateDataSourceInPython(
      String name, CaseInsensitiveStringMap options, scala.Option<StructType> columns) {
    return first.getOrCreateDataSourceInPython(name, options, scala.Option.apply(schema));
  }
}

/** Learns what a query needs. */
final class PylogScanBuilder implements SupportsPushDownFilters, SupportsPushDownRequiredColumns {
  /** The positions of groups, which are few, and for which {@code where} takes less. */
  private static final String PROGRESS = "__consumer_offsets";

  private final PylogTable table;
  private final ScanBuilder inner;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;
  private final List<Filter> pushed = new ArrayList<Filter>();
  private final List<String> conditions = new ArrayList<String>();
  private StructType columns;

  PylogScanBuilder(
      PylogTable table, ScanBuilder inner, StructType schema, CaseInsensitiveStringMap options) {
    this.table = table;
    this.inner = inner;
    this.schema = schema;
    this.options = options;
    this.columns = schema;
  }

  @Override
  public void pruneColumns(StructType wanted) {
    columns = Columns.pruned(schema, wanted);
  }

  /**
   * Spark evaluates all filters again: {@code where} only avoids to read what they would drop.
   * Spark adds IS NOT NULL to each comparison, which implies it.
   */
  @Override
  public Filter[] pushFilters(Filter[] filters) {
    if (asksFor("subscribe", PROGRESS) || asksFor("assign", PROGRESS)) {
      return filters;
    }
    for (int i = 0; i < filters.length; i++) {
      String condition = Conditions.of(filters[i], schema);
      if (condition != null && !(filters[i] instanceof IsNotNull)) {
        pushed.add(filters[i]);
        conditions.add(condition);
      }
    }
    return filters;
  }

  private boolean asksFor(String option, String topic) {
    return options.containsKey(option) && ((String) options.get(option)).contains(topic);
  }

  @Override
  public Filter[] pushedFilters() {
    return (Filter[]) pushed.toArray(new Filter[0]);
  }

  @Override
  public Scan build() {
    String where = String.join(" AND ", conditions);
    return new PylogScan(table, inner, columns, options, where);
  }
}

/** Reads all columns of all records, for a load that is planned once for all of its queries. */
final class WholeScanBuilder implements ScanBuilder {
  private final ScanBuilder inner;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;

  WholeScanBuilder(ScanBuilder inner, StructType schema, CaseInsensitiveStringMap options) {
    this.inner = inner;
    this.schema = schema;
    this.options = options;
  }

  @Override
  public Scan build() {
    return new PylogScan(null, inner, schema, options, "");
  }
}

/** A batch read of some columns, or a stream of all. */
final class PylogScan implements Scan {
  /** Plans the scan by its columns; null: the scan of all columns is used. */
  private final PylogTable table;

  private final ScanBuilder inner;
  private final StructType columns;
  private final CaseInsensitiveStringMap options;
  private final String where;
  private Scan batch;
  private boolean asked;
  private PylogSource.NativeReader reader;

  PylogScan(
      PylogTable table,
      ScanBuilder inner,
      StructType columns,
      CaseInsensitiveStringMap options,
      String where) {
    this.table = table;
    this.inner = inner;
    this.columns = columns;
    this.options = options;
    this.where = where;
  }

  @Override
  public StructType readSchema() {
    return columns;
  }

  @Override
  public String description() {
    if (table == null && reader() == null) {
      return scan().description();
    }
    String read = "pylog (" + Columns.named(columns) + ")";
    String path = reader() == null ? "" : " natively";
    return where.isEmpty() ? read + path : read + " where " + where + path;
  }

  @Override
  public Batch toBatch() {
    Batch rows = scan().toBatch();
    PylogSource.NativeReader found = reader();
    boolean own = options.containsKey("where");
    return found == null ? rows : found.batch(rows, columns, withWhere(), own);
  }

  private PylogSource.NativeReader reader() {
    return reader(false);
  }

  /** Null if Python reads this, which depends on the own option {@code where}, not on filters. */
  private synchronized PylogSource.NativeReader reader(boolean streaming) {
    if (!asked) {
      asked = true;
      reader = PylogSource.reader(columns, options, streaming);
    }
    return reader;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    PylogSource.NativeReader found = reader(true);
    MicroBatchStream rows = inner.build().toMicroBatchStream(checkpoint);
    return found == null ? rows : found.stream(rows, columns, options);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return scan().supportedCustomMetrics();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return scan().reportDriverMetrics();
  }

  /** Not by partition: Spark would plan them to explain a query. */
  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return reader() == null ? scan().columnarSupportMode() : ColumnarSupportMode.SUPPORTED;
  }

  private Scan scan() {
    if (batch == null) {
      batch = table == null ? inner.build() : table.scan(columns, withWhere(), where);
    }
    return batch;
  }

  private CaseInsensitiveStringMap withWhere() {
    if (where.isEmpty()) {
      return options;
    }
    String own = (String) options.get("where");
    Map<String, String> all = new HashMap<String, String>();
    Object[] names = options.asCaseSensitiveMap().keySet().toArray();
    for (int i = 0; i < names.length; i++) {
      String name = (String) names[i];
      if (!name.equalsIgnoreCase("where")) {
        all.put(name, (String) options.get(name));
      }
    }
    all.put("where", own == null ? where : "(" + own + ") AND " + where);
    return new CaseInsensitiveStringMap(all);
  }
}

/** Update mode appends, as a changelog. */
final class PylogWriteBuilder implements SupportsTruncate, SupportsStreamingUpdateAsAppend {
  private final WriteBuilder inner;
  private final LogicalWriteInfo info;

  PylogWriteBuilder(WriteBuilder inner, LogicalWriteInfo info) {
    this.inner = inner;
    this.info = info;
  }

  @Override
  public WriteBuilder truncate() {
    ((SupportsTruncate) inner).truncate();
    return this;
  }

  @Override
  public Write build() {
    PylogSource.NativeWriter writer = PylogSource.writer(info.options());
    return writer == null ? inner.build() : new PylogWrite(inner.build(), writer, info);
  }
}

/** A write whose rows are encoded in the JVM. */
final class PylogWrite implements Write {
  private final Write inner;
  private final PylogSource.NativeWriter writer;
  private final LogicalWriteInfo info;

  PylogWrite(Write inner, PylogSource.NativeWriter writer, LogicalWriteInfo info) {
    this.inner = inner;
    this.writer = writer;
    this.info = info;
  }

  @Override
  public String description() {
    return inner.description();
  }

  @Override
  public BatchWrite toBatch() {
    return writer.batch(inner.toBatch(), info);
  }

  @Override
  public StreamingWrite toStreaming() {
    return writer.stream(inner.toStreaming(), info);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return inner.supportedCustomMetrics();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return inner.reportDriverMetrics();
  }

  @Override
  public String toString() {
    return inner.toString();
  }
}

/** Where a load starts and ends. */
final class Positions {
  private Positions() {}

  /**
   * Whether they mean the same whenever a scan is planned. Others, such as {@code latest-10}, a
   * time, or an end that is not there yet, are looked up once for all scans of a frame, so its
   * scans cannot have separate plans.
   */
  static boolean areFixed(CaseInsensitiveStringMap options) {
    Object[] names = options.keySet().toArray();
    for (int i = 0; i < names.length; i++) {
      String name = (String) names[i];
      String value = ((String) options.get(name)).trim();
      if (name.startsWith("starting") && !(name.equals("startingoffsets") && isFixedStart(value))
          || name.startsWith("ending")
              && !(name.equals("endingoffsets") && value.equalsIgnoreCase("latest"))) {
        return false;
      }
    }
    return true;
  }

  /** Whether it is the word, or JSON of numbers. */
  private static boolean isFixedStart(String value) {
    String numbers = value.replaceAll("\"[^\"]*\"\\s*:", " ").replaceAll("-2\\b", " ");
    return value.equalsIgnoreCase("earliest") || numbers.matches("[\\s{},0-9]*");
  }
}

/** The columns of a scan. */
final class Columns {
  private Columns() {}

  /** The wanted columns, whole; of the struct {@code value} only the wanted fields. */
  static StructType pruned(StructType schema, StructType wanted) {
    return wanted.length() == 0 && schema.length() > 0 ? counted(schema) : some(schema, wanted);
  }

  /** For a query that needs only the number of rows: the column that costs least. */
  private static StructType counted(StructType schema) {
    StructField cheapest = schema.fields()[0];
    for (int i = 0; i < schema.length(); i++) {
      if (schema.fields()[i].name().equals("partition")) {
        cheapest = schema.fields()[i];
      }
    }
    return new StructType(new StructField[] {cheapest});
  }

  private static StructType some(StructType schema, StructType wanted) {
    StructField[] fields = wanted.fields();
    StructField[] found = new StructField[fields.length];
    for (int i = 0; i < fields.length; i++) {
      StructField whole = schema.fields()[schema.fieldIndex(fields[i].name())];
      boolean fits = whole.name().equals("value") && whole.dataType() instanceof StructType;
      found[i] = fits ? inside(whole, fields[i]) : whole;
    }
    return new StructType(found);
  }

  /** Their names, and those of the fields of {@code value}. */
  static String named(StructType columns) {
    List<String> names = new ArrayList<String>();
    for (int i = 0; i < columns.length(); i++) {
      StructField column = columns.fields()[i];
      if (column.name().equals("value") && column.dataType() instanceof StructType) {
        names.add("value: " + String.join(", ", ((StructType) column.dataType()).fieldNames()));
      } else {
        names.add(column.name());
      }
    }
    return String.join(", ", names);
  }

  /** The wanted fields of the struct, each of them whole. */
  private static StructField inside(StructField whole, StructField wanted) {
    StructType all = (StructType) whole.dataType();
    String[] names = ((StructType) wanted.dataType()).fieldNames();
    StructField[] found = new StructField[names.length];
    for (int i = 0; i < names.length; i++) {
      found[i] = all.fields()[all.fieldIndex(names[i])];
    }
    return new StructField(whole.name(), new StructType(found), whole.nullable(), whole.metadata());
  }
}

/** Filters of Spark as conditions of the option {@code where}. */
final class Conditions {
  private static final int VALUES_MAX = 1000;

  /** {@code where} takes about 300 parentheses inside of each other. */
  private static final int DEPTH_MAX = 100;

  private Conditions() {}

  /** The condition, in parentheses; null if a filter, or a part of it, has none. */
  static String of(Filter filter, StructType schema) {
    return of(filter, schema, DEPTH_MAX);
  }

  private static String of(Filter filter, StructType schema, int depth) {
    if (depth == 0) {
      return null;
    }
    if (filter instanceof And) {
      String left = of(((And) filter).left(), schema, depth - 1);
      return joined(left, "AND", of(((And) filter).right(), schema, depth - 1));
    }
    if (filter instanceof Or) {
      String left = of(((Or) filter).left(), schema, depth - 1);
      return joined(left, "OR", of(((Or) filter).right(), schema, depth - 1));
    }
    if (filter instanceof Not) {
      String child = of(((Not) filter).child(), schema, depth - 1);
      return child == null ? null : "(NOT " + child + ")";
    }
    if (filter instanceof In) {
      return in((In) filter, schema);
    }
    if (filter instanceof IsNull) {
      return nulls(((IsNull) filter).attribute(), "IS NULL", schema);
    }
    if (filter instanceof IsNotNull) {
      return nulls(((IsNotNull) filter).attribute(), "IS NOT NULL", schema);
    }
    return comparison(filter, schema);
  }

  private static String joined(String left, String word, String right) {
    return left == null || right == null ? null : "(" + left + " " + word + " " + right + ")";
  }

  private static String comparison(Filter filter, StructType schema) {
    if (filter instanceof EqualTo) {
      EqualTo f = (EqualTo) filter;
      return compared(f.attribute(), "=", f.value(), schema);
    }
    if (filter instanceof GreaterThan) {
      GreaterThan f = (GreaterThan) filter;
      return compared(f.attribute(), ">", f.value(), schema);
    }
    if (filter instanceof GreaterThanOrEqual) {
      GreaterThanOrEqual f = (GreaterThanOrEqual) filter;
      return compared(f.attribute(), ">=", f.value(), schema);
    }
    if (filter instanceof LessThan) {
      LessThan f = (LessThan) filter;
      return compared(f.attribute(), "<", f.value(), schema);
    }
    if (filter instanceof LessThanOrEqual) {
      LessThanOrEqual f = (LessThanOrEqual) filter;
      return compared(f.attribute(), "<=", f.value(), schema);
    }
    return null;
  }

  private static String compared(String name, String sign, Object value, StructType schema) {
    StructField field = field(name, schema);
    String literal = field == null ? null : literal(field.dataType(), value);
    return literal == null ? null : "(" + quoted(field.name()) + " " + sign + " " + literal + ")";
  }

  private static String in(In filter, StructType schema) {
    StructField field = field(filter.attribute(), schema);
    Object[] values = filter.values();
    if (field == null || values.length == 0 || values.length > VALUES_MAX) {
      return null;
    }
    String[] literals = new String[values.length];
    for (int i = 0; i < values.length; i++) {
      literals[i] = literal(field.dataType(), values[i]);
    }
    boolean all =
        !Arrays.asList(literals).contains(null) && !(field.dataType() instanceof TimestampType);
    return all ? "(" + quoted(field.name()) + " IN (" + String.join(", ", literals) + "))" : null;
  }

  private static String nulls(String name, String test, StructType schema) {
    StructField field = field(name, schema);
    boolean known = field != null && isCompared(field.dataType()) && !isOfEachRecord(field.name());
    return known ? "(" + quoted(field.name()) + " " + test + ")" : null;
  }

  private static boolean isOfEachRecord(String name) {
    return name.equals("timestamp") || name.equals("offset") || name.equals("partition");
  }

  /**
   * A column, or a field of the struct {@code value}; null for one that {@code where} does not
   * take.
   */
  private static StructField field(String name, StructType schema) {
    StructField[] fields = schema.fields();
    for (int i = 0; i < fields.length; i++) {
      DataType type = fields[i].dataType();
      if (fields[i].name().equals(name)) {
        return isRecordColumn(name) ? null : fields[i];
      }
      if (fields[i].name().equals("value")
          && type instanceof StructType
          && name.startsWith("value.")) {
        return inside((StructType) type, name.substring("value.".length()));
      }
    }
    return null;
  }

  /** In {@code where}, a name that a record has, too, means the record's column. */
  private static StructField inside(StructType value, String name) {
    StructField[] fields = value.fields();
    for (int i = 0; i < fields.length; i++) {
      if (fields[i].name().equals(name)) {
        return isOfRecord(name) ? null : fields[i];
      }
    }
    return null;
  }

  /**
   * Columns of a record that {@code where} does not know; those of a topic's schema have other
   * names.
   */
  private static boolean isRecordColumn(String name) {
    return name.equals("key")
        || name.equals("value")
        || name.equals("topic")
        || name.equals("timestampType")
        || name.equals("headers");
  }

  /** Whether a record has a column of that name, in any case. */
  private static boolean isOfRecord(String name) {
    String lower = name.toLowerCase(java.util.Locale.ROOT);
    return isRecordColumn(lower) || lower.equals("timestamptype") || isOfEachRecord(lower);
  }

  private static boolean isCompared(DataType type) {
    return isInteger(type)
        || type instanceof DecimalType
        || type instanceof FloatType
        || type instanceof DoubleType
        || type instanceof StringType
        || type instanceof BooleanType
        || type instanceof DateType
        || type instanceof TimestampType;
  }

  private static boolean isInteger(DataType type) {
    return type instanceof ByteType
        || type instanceof ShortType
        || type instanceof IntegerType
        || type instanceof LongType;
  }

  private static String literal(DataType type, Object value) {
    if (isInteger(type) && value instanceof Number
        || type instanceof BooleanType && value instanceof Boolean) {
      return value.toString();
    }
    if (type instanceof DecimalType && value instanceof BigDecimal) {
      return ((BigDecimal) value).toPlainString();
    }
    if (type instanceof DoubleType && value instanceof Double
        || type instanceof FloatType && value instanceof Float) {
      return fraction(((Number) value).doubleValue());
    }
    if (type instanceof StringType && value instanceof String) {
      return text((String) value);
    }
    if (type instanceof DateType && value instanceof java.sql.Date) {
      return day(((java.sql.Date) value).toLocalDate());
    }
    if (type instanceof DateType && value instanceof java.time.LocalDate) {
      return day((java.time.LocalDate) value);
    }
    if (type instanceof TimestampType && value instanceof java.sql.Timestamp) {
      return moment(((java.sql.Timestamp) value).toInstant());
    }
    if (type instanceof TimestampType && value instanceof java.time.Instant) {
      return moment((java.time.Instant) value);
    }
    return null;
  }

  /** All digits of a number, with a point: so it is not taken for an integer. */
  private static String fraction(double value) {
    double size = Math.abs(value);
    if (size != 0 && !(size > 1e-9 && size < 1e18)) {
      return null;
    }
    String digits = new BigDecimal(value).toPlainString();
    return digits.contains(".") ? digits : digits + ".0";
  }

  private static String day(java.time.LocalDate day) {
    int year = day.getYear();
    return year < 1583 || year > 9999 ? null : "DATE '" + day + "'";
  }

  /** In UTC; before the Gregorian calendar, two kinds of Java's times differ. */
  private static String moment(java.time.Instant moment) {
    int year = moment.atOffset(java.time.ZoneOffset.UTC).getYear();
    if (year < 1583 || year > 9999) {
      return null;
    }
    java.time.Instant micros = moment.truncatedTo(java.time.temporal.ChronoUnit.MICROS);
    return "TIMESTAMP '" + micros + "'";
  }

  /**
   * Without a condition for texts whose spelling depends on a setting of Spark, or that cannot be
   * passed on.
   */
  private static String text(String value) {
    for (int i = 0; i < value.length(); i++) {
      char c = value.charAt(i);
      if (c < ' ' || c == '\'' || c == '\\' || Character.isSurrogate(c)) {
        return null;
      }
    }
    return "'" + value + "'";
  }

  private static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }
}
