// Reading a line of Markdown: spaces, tabs and marks at its beginningning.

/** A line, and how far it is read; `column` counts a tab as up to four. */
export class Line {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.column = 0;
    this.inTab = false; // whether a part of the tab at `at` is read
    this.look();
  }

  /** Find the next character that isn't a space: `next`, its place, and `indent`, the columns before it. */
  look() {
    let { at, column } = this;
    for (; this.text[at] === " " || this.text[at] === "\t"; at++) {
      column += this.text[at] === "\t" ? 4 - (column % 4) : 1;
    }
    this.next = at;
    this.indent = column - this.column;
    this.blank = at === this.text.length;
  }

  /** Read up to some columns of spaces. */
  spaces(columns) {
    for (const end = this.column + Math.min(columns, this.indent); this.column < end; ) {
      const width = this.text[this.at] === "\t" ? 4 - (this.column % 4) : 1;
      this.inTab = this.column + width > end;
      this.column = Math.min(this.column + width, end);
      if (!this.inTab) this.at++;
    }
    this.look();
  }

  /** Read up to a place after the spaces. */
  read(end) {
    this.spaces(this.indent);
    this.column += end - this.at;
    this.at = end;
    this.look();
  }

  match(pattern) {
    pattern.lastIndex = this.next;
    return this.indent < 4 ? pattern.exec(this.text) : null;
  }

  rest() {
    if (!this.inTab) return this.text.slice(this.at);
    return " ".repeat(4 - (this.column % 4)) + this.text.slice(this.at + 1);
  }

  content() {
    return this.text.slice(this.next);
  }
}
