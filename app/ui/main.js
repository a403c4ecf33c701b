// The page: what is open, the keys, and how its parts work together.

import { access, ask } from "./api.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { byId, button, fill, hasKeyboard, isTouch, kept, make, notify } from "./dom.js";
import { Server } from "./server.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Store } from "./store.js";
import { strings } from "./strings.js";
import { branch, newConversation, shown, titleOf } from "./tree.js";

const NEAR = 80; // pixels from the end, within which the page follows an answer

class Page {
  constructor() {
    this.opened = new Map(); // by data: conversations that were shown
    this.panes = [];
    this.models = new Map(); // length of the context, by model
    this.presets = [];
    this.scroller = byId("scroller");
    this.followEnd();
    this.store = new Store((text) => this.storageTrouble(text), (id, row) => this.changedElsewhere(id, row));
    this.settings = new Settings(this);
    this.composer = new Composer(this);
    this.sidebar = new Sidebar(this);
    this.server = new Server((body) => this.seen(body));
  }

  async start() {
    this.server.watch();
    if (!isTouch()) this.focus();
    await this.store.load();
    if (this.panes.length) return this.sidebar.show(); // one was started meanwhile
    const open = kept.read("open", []).map((id) => this.store.all.get(id)).filter(Boolean);
    const conversations = open.length ? open : [newConversation()];
    this.conversation(conversations[0]).draft.text = this.composer.field.value; // typed meanwhile
    this.show(...conversations);
  }

  // Conversations

  conversation(data) {
    if (!this.opened.has(data)) this.opened.set(data, new Conversation(data, this));
    return this.opened.get(data);
  }

  isBusy(data) {
    return this.opened.get(data)?.isBusy ?? false;
  }

  // Show one conversation, or two beside each other.
  show(...conversations) {
    const before = this.panes;
    this.panes = conversations.map((data) => this.conversation(data));
    for (const pane of before) if (!this.panes.includes(pane)) pane.leave();
    byId("panes").replaceChildren(...this.panes.map((pane) => pane.section));
    byId("panes").classList.toggle("two", this.panes.length > 1);
    for (const pane of this.panes) {
      pane.tools.replaceChildren(...this.buttons(pane));
      pane.render();
    }
    kept.write("open", conversations.map((data) => data.id));
    this.sidebar.open(false);
    this.sidebar.show();
    this.composer.show();
    this.toEnd();
  }

  begin(data = newConversation()) {
    if (data.messages.length) this.store.put(data);
    this.show(data);
    this.focus();
  }

  buttons(pane) {
    const isSecond = this.panes.indexOf(pane) > 0;
    const compares = isSecond
      ? button(strings.endCompare, () => (this.show(this.panes[0].data), this.focus()))
      : button(strings.compare, () => this.compare(pane), { hidden: this.panes.length > 1 });
    const more = make("details", { className: "menu" }, make("summary", { textContent: strings.more }), make("div", {},
      button(strings.rename, () => this.rename(pane.data)),
      button(strings.exportJson, () => this.sidebar.save([pane.data], "json")),
      button(strings.exportMarkdown, () => this.sidebar.save([pane.data], "md")),
      button(strings.deletes, () => this.delete(pane.data))));
    more.addEventListener("click", (event) => {
      if (event.target.localName === "button") more.open = false;
    });
    return [button(strings.settings, () => this.settings.open(pane)), compares, more];
  }

  compare(pane) {
    const last = shown(pane.data).at(-1)?.id;
    const other = branch(pane.data, last, last ? strings.copyTitle(pane.title) : "");
    if (other.messages.length) this.store.put(other);
    this.show(pane.data, other);
    this.focus();
  }

  rename(data) {
    this.sidebar.open(true);
    this.sidebar.rename(data);
  }

  renamed(data) {
    this.store.put(data);
    this.opened.get(data)?.render();
  }

  delete(data) {
    const pane = this.opened.get(data);
    pane?.stop();
    this.opened.delete(data);
    this.store.delete(data);
    const rest = this.panes.filter((one) => one !== pane).map((one) => one.data);
    if (rest.length < this.panes.length) this.show(...(rest.length ? rest : [newConversation()]));
    this.sidebar.show();
    const undo = () => {
      this.store.put(data);
      this.show(data);
    };
    notify(strings.deleted(titleOf(data) || strings.untitled), { undo });
  }

  // A message of a conversation has changed, or its answer has begun or ended.
  changed(conversation) {
    if (this.opened.get(conversation.data) !== conversation) return; // deleted meanwhile
    this.store.put(conversation.data);
    if (!this.panes.includes(conversation)) conversation.leave();
    this.sidebar.show();
    this.composer.show();
  }

  // Another tab has changed one; without a row it has deleted it.
  changedElsewhere(id, row) {
    const data = this.store.all.get(id);
    if (data && this.isBusy(data)) return;
    if (row && row === data) return this.opened.get(data)?.refresh(); // merged
    if (row && data && row.updated < data.updated) return; // read before this tab's own last change
    if (!row && this.panes.some((pane) => pane.data === data)) return; // it stays until it is left
    if (row) this.store.adopt(row);
    else this.store.all.delete(id);
    const at = this.panes.findIndex((pane) => pane.data.id === id);
    if (row && data) this.conversation(row).draft = this.conversation(data).draft;
    this.opened.delete(data);
    if (row && at >= 0) this.show(...this.panes.map((pane, i) => (i === at ? row : pane.data)));
    this.sidebar.show();
  }

  applied(conversation) {
    conversation.refresh();
    if (conversation.data.messages.length) this.store.put(conversation.data);
    this.composer.show();
    this.focus();
  }

  // The window

  // Scroll to the end of the column, and follow it as it grows, until someone scrolls back.
  toEnd() {
    this.follows = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  followEnd() {
    const { scroller } = this;
    scroller.addEventListener("scroll", () => {
      this.follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR;
    });
    const grown = new ResizeObserver(() => this.follows && this.toEnd());
    grown.observe(byId("panes"));
    grown.observe(scroller); // a phone's keyboard makes it smaller
  }

  focus() {
    (hasKeyboard() ? byId("input") : this.scroller).focus();
  }

  stop() {
    for (const pane of this.panes) pane.stop();
    this.focus();
  }

  storageTrouble(text) {
    byId("storage").textContent = text ?? "";
    byId("storage").hidden = !text;
  }

  preferences() {
    byId("preferences").showModal();
  }

  // The server

  seen(body) {
    const names = body.models.map((model) => `${model.id} ${model.state}`).join("\n");
    if (names === this.names) return;
    this.names = names;
    this.models = new Map(body.models.map((model) => [model.id, this.models.get(model.id)]));
    this.describeModels();
  }

  async describeModels() {
    try {
      const body = await (await ask("v1/models")).json();
      this.models = new Map(body.data.map((model) => [model.id, model.context_length]));
      this.presets = body.presets ?? [];
      this.composer.count();
    } catch {
      this.names = null; // again with the next frame
    }
  }

  contextOf(model) {
    return model ? this.models.get(model) : [...this.models.values()][0];
  }
}

// The keys of the whole page

function onKey(page, event) {
  const isCtrl = event.ctrlKey || event.metaKey;
  const key = event.key.toLowerCase();
  if (isCtrl && key === "k") page.sidebar.open(true), page.sidebar.search.focus(), page.sidebar.search.select();
  else if (isCtrl && event.shiftKey && key === "o") page.begin();
  else if (isCtrl && key === "/") byId("help").showModal();
  else if (key === "escape" && !document.querySelector("dialog[open]")) {
    const menu = document.querySelector(".menu[open]");
    if (menu) menu.open = false, menu.firstElementChild.focus();
    else if (page.sidebar.isOpen) page.sidebar.open(false);
    else if (page.panes.some((pane) => pane.isBusy)) page.stop();
    return;
  } else return;
  event.preventDefault();
}

function paint(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function prepare(page) {
  const [theme, key, keeps] = [byId("theme"), byId("key"), byId("keeps")];
  theme.value = kept.read("theme", "", "localStorage");
  paint(theme.value);
  theme.addEventListener("change", () => (paint(theme.value), kept.write("theme", theme.value, "localStorage")));
  key.value = kept.read("key", "");
  access.key = key.value.trim();
  key.addEventListener("change", () => {
    access.key = key.value.trim();
    kept.write("key", key.value);
    page.server.watch();
  });
  keeps.checked = page.store.keeps;
  keeps.addEventListener("change", () => page.store.keep(keeps.checked));
  byId("help-keys").append(...strings.keys.flatMap(([keys, does]) => [
    make("dt", {}, make("kbd", { textContent: keys })), make("dd", { textContent: does }),
  ]));
  const opens = { "open-help": "help", "open-preferences": "preferences" };
  for (const [id, sheet] of Object.entries(opens)) byId(id).addEventListener("click", () => byId(sheet).showModal());
  byId("new").addEventListener("click", () => page.begin());
  byId("menu").addEventListener("click", () => page.sidebar.open(!page.sidebar.isOpen));
  byId("close-list").addEventListener("click", () => page.sidebar.open(false));
  document.addEventListener("keydown", (event) => onKey(page, event));
  addEventListener("pagehide", () => page.panes.forEach((pane) => pane.isBusy && page.store.put(pane.data)));
}

fill();
const page = new Page();
prepare(page);
page.isReady = page.start();
