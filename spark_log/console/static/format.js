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

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const units = [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]];
  const parts = [];
  for (const [name, size] of units) {
    const n = Math.floor(ms / size);
    if (n || parts.length) { if (n) parts.push(`${n} ${name}`); ms -= n * size; }
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0 s";
}

const two = (n) => String(n).padStart(2, "0");

export function time(ms, millis = true) {
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return String(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${day} ${clock}${millis ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : ""}`;
}

export const ago = (ms) => (ms === null || ms === undefined ? "–" : `${duration(Math.max(0, Date.now() - ms))} ago`);
export const since = (iso) => (iso ? ago(Date.parse(iso)) : "–");
