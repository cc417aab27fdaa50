// JSON with indents and colours.  The text is not converted: long numbers, doubled names and their order stay as they are.

import { h } from "./dom.js";

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const LONG = 200000;

export function isJson(text) {
  if (text.length > LONG || !/^\s*[[{"]/.test(text)) return false;
  try { JSON.parse(text); return true; } catch { return false; }
}

export function pretty(text) {
  const out = [], tokens = text.match(TOKEN) ?? [];
  const line = (depth) => `\n${"  ".repeat(depth)}`;
  let depth = 0;
  tokens.forEach((token, at) => {
    const next = tokens[at + 1];
    if (token === "{" || token === "[") {
      const closed = next === "}" || next === "]";
      if (!closed) depth += 1;
      out.push(token, closed ? "" : line(depth));
    } else if (token === "}" || token === "]") {
      const opened = tokens[at - 1] === "{" || tokens[at - 1] === "[";
      if (!opened) { depth -= 1; out.push(line(depth)); }
      out.push(token);
    } else if (token === ",") out.push(token, line(depth));
    else if (token === ":") out.push(": ");
    else out.push(h("span", { class: kind(token, next) }, token));
  });
  return out.filter((part) => part !== "");
}

/** The members of an object by name, each as it was written: a number keeps all of its digits.  Null for anything else. */
export function members(text) {
  if (!isJson(text) || !/^\s*\{/.test(text)) return null;
  const found = new Map(), tokens = text.match(TOKEN).slice(1, -1);
  for (let at = 0; at < tokens.length; at += 1) {
    const name = JSON.parse(tokens[at]), begin = at + 2;
    let depth = 0;
    for (at = begin; at < tokens.length && (depth || tokens[at] !== ","); at += 1) {
      depth += "{[".includes(tokens[at]) ? 1 : "}]".includes(tokens[at]) ? -1 : 0;
    }
    found.set(name, tokens.slice(begin, at).join(""));
  }
  return found;
}

function kind(token, next) {
  if (token[0] === '"') return next === ":" ? "j-name" : "j-string";
  return /^[-0-9]/.test(token) ? "j-number" : "j-word";
}
