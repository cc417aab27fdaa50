// The log as a whole: overview, queries, transactions, brokers, health and maintenance.

import { get } from "./api.js";
import { growth, lines, spark } from "./chart.js";
import { badge, card, empty, facts, h, head, put } from "./dom.js";
import { bytes, compact, count, duration, rate, since } from "./format.js";
import { table } from "./table.js";

const checks = (rows) => rows.map((row) => h("tr", {},
  h("td", { class: "name nowrap" }, h("i", { class: `dot ${row.healthy ? (row.says.startsWith("warning") ? "warn" : "good") : "bad"}`, title: row.healthy ? "healthy" : "not healthy" }), row.check),
  h("td", { class: "soft" }, row.says)));

export function overview() {
  const top = h("div"), chart = h("div"), state = h("div");
  const largest = table({
    open: (row) => `#/topics/${encodeURIComponent(row.topic)}`,
    none: empty("No topics yet", "Create the first one with", "pylog topic create orders -p 3"),
    columns: [
      { name: "topic", title: "Topic", class: "name", cell: (row) => row.topic },
      { name: "rate", title: "Records/s", right: true, cell: (row) => rate(row.per_second) },
      { name: "bytes", title: "Size", right: true, cell: (row) => bytes(row.bytes) },
      { name: "history", title: "", right: true, cell: (row) => spark(growth(row.history)) },
    ],
  });
  const behind = table({
    open: (row) => `#/groups/${encodeURIComponent(row.group)}`,
    none: empty("No groups yet", "Read with a group to see its lag.", "pylog consume orders --group billing"),
    columns: [
      { name: "group", title: "Group", class: "name", cell: (row) => row.group },
      { name: "state", title: "State", cell: (row) => badge(row.state, row.state === "Stable" ? "good" : "") },
      { name: "lag", title: "Lag", right: true, cell: (row) => compact(row.lag) },
      { name: "history", title: "", right: true, cell: (row) => spark(row.history) },
    ],
  });
  return {
    title: "Overview",
    node: h("div", {}, head("Overview"), h("div", { class: "stack" }, top, chart,
      h("div", { class: "pair" }, card("Busiest topics", null, largest.node), card("Groups with most lag", null, behind.node)), state)),
    async update() {
      const [log, t, g, health] = await Promise.all([get("cluster"), get("topics"), get("groups"), get("health")]);
      put(top, log, () => facts([["Topics", count(log.topics)], ["Partitions", count(log.partitions)], ["Records", compact(log.records)],
        ["Size", bytes(log.bytes)], ["Objects", compact(log.objects)], ["Groups", count(log.groups)]]));
      put(chart, log.history, () => card("Records per second", "all topics, sampled every 15 seconds", lines(growth(log.history), "Records per second", rate)));
      largest.set([...t.topics].sort((a, b) => (b.per_second ?? 0) - (a.per_second ?? 0) || b.bytes - a.bytes).slice(0, 6));
      behind.set([...g.groups].sort((a, b) => b.lag - a.lag).slice(0, 6));
      put(state, health, () => card(health.healthy ? "Healthy" : "Not healthy", h("a", { class: "link", href: "#/health" }, "Health and maintenance"),
        h("table", { class: "checks" }, h("tbody", {}, checks(health.checks)))));
    },
  };
}

export function queries() {
  const reading = table({
    first: "group",
    open: (row) => `#/groups/${encodeURIComponent(row.group)}`,
    none: empty("No query publishes its progress", "Name the group of a stream to see its lag here.", 'spark.readStream.format("pylog").option("group.id", "billing")'),
    columns: [
      { name: "group", title: "Group", class: "name", cell: (row) => row.group, sort: (row) => row.group },
      { name: "state", title: "State", cell: (row) => badge(row.state, row.state === "Stable" ? "good" : "") },
      { name: "member", title: "Query", class: "soft", cell: (row) => row.member ?? "–" },
      { name: "lag", title: "Lag", right: true, cell: (row) => compact(row.lag), sort: (row) => row.lag },
      { name: "history", title: "Last hour", right: true, cell: (row) => spark(row.history) },
    ],
  });
  const writing = table({
    first: "time",
    descending: true,
    none: empty("No query writes", "Queries that write with format(\"pylog\") or spark_log.sink are listed here until the log forgets them."),
    columns: [
      { name: "name", title: "Query or application", class: "name mono", cell: (row) => row.name, sort: (row) => row.name },
      { name: "topics", title: "Topics", cell: (row) => row.topics.join(", ") },
      { name: "batch", title: "Last batch", right: true, cell: (row) => count(row.sequence), sort: (row) => row.sequence },
      { name: "rows", title: "Its records", right: true, cell: (row) => count(row.rows), sort: (row) => row.rows },
      { name: "time", title: "Committed", right: true, cell: (row) => since(row.time), sort: (row) => row.time },
    ],
  });
  return {
    title: "Queries",
    node: h("div", {}, head("Queries"), h("div", { class: "stack" }, card("Spark queries that read", null, reading.node), card("Queries and applications that write", null, writing.node))),
    async update() {
      const [g, q] = await Promise.all([get("groups"), get("queries")]);
      reading.set(g.groups.filter((row) => row.kind === "stream"));
      writing.set(q.sinks);
    },
  };
}

const STATES = { Ongoing: "warn", PrepareAbort: "warn", CompleteCommit: "good", CompleteAbort: "", Empty: "" };

export function transactions() {
  const list = table({
    first: "time",
    descending: true,
    none: empty("No transactions", "Transactional ids are listed here.", 'with log.transaction("etl-1") as txn: ...'),
    columns: [
      { name: "id", title: "Transactional id", class: "name", cell: (row) => row.transaction, sort: (row) => row.transaction },
      { name: "state", title: "State", cell: (row) => badge(row.state, STATES[row.state]), sort: (row) => row.state },
      { name: "topics", title: "Topics", class: "soft", cell: (row) => row.topics.join(", ") || "–" },
      { name: "epoch", title: "Epoch", right: true, cell: (row) => count(row.epoch), sort: (row) => row.epoch },
      { name: "timeout", title: "Timeout", right: true, cell: (row) => duration(row.timeout_ms), sort: (row) => row.timeout_ms ?? 0 },
      { name: "time", title: "Last change", right: true, cell: (row) => since(row.time), sort: (row) => row.time },
    ],
  });
  return {
    title: "Transactions",
    node: h("div", {}, head("Transactions"), h("section", { class: "card" }, list.node)),
    async update() { list.set((await get("transactions")).transactions); },
  };
}

export function brokers() {
  const list = table({
    first: "broker",
    columns: [
      { name: "broker", title: "Broker", class: "name", cell: (row) => count(row.broker), sort: (row) => row.broker },
      { name: "state", title: "State", cell: (row) => h("span", { title: row.reason }, badge(row.state, row.state === "active" ? "good" : "bad")), sort: (row) => row.state },
      { name: "rack", title: "Rack", cell: (row) => row.rack || "–", sort: (row) => row.rack },
      { name: "leads", title: "Leads", right: true, cell: (row) => count(row.leads), sort: (row) => row.leads },
      { name: "replicas", title: "Replicas", right: true, cell: (row) => count(row.replicas), sort: (row) => row.replicas },
      { name: "objects", title: "Objects", right: true, cell: (row) => count(row.objects), sort: (row) => row.objects },
      { name: "bytes", title: "Size", right: true, cell: (row) => bytes(row.bytes), sort: (row) => row.bytes },
      { name: "lacks", title: "Lacks", right: true, cell: (row) => (row.lacking_bytes ? badge(bytes(row.lacking_bytes), "warn") : "–"), sort: (row) => row.lacking_bytes },
      { name: "root", title: "Root", class: "mono soft", cell: (row) => row.root },
    ],
  });
  const more = h("div");
  return {
    title: "Brokers",
    node: h("div", {}, head("Brokers"), h("section", { class: "card" }, list.node, more)),
    async update() {
      const found = (await get("brokers")).brokers;
      list.set(found);
      put(more, found.length, () => found.length === 1 && h("footer", {}, "Broker 0 is the log's own root. For copies on other disks and buckets:",
        h("code", {}, "pylog broker add 1 --root URL")));
    },
  };
}

const DUTIES = [["expired_records", "records expired"], ["merged_slices", "slices merged"], ["cleaned_partitions", "partitions compacted"],
  ["removed_records", "records removed by compaction"], ["collected", "objects deleted"], ["copied", "copies made for brokers"]];

export function health() {
  const state = h("div"), top = h("div"), last = h("div");
  const moves = table({
    first: "topic",
    columns: [
      { name: "topic", title: "Topic", class: "name", cell: (row) => row.topic, sort: (row) => row.topic },
      { name: "partition", title: "Partition", right: true, cell: (row) => count(row.partition), sort: (row) => row.partition },
      { name: "adding", title: "Adding", cell: (row) => row.adding_replicas.join(", ") || "–" },
      { name: "removing", title: "Removing", cell: (row) => row.removing_replicas.join(", ") || "–" },
    ],
    none: empty("No partition moves", ""),
  });
  return {
    title: "Health",
    node: h("div", {}, head("Health and maintenance"), h("div", { class: "stack" }, state, top, last, card("Partitions that move", null, moves.node))),
    async update() {
      const [found, maintenance] = await Promise.all([get("health"), get("maintenance")]);
      put(state, found, () => card(found.healthy ? "Healthy" : "Not healthy", null, h("table", { class: "checks" }, h("tbody", {}, checks(found.checks)))));
      put(top, maintenance, () => facts([["Version", count(maintenance.version)], ["Checkpoint", count(maintenance.version - maintenance.checkpoint), "versions ago"],
        ["Waiting to be deleted", count(maintenance.waiting_objects), "objects"], ["Commits not visible yet", count(maintenance.pending_commits)]]));
      put(last, maintenance, () => card("Last maintenance of this coordinator", maintenance.last_run && since(maintenance.last_run), maintenance.last
        ? h("div", { class: "bare" }, facts(DUTIES.map(([key, text]) => [text, compact(maintenance.last[key])])),
          maintenance.last.problems.map((text) => h("div", { class: "notice" }, text)))
        : empty("Not run yet", "A coordinator runs maintenance every ten minutes, by default. Without one, run", "pylog maintain")));
      moves.set(maintenance.moving);
    },
  };
}
