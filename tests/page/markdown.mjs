// In the page that tests/page/test_markdown.py opens: what markdown.js makes of texts.
import { Markdown, render } from "/ui/markdown.js";

const INLINE = new Set("A BR CODE DEL EM IMG INPUT LABEL STRONG".split(" "));

/** The structure of a DOM tree, which is the same for the specification's HTML and for what we make of its text. */
export function structure(root) {
  const found = [];
  collect(root, found);
  let code = false;
  const blank = (item) => item === undefined || item.block || item.name === "BR";
  const kept = found.map((item, i) => {
    if (item.name === "PRE") code = !item.end;
    if (item.text === undefined || code) return item;
    let text = item.text.replace(/\s+/g, " ");
    if (blank(found[i - 1])) text = text.trimStart();
    if (blank(found[i + 1])) text = text.trimEnd();
    return { text };
  });
  return kept
    .filter((item) => item.text !== "" && item.name !== "")
    .map((item) => item.text ?? [item.end ? "/" : "", item.name, ...(item.more ?? [])].join(" "));
}

function collect(node, found) {
  for (const child of node.childNodes) {
    const name = child.nodeName;
    const last = found.at(-1);
    if (name === "#text" && last?.text !== undefined) last.text += child.data;
    else if (name === "#text") found.push({ text: child.data });
    else if (name === "DIV" && child.className === "code") collect({ childNodes: [child.lastChild] }, found);
    else if (name === "SPAN") collect(child, found);
    else if (name === "P" && node.className === "" && node.parentNode?.className === "tight") {
      found.push({ name: "", block: true }); // a paragraph without margins, which HTML leaves out
      collect(child, found);
      found.push({ name: "", block: true });
    } else if (name === "IMG" || child.className === "image") {
      const source = child.getAttribute(name === "IMG" ? "src" : "href");
      found.push({ name: "IMG", more: [source, child.title, child.alt ?? child.textContent] });
    } else {
      const block = !INLINE.has(name);
      found.push({ name, block, more: ["href", "title", "start"].map((key) => child.getAttribute?.(key) ?? "") });
      collect(child, found);
      found.push({ name, block, end: true });
    }
  }
}

/** The examples of CommonMark's specification: [number, section, markdown, whether we make the same of it]. */
export async function examples() {
  const { commonmark } = await import("/spec.js");
  return commonmark.map(({ markdown, html, section }, i) => {
    const expected = structure(new DOMParser().parseFromString(html, "text/html").body);
    const same = JSON.stringify(structure(render(markdown))) === JSON.stringify(expected);
    return [i + 1, section, markdown, same];
  });
}

export function html(text) {
  const element = document.createElement("div");
  element.append(render(text));
  return element.innerHTML;
}

/** The pieces rendered one after the other. */
export function streamed(pieces) {
  const element = document.createElement("div");
  const markdown = new Markdown(element);
  for (const piece of pieces) markdown.write(piece);
  markdown.end();
  return element;
}

/** Numbers below one, the same for each seed (mulberry32). */
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let value = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    value = (value + Math.imul(value ^ (value >>> 7), 61 | value)) ^ value;
    return ((value ^ (value >>> 14)) >>> 0) / 2 ** 32;
  };
}

const NAMES = new Set(
  ("A BLOCKQUOTE BR BUTTON CODE DEL DIV EM H1 H2 H3 H4 H5 H6 HR INPUT LABEL LI OL P PRE SPAN STRONG TABLE TBODY TD " +
    "TH THEAD TR UL").split(" "),
);
const ATTRIBUTES = new Set("checked class disabled href rel start tabindex target title type".split(" "));

function fault(element) {
  for (const one of element.querySelectorAll("*")) {
    if (!NAMES.has(one.nodeName)) return `an element ${one.nodeName}`;
    for (const { name } of one.attributes) if (!ATTRIBUTES.has(name)) return `an attribute ${name}`;
    if (one.nodeName === "A" && !/^(https?|mailto):$/.test(one.protocol)) return `a link to ${one.href}`;
    if (one.nodeName === "A" && one.rel !== "noopener noreferrer") return "a link that tells who links";
  }
  return null;
}

/** Texts of up to `length` pieces at random, each also cut at random: the first with a fault, or null. */
export function fuzz(pieces, number, length, seed) {
  const next = random(seed);
  const below = (limit) => Math.floor(next() * limit);
  for (let i = 0; i < number; i++) {
    let text = "";
    for (let left = 1 + below(length); left; left--) text += pieces[below(pieces.length)];
    const cuts = [];
    for (let at = 0; at < text.length; ) cuts.push(text.slice(at, (at += 1 + below(i % 2 ? 4 : 20))));
    try {
      const whole = streamed([text]);
      const found = fault(whole) ?? (whole.isEqualNode(streamed(cuts)) ? null : "cut elsewhere it differs");
      if (found) return { found, text, cuts, whole: whole.innerHTML, streamed: streamed(cuts).innerHTML };
    } catch (error) {
      return { found: String(error.stack), text, cuts };
    }
  }
  return null;
}

/** Stream words behind a beginning: those that are not seen once they have come. */
export function hidden(before, number) {
  const element = document.createElement("div");
  const markdown = new Markdown(element);
  markdown.write(before);
  return Array.from({ length: number }, (_, i) => `word${i} `).filter((word) => {
    markdown.write(word);
    return !element.textContent.trimEnd().endsWith(word.trimEnd());
  });
}

/** Stream a text in pieces of a size: its work, and how deep its elements are nested. */
export function work(text, size) {
  let work = 0;
  const patched = [
    [RegExp.prototype, "exec"],
    [Element.prototype, "append"],
    [Element.prototype, "replaceChildren"],
    [DocumentFragment.prototype, "append"],
    [CharacterData.prototype, "appendData"],
  ];
  for (const one of patched) {
    const [prototype, name] = one;
    const original = prototype[name];
    one.push(original);
    prototype[name] = function (...args) {
      work += args.length;
      return original.apply(this, args);
    };
  }
  const pieces = [];
  for (let at = 0; at < text.length; at += size) pieces.push(text.slice(at, at + size));
  const element = streamed(pieces);
  for (const [prototype, name, original] of patched) prototype[name] = original;
  const depth = (element) => 1 + Math.max(0, ...Array.from(element.children, depth));
  return { work, depth: depth(element) };
}
