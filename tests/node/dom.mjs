// As much of a browser as app/ui/app.js needs, with timers that the test turns, and a server that
// the test plays. tests/page has the real one.
import { readFileSync } from "node:fs";
import vm from "node:vm";

const UI = new URL("../../app/ui/", import.meta.url);
const HTML = readFileSync(new URL("index.html", UI), "utf8");
const SCRIPT = new vm.Script(readFileSync(new URL("app.js", UI), "utf8"), { filename: "app.js" });

class Text {
  constructor(data) {
    this.data = data;
  }
  get textContent() {
    return this.data;
  }
  get length() {
    return this.data.length;
  }
  appendData(more) {
    this.data += more;
  }
}

class Element {
  constructor(name, document) {
    this.name = name;
    this.document = document;
    this.attributes = {};
    this.listeners = {};
    this.dataset = {};
    this.children = [];
    this.className = "";
    this.scrollHeight = this.scrollTop = this.clientHeight = 0;
    this.parentElement = this.chosen = null;
    this.hidden = this.disabled = false;
  }
  append(...nodes) {
    for (const node of nodes) {
      node.remove?.();
      const child = node instanceof Element || node instanceof Text ? node : new Text(String(node));
      child.parentElement = this;
      this.children.push(child);
    }
  }
  appendChild(node) {
    this.append(node);
    return node;
  }
  replaceChildren(...nodes) {
    this.children = [];
    this.chosen = null;
    this.append(...nodes);
  }
  remove() {
    const among = this.parentElement?.children ?? [];
    if (among.includes(this)) among.splice(among.indexOf(this), 1);
    this.parentElement = null;
  }
  get firstChild() {
    return this.children[0] ?? null;
  }
  get textContent() {
    return this.children.map((child) => child.textContent).join("");
  }
  set textContent(text) {
    this.children = text === "" ? [] : [new Text(String(text))];
  }
  get options() {
    return this.children;
  }
  get value() {
    return this.chosen ?? (this.name === "select" ? (this.children[0]?.value ?? "") : "");
  }
  set value(value) {
    this.chosen = value === null ? "" : String(value);
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
  }
  removeAttribute(name) {
    delete this.attributes[name];
  }
  addEventListener(name, listener) {
    (this.listeners[name] ??= []).push(listener);
  }
  focus() {
    this.document.focused = this;
  }
  // What a visitor does. Events rise to the elements around.
  press(key, more = {}) {
    const event = { key, target: this, preventDefault: () => (event.isHeld = true), ...more };
    for (let at = this; at; at = at.parentElement) at.listeners.keydown?.forEach((tell) => tell(event));
    return event;
  }
  happen(name) {
    this.listeners[name]?.forEach((tell) => tell({ target: this, preventDefault() {} }));
  }
  click() {
    if (!this.disabled) this.happen("click");
  }
  enter(value) {
    this.value = value;
    this.happen("change");
  }
  all(name, kind) {
    const found = this.children.filter((child) => child instanceof Element);
    const own = found.flatMap((child) => [child, ...child.all()]);
    const isOne = (one) => one.name === name && (!kind || one.className.split(" ").includes(kind));
    return name ? own.filter(isOne) : own;
  }
  button(label) {
    return this.all("button").find((one) => one.textContent === label);
  }
}

// The connection of one request: the test answers when it likes.
class Call {
  constructor(path, options) {
    Object.assign(this, { path, headers: { ...options.headers }, cache: options.cache });
    this.body = options.body === undefined ? undefined : JSON.parse(options.body);
    this.isAborted = false;
    this.answered = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    options.signal?.addEventListener("abort", () => {
      this.isAborted = true;
      const reason = new DOMException("aborted", "AbortError");
      this.reject(reason);
      if (this.isOpen) this.stream.error(reason);
      this.isOpen = false;
    });
  }
  refuse(status, message, headers = {}) {
    const body = typeof message === "string" ? JSON.stringify({ error: { message } }) : "<html>";
    this.resolve(new Response(body, { status, headers, statusText: "as HTTP has it" }));
  }
  // A stream, whose text may come in any pieces.
  begin() {
    const start = (stream) => (this.stream = stream);
    const cancel = () => (this.isOpen = false);
    this.isOpen = true;
    this.resolve(new Response(new ReadableStream({ start, cancel })));
    return this;
  }
  write(text) {
    if (this.isOpen) this.stream.enqueue(new TextEncoder().encode(text));
    return settled();
  }
  tell(...bodies) {
    return this.write(bodies.map((body) => `data: ${JSON.stringify(body)}\n\n`).join(""));
  }
  delta(delta, reason = null) {
    return this.tell({ choices: [{ index: 0, delta, finish_reason: reason }] });
  }
  end() {
    if (this.isOpen) this.stream.close();
    this.isOpen = false;
    return settled();
  }
  fail(error = new TypeError("network error")) {
    if (this.isOpen) this.stream.error(error);
    else this.reject(error);
    this.isOpen = false;
    return settled();
  }
}

// Until all that can go on without time or the network has gone on.
export async function settled() {
  for (let i = 0; i < 12; i++) await new Promise(setImmediate);
}

export class Page {
  constructor({ stored = {}, torn = [], protocol = "http/1.1", hidden = false } = {}) {
    this.now = 1000;
    this.timers = new Map();
    this.calls = [];
    const texts = Object.entries(stored).map(([name, value]) => [name, JSON.stringify(value)]);
    this.stored = new Map([...texts, ...torn.map((name) => [name, "[{"])]);
    this.root = new Element("html", this);
    this.root.listeners.visibilitychange = [];
    this.ids = {};
    for (const [, name, id] of HTML.matchAll(/<(\w+)[^>]* id="([^"]+)"/g)) {
      this.root.append((this.ids[id] = new Element(name, this)));
    }
    let number = 0;
    this.document = this.makeDocument(hidden);
    this.window = vm.createContext({
      AbortController, TextDecoderStream, document: this.document,
      performance: { now: () => this.now, getEntriesByType: () => [{ nextHopProtocol: protocol }] },
      sessionStorage: {
        getItem: (name) => this.stored.get(name) ?? null,
        setItem: (name, value) => this.keep(name, value),
      },
      setTimeout: (run, wait) => (this.timers.set(++number, { at: this.now + wait, run }), number),
      clearTimeout: (timer) => this.timers.delete(timer),
      fetch: async (path, options) => {
        new Headers(options.headers); // throws for what no header can have
        const call = new Call(path, options);
        this.calls.push(call);
        return call.answered;
      },
    });
    SCRIPT.runInContext(this.window);
  }
  keep(name, value) {
    this.stored.set(name, value);
  }
  makeDocument(hidden) {
    return {
      documentElement: this.root,
      hidden,
      getElementById: (id) => this.ids[id],
      createElement: (name) => new Element(name, this),
      createElementNS: (_, name) => new Element(name, this),
      createTextNode: (text) => new Text(text),
      addEventListener: (name, listener) => this.root.addEventListener(name, listener),
    };
  }
  kept(name) {
    return JSON.parse(this.stored.get(name) ?? "null");
  }
  show(isShown) {
    this.document.hidden = !isShown;
    this.root.happen("visibilitychange");
    return settled();
  }
  async pass(milliseconds) {
    const end = this.now + milliseconds;
    for (;;) {
      const due = [...this.timers].filter(([, timer]) => timer.at <= end);
      if (!due.length) break;
      const [number, { at, run }] = due.sort((a, b) => a[1].at - b[1].at)[0];
      this.timers.delete(number);
      this.now = Math.max(this.now, at);
      run();
      await settled();
    }
    this.now = end;
  }
  asked(path) {
    return this.calls.filter((call) => call.path === path);
  }
  status(number = -1) {
    return this.asked("ui/status").at(number);
  }
  chat(number) {
    const name = `Conversation ${number}`;
    return this.ids.chats.all("section").find((one) => one.attributes["aria-label"] === name);
  }
  field(number = 1) {
    return this.chat(number).all("textarea")[0];
  }
  articles(number = 1) {
    return this.chat(number).all("article");
  }
  // Says something, and returns the call that asks for an answer, if it has been made.
  async say(text, number = 1) {
    const before = this.asked("v1/chat/completions").length;
    this.field(number).value = text;
    this.field(number).press("Enter");
    await settled();
    return this.asked("v1/chat/completions")[before];
  }
  // A whole answer.
  async answer(call, text) {
    await call.begin().delta({ content: text });
    await call.delta({}, "stop");
    await call.write("data: [DONE]\n\n");
  }
}
