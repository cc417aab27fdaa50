// The frame: navigation, theme, keyboard, token, and the refresh of the page that is shown.

import { Refused, get, keepToken, shownLog, token } from "./api.js";
import { dialog, h, printable } from "./dom.js";
import { keepZone, zone, zones } from "./format.js";
import { group, groups } from "./groups.js";
import { brokers, health, overview, queries, transactions } from "./log.js";
import { step } from "./table.js";
import { topic, topics } from "./topics.js";

const REFRESH_MS = 5000;
const PAGES = [
  ["", "Overview", overview, "o"],
  ["topics", "Topics", topics, "t"],
  ["groups", "Groups", groups, "g"],
  ["queries", "Queries", queries, "q"],
  ["transactions", "Transactions", transactions, "x"],
  ["brokers", "Brokers", brokers, "b"],
  ["health", "Health", health, "h"],
];

let me = null, shown = null, main = null, waiting = null, problem = null;

// ------------------------------------------------------------------------------------------------------------- theme

const wantsDark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => localStorage.getItem("pylog-theme") ?? (wantsDark.matches ? "dark" : "light");
const paint = () => { document.documentElement.dataset.theme = theme(); };
function turn() {
  localStorage.setItem("pylog-theme", theme() === "dark" ? "light" : "dark");
  paint();
}
wantsDark.addEventListener("change", paint);

// ------------------------------------------------------------------------------------------------------------- routes

function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  return { parts, query: Object.fromEntries(new URLSearchParams(query)) };
}

function pageOf({ parts, query }) {
  const context = { me, query, refresh, fail };
  if (parts[0] === "topics" && parts[1]) return topic(context, parts[1], parts[2] ?? "records");
  if (parts[0] === "groups" && parts[1]) return group(context, parts[1]);
  const found = PAGES.find(([path]) => path === parts[0]) ?? PAGES[0];
  return found[2](context);
}

async function show() {
  const at = route();
  for (const link of document.querySelectorAll(".nav a")) {
    if (link.dataset.path === at.parts[0]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const page = pageOf(at);
  shown = page;
  document.title = printable(`${page.title} · pylog`);
  problem = h("div", { role: "alert" });
  main.replaceChildren(problem, page.node);
  await refresh();
  if (shown === page) main.dataset.ready = location.hash;
}

async function refresh() {
  clearTimeout(waiting);
  const page = shown;
  try {
    await page.update();
    if (page === shown) problem.replaceChildren();
  } catch (error) {
    if (page === shown) fail(error);
  }
  if (page === shown) waiting = setTimeout(() => (document.hidden ? later() : refresh()), page.every ?? REFRESH_MS);
}

function later() {
  document.addEventListener("visibilitychange", () => refresh(), { once: true });
}

function fail(error) {
  if (error instanceof Refused && error.status === 401) return gate(token() ? error.message : "");
  if (!(error instanceof Refused)) console.error(error);
  problem.replaceChildren(h("div", { class: "notice" }, error.message));
}

// ------------------------------------------------------------------------------------------------------------- frame

function frame() {
  main = h("main", { id: "main", tabindex: "-1" });
  const links = PAGES.map(([path, name]) => h("a", { href: `#/${path}`, "data-path": path }, name));
  const where = me.coordinator ? `coordinator ${me.coordinator}` : "no coordinator";
  document.body.replaceChildren(h("div", { class: "shell" },
    h("nav", { class: "side", "aria-label": "Pages" },
      h("div", { class: "brand" }, h("img", { src: "icon.svg", alt: "" }), "pylog"),
      h("button", { class: "find", type: "button", onclick: palette }, "Find", h("kbd", {}, "/")),
      h("div", { class: "nav" }, links),
      h("div", { class: "foot" },
        me.logs.length < 2 ? h("div", { class: "where" }, me.url)
          : h("select", { id: "log", "aria-label": "Log", onchange: (event) => location.assign(`?log=${event.target.value}#/`) },
            me.logs.map((url, n) => h("option", { value: n, selected: n === Number(shownLog()) }, url))),
        h("div", {}, where),
        h("div", {}, me.name === "anybody" ? "no tokens: read-only" : `token ${me.name}: ${me.may_change ? "may change the log" : "read-only"}`),
        h("label", { title: "The time zone of all times" }, "Times in ",
          h("select", { id: "zone", "aria-label": "Time zone", onchange: (event) => { keepZone(event.target.value); show(); } },
            zones().map((name) => h("option", { value: name, selected: name === zone() }, name)))),
        h("div", { class: "row" },
          h("button", { class: "small plain", type: "button", onclick: turn, title: "Dark or light (d)" }, "Theme"),
          h("button", { class: "small plain", type: "button", onclick: help, title: "Keys (?)" }, "Keys"),
          token() && h("button", { class: "small plain", type: "button", onclick: leave }, "Sign out")))),
    main));
}

function leave() {
  keepToken("");
  location.reload();
}

/** Asks for a token. */
function gate(message) {
  clearTimeout(waiting);
  shown = null;
  const field = h("input", { type: "password", id: "token", autocomplete: "off", required: true, "aria-label": "Token" });
  const enter = (event) => {
    event.preventDefault();
    keepToken(field.value.trim());
    begin();
  };
  document.body.replaceChildren(h("div", { class: "gate" }, h("form", { onsubmit: enter },
    h("h1", {}, "pylog"),
    h("p", { class: "soft" }, "This coordinator asks for a token. It is kept until this tab is closed."),
    message && h("div", { class: "notice" }, message), field, h("button", { class: "primary" }, "Continue"))));
  field.focus();
}

// ------------------------------------------------------------------------------------------------------------- keyboard

async function palette() {
  const field = h("input", { class: "ask", placeholder: "Find a topic, a group or a page", "aria-label": "Find", id: "find" });
  const choices = h("div", { class: "choices", role: "listbox" });
  const box = dialog("top", field, choices);
  const places = PAGES.map(([path, name]) => ["page", name, `#/${path}`]);
  let at = 0, asked = 0;

  function draw(found) {
    at = 0;
    choices.replaceChildren(...found.slice(0, 50).map(([kind, name, to]) =>
      h("a", { href: to, role: "option", onclick: () => box.close() }, name, h("span", { class: "faint" }, kind))));
    mark();
  }
  function mark() {
    [...choices.children].forEach((one, n) => one.setAttribute("aria-selected", String(n === at)));
    choices.children[at]?.scrollIntoView({ block: "nearest" });
  }
  async function look() {
    const text = field.value, mine = (asked += 1), near = places.filter(([, name]) => name.toLowerCase().includes(text.toLowerCase()));
    draw(near);
    const [t, g] = await Promise.all([get("topics", { search: text }), get("groups", { search: text })]).catch(() => [null, null]);
    if (mine !== asked || !t) return;
    draw([...near, ...t.topics.map((one) => ["topic", one.topic, `#/topics/${encodeURIComponent(one.topic)}`]),
      ...g.groups.map((one) => ["group", one.group, `#/groups/${encodeURIComponent(one.group)}`])]);
  }
  field.addEventListener("input", look);
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = Math.min(Math.max(at + (event.key === "ArrowDown" ? 1 : -1), 0), choices.children.length - 1);
      mark();
    } else if (event.key === "Enter") choices.children[at]?.click();
  });
  look();
}

function help() {
  const keys = [["/", "find a topic, a group or a page"], ["g then a letter", `go to ${PAGES.map(([, name, , key]) => `${name} (${key})`).join(", ")}`],
    ["j, k", "next and previous row"], ["Enter", "open the row"], ["u", "up: from a topic to the topics"], ["r", "refresh now"],
    ["d", "dark or light"], ["Esc", "close"]];
  dialog("", h("div", { class: "inner" }, h("h2", {}, "Keys"), h("div", { class: "keys" },
    keys.map(([key, does]) => [h("span", {}, h("kbd", {}, key)), h("span", { class: "soft" }, does)]))));
}

let going = false;
addEventListener("keydown", (event) => {
  if (!main || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const row = document.activeElement.closest?.("tr.row");
  if (going) {
    going = false;
    const to = PAGES.find(([, , , key]) => key === event.key);
    if (to) location.hash = `#/${to[0]}`;
    return;
  }
  const does = {
    "/": palette, "?": help, d: turn, r: refresh, j: () => step(1), k: () => step(-1), g: () => { going = true; },
    u: () => { const { parts } = route(); if (parts[1]) location.hash = `#/${parts[0]}`; },
    Enter: row && document.activeElement === row ? () => (row.dataset.to ? (location.hash = row.dataset.to) : row.click()) : null,
  }[event.key];
  if (!does) return;
  event.preventDefault();
  does();
});

// ------------------------------------------------------------------------------------------------------------- start

async function begin() {
  const given = /^#token=([\w.~-]+)$/.exec(location.hash);
  if (given) {
    keepToken(given[1]);
    history.replaceState(null, "", location.pathname + location.search);
  }
  try {
    me = await get("me");
  } catch (error) {
    if (error.status === 401) return gate(token() ? error.message : "");
    document.body.replaceChildren(h("div", { class: "gate" }, h("form", { onsubmit: (event) => { event.preventDefault(); begin(); } },
      h("h1", {}, "pylog"), h("div", { class: "notice" }, error.message), h("button", { class: "primary" }, "Try again"))));
    return undefined;
  }
  frame();
  return show();
}

paint();
addEventListener("hashchange", () => {
  for (const box of document.querySelectorAll("dialog[open]")) box.close();  // Back leaves it, also on a telephone
  if (main?.isConnected) show();
  else begin();
});
begin();
