// The state of the server: a folded line, and its details.

import { ask, events } from "./api.js";
import { byId, button, make } from "./dom.js";
import { strings } from "./strings.js";

const QUIET = 6000; // milliseconds without news, after which the stream counts as lost
const POINTS = 60;
const HEIGHT = 40;

export class Server {
  // `seen` takes the body of each frame.
  constructor(seen) {
    this.seen = seen;
    this.rates = new Map(); // tokens a second of the last minute, by model
    this.watching = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.watching?.abort() : this.watch()));
  }

  async watch() {
    this.watching?.abort();
    const abort = (this.watching = new AbortController());
    while (!abort.signal.aborted && !document.hidden) {
      let wait = 1;
      try {
        wait = await this.follow(abort);
      } catch (error) {
        if (abort.signal.aborted) return;
        wait = this.troubled(error, abort);
      }
      await new Promise((resolve) => setTimeout(resolve, wait * 1000));
    }
  }

  // Seconds until the next, once one has ended. A server that can't continue says when to ask again.
  async follow(abort) {
    const told = { retry: 1000 };
    const own = new AbortController();
    const end = () => own.abort();
    abort.signal.addEventListener("abort", end);
    let timer = setTimeout(end, QUIET);
    try {
      for await (const body of events(await ask("ui/status", { signal: own.signal }), told)) {
        clearTimeout(timer);
        timer = setTimeout(end, QUIET);
        this.show(body);
      }
    } finally {
      clearTimeout(timer);
      abort.signal.removeEventListener("abort", end);
    }
    return told.retry / 1000;
  }

  // Seconds until the next try.
  troubled(error, abort) {
    const wait = Math.max(error.wait || 0, 3);
    const said = error.status ? error.message : strings.noAnswer;
    const isKey = error.status === 401;
    byId("trouble").textContent = isKey ? said : strings.nextLook(said, wait);
    if (isKey) byId("trouble").append(button(strings.enterKey, () => byId("preferences").showModal()));
    byId("trouble").hidden = false;
    byId("brief").textContent = isKey ? strings.keyNeeded : strings.notConnected;
    if (isKey) abort.abort(); // another key starts again: wrong ones are counted
    return wait;
  }

  show(body) {
    byId("trouble").hidden = true;
    this.seen(body);
    for (const model of body.models) this.note(model);
    byId("brief").textContent = brief(body.models);
    if (!byId("server").open) return;
    const { rows } = strings;
    const own = [[rows.version, body.version], [rows.uptime, span(body.uptime)]];
    if (body.streams !== undefined) own.push([rows.streams, body.streams]);
    if (body.threads) own.push([rows.threads, strings.of(body.threads.busy, body.threads.all)]);
    const cards = [...body.models.map((model) => this.card(model)), make("div", { className: "card" }, table(own))];
    if (body.queue?.length) cards.push(queue(body.queue));
    byId("status").replaceChildren(...cards);
  }

  note(model) {
    if (model.tokens_per_second === undefined) return;
    const values = this.rates.get(model.id) ?? [];
    this.rates.set(model.id, values);
    values.push(model.tokens_per_second);
    if (values.length > POINTS) values.shift();
  }

  card(model) {
    const { rows } = strings;
    const of = (value, most) => (most === undefined ? value : strings.of(value, most));
    const own = [[rows.state, model.state]];
    own.push([rows.running, of(model.running, model.max_batch_size)]);
    own.push([rows.waiting, of(model.waiting, model.max_pending)]);
    if (model.parked) own.push([rows.parked, model.parked]);
    if (model.tokens_per_second !== undefined) {
      own.push([rows.rate, model.tokens_per_second], [rows.promptRate, model.prompt_tokens_per_second]);
      if (model.iteration_ms) own.push([rows.iteration, strings.milliseconds(model.iteration_ms)]);
      own.push([rows.recoveries, model.recoveries]);
    }
    const box = make("section", { className: "card" }, make("h3", { textContent: model.id }), table(own));
    if (model.progress !== null && model.state === "loading") box.append(bar(strings.loading, model.progress, 1, percent));
    if (model.tokens_per_second !== undefined) box.append(chart(this.rates.get(model.id)));
    if (model.pages) box.append(bar(strings.pages, model.pages.referenced, model.pages.all, strings.of));
    for (const gpu of model.gpus ?? []) {
      box.append(bar(strings.memoryOf(gpu.name), gpu.total - gpu.free, gpu.total, gibibytes));
    }
    return box;
  }
}

export function brief(models) {
  const sum = (name) => models.reduce((total, model) => total + (model[name] ?? 0), 0);
  const rate = models.some((model) => model.tokens_per_second !== undefined)
    ? Math.round(10 * sum("tokens_per_second")) / 10 : null;
  const states = [...new Set(models.map((model) => model.state))].join(", ");
  return strings.brief(states, sum("running"), sum("waiting"), rate);
}

// The waiting requests, for admins.
function queue(waiting) {
  const list = make("ol");
  for (const one of waiting) {
    list.append(make("li", { value: one.place, textContent: strings.queued(one, span(one.age)) }));
  }
  return make("section", { className: "card" }, make("h3", { textContent: strings.queue }), list);
}

const percent = (value) => `${Math.round(value * 100)} %`;
const gibibytes = (value, all) => `${strings.of((value / 2 ** 30).toFixed(1), (all / 2 ** 30).toFixed(1))} GiB`;

function table(rows) {
  const cells = rows.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]);
  return make("dl", {}, ...cells);
}

function bar(name, value, all, tell) {
  const shown = make("progress", { max: all || 1, value, "aria-label": name });
  return make("div", { className: "note" }, `${name}: ${tell(value, all)}`, shown);
}

export function points(values) {
  const top = Math.max(1, ...values);
  const height = (value) => (HEIGHT - 2 - ((HEIGHT - 4) * value) / top).toFixed(1);
  return values.map((value, i) => `${POINTS - values.length + i},${height(value)}`).join(" ");
}

// Tokens a second of the last minute, with its scale.
function chart(values) {
  const top = Math.max(1, ...values);
  const of = (name, properties) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
    return made;
  };
  const label = strings.rateLine(top);
  const svg = of("svg", { viewBox: `0 0 ${POINTS - 1} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  svg.append(of("polyline", { points: points(values) }));
  const scale = [`${top} ${strings.rows.rate}`, "0", strings.minuteAgo, strings.now];
  const marks = scale.map((text, i) => make("span", { className: `mark mark-${i}`, textContent: text, "aria-hidden": "true" }));
  return make("div", { className: "chart" }, svg, ...marks);
}

export function span(seconds) {
  const [days, hours, minutes] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}
