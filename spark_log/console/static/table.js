// Tables: sorted by a click on a title, walked with j and k, opened with Enter.

import { empty, h } from "./dom.js";

/**
 * columns: [{name, title, right, class, cell(row), sort(row)}]
 * open:    the address of a row, or nothing
 */
export function table({ columns, open, none, first, descending = false }) {
  const body = h("tbody"), titles = h("tr"), box = h("div", { class: "scroll" });
  let rows = [], by = first ?? null, down = descending, shown = null;

  function compare(a, b) {
    const x = by.sort(a), y = by.sort(b);
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x ?? "").localeCompare(String(y ?? ""), "en", { numeric: true });
    return down ? -order : order;
  }

  function title(column) {
    const arrow = by === column ? (down ? " ↓" : " ↑") : "";
    const sort = () => {
      down = by === column ? !down : Boolean(column.right);
      by = column;
      draw(true);
    };
    const inner = column.sort ? h("button", { type: "button", onclick: sort }, `${column.title}${arrow}`) : column.title;
    const order = by === column ? (down ? "descending" : "ascending") : null;
    return h("th", { class: column.right ? "right" : "", scope: "col", "aria-sort": order }, inner);
  }

  function line(row) {
    const to = open?.(row);
    const go = (event) => {
      if (event.target.closest("a, button") || String(getSelection())) return;
      location.hash = to;
    };
    const cells = columns.map((c) => h("td", { class: [c.right && "right", c.class].filter(Boolean).join(" "), "data-title": c.title || null }, c.cell(row)));
    return h("tr", { class: to && "row", tabindex: to && "0", "data-to": to, onclick: to && go }, cells);
  }

  function draw(force) {
    const text = JSON.stringify(rows);
    if (!force && text === shown) return;
    shown = text;
    const at = [...body.children].indexOf(document.activeElement);
    titles.replaceChildren(...columns.map(title));
    body.replaceChildren(...(by ? [...rows].sort(compare) : rows).map(line));
    box.replaceChildren(rows.length ? h("table", {}, h("thead", {}, titles), body) : none ?? empty("Nothing here", ""));
    if (at >= 0) body.children[at]?.focus();
  }

  by = columns.find((column) => column.name === first) ?? null;
  return { node: box, set(found) { rows = found; draw(false); } };
}

/** j and k move between the rows of the page. */
export function step(by) {
  const rows = [...document.querySelectorAll("tr.row")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement.closest?.("tr.row"));
  rows[Math.min(Math.max(at + by, 0), rows.length - 1)].focus();
}
