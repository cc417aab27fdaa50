// Consumer groups: members, positions, and lag over time.

import { get } from "./api.js";
import { resetGroup } from "./changes.js";
import { lines, spark } from "./chart.js";
import { badge, card, empty, facts, h, head, put } from "./dom.js";
import { bytes, compact, count, duration, since } from "./format.js";
import { table } from "./table.js";
import { filter } from "./topics.js";

const KINDS = { Stable: "good", PreparingRebalance: "warn", CompletingRebalance: "warn", Unknown: "warn", Dead: "bad" };
const ROWS_MAX = 500;
const at = (name) => `#/groups/${encodeURIComponent(name)}`;
const NONE = () => empty("No groups", "A consumer or a query with a group commits its positions here.", "pylog consume orders --group billing");

export function groups({ refresh }) {
  const search = filter("Filter groups", refresh), rest = h("span", { class: "faint" });
  const list = table({
    first: "lag",
    descending: true,
    open: (row) => at(row.group),
    none: NONE(),
    columns: [
      { name: "group", title: "Group", class: "name", cell: (row) => h("a", { href: at(row.group) }, row.group), sort: (row) => row.group },
      { name: "state", title: "State", cell: (row) => badge(row.state, KINDS[row.state]), sort: (row) => row.state },
      { name: "kind", title: "Kind", class: "soft", cell: (row) => (row.kind === "stream" ? "Spark query" : "consumers"), sort: (row) => row.kind },
      { name: "members", title: "Members", right: true, cell: (row) => count(row.members), sort: (row) => row.members },
      { name: "topics", title: "Topics", right: true, cell: (row) => count(row.topics), sort: (row) => row.topics },
      { name: "lag", title: "Lag", right: true, cell: (row) => compact(row.lag), sort: (row) => row.lag },
      { name: "bytes", title: "Size", right: true, cell: (row) => bytes(row.lag_bytes), sort: (row) => row.lag_bytes },
      { name: "history", title: "Last hour", right: true, cell: (row) => spark(row.history) },
    ],
  });
  return {
    title: "Groups",
    node: h("div", {}, head("Groups", null, [rest, search]), h("section", { class: "card" }, list.node)),
    async update() {
      const found = await get("groups", { search: search.value });
      list.set(found.groups);
      rest.textContent = found.total > found.groups.length ? `the first ${found.groups.length} of ${count(found.total)}` : "";
    },
  };
}

export function group(context, name) {
  const top = h("div"), chart = h("div");
  const left = h("span", { class: "faint" });
  const members = table({
    first: "member",
    none: empty("No members", "Nobody reads with this group now. Its positions stay until they expire."),
    columns: [
      { name: "member", title: "Member", class: "name mono", cell: (row) => row.member, sort: (row) => row.member },
      { name: "client", title: "Client", cell: (row) => row.owner || row.client_id || "–", sort: (row) => row.client_id },
      { name: "host", title: "Host", cell: (row) => row.host || "–", sort: (row) => row.host },
      { name: "partitions", title: "Partitions", class: "soft", cell: (row) => assigned(row.partitions) },
    ],
  });
  const offsets = table({
    first: "lag",
    descending: true,
    none: empty("No positions", "The group has committed nothing."),
    columns: [
      { name: "topic", title: "Topic", class: "name", cell: (row) => h("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic), sort: (row) => row.topic },
      { name: "partition", title: "Partition", right: true, cell: (row) => count(row.partition), sort: (row) => row.partition },
      { name: "offset", title: "Position", right: true, cell: (row) => count(row.offset), sort: (row) => row.offset },
      { name: "end", title: "End", right: true, cell: (row) => count(row.end), sort: (row) => row.end },
      { name: "read", title: "Read", right: true, cell: share },
      { name: "lag", title: "Lag", right: true, cell: (row) => count(row.lag), sort: (row) => row.lag },
      { name: "age", title: "Behind by", right: true, cell: (row) => (row.lag ? duration(row.lag_ms) : "–"), sort: (row) => row.lag_ms },
      { name: "committed", title: "Committed", right: true, cell: (row) => since(row.committed), sort: (row) => row.committed },
    ],
  });
  return {
    title: name,
    node: h("div", {}, head(name, [h("a", { class: "link", href: "#/groups" }, "Groups"), " /"], resetGroup(context, name)),
      h("div", { class: "stack" }, top, chart, card("Positions", left, offsets.node), card("Members", null, members.node))),
    async update() {
      const found = await get("group", { group: name }), sum = (key) => found.offsets.reduce((total, row) => total + row[key], 0);
      const behind = Math.max(0, ...found.offsets.map((row) => row.lag_ms));
      put(top, [found.state, found.generation, found.offsets, found.members.length], () => facts([
        ["State", badge(found.state, KINDS[found.state])], ["Lag", compact(sum("lag"))], ["Behind by", sum("lag") ? duration(behind) : "–"],
        ["Size", bytes(sum("lag_bytes"))], ["Members", count(found.members.length)], ["Generation", count(found.generation)],
      ]));
      put(chart, found.history, () => card("Lag", "records, sampled every 15 seconds", lines(found.history, "Lag")));
      members.set(found.members);
      offsets.set([...found.offsets].sort((a, b) => b.lag - a.lag).slice(0, ROWS_MAX));
      put(left, found.offsets.length, (all) => all > ROWS_MAX && `the ${count(ROWS_MAX)} of ${count(all)} with most lag`);
    },
  };
}

function share(row) {
  const whole = Math.max(1, row.end - row.start), done = Math.min(1, Math.max(0, (row.offset - row.start) / whole));
  return h("span", { class: "meter", title: `${Math.round(done * 100)} %` }, h("i", { style: { width: `${done * 100}%` } }));
}

const assigned = (partitions) =>
  partitions === null ? "all" : Object.entries(partitions).map(([topic, numbers]) => `${topic} ${numbers.join(", ")}`).join(" · ") || "none";
