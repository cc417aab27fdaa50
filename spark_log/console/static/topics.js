// Topics, and one topic: its records, partitions, segments, configs and readers.

import { get, send } from "./api.js";
import { changeTopic, createTopic } from "./changes.js";
import { growth, lines, spark, timeline } from "./chart.js";
import { badge, card, dialog, empty, facts, h, head, put } from "./dom.js";
import { ago, bytes, compact, count, duration, rate, since } from "./format.js";
import { records } from "./records.js";
import { table } from "./table.js";

const at = (name, tab) => `#/topics/${encodeURIComponent(name)}${tab ? `/${tab}` : ""}`;

const state = (row) =>
  row.unavailable ? badge(`${row.unavailable} without a leader`, "bad") : row.under_replicated ? badge(`${row.under_replicated} under-replicated`, "warn") : "";

export function filter(placeholder, draw) {
  let waiting = null;
  const type = () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); };
  return h("input", { class: "wide", type: "search", placeholder, "aria-label": placeholder, oninput: type, id: "filter" });
}

export function topics(context) {
  const { refresh } = context;
  const search = filter("Filter topics", refresh), rest = h("span", { class: "faint" });
  const list = table({
    first: "topic",
    open: (row) => at(row.topic),
    none: empty("No topics", "A topic is created by its first write, or with", "pylog topic create orders -p 3"),
    columns: [
      { name: "topic", title: "Topic", class: "name", cell: (row) => h("a", { href: at(row.topic) }, row.topic), sort: (row) => row.topic },
      { name: "state", title: "", cell: state },
      { name: "partitions", title: "Partitions", right: true, cell: (row) => count(row.partitions), sort: (row) => row.partitions },
      { name: "replicas", title: "Replicas", right: true, cell: (row) => count(row.replicas), sort: (row) => row.replicas },
      { name: "records", title: "Records", right: true, cell: (row) => compact(row.records), sort: (row) => row.records },
      { name: "bytes", title: "Size", right: true, cell: (row) => bytes(row.bytes), sort: (row) => row.bytes },
      { name: "rate", title: "Records/s", right: true, cell: (row) => rate(row.per_second), sort: (row) => row.per_second ?? -1 },
      { name: "history", title: "Last hour", right: true, cell: (row) => spark(growth(row.history)) },
    ],
  });
  return {
    title: "Topics",
    node: h("div", {}, head("Topics", null, [rest, createTopic(context), search]), h("section", { class: "card" }, list.node)),
    async update() {
      const found = await get("topics", { search: search.value });
      list.set(found.topics);
      rest.textContent = found.total > found.topics.length ? `the first ${found.topics.length} of ${count(found.total)}` : "";
    },
  };
}

export function topic(context, name, tab) {
  const top = h("div"), body = h("div"), parts = TABS[tab] ?? TABS.records, inner = parts.make(context, name);
  const links = Object.entries(TABS).map(([key, one]) =>
    h("a", { href: at(name, key), "aria-current": one === parts ? "page" : null }, one.title));
  body.append(inner.node);
  return {
    title: name,
    every: parts === TABS.records ? 15000 : undefined,
    node: h("div", {},
      head(name, [h("a", { class: "link", href: "#/topics" }, "Topics"), " /"], changeTopic(context, name)),
      h("div", { class: "stack" }, top, h("div", {}, h("nav", { class: "tabs", "aria-label": "Parts of the topic" }, links), body))),
    async update() {
      const found = await get("topic", { topic: name });
      put(top, [found.records, found.bytes, found.per_second, found.partitions, found.replicas, found.created], () => facts([
        ["Records", compact(found.records)], ["Size", bytes(found.bytes)], ["Records/s", rate(found.per_second)],
        ["Partitions", count(found.partitions)], ["Replicas", count(found.replicas)], ["Created", since(found.created, 1)],
      ]));
      await inner.update(found);
    },
  };
}

function partitions() {
  const list = table({
    first: "partition",
    columns: [
      { name: "partition", title: "Partition", cell: (row) => count(row.partition), sort: (row) => row.partition },
      { name: "leader", title: "Leader", cell: (row) => (row.leader < 0 ? badge("none", "bad") : row.leader), sort: (row) => row.leader },
      { name: "replicas", title: "Replicas", cell: (row) => row.replicas.join(", ") },
      { name: "isr", title: "In sync", cell: (row) => (row.under_replicated ? badge(row.isr.join(", ") || "none", "warn") : row.isr.join(", ")) },
      { name: "start", title: "Start", right: true, cell: (row) => count(row.start), sort: (row) => row.start },
      { name: "end", title: "End", right: true, cell: (row) => count(row.end), sort: (row) => row.end },
      { name: "records", title: "Records", right: true, cell: (row) => count(row.records), sort: (row) => row.records },
      { name: "bytes", title: "Size", right: true, cell: (row) => bytes(row.bytes), sort: (row) => row.bytes },
      { name: "newest", title: "Newest record", right: true, cell: (row) => ago(row.newest_ms), sort: (row) => row.newest_ms ?? 0 },
    ],
  });
  const rates = h("div");
  return {
    node: h("div", { class: "stack" }, rates, h("section", { class: "card" }, list.node)),
    update(found) {
      list.set(found.rows);
      put(rates, found.history, () => card("Records per second", "sampled every 15 seconds", lines(growth(found.history), "Records per second", rate)));
    },
  };
}

function segments({ query }, name) {
  let number = Number(query.partition ?? 0);
  const chart = h("div"), told = h("span"), choice = h("select", { "aria-label": "Partition" });
  const list = table({
    first: "start",
    descending: true,
    columns: [
      { name: "start", title: "First offset", right: true, cell: (row) => count(row.start), sort: (row) => row.start },
      { name: "end", title: "Last offset", right: true, cell: (row) => count(row.end - 1), sort: (row) => row.end },
      { name: "bytes", title: "Size", right: true, cell: (row) => bytes(row.bytes), sort: (row) => row.bytes },
      { name: "span", title: "Spans", right: true, cell: (row) => duration(row.max_ms - row.min_ms), sort: (row) => row.max_ms - row.min_ms },
      { name: "newest", title: "Newest record", right: true, cell: (row) => ago(row.max_ms), sort: (row) => row.max_ms },
      { name: "object", title: "Object", class: "mono", cell: (row) => (row.slices > 1 ? `${row.slices} slices in ${row.object}` : row.object) },
    ],
    none: empty("No segments", "This partition has no records."),
  });
  async function draw() {
    const found = await get("segments", { topic: name, partition: number });
    list.set(found.segments);
    told.textContent = found.total > found.segments.length ? `the newest ${found.segments.length} of ${count(found.total)}` : `${count(found.total)} segment${found.total === 1 ? "" : "s"}`;
    put(chart, found.segments, () => (found.segments.length ? card("By time and offset", told, timeline(found.segments)) : null));
  }
  choice.addEventListener("change", () => { number = Number(choice.value); draw(); });
  return {
    node: h("div", { class: "stack" }, h("div", {}, "Partition ", choice), chart, h("section", { class: "card" }, list.node)),
    async update(found) {
      put(choice, found.partitions, () => Array.from({ length: Math.min(found.partitions, 1000) }, (_, n) => h("option", { value: n, selected: n === number }, n)));
      await draw();
    },
  };
}

function configs({ me, refresh }, name) {
  let every = false, rows = [];
  const all = h("input", { type: "checkbox", onchange: () => { every = all.checked; draw(); } });
  const list = table({
    first: "config",
    columns: [
      { name: "config", title: "Config", class: "name nowrap", cell: (row) => row.config, sort: (row) => row.config },
      { name: "value", title: "Value", class: "mono", cell: (row) => valueOf(row) },
      { name: "source", title: "Set by", cell: (row) => (row.source === "default" ? h("span", { class: "faint" }, "default") : badge(row.source)), sort: (row) => row.source },
      { name: "meaning", title: "Meaning", class: "soft", cell: (row) => prose(row.meaning) },
      { name: "edit", title: "", right: true, cell: (row) => me.may_change && h("button", { class: "small", type: "button", onclick: () => edit(name, row, me, refresh) }, "Change") },
    ],
  });
  const draw = () => list.set(rows.filter((row) => every || row.in_force || row.source !== "default"));
  return {
    node: h("section", { class: "card" },
      h("header", {}, h("h2", {}, "Configs"), h("label", { class: "tools" }, all, "with those that have no effect")), list.node),
    update(found) { rows = found.configs; draw(); },
  };
}

/** With what a number means. */
function valueOf(row) {
  const text = String(row.value), number = Number(text);
  const shown = !/^\d{4,}$/.test(text) ? null : number > 1e15 ? "no limit" : /\.ms$/.test(row.config) ? duration(number) : /bytes$/.test(row.config) ? bytes(number) : null;
  return [text, shown && h("div", { class: "faint" }, shown)];
}

const prose = (text) => text.split("`").map((part, n) => (n % 2 ? h("code", {}, part) : part));

function edit(name, row, me, refresh) {
  const field = h("input", { class: "mono", value: String(row.value), id: "config-value" }), told = h("div");
  const set = async (value) => {
    try {
      await send(me, JSON.stringify({ type: "set_configs", name, changes: { [row.config]: value } }));
      box.close();
      setTimeout(refresh, 1100);
    } catch (error) {
      told.replaceChildren(h("div", { class: "notice" }, error.message));
    }
  };
  const box = dialog("", h("form", { class: "inner", onsubmit: (event) => { event.preventDefault(); set(field.value); } },
    h("h2", {}, `${row.config} of ${name}`), h("p", { class: "soft" }, prose(row.meaning)), told,
    h("label", {}, "Value", field),
    h("div", { class: "actions" },
      row.source === "topic" && h("button", { type: "button", onclick: () => set(null) }, "Back to the default"),
      h("button", { type: "button", onclick: () => box.close() }, "Cancel"), h("button", { class: "primary" }, "Change"))));
}

function schema(context, name) {
  const list = table({
    none: empty("No schema", "The values of this topic are bytes. Give it columns with", `pylog topic alter ${name} --schema "id BIGINT NOT NULL, name STRING"`),
    columns: [
      { name: "name", title: "Column", class: "name mono", cell: (row) => row.name },
      { name: "type", title: "Type", class: "mono", cell: (row) => row.type },
      { name: "nullable", title: "", class: "soft", cell: (row) => (row.nullable ? "nullable" : "not null") },
    ],
  });
  const older = table({
    first: "version",
    descending: true,
    columns: [
      { name: "version", title: "Version", right: true, cell: (row) => count(row.version), sort: (row) => row.version },
      { name: "schema", title: "Columns", class: "mono", cell: (row) => row.schema },
    ],
  });
  const versions = h("div");
  return {
    node: h("div", { class: "stack" }, card("Columns", null, list.node), versions),
    update(found) {
      list.set(found.schema);
      older.set(found.schemas);
      put(versions, found.schemas.length, (all) => all > 0 && card("Versions", "of the schema, as DDL", older.node));
    },
  };
}

function readers() {
  const list = table({
    first: "lag",
    descending: true,
    open: (row) => `#/groups/${encodeURIComponent(row.group)}`,
    none: empty("No group reads this topic", "A consumer with a group commits its position here.", "pylog consume TOPIC --group billing"),
    columns: [
      { name: "group", title: "Group", class: "name", cell: (row) => h("a", { href: `#/groups/${encodeURIComponent(row.group)}` }, row.group), sort: (row) => row.group },
      { name: "lag", title: "Lag in this topic", right: true, cell: (row) => count(row.lag), sort: (row) => row.lag },
    ],
  });
  return { node: h("section", { class: "card" }, list.node), update(found) { list.set(found.readers); } };
}

const TABS = {
  records: { title: "Records", make: records },
  schema: { title: "Schema", make: schema },
  partitions: { title: "Partitions", make: partitions },
  segments: { title: "Segments", make: segments },
  configs: { title: "Configs", make: configs },
  groups: { title: "Groups", make: readers },
};
