package io.pylog.spark;

import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads what a task would, for tests: the rows as texts. */
public final class SegmentProbe {
  private SegmentProbe() {}

  /** A line for each row; a last one that begins with '!' where Python would read on. */
  public static String read(byte[] plan, String schema) throws Exception {
    StructType columns = (StructType) DataType.fromJson(schema);
    SegmentReader reader = new SegmentReader(plan, columns);
    StringBuilder lines = new StringBuilder();
    try {
      while (isAtRows(reader, lines)) {
        Iterator<InternalRow> rows = ((ColumnarBatch) reader.batch()).rowIterator();
        while (rows.hasNext()) {
          append(lines, (SpecializedGetters) rows.next(), columns);
          lines.append('\n');
        }
      }
    } finally {
      reader.close();
    }
    return lines.toString();
  }

  /**
   * The verdict about each damaged object: '=' for the rows of the whole one, '!' where Python would
   * read on, '?' for other rows. At each place, a byte is another one, or the object ends there.
   */
  public static String damaged(
      byte[] plan, String schema, String path, byte[] object, String places, boolean cut)
      throws Exception {
    Path file = Paths.get(path);
    Files.write(file, object, new OpenOption[0]);
    String whole = read(plan, schema);
    StringBuilder verdicts = new StringBuilder();
    String[] each = places.split(" ");
    for (int i = 0; i < each.length; i++) {
      int at = Integer.parseInt(each[i]);
      byte[] other = Arrays.copyOf(object, cut ? at : object.length);
      if (!cut) {
        other[at] ^= 16;
      }
      Files.write(file, other, new OpenOption[0]);
      String found = read(plan, schema);
      verdicts.append(found.equals(whole) ? '=' : found.contains("!") ? '!' : '?');
    }
    return verdicts.toString();
  }

  /** Only what the reader throws is caught: not what comes of rows that it should not return. */
  private static boolean isAtRows(SegmentReader reader, StringBuilder lines) {
    try {
      return reader.next();
    } catch (Exception error) {
      lines.append('!').append(error);
    } catch (VirtualMachineError error) {
      lines.append('!').append(error);
    }
    return false;
  }

  private static void append(StringBuilder to, SpecializedGetters row, StructType type) {
    StructField[] fields = type.fields();
    to.append('(');
    for (int i = 0; i < fields.length; i++) {
      append(to, row, i, fields[i].dataType());
    }
    to.append(')');
  }

  private static void append(StringBuilder to, SpecializedGetters row, int i, DataType type) {
    to.append(i == 0 ? "" : " ");
    if (row.isNullAt(i)) {
      to.append('-');
    } else if (type instanceof StringType) {
      append(to, row.getUTF8String(i).getBytes());
    } else if (type instanceof BinaryType) {
      append(to, row.getBinary(i));
    } else if (type instanceof StructType) {
      append(to, row.getStruct(i, ((StructType) type).length()), (StructType) type);
    } else if (type instanceof ArrayType) {
      append(to, row.getArray(i), ((ArrayType) type).elementType());
    } else if (type instanceof MapType) {
      MapData map = row.getMap(i);
      append(to, map.keyArray(), ((MapType) type).keyType());
      append(to, map.valueArray(), ((MapType) type).valueType());
    } else {
      to.append(row.get(i, type));
    }
  }

  private static void append(StringBuilder to, ArrayData array, DataType type) {
    to.append('[');
    for (int i = 0; i < array.numElements(); i++) {
      append(to, array, i, type);
    }
    to.append(']');
  }

  private static void append(StringBuilder to, byte[] bytes) {
    to.append('x');
    for (int i = 0; i < bytes.length; i++) {
      to.append(Character.forDigit(bytes[i] >> 4 & 15, 16));
      to.append(Character.forDigit(bytes[i] & 15, 16));
    }
  }
}
