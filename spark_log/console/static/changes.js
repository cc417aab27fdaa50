// Changes of the log: each has a dry run first, which says what it will do.

import { get, send } from "./api.js";
import { dialog, h } from "./dom.js";
import { count } from "./format.js";
import { table } from "./table.js";

const field = (name, title, props = {}) => h("label", {}, title, h(props.rows ? "textarea" : "input", { name, class: "mono", autocomplete: "off", ...props }));

/**
 * A dialog with a form, a dry run, and the change.
 * query:   of the plan, beside the fields
 * confirm: a name to type before the change, or nothing
 */
function change({ me, fail }, { title, verb, query, fields = [], confirm, done }) {
  const told = h("div", { class: "stack plan" }), actions = h("div", { class: "actions" });
  const cancel = h("button", { type: "button", onclick: () => box.close() }, "Cancel");
  const dry = h("button", {}, "Dry run");
  const complain = (error) => told.replaceChildren(h("div", { class: "notice" }, error.message));

  function begin() {
    dry.className = "primary";
    actions.replaceChildren(cancel, dry);
  }

  async function plan(event) {
    event?.preventDefault();
    begin();
    try {
      show(await get("plan", { ...query, ...Object.fromEntries(new FormData(form)) }));
    } catch (error) { complain(error); }
  }

  function show(found) {
    const make = h("button", { class: "primary", type: "button", id: "make", disabled: Boolean(confirm), onclick: () => carryOut(found.command, make) }, verb);
    const typed = confirm && h("label", {}, `Type ${confirm} to confirm`, h("input", { class: "mono", id: "confirm", oninput: (event) => { make.disabled = event.target.value !== confirm; } }));
    told.replaceChildren(h("p", { id: "plan" }, h("strong", {}, found.does)), ...found.notes.map((text) => h("div", { class: "notice warn" }, text)),
      ...[found.rows.length > 0 && rowsOf(found), typed].filter(Boolean));
    dry.className = "";
    actions.replaceChildren(cancel, dry, make);
  }

  async function carryOut(command, button) {
    button.disabled = true;
    try {
      await send(me, command);
      box.close();
      done();
    } catch (error) { complain(error); begin(); }
  }

  const form = h("form", { class: "inner", onsubmit: plan, oninput: (event) => {
    if (event.target.id !== "confirm") { told.replaceChildren(); begin(); }
  } }, h("h2", {}, title), fields, told, actions);
  begin();
  const box = dialog("wide", form);
  if (!fields.length) plan().catch(fail);
  return box;
}

function rowsOf(found) {
  const names = Object.keys(found.rows[0]);
  const list = table({ columns: names.map((name) => ({ name, title: name, right: typeof found.rows[0][name] === "number",
    cell: (row) => (typeof row[name] === "number" ? count(row[name]) : row[name] ?? "–") })) });
  list.set(found.rows);
  return h("div", { class: "card" }, list.node, found.total > found.rows.length && h("footer", {}, `the first ${count(found.rows.length)} of ${count(found.total)}`));
}

const button = (text, start) => h("button", { type: "button", class: "change", onclick: start }, text);
const soon = (refresh) => () => setTimeout(refresh, 1100);  // an answer is kept for a second

export const createTopic = (context) => context.me.may_change && button("Create topic", () => change(context, {
  title: "Create a topic", verb: "Create", query: { action: "create" }, done: soon(context.refresh),
  fields: [field("topic", "Name", { required: true }), field("partitions", "Partitions", { value: "1", required: true }),
    field("replication_factor", "Replication factor", { placeholder: "that of the log" }),
    field("schema", "Schema", { placeholder: "none, or id BIGINT NOT NULL, name STRING" }),
    field("configs", "Configs, one in a line", { rows: 3, placeholder: "retention.ms=86400000" })],
}));

export const changeTopic = (context, name) => context.me.may_change && [
  button("Add partitions", () => change(context, {
    title: `Add partitions to ${name}`, verb: "Add", query: { action: "partitions", topic: name }, done: soon(context.refresh),
    fields: [field("partitions", "New number of partitions", { required: true })],
  })),
  button("Delete", () => change(context, {
    title: `Delete ${name}`, verb: "Delete", query: { action: "delete", topic: name }, confirm: name, done: () => { location.hash = "#/topics"; },
  })),
];

export const resetGroup = (context, name) => context.me.may_change && button("Reset", () => change(context, {
  title: `Reset ${name}`, verb: "Reset", query: { action: "reset", group: name }, done: soon(context.refresh),
  fields: [field("topic", "Topic", { placeholder: "all in which it has a position" }),
    field("to", "To", { required: true, placeholder: "earliest, latest, now-1h, an offset or @2026-01-31T10:00Z" })],
}));
