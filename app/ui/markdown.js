// Markdown as DOM, rendered as it arrives. Text becomes text nodes, never markup.

import { Blocks, MAX_FENCE } from "./blocks.js";

// A line of these alone may still become a list, a rule, a heading of what is above, a table and more. With any
// other character it is clear which blocks it begins; only a fence's line must be whole.
const MARKS = /^[\s>*+\-_=#`~|:$\\[\]\d.)]*$/;
const FENCE = /^[\s>*+\-\d.)]*(?:```|~~~)/;

export class Markdown {
  /** Renders into a container, which is an element or a fragment. */
  constructor(container) {
    this.blocks = new Blocks(container);
    this.held = ""; // of a line that has not begun
    this.begun = false;
    this.returned = false; // whether the last piece has ended with \r
  }

  /** Append a piece of the text, and show it. */
  write(piece) {
    this.take(piece);
    this.show();
  }

  /** Append a piece of the text. Takes time linear in the piece, whatever the text before. */
  take(piece) {
    if (!piece) return;
    const text = this.returned && piece[0] === "\n" ? piece.slice(1) : piece;
    this.returned = piece.endsWith("\r");
    const lines = text.replace(/\r\n?/g, "\n").replaceAll("\0", "\ufffd").split("\n");
    const last = lines.pop();
    for (const line of lines) {
      this.begin(line);
      this.endLine();
    }
    if (this.begun || this.clear(last)) this.begin(last);
    else this.held += last;
  }

  show() {
    this.blocks.show();
  }

  /** The text is complete. */
  end() {
    if (this.held) this.begin("");
    if (this.begun) this.endLine();
    this.blocks.end();
  }

  /** Whether more text would not change which blocks the line begins. */
  clear(text) {
    if (MARKS.test(text)) return false; // and so is what is held
    const line = this.held + text;
    return line.length > MAX_FENCE || !FENCE.test(line);
  }

  begin(text) {
    if (this.begun) this.blocks.more(text);
    else this.blocks.line(this.held + text);
    this.held = "";
    this.begun = true;
  }

  endLine() {
    this.blocks.endLine();
    this.begun = false;
  }
}

/** A complete text as a fragment, the same as pieces of it make. */
export function render(text) {
  const fragment = document.createDocumentFragment();
  const markdown = new Markdown(fragment);
  markdown.write(text);
  markdown.end();
  return fragment;
}
