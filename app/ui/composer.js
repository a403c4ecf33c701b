// The box for messages: its buttons, attached files, and how full the context is.

import { places, post } from "./api.js";
import { arrange, byId, button, isTouch, make, notify } from "./dom.js";
import { promptBody } from "./request.js";
import { strings } from "./strings.js";
import { shown } from "./tree.js";

const MAX_FILE = 4; // MB
const LONGEST = 32; // characters a token of the context; more don't fit, and counting them would freeze the page
const QUIET = 600; // milliseconds without a change, after which tokens are counted

export class Composer {
  constructor(page) {
    this.page = page;
    this.field = byId("input");
    this.counting = null;
    this.timer = 0;
    this.chips = new WeakMap(); // by file
    byId("ask").addEventListener("submit", (event) => (event.preventDefault(), this.send()));
    byId("stop").addEventListener("click", () => page.stop());
    byId("attach").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", (event) => this.attach(event.target));
    this.field.addEventListener("keydown", (event) => this.onKey(event));
    this.field.addEventListener("input", () => {
      if (page.panes.length) page.panes[0].draft.text = this.field.value;
      this.count();
    });
  }

  onKey(event) {
    if (event.key !== "Enter" || event.isComposing || event.shiftKey) return;
    if (isTouch() && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.send();
  }

  // Show the draft of the open conversation, and enable its buttons.
  show() {
    const [first] = this.page.panes;
    if (this.field.value !== first.draft.text) this.field.value = first.draft.text;
    const [call] = first.open;
    const message = this.page.panes.length > 1 ? strings.messageToBoth : strings.message;
    const what = call ? strings.resultOf(call.function.name) : message;
    byId("ask-label").textContent = `${what} (${isTouch() ? strings.sendHintTouch : strings.sendHint})`;
    const isBusy = this.page.panes.some((pane) => pane.isBusy);
    const off = byId(isBusy ? "send" : "stop");
    if (document.activeElement === off) this.page.focus(); // a disabled one would lose the focus
    byId("send").disabled = isBusy;
    byId("stop").disabled = !isBusy;
    byId("attach").disabled = Boolean(call);
    arrange(byId("files"), first.draft.files.map((file) => this.chip(file)));
    byId("context").classList.toggle("two", this.page.panes.length > 1);
    byId("files").hidden = !first.draft.files.length;
    this.count();
  }

  async send() {
    await this.page.isReady;
    const [first] = this.page.panes;
    const { text, files } = first.draft;
    if (this.page.panes.some((pane) => pane.isBusy) || !(text.trim() || files.length)) return;
    first.draft = { text: "", files: [] };
    for (const pane of this.page.panes) pane.send(text, structuredClone(files));
    this.show();
  }

  // Files

  async attach(input) {
    const [pane] = this.page.panes;
    for (const file of [...input.files]) {
      const text = file.size > MAX_FILE * 1e6 ? "" : await file.text();
      if (file.size > MAX_FILE * 1e6) notify(strings.largeFile(file.name, MAX_FILE));
      else if (/[\0\ufffd]/.test(text)) notify(strings.noText(file.name));
      else this.weigh(pane, { name: file.name, text, tokens: null });
    }
    input.value = "";
    this.show();
    this.field.focus();
  }

  async weigh(pane, file) {
    pane.draft.files.push(file);
    try {
      const response = await post("v1/internal/token-count", { text: file.text });
      file.tokens = (await response.json()).length;
    } catch {
      return; // the chip stays without a number, and sending reports the error
    }
    if (this.page.panes[0] === pane) this.show();
  }

  chip(file) {
    const chip = this.chips.get(file) ?? this.makeChip(file);
    this.chips.set(file, chip);
    chip.firstChild.textContent = strings.fileTokens(file.name, file.tokens);
    return chip;
  }

  makeChip(file) {
    const removes = button("×", () => {
      const [{ draft }] = this.page.panes;
      draft.files = draft.files.filter((one) => one !== file);
      this.show();
      this.field.focus();
    }, { "aria-label": strings.removeFile(file.name) });
    return make("li", { className: "chip" }, make("span"), removes);
  }

  // The context

  count() {
    clearTimeout(this.timer);
    this.counting?.abort();
    const isEmpty = this.page.panes.every((pane) => !pane.data.messages.length && !pane.draft.text && !pane.draft.files.length);
    if (isEmpty) byId("context").replaceChildren();
    else this.timer = setTimeout(() => this.measure(), QUIET);
  }

  async measure() {
    const { panes } = this.page;
    // A count would take an answer's connection, or wait for one.
    if (document.hidden || places.isFull || panes.some((pane) => pane.isBusy || pane.open.length)) return;
    this.counting = new AbortController();
    const { signal } = this.counting;
    const { text, files } = panes[0].draft;
    try {
      const meters = await Promise.all(panes.map((pane) => this.used(pane, text, files, signal)));
      if (!signal.aborted) byId("context").replaceChildren(...meters);
    } catch {
      if (!signal.aborted) byId("context").replaceChildren(); // sending reports the error
    }
  }

  async used(pane, text, files, signal) {
    const draft = text.trim() || files.length ? [{ role: "user", content: text, files }] : [];
    const { settings } = pane.data;
    const most = this.page.contextOf(settings.model);
    const messages = [...shown(pane.data), ...draft];
    const length = messages.reduce((sum, { content }) => sum + content.length, 0);
    if (length > LONGEST * most) return make("span", { className: "bad", textContent: strings.tooLong });
    const body = promptBody(settings, messages);
    const response = await post("v1/chat/completions/input_tokens", body, signal);
    const used = (await response.json()).input_tokens;
    const said = make("span", { textContent: strings.context(used, most) });
    if (!most) return said;
    const meter = make("meter", { max: most, value: used, high: 0.9 * most, "aria-label": strings.contextOf });
    const trouble = used < most ? [] : [make("span", { className: "bad", textContent: strings.tooLong })];
    return make("span", { className: "used" }, meter, said, ...trouble);
  }
}
