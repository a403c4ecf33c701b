// Text as it comes, plain or as Markdown.

import { make } from "./dom.js";
import { Markdown } from "./markdown.js";

const BLOCK = 16_000; // characters of one block, so that a browser need not lay out a megabyte again

// Plain text, with the interface of Markdown.
export class Plain {
  constructor(container) {
    this.container = container;
    this.block = null;
  }

  write(text) {
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

  end() {}
}

// A writer of text into a new element of `parent`.
export function writer(parent, isRaw, className = "text") {
  const container = make("div", { className: isRaw ? className : `${className} markdown` });
  parent.append(container);
  return isRaw ? new Plain(container) : new Markdown(container);
}

export function write(parent, text, isRaw, className) {
  const made = writer(parent, isRaw, className);
  made.write(text);
  made.end();
}
