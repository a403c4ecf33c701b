// Blocks of code, fenced or indented, with a copy button. Text that has arrived is laid out once.

import { Highlighter } from "./highlight.js";
import { make } from "./leaves.js";
import { unescape } from "./links.js";
import { strings } from "./strings.js";

const MAX_LINES = 64; // of a part, which a browser lays out separately
const MAX_PART = 8192; // characters of one

/** Copy the text of an element; without a secure context only a selection can be copied. */
async function copy(element) {
  if (navigator.clipboard) return navigator.clipboard.writeText(element.textContent);
  getSelection().selectAllChildren(element);
  document.execCommand("copy");
}

function bar(code, language) {
  const button = make("button", { type: "button", className: "copy" }, strings.copy);
  button.addEventListener("click", async () => {
    await copy(code);
    button.textContent = strings.copied;
    setTimeout(() => (button.textContent = strings.copy), 2000);
  });
  return make("div", { className: "bar" }, make("span", { className: "language" }, language), button);
}

export class Code {
  /** `fence`: { info, indent, end: the pattern of its end, formula }; null for indented code. */
  constructor(fence = null) {
    this.fence = fence;
    const language = unescape(fence?.info ?? "").split(/\s/)[0];
    this.code = document.createElement("code");
    this.node = make("div", { className: fence?.formula ? "code formula" : "code" });
    if (!fence?.formula) this.node.append(bar(this.code, language));
    this.node.append(make("pre", { tabIndex: 0 }, this.code));
    this.highlighter = new Highlighter(language);
    this.blanks = []; // lines of indented code, which count only if another line follows
    this.open = false; // whether a line that counts is open
    this.broken = false; // whether it has several parts
    this.begin();
  }

  /** Begin a part, which a browser lays out separately. */
  begin() {
    this.part = make("span", { className: "lines" });
    this.lines = this.length = 0;
    this.tail = null; // the text of the current line in it
  }

  line(text) {
    this.open = Boolean(this.fence || text.trim());
    if (!this.open) return void this.blanks.push(text);
    for (const blank of this.blanks.splice(0)) {
      this.write(blank);
      this.end();
    }
    this.write(text);
  }

  more(text) {
    this.write(text);
  }

  endLine() {
    if (this.open) this.end();
    this.open = false;
  }

  write(text) {
    for (let at = 0; at < text.length; ) {
      const room = Math.max(MAX_PART - (this.tail?.length ?? 0), 1);
      const piece = text.slice(at, at + room);
      this.append(piece);
      at += piece.length;
      if (this.tail.length < MAX_PART || /[\ud800-\udbff]$/.test(piece)) continue;
      this.broken = true;
      this.begin();
    }
  }

  append(text) {
    if (!this.part.parentNode) this.code.append(this.part);
    if (this.tail) this.tail.appendData(text);
    else this.part.append((this.tail = document.createTextNode(text)));
  }

  /** The line is complete: colour it, unless it has several parts. */
  end() {
    this.append("\n");
    const line = this.tail.data;
    if (!this.broken && this.highlighter.active) {
      this.tail.remove();
      this.highlighter.append(line, this.part);
    }
    this.length += line.length;
    if (++this.lines === MAX_LINES || this.length >= MAX_PART) this.begin();
    this.tail = null;
    this.broken = false;
  }

  /** Lines are shown as they come, and complete with their end. */
  show() {}

  close() {}
}
