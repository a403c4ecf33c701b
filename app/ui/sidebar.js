// The list of conversations: search, rename, delete, export and import.

import { byId, button, download, hasKeyboard, make, notify } from "./dom.js";
import { summary } from "./request.js";
import { strings } from "./strings.js";
import { NoExport, fromText, isMarkdown, toJson, toMarkdown, unknown } from "./transfer.js";
import { matches, titleOf } from "./tree.js";

const MAX_FILE = 100; // MB of an import
const SEARCH = 120; // milliseconds after the last letter

// The time if the moment is today, else its day.
export function dayOf(moment, now = new Date()) {
  const date = new Date(moment);
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate());
  if (date >= midnight) return strings.time(date);
  midnight.setDate(midnight.getDate() - 1);
  if (date >= midnight) return strings.yesterday;
  return date.getFullYear() === now.getFullYear() ? strings.day(date) : strings.dayOfYear(date);
}

export class Sidebar {
  constructor(page) {
    this.page = page;
    this.list = byId("list");
    this.search = byId("search");
    this.timer = 0;
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.show(), SEARCH);
    });
    this.search.addEventListener("keydown", (event) => this.onSearchKey(event));
    this.list.addEventListener("keydown", (event) => this.onKey(event));
    byId("export").addEventListener("click", () => this.save(page.store.list(), "json"));
    byId("export-markdown").addEventListener("click", () => this.save(page.store.list(), "md"));
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => this.load(event.target));
    document.addEventListener("click", (event) => {
      if (this.isOpen && event.target === document.body) this.open(false); // beside the drawer
    });
  }

  show() {
    if (this.list.querySelector("input")) return; // while a title is written
    const focused = document.activeElement?.closest?.("#list li")?.dataset.id;
    const text = this.search.value.trim().toLowerCase();
    const found = this.page.store.list().filter((one) => !text || matches(one, text));
    this.list.replaceChildren(...found.map((one) => this.row(one)));
    byId("none").textContent = text ? strings.nothingFound : strings.noConversations;
    byId("none").hidden = found.length > 0;
    const buttons = this.titles();
    const current = buttons.find((one) => one.ariaCurrent) ?? buttons[0];
    if (current) current.tabIndex = 0;
    if (focused) buttons.find((one) => one.parentElement.dataset.id === focused)?.focus();
  }

  titles() {
    return [...this.list.querySelectorAll("button.title")];
  }

  row(data) {
    const title = titleOf(data) || strings.untitled;
    const isOpen = this.page.panes.some((pane) => pane.data === data);
    const opens = button(title, () => this.page.show(data), {
      className: "title", tabIndex: -1, dir: "auto", title: [title, summary(data.settings)].filter(Boolean).join("\n"),
    });
    if (isOpen) opens.ariaCurrent = "true";
    if (this.page.isBusy(data)) opens.append(make("span", { className: "note", textContent: ` ${strings.isAnswering}` }));
    const deletes = button("×", () => this.delete(data), {
      tabIndex: -1, className: "delete", "aria-label": strings.deleteOne(title), title: strings.deletes,
    });
    const when = make("span", { className: "note", textContent: dayOf(data.updated) });
    const row = make("li", {}, opens, when, deletes);
    row.dataset.id = data.id;
    return row;
  }

  onSearchKey(event) {
    if (event.key === "ArrowDown") {
      event.preventDefault();
      this.titles()[0]?.focus();
    } else if (event.key === "Escape" && this.search.value) {
      event.stopPropagation();
      this.search.value = "";
      this.show();
    }
  }

  onKey(event) {
    const titles = this.titles();
    const at = titles.indexOf(event.target);
    if (at < 0) return;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: titles.length - 1 }[event.key];
    const data = this.page.store.all.get(event.target.parentElement.dataset.id);
    if (event.key === "F2") this.rename(data);
    else if (event.key === "Delete") this.delete(data, at);
    else if (to === undefined) return;
    event.preventDefault();
    if (to === -1) this.search.focus();
    titles[to]?.focus();
  }

  rename(data) {
    this.search.value = "";
    this.show();
    const row = [...this.list.children].find((one) => one.dataset.id === data.id);
    if (!row) return;
    const field = make("input", { value: titleOf(data), maxLength: 200, "aria-label": strings.renameLabel });
    let isOver = false; // a removed field loses the focus, which ends it too
    const end = (isKept) => {
      if (isOver) return;
      isOver = true;
      const title = field.value.trim();
      field.remove();
      if (isKept && title !== titleOf(data)) {
        data.title = title;
        this.page.renamed(data);
      }
      this.show();
      this.titles().find((one) => one.parentElement.dataset.id === data.id)?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.stopPropagation();
      if (event.key === "Escape" || event.key === "Enter") event.preventDefault(), end(event.key === "Enter");
    });
    row.replaceChildren(field);
    field.addEventListener("blur", () => end(true));
    field.focus();
    field.select();
  }

  delete(data, at = -1) {
    this.page.delete(data);
    const titles = this.titles();
    if (at >= 0) (titles[at] ?? titles.at(-1) ?? this.search).focus();
  }

  // Files

  save(conversations, type) {
    const one = conversations.length === 1 ? titleOf(conversations[0]) : "";
    const name = one.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 50) || strings.conversations.toLowerCase();
    const isJson = type === "json";
    const text = isJson ? toJson(conversations) : toMarkdown(conversations);
    download(`${name}.${type}`, text, isJson ? "application/json" : "text/markdown");
  }

  async load(input) {
    const [file] = input.files;
    if (!file) return;
    try {
      if (file.size > MAX_FILE * 1e6) throw new NoExport(strings.tooLargeFile(MAX_FILE));
      const text = await file.text();
      const all = fromText(text);
      const conversations = unknown(all, this.page.store.list(), isMarkdown(text));
      await Promise.all(conversations.map((one) => this.page.store.put(one)));
      notify(strings.imported(conversations.length, all.length - conversations.length), { span: 5000 });
      if (conversations.length === 1) this.page.show(conversations[0]);
      this.show();
    } catch (error) {
      notify(strings.notImported(file.name, error instanceof NoExport ? error.message : String(error)));
    } finally {
      input.value = ""; // so that the same file can be chosen again
    }
  }

  // The drawer, on a narrow window

  open(isOpen) {
    if (isOpen && !matchMedia("(max-width: 50rem)").matches) return this.search.focus();
    document.body.classList.toggle("drawer", isOpen);
    document.querySelector("main").inert = isOpen;
    byId("menu").setAttribute("aria-expanded", String(isOpen));
    if (isOpen) (hasKeyboard() ? this.search : byId("new")).focus();
    else if (byId("sidebar").contains(document.activeElement)) byId("menu").focus();
  }

  get isOpen() {
    return document.body.classList.contains("drawer");
  }
}
