// Browsing: pages of records by offset, time and key, a search, and one record whole.

import { get } from "./api.js";
import { badge, empty, h } from "./dom.js";
import { bytes, compact, count, time } from "./format.js";
import { isJson, pretty } from "./json.js";

const PLACES = [["offset", "Offset"], ["time", "Time"]];
const STARTS = [["newest", "Newest"], ["earliest", "Oldest"], ["now-1h", "Last hour"], ["now-1d", "Last day"], ...PLACES];
const ENDS = [["", "End"], ["now-1h", "An hour ago"], ["now-1d", "A day ago"], ...PLACES];
const PREVIEW = 240;

export function records({ query, fail }, name) {
  const rows = h("tbody"), told = h("span"), place = h("div"), paging = h("div", { class: "tools" });
  const from = bound("from", STARTS, query.from), to = bound("to", ENDS, query.to);
  const partition = h("select", { name: "partition" }, h("option", { value: "" }, "All"));
  const key = h("input", { name: "key", value: query.key ?? "", placeholder: "whole key", class: "number" });
  const search = h("input", { name: "search", value: query.search ?? "", placeholder: "text in keys, values and headers" });
  const limit = h("select", { name: "limit" }, ["25", "50", "100", "200"].map((n) => h("option", { value: n, selected: n === (query.limit ?? "50") }, n)));

  function submit(event) {
    event?.preventDefault();
    const text = from.value();
    go({ from: text === "newest" ? "" : text, to: to.value(), partition: partition.value, key: key.value, search: search.value, limit: limit.value === "50" ? "" : limit.value });
  }

  function go(values) {
    const given = Object.entries(values).filter(([, value]) => value);
    const to = `#/topics/${encodeURIComponent(name)}/records${given.length ? `?${new URLSearchParams(given)}` : ""}`;
    if (to === location.hash) load();
    else location.hash = to;
  }

  async function load() {
    place.setAttribute("aria-busy", "true");
    try {
      draw(await get("records", { topic: name, ...query }));
    } finally {
      place.removeAttribute("aria-busy");
    }
  }

  function draw(found) {
    const searched = Boolean(query.key || query.search), forward = searched || (query.from && query.from !== "newest") || query.cursor;
    const turn = (values) => () => go({ ...query, before: "", cursor: "", ...values });
    rows.replaceChildren(...found.records.map((row) => line(name, row, fail)));
    place.replaceChildren(found.records.length
      ? h("div", { class: "scroll" }, h("table", { class: "records" }, h("thead", {}, h("tr", {},
        ["Time", "Partition", "Offset", "Key", "Value"].map((title, n) => h("th", { scope: "col", class: n === 1 || n === 2 ? "right" : "" }, title)))), rows))
      : nothing(found, searched));
    told.textContent = searched
      ? `${count(found.records.length)} found in ${count(found.read_records)} records, ${bytes(found.read_bytes)}`
      : `${count(found.records.length)} of ${compact(found.total)} records`;
    paging.replaceChildren(...[
      searched && h("button", { class: "small", type: "button", disabled: !found.more, onclick: turn({ cursor: found.newer }) }, "Search on"),
      !searched && h("button", { class: "small", type: "button", disabled: forward ? false : !found.more, onclick: turn({ before: found.older, from: "" }) }, "Older"),
      !searched && h("button", { class: "small", type: "button", disabled: forward ? !found.more : !query.before, onclick: turn({ cursor: found.newer, from: "" }) }, "Newer"),
    ].filter(Boolean));
  }

  const label = (text, field, grow) => h("label", { class: grow ? "grow" : "" }, text, field);
  let loaded = false;
  return {
    node: h("section", { class: "card" },
      h("form", { class: "form", onsubmit: submit },
        label("From", from.node), label("To", to.node), label("Partition", partition), label("Key", key), label("Search", search, true), label("Rows", limit),
        h("button", { class: "primary" }, "Show")),
      place, h("footer", {}, told, paging)),
    async update(found) {
      if (partition.options.length !== Math.min(found.partitions, 1000) + 1) {
        partition.append(...Array.from({ length: Math.min(found.partitions, 1000) }, (_, n) => h("option", { value: n, selected: String(n) === query.partition }, n)));
      }
      const isNewest = !query.from && !query.to && !query.cursor && !query.before && !query.key && !query.search;
      const reading = rows.querySelector("tr.detail") || rows.contains(document.activeElement) || String(getSelection());
      if (loaded && (!isNewest || reading)) return;
      loaded = true;
      await load();
    },
  };
}

// A choice of an end of the range, with a field for an offset or a time.
function bound(name, choices, text = "") {
  const [kind, at] = placeOf(choices, text);
  const select = h("select", { name: `${name}-kind` }, choices.map(([value, title]) => h("option", { value, selected: kind === value }, title)));
  const field = h("input", { name, value: at, "aria-label": "Offset or time", placeholder: "0" });
  function choose() {
    field.type = select.value === "time" ? "datetime-local" : "text";
    if (select.value === "time") field.step = "1";
    field.hidden = !["offset", "time"].includes(select.value);
    field.classList.toggle("number", select.value === "offset");
  }
  select.addEventListener("change", () => { choose(); if (!field.hidden) field.focus(); });
  choose();
  return {
    node: h("span", {}, select, " ", field),
    value: () => select.value === "time" ? `@${new Date(field.value).getTime()}` : select.value === "offset" ? field.value.trim() || "0" : select.value,
  };
}

function placeOf(choices, text) {
  if (choices.some(([value]) => value === text) && text !== "offset" && text !== "time") return [text, ""];
  if (/^\d+$/.test(text)) return ["offset", text];
  if (/^@\d+$/.test(text)) {
    const at = new Date(Number(text.slice(1)));
    return ["time", new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19)];
  }
  return [choices[0][0], ""];
}

function nothing(found, searched) {
  if (searched && found.more) return empty("Nothing found yet", `${count(found.read_records)} records were read. Search on reads the next ones.`);
  if (searched) return empty("Nothing found", "No record of this range matches. Begin earlier, or change the text: upper and lower case differ.");
  if (!found.total) return empty("No records", "Send the first one with", "echo '{\"id\": 1}' | pylog produce TOPIC");
  return empty("No records from here on", "Choose an earlier start.");
}

function line(topic, row, fail) {
  const cells = [
    h("td", { class: "nowrap soft" }, time(row.timestamp)), h("td", { class: "right" }, count(row.partition)), h("td", { class: "right" }, count(row.offset)),
    h("td", { class: "mono clip key", "data-title": "Key" }, preview(row.key)), h("td", { class: "mono clip", "data-title": "Value" }, preview(row.value)),
  ];
  const node = h("tr", { class: "row", tabindex: "0", "aria-expanded": "false" }, cells);
  node.addEventListener("click", () => {
    if (String(getSelection())) return;
    const isOpen = node.classList.toggle("open");
    node.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) node.after(detail(topic, row, fail));
    else node.nextSibling.remove();
  });
  return node;
}

const textOf = (value) => value.text ?? value.base64;

function preview(value) {
  if (value === null) return h("span", { class: "null" }, "null");
  if (value.bytes === 0) return h("span", { class: "null" }, "empty");
  return textOf(value).slice(0, PREVIEW);
}

function detail(topic, row, fail) {
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
  return h("tr", { class: "detail" }, h("td", { colspan: "5" }, h("div", { class: "columns" }, left, right)));
}

const facts = (one) => h("div", { class: "block" }, h("header", {}, "Record"), h("dl", { class: "list" }, [
  ["partition", count(one.partition)], ["offset", String(one.offset)], ["time", time(one.timestamp)], ["in ms", String(one.timestamp)],
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
