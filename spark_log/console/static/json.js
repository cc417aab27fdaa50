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

function kind(token, next) {
  if (token[0] === '"') return next === ":" ? "j-name" : "j-string";
  return /^[-0-9]/.test(token) ? "j-number" : "j-word";
}
