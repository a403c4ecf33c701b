// Requests to the server, and its streams of events.

import { strings } from "./strings.js";

export class Refusal extends Error {
  constructor(message, status = 0, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait; // seconds
  }
}

export const access = { key: "" };

// A response of 2xx. Raises Refusal, or AbortError.
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  let response;
  try {
    if (access.key) headers.Authorization = `Bearer ${access.key}`;
    response = await fetch(path, { ...options, headers, cache: options.cache ?? "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(/header|ISO-8859|ByteString/i.test(error.message) ? strings.wrongKey : strings.gone);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

async function refusal(response) {
  const { status } = response;
  const body = await response.json().catch(() => ({}));
  const said = String(body?.error?.message ?? response.statusText);
  const wait = Math.ceil(Number(response.headers.get("Retry-After")) || 0);
  const when = strings.again(wait);
  if (status === 401) return new Refusal(access.key ? strings.wrongKey : strings.noKey, status);
  if (status === 403) return new Refusal(strings.notPermitted(said), status);
  if (status === 429) return new Refusal(strings.tooMuch(said) + when, status, wait);
  if (status === 503) return new Refusal(strings.notReady(said) + when, status, wait);
  if (status >= 500) return new Refusal(strings.failed(said) + when, status, wait);
  return new Refusal(strings.refused(said), status, wait);
}

// The bodies of a stream of server-sent events. `told.retry`: milliseconds until the next, if it says so.
export async function* events(response, told = {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parts = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = value.split("\n");
      for (let i = 0; i < lines.length; i++) {
        parts.push(lines[i]);
        if (i === lines.length - 1) break; // continues in the next piece
        const line = parts.splice(0).join("");
        if (line.startsWith("retry: ")) told.retry = Number(line.slice(7));
        if (line === "data: [DONE]") return;
        if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(strings.gone);
  } finally {
    reader.cancel().catch(() => {});
  }
}

// A browser has six connections to a server over HTTP/1.1, one of them for the status: five answers
// at once. The others wait here, and the page says so.
export class Places {
  constructor(protocol) {
    this.most = /^h[23]/.test(protocol) ? Infinity : 5;
    this.taken = 0;
    this.waiting = [];
  }

  get isFull() {
    return this.taken >= this.most;
  }

  take(signal) {
    if (!this.isFull) {
      this.taken++;
      return Promise.resolve();
    }
    return new Promise((resolve, reject) => {
      this.waiting.push(resolve);
      signal.addEventListener("abort", () => {
        const at = this.waiting.indexOf(resolve);
        if (at >= 0) this.waiting.splice(at, 1);
        reject(signal.reason);
      });
    });
  }

  giveBack() {
    const next = this.waiting.shift();
    if (next) next();
    else this.taken--;
  }
}

export const places = new Places(performance.getEntriesByType("navigation")[0]?.nextHopProtocol ?? "");
