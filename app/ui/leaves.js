// Blocks of text: paragraphs, headings, tables. They take lines in pieces, and show what has arrived in bounded
// time: a long text is shown in parts, each parsed for itself and only once when it is complete.

import { inlines } from "./inlines.js";

const PART = 4096; // characters; a part ends with the next sentence, or after as many again
const MAX_PARTS = 64; // with markup; further ones stay as written, because 100,000 elements make a browser pause
const LITTLE = 1 / 128; // of a part; this much more of it is shown before it is parsed again
const MAX_COLUMNS = 100;
const MAX_CELLS = 400; // of a table's body; a long table has several, which are laid out one by one
const MAX_EMPTY = 10_000; // cells of a table that its rows may leave out
const MAX_DELIMITERS = 4096; // characters of the row below a table's head
const DELIMITERS = /^\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?$/;
const SENTENCE = /\n|[.!?] |[。！？]/;
const TASK = /^\[([ xX])\][ \t\n]+(?=\S)/;

export function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

/** Where the first part of a text ends; 0 if it is not complete. More text doesn't change that place. */
function cut(text) {
  if (text.length <= PART) return 0;
  const match = SENTENCE.exec(text.slice(PART, 2 * PART));
  if (match) return PART + match.index + match[0].length;
  if (text.length <= 2 * PART) return 0;
  const space = text.lastIndexOf(" ", 2 * PART - 1) + 1;
  return space > PART ? space : 2 * PART + /[\udc00-\udfff]/.test(text[2 * PART]);
}

/** A paragraph or a heading. `first` in an item of a list it may begin with a task's box. */
export class Text {
  constructor(name, first = false) {
    this.node = document.createElement(name);
    this.first = first;
    this.underlined = false;
    this.text = ""; // of the open part
    this.part = this.node; // the element that shows it
    this.parts = 0; // complete ones
    this.parsed = 0; // characters of the open part
    this.shown = 0; // likewise, some of them unparsed
  }

  get empty() {
    return !this.text && !this.parts;
  }

  line(text) {
    this.more(this.empty ? text : `\n${text}`);
  }

  more(text) {
    this.text += text;
    for (let at = cut(this.text); at; at = cut(this.text)) {
      if (!this.parts) {
        this.part = make("span", { className: "part" });
        this.node.replaceChildren();
      }
      this.fill(this.text.slice(0, at));
      this.parts++;
      this.part = make("span", { className: "part" });
      this.text = this.text.slice(at);
      this.parsed = this.shown = 0;
    }
  }

  show() {
    const { length } = this.text;
    if (length - this.parsed > length * LITTLE) this.close();
    else if (length > this.shown) this.part.append(this.text.slice(this.shown));
    this.shown = length;
  }

  /** The text has ended. */
  close() {
    if (this.parsed !== this.text.length) this.fill(this.text);
    this.parsed = this.text.length;
  }

  fill(text) {
    const trimmed = this.trim(text.trim());
    if (this.part !== this.node) {
      if (trimmed) this.node.append(this.part);
      else this.part.remove();
    }
    const task = this.first && !this.parts && TASK.exec(trimmed);
    if (!task) return this.part.replaceChildren(this.parts < MAX_PARTS ? inlines(trimmed) : trimmed);
    const box = make("input", { type: "checkbox", disabled: true, defaultChecked: task[1] !== " " });
    this.part.replaceChildren(make("label", {}, box, " ", inlines(trimmed.slice(task[0].length))));
  }

  /** Without the marks that close a heading. */
  trim(text) {
    if (this.node.localName === "p" || this.underlined) return text;
    let end = text.length;
    while (end && text[end - 1] === "#") end--;
    return !end || " \t".includes(text[end - 1]) ? text.slice(0, end).trimEnd() : text;
  }

  /** Become a heading, because a line of = or - follows. */
  underline(name) {
    const heading = make(name, {}, ...this.node.childNodes);
    this.node.replaceWith(heading);
    if (this.part === this.node) this.part = heading;
    this.node = heading;
    this.first = false;
    this.underlined = true;
    this.parsed = -1;
  }

  /** Give up the last line if it and the line below begin a table. Returns the table, or null. */
  table(below) {
    const delimiters = below.length < MAX_DELIMITERS && below.trim();
    if (!delimiters || !DELIMITERS.test(delimiters)) return null;
    const at = this.text.lastIndexOf("\n");
    const head = this.text.slice(at + 1);
    const width = cells(delimiters).length;
    const whole = at >= 0 || !this.parts;
    if (!whole || !head.includes("|") || width > MAX_COLUMNS || cells(head).length !== width) return null;
    this.text = this.text.slice(0, Math.max(at, 0));
    this.parsed = -1;
    return new Table(head, delimiters);
  }
}

/** The cells of a row, which a bar may begin and end. */
function cells(row) {
  const found = row.trim().replace(/^\|/, "").split(/(?<!\\)\|/, MAX_COLUMNS + 2);
  if (!found.at(-1).trim()) found.pop();
  return found.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function alignment(delimiter) {
  if (!delimiter.endsWith(":")) return delimiter.startsWith(":") ? "left" : "";
  return delimiter.startsWith(":") ? "center" : "right";
}

/** A table within an element that scrolls. A row is complete with its line. */
export class Table {
  constructor(head, delimiters) {
    this.aligned = cells(delimiters).map(alignment);
    this.empty = MAX_EMPTY;
    this.most = Math.max(2, Math.floor(MAX_CELLS / this.aligned.length)); // rows of a body
    this.row = document.createElement("tr");
    this.table = make("table", {}, make("thead", {}, this.row));
    this.node = make("div", { className: "table", tabIndex: 0 }, this.table);
    this.body = null;
    this.rows = 0;
    this.fill("th", head);
    this.text = ""; // of the row
    this.fresh = ""; // the part of it that is not shown
  }

  line(text) {
    if (this.rows++ % this.most === 0) {
      this.body = this.table.appendChild(document.createElement("tbody"));
      if (this.rows === this.most + 1) this.lengthen();
    }
    this.row = this.body.appendChild(document.createElement("tr"));
    this.more(text);
  }

  /** Give its bodies the same widths, because each is laid out separately. */
  lengthen() {
    this.table.classList.add("long");
    this.table.style.setProperty("--columns", this.aligned.length);
  }

  more(text) {
    this.text += text;
    this.fresh += text;
  }

  endLine() {
    if (this.text) this.empty -= this.aligned.length - this.fill("td", this.text);
    this.text = this.fresh = "";
  }

  /** A row, parsed as long as it is short; then unparsed until it is complete. */
  show() {
    if (!this.fresh) return;
    if (this.text.length <= PART) this.fill("td", this.text);
    else this.row.lastChild?.append(this.fresh);
    this.fresh = "";
  }

  close() {}

  /** Returns how many cells the row has of its own. */
  fill(name, row) {
    const texts = cells(row).slice(0, this.aligned.length);
    const { length } = texts;
    if (this.empty > 0) texts.length = this.aligned.length;
    this.row.replaceChildren(
      ...Array.from(texts, (text = "", column) => {
        const cell = make(name, { className: this.aligned[column] });
        for (let at = cut(text); at; at = cut(text)) {
          cell.append(make("span", { className: "part" }, inlines(text.slice(0, at))));
          text = text.slice(at);
        }
        cell.append(inlines(text));
        return cell;
      }),
    );
    return length;
  }
}
