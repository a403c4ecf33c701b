// Text as it arrives, plain or as Markdown, shown in parts.

import { make } from "./dom.js";
import { Markdown } from "./markdown.js";
import { isOver, nextTurn } from "./turns.js";

const PIECE = 1024; // characters between checks of the clock
const BLOCK = 16_000; // characters of one block, so that a browser need not lay out a megabyte again

/** The first piece of a text, of some length or one more: it never ends inside a character. */
export const pieceOf = (text, length) => text.slice(0, length + /[\ud800-\udbff]/.test(text[length - 1] ?? ""));

// Plain text, with the interface of Markdown.
export class Plain {
  constructor(container) {
    this.container = container;
    this.block = null;
  }

  take(text) {
    for (let at = 0; at < text.length; ) {
      if (!this.block || this.block.length >= BLOCK) this.begin();
      const piece = text.slice(at, at + BLOCK - this.block.length);
      this.block.appendData(piece);
      at += piece.length;
    }
  }

  begin() {
    this.block = document.createTextNode("");
    const block = make("div", { className: "plain", dir: "auto" });
    block.append(this.block);
    this.container.append(block);
  }

  show() {}

  end() {}
}

// Writes as much at once as fits into a turn of the browser, and the rest in later turns.
class Parts {
  // `told` is called once nothing waits.
  constructor(target, told) {
    Object.assign(this, { target, told });
    this.waiting = "";
    this.isEnding = this.isWriting = false;
  }

  // Whether something waits to be shown.
  get isBehind() {
    return this.isWriting;
  }

  write(text) {
    this.waiting += text;
    this.go();
  }

  end() {
    this.isEnding = true;
    this.go();
  }

  // Show no more.
  drop() {
    this.target = null;
  }

  async go() {
    if (this.isWriting) return;
    this.isWriting = true;
    while (this.target && this.waiting) {
      const piece = pieceOf(this.waiting, PIECE);
      this.waiting = this.waiting.slice(piece.length);
      this.target.take(piece);
      if (!this.waiting || !isOver()) continue;
      this.target.show();
      await nextTurn();
    }
    this.isWriting = false;
    if (!this.target) return;
    this.target.show();
    if (this.isEnding) this.target.end();
    this.told();
  }
}

// A writer of text into a new element of `parent`.
export function writer(parent, isRaw, className = "text", told = () => {}) {
  const container = make("div", { className: isRaw ? className : `${className} markdown` });
  parent.append(container);
  return new Parts(isRaw ? new Plain(container) : new Markdown(container), told);
}

export function write(parent, text, isRaw, className) {
  const made = writer(parent, isRaw, className);
  made.write(text);
  made.end();
}
