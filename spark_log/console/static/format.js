// Numbers, sizes and times as people read them.

const SIZES = ["KiB", "MiB", "GiB", "TiB", "PiB"];
const whole = new Intl.NumberFormat("en-US");
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));
export const compact = (n) => (n === null || n === undefined ? "–" : Math.abs(n) < 100000 ? whole.format(n) : short.format(n));

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1024) return `${n} B`;
  let size = n / 1024, unit = 0;
  while (size >= 1023.95 && unit < SIZES.length - 1) { size /= 1024; unit += 1; }
  return `${size.toFixed(1)} ${SIZES[unit]}`;
}

export const rate = (n) => (n === null || n === undefined ? "–" : n === 0 ? "0" : n < 10 ? n.toFixed(1) : compact(Math.round(n)));

export function duration(ms, most = 2) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const units = [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]];
  const parts = [];
  for (const [name, size] of units) {
    const n = Math.floor(ms / size);
    if (n || parts.length) { if (n) parts.push(`${n} ${name}`); ms -= n * size; }
    if (parts.length === most) break;
  }
  return parts.join(" ") || "0 s";
}

// Times are shown in the zone that was chosen in this browser; at first in the browser's own.

const ZONE = "pylog-zone", own = Intl.DateTimeFormat().resolvedOptions().timeZone;
export const zones = () => [...new Set([own, "UTC", ...Intl.supportedValuesOf("timeZone")])];
let clock = null;

export function zone() {
  const kept = localStorage.getItem(ZONE);
  return kept && zones().includes(kept) ? kept : own;
}

export function keepZone(name) {
  localStorage.setItem(ZONE, name);
  clock = null;
}

export function time(ms, millis = true) {
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return String(ms);
  clock ??= new Intl.DateTimeFormat("en-US", { timeZone: zone(), hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit",
    hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });
  const part = Object.fromEntries(clock.formatToParts(at).map(({ type, value }) => [type, value]));
  const text = `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second}`;
  return millis ? `${text}.${part.fractionalSecond}` : text;
}

/** The value of a field for a time, and its inverse: in the zone that was chosen. */
export const wall = (ms) => time(ms, false).replace(" ", "T");
export function instant(text) {
  const as = (value) => Date.parse(`${value}Z`), wanted = as(text);
  const near = wanted - (as(wall(wanted)) - wanted);
  return near - (as(wall(near)) - wanted);
}

export const ago = (ms, most) => (ms === null || ms === undefined ? "–" : `${duration(Math.max(0, Date.now() - ms), most)} ago`);
export const since = (iso, most) => (iso ? ago(Date.parse(iso), most) : "–");
