// Block structure of Markdown, line by line: CommonMark's containers and leaves, and GFM's tables. Blocks that a
// line has closed are complete. A line may come in pieces, once its first one says what it is (see markdown.js).

import { Code } from "./code.js";
import { Text, make } from "./leaves.js";
import { Line } from "./line.js";

const MAX_GROUP = 64; // blocks of the document; further ones are laid out in groups of this size
const MAX_DEPTH = 40; // open blocks; marks of deeper ones stay text
export const MAX_FENCE = 1000; // characters of a line that begins fenced code
const HEADING = /(#{1,6})(?:[ \t]+|$)/y;
const FENCE = /(`{3,})([^`]*)$|(~{3,})(.*)$/y;
const FORMULA = /(\$\$|\\\[)[ \t]*$/y;
const RULE = /(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/y;
const UNDERLINE = /(=+|-+)[ \t]*$/y;
const MARKER = /([*+-])|(\d{1,9})([.)])/y;

const CODE = new Set(["fenced", "indented"]);
const PROSE = new Set(["text", "table"]); // which indented lines continue

// Open blocks are { kind, node, leaf, end, last, ... }: `leaf` takes text, `end` is the number of the last line
// that belongs to it, and `last` its last child.

/** Whether a line continues an open block. Reads the block's marks. "end": the line ends it. */
const goesOn = {
  quote: (line) => {
    if (line.indent > 3 || line.text[line.next] !== ">") return false;
    line.read(line.next + 1);
    line.spaces(1);
    return true;
  },
  list: () => true,
  item: (line, { last, width }) => {
    if (line.blank) return Boolean(last);
    if (line.indent < width) return false;
    line.spaces(width);
    return true;
  },
  text: (line) => !line.blank,
  heading: () => false,
  table: (line) => !line.blank,
  fenced: (line, { leaf: { fence } }) => {
    if (line.match(fence.end)) return "end";
    line.spaces(fence.indent);
    return true;
  },
  indented: (line) => {
    if (line.indent < 4 && !line.blank) return false;
    line.spaces(4);
    return true;
  },
};

export class Blocks {
  constructor(container) {
    this.open = [{ kind: "document", node: container, end: 0, last: null }];
    this.number = 0; // of the line
    this.blocks = 0; // of the document
    this.last = container; // the last group of them
    this.matched = 0; // open blocks that the line continues
    this.marked = 0; // the innermost that has a mark in this line
  }

  get tip() {
    return this.open.at(-1);
  }

  /** Take a line, or its first piece if the rest can't change what it is. */
  line(text) {
    const line = new Line(text);
    this.number++;
    this.matched = 1;
    this.marked = 0;
    for (; this.matched < this.open.length; this.matched++) {
      const block = this.open[this.matched];
      const found = goesOn[block.kind](line, block);
      if (!found) break;
      if (block.kind === "quote") this.marked = this.matched;
      if (found === "end") {
        this.belong(this.matched);
        return this.close(this.matched);
      }
    }
    this.begin(line);
    this.belong(line.blank && this.tip.kind !== "fenced" ? this.marked : this.open.length - 1);
  }

  /** More of the line. */
  more(text) {
    this.tip.leaf.more(text);
  }

  endLine() {
    const { kind, leaf } = this.tip;
    if (kind === "heading") this.close(this.open.length - 1);
    else if (kind !== "text") leaf?.endLine();
  }

  /** Show what has arrived. */
  show() {
    this.tip.leaf?.show();
  }

  /** The text has ended. */
  end() {
    this.close(1);
  }

  /** The line belongs to the open blocks up to this one. */
  belong(last) {
    for (let i = 0; i <= last; i++) this.open[i].end = this.number;
  }

  close(length) {
    while (this.open.length > length) {
      const { node, leaf } = this.open.pop();
      leaf?.close();
      if (leaf?.empty && leaf.node.localName === "p") node.remove();
    }
    this.matched = Math.min(this.matched, length);
  }

  begin(line) {
    const code = this.matched === this.open.length && CODE.has(this.tip.kind);
    if (code) return this.tip.leaf.line(line.rest());
    for (let found = this.start(line); found; found = this.start(line)) if (found === "all") return;
    const lazy = this.matched < this.open.length && this.tip.kind === "text" && !line.blank;
    if (!lazy) this.close(this.matched);
    if (line.blank) return;
    const first = this.tip.kind === "item" && !this.tip.last;
    if (!PROSE.has(this.tip.kind)) this.place("text", new Text("p", first));
    this.tip.leaf.line(line.content());
  }

  /** Begin a block if the line does: returns "mark" if more of the line follows, "all" if not, else null. */
  start(line) {
    if (line.blank) return null;
    if (line.indent >= 4) return this.indented(line);
    return (
      this.quote(line) ||
      this.heading(line) ||
      this.fenced(line) ||
      this.underline(line) ||
      this.rule(line) ||
      this.item(line) ||
      this.table(line)
    );
  }

  /** Append a block where the line's marks have led, and open it. */
  place(kind, leaf, node = leaf.node, more = {}) {
    this.close(this.matched);
    while (this.tip.leaf || (this.tip.kind === "list" && kind !== "item")) this.close(this.open.length - 1);
    const parent = this.tip;
    if (parent.last && parent.last.end < this.number - 1) {
      // A blank line between two items, or two blocks of an item, makes their list loose.
      const list = kind === "item" ? parent : this.open.at(-2);
      if (list?.kind === "list") list.node.classList.remove("tight");
    }
    parent.last = { kind, leaf, node, end: this.number, last: null, ...more };
    (this.open.length > 1 ? parent.node : this.group()).append(node);
    this.open.push(parent.last);
    this.matched = this.open.length;
  }

  /** The element for the next block of the document. */
  group() {
    if (this.blocks++ && this.blocks % MAX_GROUP === 1) {
      this.last = make("div", { className: "group" });
      this.open[0].node.append(this.last);
    }
    return this.last;
  }

  /** The paragraph that the line continues, if any. */
  get paragraph() {
    return this.matched === this.open.length && this.tip.kind === "text" ? this.tip.leaf : null;
  }

  indented(line) {
    if (PROSE.has(this.tip.kind)) return null;
    line.spaces(4);
    this.place("indented", new Code());
    this.tip.leaf.line(line.rest());
    return "all";
  }

  quote(line) {
    if (line.text[line.next] !== ">" || this.open.length >= MAX_DEPTH) return null;
    goesOn.quote(line);
    this.place("quote", null, make("blockquote"));
    this.marked = this.open.length - 1;
    return "mark";
  }

  heading(line) {
    const match = line.match(HEADING);
    if (!match) return null;
    this.place("heading", new Text(`h${match[1].length}`));
    this.tip.leaf.line(line.text.slice(HEADING.lastIndex));
    return "all";
  }

  fenced(line) {
    const { indent } = line;
    const fence = line.text.length <= MAX_FENCE && line.match(FENCE);
    const formula = !fence && line.match(FORMULA);
    if (!fence && !formula) return null;
    const marks = fence ? (fence[1] ?? fence[3]) : formula[1];
    const close = fence ? `${marks[0]}{${marks.length},}` : marks === "$$" ? "\\$\\$" : "\\\\\\]";
    const end = new RegExp(`${close}[ \\t]*$`, "y");
    const info = fence ? (fence[2] ?? fence[4]).trim() : "";
    this.place("fenced", new Code({ info, indent, end, formula: Boolean(formula) }));
    return "all";
  }

  underline(line) {
    const match = this.paragraph && line.match(UNDERLINE);
    if (!match) return null;
    this.paragraph.underline(match[1][0] === "=" ? "h1" : "h2");
    this.tip.end = this.number;
    this.close(this.open.length - 1);
    return "all";
  }

  rule(line) {
    if (!line.match(RULE)) return null;
    this.place("rule", null, make("hr"));
    this.close(this.open.length - 1);
    return "all";
  }

  item(line) {
    const match = this.open.length < MAX_DEPTH && line.match(MARKER);
    if (!match) return null;
    const [mark, bullet, number, point] = match;
    const end = MARKER.lastIndex;
    const blank = !/[^ \t]/.test(line.text.slice(end));
    if (!blank && !" \t".includes(line.text[end])) return null;
    if (this.paragraph && (blank || (number && Number(number) !== 1))) return null;
    let width = line.indent + mark.length + 1;
    line.read(end);
    const padding = blank || line.indent > 4 ? 1 : line.indent;
    width += padding - 1;
    line.spaces(padding);
    const kind = bullet ?? point;
    this.close(this.matched);
    if (this.tip.kind !== "list" || this.tip.mark !== kind) {
      const list = make(bullet ? "ul" : "ol", { className: "tight" });
      if (number && Number(number) !== 1) list.start = Number(number);
      this.place("list", null, list, { mark: kind });
    }
    this.place("item", null, make("li"), { width });
    this.marked = this.open.length - 1;
    return "mark";
  }

  table(line) {
    const table = this.paragraph?.table(line.content());
    if (!table) return null;
    this.place("table", table);
    return "all";
  }
}
