"use strict";
// Text of a model or a server becomes text nodes only.

const byId = (id) => document.getElementById(id);
const BLOCK = 16000; // characters of one block, so that a browser need not lay out a megabyte again
const FIELDS = ["model", "temperature", "top_p", "max_tokens", "key", "system", "tools"];

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

const kept = {
  read(name, otherwise) {
    try {
      return JSON.parse(sessionStorage.getItem(name)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  write(name, value) {
    try {
      sessionStorage.setItem(name, JSON.stringify(value));
    } catch {
      // No room, or forbidden: the page works, but nothing outlives a reload.
    }
  },
};

// Requests

class Refusal extends Error {
  constructor(message, status = 0, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait; // seconds
  }
}

const GONE = "The server does not answer. The conversation is kept: try again once it is back.";
const NO_KEY = "The API key is missing or wrong. Enter a valid one in the settings.";

async function ask(path, options = {}) {
  const key = byId("key").value.trim();
  const headers = { ...options.headers };
  let response;
  try {
    if (key) headers.Authorization = `Bearer ${key}`;
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(/header|ISO-8859|ByteString/i.test(error.message) ? NO_KEY : GONE);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const { status } = response;
  const body = await response.json().catch(() => ({}));
  const said = String(body?.error?.message ?? response.statusText);
  const wait = Math.ceil(Number(response.headers.get("Retry-After")) || 0);
  const when = wait ? ` Try again in ${wait} s.` : "";
  if (status === 401) return new Refusal(NO_KEY, status);
  if (status === 403) return new Refusal(`Not permitted: ${said}`, status);
  if (status === 429) return new Refusal(`Too much at once: ${said}.${when}`, status, wait);
  if (status === 503) return new Refusal(`Not ready: ${said}.${when}`, status, wait);
  if (status >= 500) return new Refusal(`The server failed: ${said}.${when}`, status, wait);
  return new Refusal(`Refused: ${said}`, status, wait);
}

// The bodies of a stream of server-sent events. `told.retry`: milliseconds until the next, if it says so.
async function* events(response, told = {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parts = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = value.split("\n");
      for (let i = 0; i < lines.length; i++) {
        parts.push(lines[i]);
        if (i === lines.length - 1) break; // goes on in the next piece
        const line = parts.splice(0).join("");
        if (line.startsWith("retry: ")) told.retry = Number(line.slice(7));
        if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
        if (line === "data: [DONE]") return;
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(GONE);
  } finally {
    reader.cancel().catch(() => {});
  }
}

// A browser has six connections to a server over HTTP/1.1, one of them for the status: five answers
// at once. The others wait here, and the page says so.
const places = {
  most: /^h[23]/.test(performance.getEntriesByType("navigation")[0]?.nextHopProtocol ?? "") ? Infinity : 5,
  taken: 0,
  waiting: [],
  take(signal) {
    if (this.taken < this.most) {
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
  },
  giveBack() {
    const next = this.waiting.shift();
    if (next) next();
    else this.taken--;
  },
};

// Text

// Text as it comes, in blocks; between lines of three backticks it is code.
class Text {
  constructor(parent) {
    this.parent = parent;
    this.rest = ""; // what may be the beginning of a fence
    this.isCode = false;
    this.startsLine = true;
    this.block = null;
  }

  add(text) {
    this.rest += text;
    while (this.rest) {
      if (this.startsLine && /^ {0,3}(`{0,2}$|```)/.test(this.rest)) {
        const end = this.rest.indexOf("\n");
        if (end < 0 && this.rest.length < 200) return;
        if (end >= 0 && this.fence(this.rest.slice(0, end).trim())) {
          this.rest = this.rest.slice(end + 1);
          continue;
        }
      }
      const end = this.rest.indexOf("\n") + 1;
      const line = end ? this.rest.slice(0, end) : this.rest;
      this.put(line);
      this.rest = this.rest.slice(line.length);
      this.startsLine = end > 0;
    }
  }

  end() {
    if (this.rest && !(this.isCode && /^ {0,3}```\s*$/.test(this.rest))) this.put(this.rest);
    this.rest = "";
  }

  fence(line) {
    if (this.isCode ? line !== "```" : line.slice(3).includes("`")) return false;
    this.isCode = !this.isCode;
    this.block = null;
    if (!this.isCode) return true;
    const language = line.slice(3).trim();
    if (language) this.parent.append(make("p", { className: "language", textContent: language }));
    this.pre = make("pre", { tabIndex: 0 });
    this.pre.setAttribute("role", "region");
    this.pre.setAttribute("aria-label", `Code ${language}`.trim());
    this.parent.append(this.pre);
    return true;
  }

  put(text) {
    for (let at = 0; at < text.length; ) {
      if (!this.block || this.block.length >= BLOCK) this.begin();
      const piece = text.slice(at, at + BLOCK - this.block.length);
      this.block.appendData(piece);
      at += piece.length;
    }
  }

  begin() {
    this.block = document.createTextNode("");
    const block = make("div", { className: this.isCode ? "block" : "block text", dir: "auto" });
    if (this.isCode) block.dir = "ltr";
    block.append(this.block);
    (this.isCode ? this.pre : this.parent).append(block);
  }
}

function showText(parent, text) {
  const shown = new Text(parent);
  shown.add(text);
  shown.end();
}

function showCall(parent, call) {
  const code = make("pre", { textContent: call.function.arguments, tabIndex: 0 });
  code.setAttribute("role", "region");
  code.setAttribute("aria-label", `Arguments of ${call.function.name}`);
  const name = make("strong", { textContent: call.function.name });
  const box = make("div", { className: "call" }, "calls the tool ", name, code);
  parent.append(box);
  return code.firstChild ?? code.appendChild(document.createTextNode(""));
}

// An answer as it comes.
class Answer {
  constructor(article) {
    this.article = article;
    this.content = this.reasoning = "";
    this.calls = [];
    this.nodes = [];
    this.usage = this.timings = this.reason = null;
    this.begin = performance.now();
    this.waiting = { content: [], reasoning: [] };
    this.timer = 0;
  }

  add(body) {
    if (body.error) throw new Refusal(`The answer was cut off: ${String(body.error.message)}`);
    this.usage = body.usage ?? this.usage;
    this.timings = body.timings ?? this.timings;
    for (const choice of body.choices ?? []) {
      const delta = choice.delta ?? {};
      if (delta.reasoning_content) this.waiting.reasoning.push(delta.reasoning_content);
      if (delta.content) this.waiting.content.push(delta.content);
      for (const call of delta.tool_calls ?? []) this.addCall(call);
      this.reason = choice.finish_reason ?? this.reason;
    }
    this.timer ||= setTimeout(() => this.flush(), 40);
  }

  addCall(part) {
    let call = this.calls[part.index];
    if (!call) {
      call = { id: part.id, type: "function", function: { name: part.function.name, arguments: "" } };
      this.calls[part.index] = call;
      this.flush();
      this.nodes[part.index] = showCall(this.article, call);
    }
    const more = part.function?.arguments ?? "";
    call.function.arguments += more;
    this.nodes[part.index].appendData(more);
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = 0;
    const log = this.article.parentElement;
    const follows = log && log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    const reasoning = this.waiting.reasoning.splice(0).join("");
    const content = this.waiting.content.splice(0).join("");
    if (reasoning) {
      this.thoughts ??= new Text(showThoughts(this.article));
      this.thoughts.add(reasoning);
    }
    if (content) {
      this.text ??= new Text(this.article);
      this.text.add(content);
    }
    this.reasoning += reasoning;
    this.content += content;
    if (follows) log.scrollTop = log.scrollHeight;
  }

  end() {
    this.flush();
    this.thoughts?.end();
    this.text?.end();
  }

  message() {
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning = this.reasoning;
    if (this.calls.length) message.tool_calls = this.calls;
    message.note = this.note();
    return message;
  }

  note() {
    const { usage, timings } = this;
    const said = [];
    if (usage) {
      const seconds = (performance.now() - this.begin) / 1000;
      const rate = timings?.predicted_per_second || usage.completion_tokens / seconds;
      said.push(`${usage.completion_tokens} tokens, ${rate.toFixed(1)} tokens/s`);
      const cached = usage.prompt_tokens_details?.cached_tokens;
      said.push(`prompt ${usage.prompt_tokens}${cached ? `, ${cached} of them cached` : ""}`);
    }
    if (this.reason === "length") said.push("cut off at the limit of tokens");
    if (this.isStopped) said.push("stopped");
    return said.join("; ");
  }
}

function showThoughts(article) {
  const inside = make("div", { className: "thoughts" });
  article.append(make("details", {}, make("summary", { textContent: "Thoughts" }), inside));
  return inside;
}

// Conversations

const chats = [];
const WHO = { user: "You", assistant: "Model", tool: "Result of a tool" };

class Chat {
  constructor(number, messages = []) {
    this.number = number;
    this.messages = messages;
    this.abort = null;
    const name = `Conversation ${number}`;
    this.log = make("div", { className: "log", tabIndex: 0 });
    this.log.setAttribute("role", "region");
    this.log.setAttribute("aria-label", `${name}: messages`);
    this.field = make("textarea", { id: `ask-${number}`, rows: 3 });
    this.label = make("label", { htmlFor: this.field.id });
    this.sends = make("button", { className: "main", textContent: "Send" });
    this.stops = make("button", { type: "button", textContent: "Stop", disabled: true });
    const closes = make("button", { type: "button", textContent: "Close" });
    closes.setAttribute("aria-label", `Close ${name}`);
    const form = make("form", { className: "ask" }, this.label, this.field,
      make("div", { className: "buttons" }, this.sends, this.stops));
    this.section = make("section", { className: "chat" },
      make("header", {}, make("h2", { textContent: name }), closes), this.log, form);
    this.section.setAttribute("aria-label", name);
    form.addEventListener("submit", (event) => (event.preventDefault(), this.send()));
    this.stops.addEventListener("click", () => this.stop());
    closes.addEventListener("click", () => this.close());
    this.section.addEventListener("keydown", (event) => this.onKey(event));
    for (const message of messages) this.show(message);
    this.tellNext();
    byId("chats").append(this.section);
  }

  onKey(event) {
    if (event.key === "Escape") this.stop();
    const isEnter = event.key === "Enter" && !event.shiftKey && !event.isComposing;
    if (isEnter && event.target === this.field) {
      event.preventDefault();
      this.send();
    }
  }

  article(role) {
    const article = make("article", { className: `message ${role}` }, make("h3", { textContent: WHO[role] }));
    this.log.append(article);
    return article;
  }

  show(message) {
    const article = this.article(message.role);
    if (message.reasoning) showText(showThoughts(article), message.reasoning);
    showText(article, message.content ?? "");
    for (const call of message.tool_calls ?? []) showCall(article, call);
    if (message.note) article.append(make("p", { className: "note", textContent: message.note }));
    this.log.scrollTop = this.log.scrollHeight;
    return article;
  }

  // Calls of tools whose results are still to be told.
  open() {
    const at = this.messages.findLastIndex((message) => message.tool_calls);
    if (at < 0 || this.messages.slice(at + 1).some((message) => message.role !== "tool")) return [];
    return this.messages[at].tool_calls.slice(this.messages.length - at - 1);
  }

  tellNext() {
    const [call] = this.open();
    const what = call ? `Result of the tool ${call.function.name}` : "Message";
    this.label.textContent = `${what} (Enter sends, Shift+Enter breaks the line)`;
  }

  send() {
    const content = this.field.value;
    if (this.abort || !content.trim()) return;
    this.field.value = "";
    const [call] = this.open();
    const last = this.messages.at(-1);
    if (call) {
      this.messages.push({ role: "tool", tool_call_id: call.id, content });
    } else if (last?.role === "user") {
      last.content += `\n\n${content}`; // that had no answer; many templates want turns
    } else {
      this.messages.push({ role: "user", content });
    }
    this.show({ role: call ? "tool" : "user", content });
    this.tellNext();
    keep();
    if (!this.open().length) this.run();
  }

  async run() {
    this.trouble?.remove();
    this.abort = new AbortController();
    this.sends.disabled = true;
    this.stops.disabled = false;
    const article = this.article("assistant");
    article.setAttribute("aria-busy", "true");
    const answer = new Answer(article);
    let problem = null;
    try {
      const body = JSON.stringify(request(this.messages));
      await this.fetch(body, answer, this.abort.signal);
    } catch (error) {
      answer.isStopped = error.name === "AbortError";
      problem = answer.isStopped ? null : error;
    }
    this.finish(article, answer, problem);
  }

  async fetch(body, answer, signal) {
    const wait = make("p", { className: "note" }, `Waits: ${places.most} answers are on their way, and a browser has no`,
      " more connections to a server. This one is asked for once one of them is complete.");
    if (places.taken >= places.most) this.log.append(wait);
    await places.take(signal).finally(() => wait.remove());
    try {
      const headers = { "Content-Type": "application/json" };
      answer.begin = performance.now();
      const response = await ask("v1/chat/completions", { method: "POST", headers, body, signal });
      for await (const event of events(response)) answer.add(event);
      if (!answer.reason) throw new Refusal("The answer was cut off: the connection has ended.");
    } finally {
      places.giveBack();
    }
  }

  finish(article, answer, problem) {
    answer.end();
    this.abort = null;
    this.sends.disabled = false;
    this.stops.disabled = true;
    article.removeAttribute("aria-busy");
    const message = answer.message();
    if (problem || answer.isStopped) delete message.tool_calls; // they may be in pieces
    if (message.content || message.tool_calls || !problem) this.messages.push(message);
    if (!message.content && !message.tool_calls && problem) article.remove();
    else if (message.note) article.append(make("p", { className: "note", textContent: message.note }));
    if (problem) this.complain(problem);
    this.tellNext();
    keep();
    const how = problem ? problem.message : `the answer is complete. ${message.note}`;
    byId("told").textContent = `Conversation ${this.number}: ${how}`;
  }

  complain(problem) {
    const again = make("button", { type: "button", textContent: "Try again" });
    again.addEventListener("click", () => this.abort || this.run());
    this.trouble = make("p", { className: "trouble" }, problem.message);
    if (this.messages.at(-1)?.role !== "assistant") this.trouble.append(again);
    this.log.append(this.trouble);
    this.log.scrollTop = this.log.scrollHeight;
    if (problem.status === 401) byId("settings").open = true;
  }

  stop() {
    this.abort?.abort();
  }

  close() {
    this.stop();
    this.section.remove();
    chats.splice(chats.indexOf(this), 1);
    if (!chats.length) add();
    keep();
    chats[0].field.focus();
  }
}

// The body of a request. Raises Refusal for settings that can't be sent.
function request(messages) {
  const system = byId("system").value;
  const told = messages.map(({ note, reasoning, ...message }) => message);
  const body = {
    messages: system.trim() ? [{ role: "system", content: system }, ...told] : told,
    stream: true,
    stream_options: { include_usage: true },
    timings: true,
  };
  if (byId("model").value) body.model = byId("model").value;
  for (const name of ["temperature", "top_p", "max_tokens"]) {
    if (byId(name).value) body[name] = Number(byId(name).value);
  }
  const tools = byId("tools").value.trim();
  if (tools) {
    try {
      body.tools = JSON.parse(tools);
    } catch (error) {
      throw new Refusal(`The tools in the settings are no JSON: ${error.message}`);
    }
  }
  return body;
}

function add(messages) {
  const number = Math.max(0, ...chats.map((chat) => chat.number)) + 1;
  const chat = new Chat(number, messages);
  chats.push(chat);
  return chat;
}

function keep() {
  kept.write("chats", chats.map((chat) => chat.messages));
}

// The state of the server

const QUIET = 6000; // milliseconds without news, after which the stream counts as lost
const POINTS = 60;
const rates = new Map(); // tokens a second of the last minute, by model
let watching = null;

async function watch() {
  watching?.abort();
  const abort = (watching = new AbortController());
  while (!abort.signal.aborted && !document.hidden) {
    let wait = 1;
    try {
      wait = await follow(abort);
    } catch (error) {
      if (abort.signal.aborted) return;
      wait = troubled(error, abort);
    }
    await new Promise((resolve) => setTimeout(resolve, wait * 1000));
  }
}

// Seconds until the next, once one has ended. A server that can't go on says when to come again.
async function follow(abort) {
  const told = { retry: 1000 };
  const own = new AbortController();
  const end = () => own.abort();
  abort.signal.addEventListener("abort", end);
  let timer = setTimeout(end, QUIET);
  try {
    for await (const body of events(await ask("ui/status", { signal: own.signal }), told)) {
      clearTimeout(timer);
      timer = setTimeout(end, QUIET);
      showStatus(body);
    }
  } finally {
    clearTimeout(timer);
    abort.signal.removeEventListener("abort", end);
  }
  return told.retry / 1000;
}

// Seconds until the next try.
function troubled(error, abort) {
  const wait = Math.max(error.wait || 0, 3);
  const said = error.status ? error.message : "The server does not answer.";
  byId("trouble").textContent = error.status === 401 ? NO_KEY : `${said} Next look in ${wait} s.`;
  byId("trouble").hidden = false;
  byId("brief").textContent = error.status === 401 ? "an API key is needed" : "not connected";
  if (error.status === 401) abort.abort(); // another key begins anew: wrong ones are counted
  return wait;
}

function showStatus(body) {
  byId("trouble").hidden = true;
  offer(body.models.map((model) => model.id));
  const running = body.models.reduce((sum, model) => sum + model.running, 0);
  const waiting = body.models.reduce((sum, model) => sum + model.waiting, 0);
  const states = [...new Set(body.models.map((model) => model.state))].join(", ");
  byId("brief").textContent = `${states}; ${running} running, ${waiting} waiting`;
  const rows = [["version", body.version], ["up for", span(body.uptime)]];
  if (body.streams !== undefined) rows.push(["open streams", body.streams]);
  if (body.threads) rows.push(["request threads", `${body.threads.busy} of ${body.threads.all}`]);
  const cards = [...body.models.map(card), make("div", { className: "card" }, table(rows))];
  if (body.queue?.length) cards.push(queue(body.queue));
  byId("status").replaceChildren(...cards);
}

// The waiting requests, for admins.
function queue(waiting) {
  const box = make("section", { className: "card" }, make("h3", { textContent: "Queue" }));
  const list = make("ol");
  for (const one of waiting) {
    const priority = one.priority ? `, priority ${one.priority}` : "";
    const text = `${one.model}: ${one.prompt_tokens} prompt tokens, waits ${span(one.age)}${priority}`;
    list.append(make("li", { value: one.place, textContent: text }));
  }
  box.append(list);
  return box;
}

// The models, in the settings' list.
function offer(names) {
  const list = byId("model");
  if ([...list.options].map((option) => option.value).join("\n") === names.join("\n")) return;
  const chosen = list.value || kept.read("model", "");
  list.replaceChildren(...names.map((name) => make("option", { value: name, textContent: name })));
  if (names.includes(chosen)) list.value = chosen;
}

function card(model) {
  const rows = [["state", model.state]];
  const of = (number, most) => (most === undefined ? number : `${number} of ${most}`);
  rows.push(["running", of(model.running, model.max_batch_size)]);
  rows.push(["waiting", of(model.waiting, model.max_pending)]);
  if (model.parked) rows.push(["parked, without pages", model.parked]);
  if (model.tokens_per_second !== undefined) {
    rows.push(["tokens/s", model.tokens_per_second], ["prompt tokens/s", model.prompt_tokens_per_second]);
    if (model.iteration_ms) rows.push(["iteration", `${model.iteration_ms} ms`]);
    rows.push(["recoveries", model.recoveries]);
  }
  const box = make("section", { className: "card" }, make("h3", { textContent: model.id }), table(rows));
  if (model.progress !== null && model.state === "loading") box.append(bar("Loading", model.progress, 1, percent));
  if (model.tokens_per_second !== undefined) box.append(line(model));
  if (model.pages) box.append(bar("Cache pages in use", model.pages.referenced, model.pages.all, count));
  for (const gpu of model.gpus ?? []) {
    box.append(bar(`Memory of ${gpu.name}`, gpu.total - gpu.free, gpu.total, gibibytes));
  }
  return box;
}

const percent = (value) => `${Math.round(value * 100)} %`;
const count = (value, all) => `${value} of ${all}`;
const gibibytes = (value, all) => `${(value / 2 ** 30).toFixed(1)} of ${(all / 2 ** 30).toFixed(1)} GiB`;

function table(rows) {
  const cells = rows.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]);
  return make("dl", {}, ...cells);
}

function bar(name, value, all, tell) {
  const shown = make("progress", { max: all || 1, value });
  shown.setAttribute("aria-label", name);
  return make("div", { className: "note" }, `${name}: ${tell(value, all)}`, shown);
}

// Tokens a second of the last minute.
function line(model) {
  const values = rates.get(model.id) ?? [];
  rates.set(model.id, values);
  values.push(model.tokens_per_second);
  if (values.length > POINTS) values.shift();
  const top = Math.max(1, ...values);
  const points = values.map((value, i) => `${POINTS - values.length + i},${(38 - (36 * value) / top).toFixed(1)}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  path.setAttribute("points", points.join(" "));
  svg.setAttribute("viewBox", `0 0 ${POINTS - 1} 40`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Tokens a second over the last minute, ${top} at most`);
  svg.append(path);
  return svg;
}

function span(seconds) {
  const [days, hours, minutes] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

// The beginning

function paint() {
  const { value } = byId("theme");
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
}

for (const name of [...FIELDS, "theme"]) {
  if (name !== "model") byId(name).value = kept.read(name, "");
  byId(name).addEventListener("change", () => kept.write(name, byId(name).value));
}
byId("theme").addEventListener("change", paint);
byId("key").addEventListener("change", watch);
byId("add").addEventListener("click", () => (add().field.focus(), keep()));
document.addEventListener("visibilitychange", () => (document.hidden ? watching?.abort() : watch()));
paint();
for (const messages of kept.read("chats", [[]])) add(messages);
if (!chats.length) add();
chats[0].field.focus();
watch();
