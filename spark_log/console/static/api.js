// Requests to the coordinator, with the token of this tab.

const KEY = "pylog-token";

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export const token = () => sessionStorage.getItem(KEY) ?? "";
export const keepToken = (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY));

/** The number of the log that is shown, of a console with several: part of the address of the page. */
export const shownLog = () => new URLSearchParams(location.search).get("log") ?? "";

async function ask(path, options) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  let reply;
  try {
    reply = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch {
    throw new Refused(0, "the coordinator does not answer");
  }
  const tooLong = [414, 431].includes(reply.status);
  const unreadable = tooLong ? "this is too long for the console: use the command line" : `unexpected answer ${reply.status}`;
  const found = await reply.json().catch(() => ({ message: unreadable }));
  if (!reply.ok) throw new Refused(reply.status, found.message ?? `error ${reply.status}`);
  return found;
}

export function get(name, query = {}) {
  const given = Object.entries({ ...query, log: shownLog() }).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return ask(`/console/api/${name}${text ? `?${text}` : ""}`, {});
}

/** A change of the log, with the rights of the token; the coordinator audits it as that of any client.  one: its JSON, as text. */
export async function send(me, one) {
  const { version } = await get("me");
  const body = `{"cluster_id": ${JSON.stringify(me.cluster_id)}, "since": ${version}, "commands": [${one}]}`;
  const { outcomes } = await ask(`/v1/commands${shownLog() && `?log=${shownLog()}`}`, { method: "POST", body });
  if (outcomes[0].failure) throw new Refused(400, outcomes[0].failure.message);
}
