// One record: its row, and all of it below when the row is opened.

import { get } from "./api.js";
import { badge, h } from "./dom.js";
import { bytes, count, time, zone } from "./format.js";
import { isJson, members, pretty } from "./json.js";

const PREVIEW = 240;

/** columns: of a typed topic, or none. */
export function line(topic, row, columns, fail) {
  const cells = [
    h("td", { class: "nowrap soft" }, time(row.timestamp)), h("td", { class: "right" }, count(row.partition)), h("td", { class: "right" }, count(row.offset)),
    h("td", { class: columns.length ? "mono field" : "mono clip key", "data-title": "Key" }, preview(row.key)), data(row.value, columns),
  ];
  const node = h("tr", { class: "row", tabindex: "0", "aria-expanded": "false" }, cells);
  node.addEventListener("click", () => {
    if (String(getSelection())) return;
    const isOpen = node.classList.toggle("open");
    node.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) node.after(detail(topic, row, cells.flat().length, fail));
    else node.nextSibling.remove();
  });
  return node;
}

/** The cells of a value: one for each column, if it has the JSON of them. */
function data(value, columns) {
  const found = columns.length && value && !value.cut ? members(value.text ?? "") : null;
  if (!found) return h("td", { class: "mono clip", "data-title": "Value", colspan: columns.length || 1 }, preview(value));
  return columns.map((name) => h("td", { class: "mono field", "data-title": name }, cell(found.get(name))));
}

function cell(raw) {
  if (raw === undefined || raw === "null") return h("span", { class: "null" }, "null");
  return (raw[0] === '"' ? JSON.parse(raw) : raw).slice(0, PREVIEW);
}

export const textOf = (value) => value.text ?? value.base64;

function preview(value) {
  if (value === null) return h("span", { class: "null" }, "null");
  if (value.bytes === 0) return h("span", { class: "null" }, "empty");
  return textOf(value).slice(0, PREVIEW);
}

function detail(topic, row, width, fail) {
  const left = h("div", { class: "stack" }), right = h("div", { class: "stack" });
  const whole = async () => {
    try {
      const { record } = await get("record", { topic, partition: row.partition, offset: row.offset });
      if (record) fillIn(record);
    } catch (error) { fail(error); }
  };
  function fillIn(one) {
    const key = one.key && (one.key.bytes > 60 || isJson(one.key.text ?? "")) && block("Key", one.key, whole);
    left.replaceChildren(...[block("Value", one.value, whole), key].filter(Boolean));
    right.replaceChildren(facts(one), headers(one.headers));
  }
  fillIn(row);
  return h("tr", { class: "detail" }, h("td", { colspan: width }, h("div", { class: "columns" }, left, right)));
}

const facts = (one) => h("div", { class: "block" }, h("header", {}, "Record"), h("dl", { class: "list" }, [
  ["partition", count(one.partition)], ["offset", String(one.offset)], ["time", `${time(one.timestamp)} ${zone()}`], ["in ms", String(one.timestamp)],
  ["key", one.key ? bytes(one.key.bytes) : "null"], ["value", one.value ? bytes(one.value.bytes) : "null: a tombstone"],
].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));

const headers = (pairs) => h("div", { class: "block" }, h("header", {}, pairs.length === 1 ? "1 header" : `${pairs.length || "No"} headers`),
  pairs.length > 0 && h("dl", { class: "list" }, pairs.map(([name, value]) => [h("dt", {}, textOf(name)), h("dd", { class: "mono" }, preview(value))])));

function block(title, value, whole) {
  if (value === null) return h("div", { class: "block" }, h("header", {}, title), h("pre", {}, h("span", { class: "null" }, "null")));
  const text = textOf(value), json = value.text !== undefined && !value.cut && isJson(text), body = h("pre", { tabindex: "0" });
  let raw = false;
  const draw = () => body.replaceChildren(...(json && !raw ? pretty(text) : [text]));
  const copy = h("button", { class: "small plain", type: "button", onclick: async () => { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; } }, "Copy");
  draw();
  return h("div", { class: "block" },
    h("header", {}, title, badge(value.base64 !== undefined ? "base64" : json ? "JSON" : "text"), value.cut && h("span", {}, `the first ${bytes(text.length)} of ${bytes(value.bytes)}`),
      h("div", { class: "tools" },
        value.cut && h("button", { class: "small plain", type: "button", onclick: whole }, "Load more"),
        json && h("button", { class: "small plain", type: "button", onclick: (event) => { raw = !raw; event.currentTarget.textContent = raw ? "Pretty" : "Raw"; draw(); } }, "Raw"),
        copy)),
    body);
}
