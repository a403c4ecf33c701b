// Colours of code: comments, strings, numbers and keywords, line by line, by one tokenizer for all languages.

import { language } from "./languages.js";

const MAX_LINE = 2000; // characters; a longer line stays plain
const MAX_CODE = 100_000; // characters of a block; the rest stays plain
const NUMBER = "\\b(?:0[xob][\\da-f_]+|\\d[\\d_]*(?:\\.\\d+)?(?:e[+-]?\\d+)?)\\w*";
const WORD = "[\\p{L}_$][\\p{L}\\p{N}_$]*";

const compiled = new Map();

const escape = (text) => text.replace(/[$()*+.?[\\\]^{|}/-]/g, "\\$&");

/** A language with `pattern`, whose groups are the kinds of tokens, and `ends` of what spans lines. */
function compile({ line, block, text = [], quotes, keywords, caseless, tags }) {
  const wide = [...text, ...block];
  const groups = {
    wide: wide.map(([begin]) => escape(begin)).join("|"),
    comment: line.map((mark) => (mark === "#" ? "(?<!\\S)#.*" : `${escape(mark)}.*`)).join("|"),
    string: quotes.map((mark) => `${mark}(?:[^${mark}\\\\]|\\\\.)*${mark}?`).join("|"),
    number: NUMBER,
    keyword: tags && "</?[a-z][\\w:.-]*",
    word: WORD,
  };
  const parts = Object.entries(groups).filter(([, part]) => part);
  return {
    pattern: new RegExp(parts.map(([name, part]) => `(?<${name}>${part})`).join("|"), "giu"),
    ends: new Map(wide),
    comments: new Set(block.map(([begin]) => begin)),
    keywords: new Set(keywords.split(/\s+/)),
    caseless,
  };
}

/** The lines of one block of code, in order. Nothing is coloured if the language isn't known. */
export class Highlighter {
  constructor(name) {
    const found = language(name);
    if (found && !compiled.has(found)) compiled.set(found, compile(found));
    this.language = compiled.get(found);
    this.left = found ? MAX_CODE : 0;
    this.open = null; // what earlier lines began and did not end: { kind, end }
  }

  get active() {
    return this.left > 0;
  }

  /** Append a line, with its end, to an element. Tokens become spans. */
  append(line, element) {
    this.left -= line.length;
    if (this.left < 0 || line.length > MAX_LINE) return element.append(line);
    let from = 0;
    for (const { kind, begin, end } of this.tokens(line)) {
      if (begin > from) element.append(line.slice(from, begin));
      const span = document.createElement("span");
      span.className = kind;
      span.append(line.slice(begin, end));
      element.append(span);
      from = end;
    }
    if (from < line.length) element.append(line.slice(from));
  }

  *tokens(line) {
    const { pattern } = this.language;
    let begin = 0;
    for (let at = 0; at < line.length; begin = at) {
      let kind = this.open?.kind;
      if (!kind) {
        pattern.lastIndex = at;
        const match = pattern.exec(line);
        if (!match) return;
        begin = match.index;
        at = pattern.lastIndex;
        kind = this.kind(match);
      }
      if (this.open) at = this.close(line, at);
      if (kind) yield { kind, begin, end: at };
    }
  }

  kind({ 0: text, groups }) {
    const { ends, comments, keywords, caseless } = this.language;
    if (groups.wide) {
      this.open = { kind: comments.has(text) ? "comment" : "string", end: ends.get(text) };
      return this.open.kind;
    }
    if (groups.word) return keywords.has(caseless ? text.toLowerCase() : text) && "keyword";
    return Object.keys(groups).find((name) => groups[name]);
  }

  /** The end, in a line, of what is open: after its mark, unless a backslash precedes that. */
  close(line, from) {
    const { end } = this.open;
    let at = line.indexOf(end, from);
    while (at > 0 && line[at - 1] === "\\") at = line.indexOf(end, at + 1);
    if (at < 0) return line.length;
    this.open = null;
    return at + end.length;
  }
}
