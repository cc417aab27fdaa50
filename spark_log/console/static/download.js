// The records that are shown, as a file.

import { get } from "./api.js";
import { textOf } from "./record.js";

const COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"];
const data = (value) => (value === null ? null : value.text ?? { base64: value.base64 });
const isCut = (row) => [row.key, row.value, ...row.headers.flat()].some((one) => one?.cut);

/** Bytes that are not UTF-8 as base64; what is too long also for a single record is named in `cut`. */
function object(topic, row) {
  const cut = ["key", "value"].filter((name) => row[name]?.cut);
  return { topic, partition: row.partition, offset: row.offset, timestamp: row.timestamp, key: data(row.key), value: data(row.value),
    headers: row.headers.map(([name, value]) => [textOf(name), data(value)]), ...(cut.length && { cut }) };
}

export const asLines = (topic, rows) => rows.map((row) => `${JSON.stringify(object(topic, row))}\n`).join("");

export function asCsv(topic, rows) {
  const text = (value) => (value === null ? "" : typeof value === "object" ? value.base64 ?? JSON.stringify(value) : String(value));
  const quoted = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const lines = rows.map((row) => object(topic, row)).map((one) => COLUMNS.map((name) => quoted(text(one[name]))));
  return [COLUMNS, ...lines].map((cells) => `${cells.join(",")}\r\n`).join("");
}

export async function download(topic, shown, make, kind) {
  const whole = [];
  for (const row of shown) {
    whole.push((isCut(row) && (await get("record", { topic, partition: row.partition, offset: row.offset })).record) || row);
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([make(topic, whole)], { type: "text/plain" }));
  link.download = `${topic}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
