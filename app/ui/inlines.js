// Inline content of Markdown: CommonMark's, and GFM's strikethrough and autolinks. A text is parsed to
// nodes, then built as DOM. Raw HTML and reference links stay text, and formulas keep their source.

import { Delimiters } from "./delimiters.js";
import { autolink, character, mail, parentheses, safe } from "./links.js";

const MAX_NESTING = 16; // of elements; of deeper ones the content is kept
const SPECIAL = /[\n\\`*_~[\]!<&$]|https?:\/\/|www\./gi;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const ENTITY = /&(#x[\da-f]{1,6}|#\d{1,7}|[a-z]{2,6});/iy;
const ANGLE = /<(?:([a-z][a-z\d+.-]{1,31}:[^\s<>]*)|([\w.!#$%&'*+/=?^`{|}~-]+@[a-z\d.-]+))>/iy;
const BREAK = /<br ?\/?>/iy; // the one element that models need, in tables
const DOLLARS = /\$\$(?:[^$\\]|\\[^])+\$\$|\$(?!\s)(?:[^$\\]|\\[^])+(?<!\s)\$(?!\d)/y;
const FORMULAS = { "(": "\\)", "[": "\\]" };

/** Parse a text of at most some thousand characters: a fragment with its text and elements. */
export function inlines(text) {
  const fragment = document.createDocumentFragment();
  build(new Parser(text).parse(), fragment, 0, false);
  return fragment;
}

function build(node, parent, depth, linked) {
  let text = "";
  const flush = () => {
    if (text) parent.append(...(linked ? [text] : mailed(text)));
    text = "";
  };
  for (; node; node = node.next) {
    text += node.text;
    if (!node.name) continue;
    flush();
    const link = node.name === "a";
    const flat = depth === MAX_NESTING || (link && linked);
    const element = flat ? parent : document.createElement(node.name);
    if (!flat) {
      if (link) lead(element, node);
      else if (node.kind) element.className = node.kind;
      parent.append(element);
    }
    if (node.source) element.append(node.source);
    build(node.first, element, depth + !flat, linked || link);
  }
  flush();
}

function lead(element, { href, title, kind }) {
  Object.assign(element, { href, target: "_blank", rel: "noopener noreferrer" });
  if (title !== undefined) element.title = title;
  if (kind) element.className = kind;
}

function* mailed(text) {
  let from = 0;
  for (const { begin, end } of mail(text)) {
    if (begin > from) yield text.slice(from, begin);
    const address = text.slice(begin, end);
    const link = document.createElement("a");
    lead(link, { href: safe(`mailto:${address}`) });
    link.append(address);
    yield link;
    from = end;
  }
  if (from < text.length) yield text.slice(from);
}

// Nodes are { text }, or { text: "", name, kind, source, href, title, first }, with `previous` and `next`.
// Only a list's ends and neighbours are linked, so that enclosing any number of nodes is one step.
class List {
  first = null;
  last = null;

  push(node) {
    Object.assign(node, { text: node.text ?? "", previous: this.last, next: null });
    if (this.last) this.last.next = node;
    else this.first = node;
    this.last = node;
    return node;
  }

  /** Put what is between two nodes into a new one; without `end`, all after the first. */
  enclose(begin, end, node) {
    const last = end ? end.previous : this.last;
    if (last !== begin) {
      node.first = begin.next;
      last.next = null;
    }
    begin.next = Object.assign(node, { text: "", previous: begin, next: end });
    if (end) end.previous = node;
    else this.last = node;
  }
}

class Parser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.list = new List();
    this.delimiters = new Delimiters(this.list);
    this.brackets = null; // the last [ or ![ that is open
    this.ticks = null; // places of runs of backticks, by length
    this.missing = new Set(); // ends of formulas that no longer occur
  }

  parse() {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const next = SPECIAL.exec(text);
      const end = next ? next.index : text.length;
      if (end > this.at) this.list.push({ text: text.slice(this.at, end) });
      this.at = end;
      if (next && !this.special(next[0])) this.push(this.at + next[0].length, { text: next[0] });
    }
    this.delimiters.pair(0);
    return this.list.first;
  }

  /** Continue at `end`, with a node for the text before it. */
  push(end, node) {
    this.at = end;
    return this.list.push(node);
  }

  /** Returns whether the mark has a meaning here; else it is plain text. */
  special(mark) {
    const { text, at } = this;
    switch (mark) {
      case "\n":
        return this.newline();
      case "\\":
        return this.backslash(text[at + 1] ?? "");
      case "`":
        return this.code();
      case "*":
      case "_":
      case "~":
        return this.run(mark);
      case "[":
        return this.open(mark);
      case "!":
        return text[at + 1] === "[" && this.open("![");
      case "]":
        return this.close();
      case "<":
        return this.angle();
      case "&":
        return this.entity();
      case "$":
        return this.dollars();
      default:
        return this.address();
    }
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  newline() {
    const { last } = this.list;
    let end = last && !last.name ? last.text.length : 0;
    const { length } = end ? last.text : "";
    while (end && last.text[end - 1] === " ") end--;
    const spaces = length - end;
    if (spaces) last.text = last.text.slice(0, end);
    return this.breakLine(this.at + 1, spaces > 1);
  }

  breakLine(end, hard) {
    while (this.text[end] === " " || this.text[end] === "\t") end++;
    return this.push(end, hard ? { name: "br" } : { text: "\n" });
  }

  backslash(next) {
    if (next === "\n") return this.breakLine(this.at + 2, true);
    if (this.formula(FORMULAS[next])) return true;
    return ESCAPABLE.test(next) && this.push(this.at + 2, { text: next });
  }

  formula(end) {
    if (!end || this.missing.has(end)) return false;
    const close = this.text.indexOf(end, this.at + 2);
    if (close < 0) this.missing.add(end);
    const source = this.text.slice(this.at, close + 2);
    if (close < 0 || !/[\p{L}\p{N}]/u.test(source)) return false;
    return this.push(close + 2, { name: "code", kind: "math", source });
  }

  dollars() {
    const match = this.match(DOLLARS);
    if (!match) return false;
    return this.push(DOLLARS.lastIndex, { name: "code", kind: "math", source: match[0] });
  }

  code() {
    this.ticks ??= runs(this.text);
    let begin = this.at;
    while (this.text[begin] === "`") begin++;
    const length = begin - this.at;
    const places = this.ticks.get(length) ?? []; // the next one is the last
    while (places.length && places.at(-1) < begin) places.pop();
    const end = places.at(-1);
    if (end === undefined) return this.push(begin, { text: this.text.slice(this.at, begin) });
    const code = this.text.slice(begin, end).replace(/\n/g, " ");
    const padded = code[0] === " " && code.at(-1) === " " && /[^ ]/.test(code);
    return this.push(end + length, { name: "code", source: padded ? code.slice(1, -1) : code });
  }

  angle() {
    const match = this.match(ANGLE);
    if (!match) return this.match(BREAK) && this.push(BREAK.lastIndex, { name: "br" });
    const [all, address, person] = match;
    const href = safe(address ?? `mailto:${person}`);
    const end = this.at + all.length;
    if (href === null) return this.push(end, { text: all });
    return this.push(end, { name: "a", href, source: address ?? person });
  }

  entity() {
    const match = this.match(ENTITY);
    const text = match && character(match[1]);
    return text && this.push(ENTITY.lastIndex, { text });
  }

  address() {
    if (/[a-z\d]/i.test(this.text[this.at - 1] ?? "")) return false;
    const found = autolink(this.text, this.at);
    if (!found) return false;
    return this.push(this.at + found.text.length, { name: "a", href: found.href, source: found.text });
  }

  run(mark) {
    const begin = this.at;
    let end = begin;
    while (this.text[end] === mark) end++;
    const node = this.push(end, { text: this.text.slice(begin, end) });
    this.delimiters.add(this.text, begin, end, node);
    return true;
  }

  open(mark) {
    const node = this.push(this.at + mark.length, { text: mark });
    const bottom = this.delimiters.number;
    this.brackets = { node, bottom, image: mark !== "[", active: true, previous: this.brackets };
    return true;
  }

  close() {
    const opener = this.brackets;
    if (!opener) return false;
    this.brackets = opener.previous;
    const target = opener.active && parentheses(this.text, this.at + 1);
    if (!target) return false;
    const { title, end } = target;
    const href = safe(target.href);
    if (href === null) return this.push(end, { text: this.text.slice(this.at, end) }); // as written
    this.delimiters.pair(opener.bottom);
    this.list.enclose(opener.node, null, { name: "a", kind: opener.image && "image", href, title });
    opener.node.text = "";
    this.at = end;
    if (opener.image) return true;
    for (let at = this.brackets; at?.active; at = at.previous) at.active = at.image;
    return true;
  }
}

/** Where a text has runs of backticks: a map from length to places, the first one last. */
function runs(text) {
  const found = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!found.has(run.length)) found.set(run.length, []);
    found.get(run.length).push(index);
  }
  for (const places of found.values()) places.reverse();
  return found;
}
