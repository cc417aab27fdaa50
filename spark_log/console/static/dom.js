// Elements from data.  Text becomes text nodes: nothing that came from a log is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Characters that hide, or turn the direction of the text around them: a record could make others look different. */
const UNSEEN = /(?![\n\t])[\p{Cc}\u061C\u200E\u200F\u2028-\u202E\u2066-\u2069\p{Cs}]/gu;
export const printable = (text) => text.replace(UNSEEN, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);
const visible = (child) => typeof child === "string" ? printable(child) : child;

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : name === "title" ? printable(String(value)) : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false).map(visible));
  return node;
}

export const h = (tag, props = {}, ...children) => fill(document.createElement(tag), props ?? {}, children);
export const s = (tag, props = {}, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** Replace what is in a node, unless it is the same as before: then hovering, selection and scrolling stay. */
export function put(node, data, make) {
  const text = JSON.stringify(data);
  if (node.shown === text) return;
  node.shown = text;
  node.replaceChildren(...[make(data)].flat(Infinity).filter(Boolean));
}

export const card = (title, tools, ...body) =>
  h("section", { class: "card" }, h("header", {}, h("h2", {}, title), tools && h("div", { class: "tools" }, tools)), ...body);

export const empty = (title, text, command) =>
  h("div", { class: "empty" }, h("strong", {}, title), text && h("span", {}, text), command && h("code", {}, command));

export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);

export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.map(([name, value, unit]) =>
    h("div", {}, h("dt", {}, name), h("dd", { title: value }, value, unit && h("small", {}, unit)))));

export const head = (title, crumb, tools) =>
  h("div", { class: "head" }, crumb && h("div", { class: "crumb" }, crumb), h("h1", {}, title), tools && h("div", { class: "tools" }, tools));

export function dialog(className, ...children) {
  const node = h("dialog", { class: className, onclose: () => node.remove() }, ...children);
  node.addEventListener("click", (event) => event.target === node && node.close());
  document.body.append(node);
  node.showModal();
  return node;
}
