// Browsing: pages of records by offset, time and key, a search, and records as they come.

import { get } from "./api.js";
import { empty, h } from "./dom.js";
import { asCsv, asLines, download } from "./download.js";
import { bytes, compact, count, instant, wall, zone } from "./format.js";
import { line } from "./record.js";

const PLACES = [["offset", "Offset"], ["time", "Time"]];
const STARTS = [["newest", "Newest"], ["earliest", "Oldest"], ["now-1h", "Last hour"], ["now-1d", "Last day"], ...PLACES];
const ENDS = [["", "End"], ["now-1h", "An hour ago"], ["now-1d", "A day ago"], ...PLACES];
const LIVE_MS = 1000, LIVE_MAX = 500;

export function records({ query, fail, refresh }, name) {
  const rows = h("tbody"), told = h("span"), place = h("div"), paging = h("div", { class: "tools" });
  const from = bound("from", STARTS, query.from), to = bound("to", ENDS, query.to);
  const partition = h("select", { name: "partition" }, h("option", { value: "" }, "All"));
  const key = h("input", { name: "key", value: query.key ?? "", placeholder: "whole key", class: "number" });
  const search = h("input", { name: "search", value: query.search ?? "", placeholder: "text in keys, values and headers" });
  const filters = () => ({ partition: partition.value, key: key.value, field: field.value, search: search.value });
  const searched = Boolean(query.key || query.search || query.field);
  let shown = [], columns = [], loaded = false, paused = false, skipped = false, topicId = null;
  const field = h("input", { name: "field", value: query.field ?? "", placeholder: "customer.id = c7", title: "A field of JSON, one of = != < <= > >= ~ and a value" });
  const limit = h("select", { name: "limit" }, ["25", "50", "100", "200"].map((n) => h("option", { value: n, selected: n === (query.limit ?? "50") }, n)));

  function submit(event) {
    event?.preventDefault();
    const text = from.value();
    go({ from: text === "newest" ? "" : text, to: to.value(), ...filters(), limit: limit.value === "50" ? "" : limit.value });
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
      const { live, ...asked } = query, found = await get("records", { topic: name, ...asked });
      draw(found);
      if (live) setTimeout(() => follow(found.newer), LIVE_MS);
    } finally {
      place.removeAttribute("aria-busy");
    }
  }

  const made = (found) => found.map((row) => line(name, row, columns, fail));

  function draw(found) {
    const titles = ["Time", "Partition", "Offset", "Key", ...(columns.length ? columns : ["Value"])];
    shown = found.records;
    topicId = found.topic_id;
    rows.replaceChildren(...made(shown));
    place.replaceChildren(shown.length || query.live
      ? h("div", { class: "scroll" }, h("table", { class: "records" }, h("thead", {}, h("tr", {},
        titles.map((title, n) => h("th", { scope: "col", class: n === 1 || n === 2 ? "right" : "" }, title)))), rows))
      : nothing(found, searched));
    if (query.live) tell();
    else turns(found);
  }

  function turns(found) {
    const forward = (query.from && query.from !== "newest") || query.cursor;
    const turn = (values) => () => go({ ...query, before: "", cursor: "", from: "", ...values });
    const button = (text, enabled, values) => h("button", { class: "small", type: "button", disabled: !enabled, onclick: turn(values) }, text);
    told.textContent = (searched
      ? `${count(shown.length)} found in ${count(found.read_records)} records, ${bytes(found.read_bytes)}`
      : `${count(shown.length)} of ${compact(found.total)} records`) + `, times in ${zone()}`;
    paging.replaceChildren(...(searched
      ? [button("Search on", found.more, forward ? { cursor: found.newer } : { before: found.older })]
      : [button("Older", forward || found.more, { before: found.older }), button("Newer", forward ? found.more : query.before, { cursor: found.newer })]));
  }

  // ------------------------------------------------------------------------------------------------------------ live

  /** Records after a cursor, again and again while the page is shown.  Of more than it can show, the newest. */
  async function follow(cursor) {
    if (!place.isConnected) return;
    let next = cursor, wait = LIVE_MS;
    try {
      if (!paused && !document.hidden) {
        let found = await get("records", { topic: name, ...filters(), cursor, limit: 200 });
        if (found.topic_id !== topicId) found = await restart();
        else if (found.more && !searched) {
          found = await get("records", { topic: name, ...filters(), limit: 200 });
          const known = new Set(shown.map(placeIn));
          found.records = found.records.filter((row) => !known.has(placeIn(row))).reverse();
          skipped = true;
        } else if (found.more) wait = 0;
        if (paused) found.newer = cursor;
        else add(found.records.reverse());
        next = found.newer;
      }
    } catch (error) { fail(error); }
    setTimeout(() => follow(next), wait);
  }

  /** The topic was deleted, and another one has its name: its records from the first one on. */
  async function restart() {
    const found = await get("records", { topic: name, ...filters(), from: "earliest", limit: 200 });
    shown = [];
    rows.replaceChildren();
    topicId = found.topic_id;
    refresh();
    return found;
  }

  function add(found) {
    shown = [...found, ...shown].slice(0, LIVE_MAX);
    rows.prepend(...made(found));
    const last = rows.querySelectorAll("tr.row")[LIVE_MAX - 1];
    while (last && last !== rows.lastChild) rows.lastChild.remove();
    tell();
  }

  function tell() {
    told.textContent = `${paused ? "Paused" : "Live"}: the last ${count(shown.length)} records, ${LIVE_MAX} at most, times in ${zone()}` +
      (skipped ? "; records came faster than they can be shown, and some were left out" : "");
    paging.replaceChildren(h("button", { class: "small", type: "button", onclick: () => { paused = !paused; tell(); } }, paused ? "Resume" : "Pause"));
  }

  const label = (text, field, grow) => h("label", { class: grow ? "grow" : "" }, text, field);
  const save = (title, make, kind) => h("button", { class: "small plain", type: "button", title: "Download the records that are shown",
    onclick: () => download(name, shown, make, kind).catch(fail) }, title);
  return {
    node: h("section", { class: "card" },
      h("form", { class: "form", onsubmit: submit },
        label("From", from.node), label("To", to.node), label("Partition", partition), label("Key", key), label("Field", field), label("Search", search, true), label("Rows", limit),
        h("button", { class: "primary" }, "Show"),
        h("button", { type: "button", onclick: () => go({ ...filters(), live: query.live ? "" : "1" }) }, query.live ? "Stop" : "Live")),
      place, h("footer", {}, told, h("div", { class: "tools" }, save("CSV", asCsv, "csv"), save("JSON lines", asLines, "jsonl"), paging))),
    async update(found) {
      columns = (found.schema ?? []).map((one) => one.name);
      if (partition.options.length !== Math.min(found.partitions, 1000) + 1) {
        partition.append(...Array.from({ length: Math.min(found.partitions, 1000) }, (_, n) => h("option", { value: n, selected: String(n) === query.partition }, n)));
      }
      const isNewest = !query.from && !query.to && !query.cursor && !query.before && !query.live && !searched;
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
    value: () => select.value === "time" ? (field.value ? `@${instant(field.value)}` : choices[0][0]) : select.value === "offset" ? field.value.trim() || "0" : select.value,
  };
}

const placeIn = (row) => `${row.partition}:${row.offset}`;

function placeOf(choices, text) {
  if (choices.some(([value]) => value === text) && text !== "offset" && text !== "time") return [text, ""];
  if (/^\d+$/.test(text)) return ["offset", text];
  if (/^@\d+$/.test(text)) return ["time", wall(Number(text.slice(1)))];
  return [choices[0][0], ""];
}

function nothing(found, searched) {
  if (searched && found.more) return empty("Nothing found yet", `${count(found.read_records)} records were read. Search on reads the next ones.`);
  if (searched) return empty("Nothing found", "No record of this range matches. Choose another range or text: upper and lower case differ.");
  if (!found.total) return empty("No records", "Send the first one with", "echo '{\"id\": 1}' | pylog produce TOPIC");
  return empty("No records from here on", "Choose an earlier start.");
}

