// Lines over time, and segments on a time line.

import { h, s } from "./dom.js";
import { bytes, compact, count, time, zone } from "./format.js";

function path(points, width, height, most) {
  const [from, to] = [points[0][0], points[points.length - 1][0]];
  return points.map(([at, value], n) => {
    const x = ((at - from) / Math.max(1, to - from)) * width, y = height - (value / Math.max(1e-9, most)) * height;
    return `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
  }).join("");
}

/** Growth per second between samples. */
export const growth = (history) =>
  history.slice(1).map(([at, value], n) => [at, Math.max(0, (1000 * (value - history[n][1])) / Math.max(1, at - history[n][0]))]);

export function spark(points) {
  if (points.length < 2) return h("span", { class: "faint" }, "");
  const most = Math.max(...points.map((p) => p[1]), 1e-9);
  const line = path(points, 92, 20, most);
  return s("svg", { class: "spark", viewBox: "0 0 92 22", "aria-hidden": "true" },
    s("path", { class: "area", d: `${line}L92 22L0 22Z` }), s("path", { class: "line", d: line }));
}

export function lines(points, name, show = compact) {
  if (points.length < 2) {
    return h("div", { class: "chart" }, h("p", { class: "faint" }, "Not enough samples yet. One is taken every 15 seconds, from the first look at this console on."));
  }
  const most = Math.max(...points.map((p) => p[1]), 1), line = path(points, 600, 150, most);
  const say = h("span", {}, `now ${show(points[points.length - 1][1])}`);
  const hover = (event) => {
    const box = event.currentTarget.getBoundingClientRect(), x = (event.clientX - box.left) / box.width;
    const at = points[0][0] + x * (points[points.length - 1][0] - points[0][0]);
    const near = points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
    say.textContent = `${time(near[0], false)}: ${show(near[1])}`;
  };
  return h("div", { class: "chart" },
    h("div", { class: "top" }, h("span", {}, show(most)), say),
    s("svg", { viewBox: "0 0 600 150", preserveAspectRatio: "none", role: "img", "aria-label": name, onmousemove: hover },
      [0, 75, 150].map((y) => s("line", { class: "grid", x1: 0, x2: 600, y1: y, y2: y })),
      s("path", { class: "area", d: `${line}L600 150L0 150Z` }), s("path", { class: "line", d: line })),
    h("div", { class: "scale" }, h("span", {}, time(points[0][0], false)), h("span", {}, zone()), h("span", {}, time(points[points.length - 1][0], false))));
}

/** Each segment from its first to its last timestamp, and from its first to its last offset: late records make it wide. */
export function timeline(segments) {
  const width = 1000, height = 200, least = 4, say = h("p", { class: "say" }, "Point at a segment to see its records.");
  const from = Math.min(...segments.map((one) => one.min_ms)), to = Math.max(...segments.map((one) => one.max_ms));
  const [first, last] = [segments[0].start, segments[segments.length - 1].end];
  const x = (ms) => ((ms - from) / Math.max(1, to - from)) * (width - least);
  const y = (offset) => height - ((offset - first) / Math.max(1, last - first)) * (height - least);
  const bar = (one) => {
    const show = () => { say.textContent = text(one); };
    const tall = Math.max(least, y(one.start) - y(one.end));
    return s("rect", { class: one.slices > 1 ? "bar many" : "bar", tabindex: "0", x: x(one.min_ms).toFixed(1), y: (y(one.start) - tall).toFixed(1),
      width: (x(one.max_ms) - x(one.min_ms) + least).toFixed(1), height: tall.toFixed(1), onmouseenter: show, onfocus: show }, s("title", {}, text(one)));
  };
  return h("div", { class: "chart" },
    h("div", { class: "top" }, h("span", {}, `offset ${count(last)}`)),
    s("svg", { class: "tall", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": "Segments by time and offset" },
      [0, height / 2, height].map((at) => s("line", { class: "grid", x1: 0, x2: width, y1: at, y2: at })), segments.map(bar)),
    h("div", { class: "scale" }, h("span", {}, time(from, false)), h("span", {}, `offset ${count(first)} at the bottom, ${zone()}`), h("span", {}, time(to, false))), say);
}

const text = (one) =>
  `offsets ${count(one.start)} to ${count(one.end - 1)} · ${bytes(one.bytes)} · ${time(one.min_ms, false)} to ${time(one.max_ms, false)} · ` +
  (one.slices > 1 ? `${one.slices} slices, listed in ${one.object}` : one.object);
