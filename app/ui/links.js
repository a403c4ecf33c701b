// Where links of Markdown may lead, which addresses are links by themselves, and escapes within both.

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const ESCAPES = /\\([!-/:-@[-`{-~])|&(#x[\da-f]{1,6}|#\d{1,7}|[a-z]{2,6});/gi;
const NAMED = { amp: "&", apos: "'", gt: ">", lt: "<", nbsp: "\u00a0", quot: '"' };
// Ends at a space, at < and at punctuation of Chinese and Japanese, which has no spaces beside it.
const ADDRESS = /(https?:\/\/|www\.)([\p{L}\p{N}._-]+)(?:[:/?#][^\s<\u3000-\u303f\uff01-\uff20]*)?/iuy;
const MAX_PARENTHESES = 32; // within a destination
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const BLANKS = /[ \t]*\n?[ \t]*/y;
const BRACKETED = /<((?:[^<>\n\\]|\\.)*)>/y;
const TITLE = /"((?:[^"\\]|\\[^])*)"|'((?:[^'\\]|\\[^])*)'|\(((?:[^()\\]|\\[^])*)\)/y;
const LOCAL = /[\w.+-]/;
const DOMAIN = /[a-z\d_-]+(?:\.[a-z\d_-]+)+/iy;

/** A character by its entity's name, as `lt` or `#60`; undefined for names that aren't known. */
export function character(name) {
  if (!name.startsWith("#")) return NAMED[name];
  const code = /^#x/i.test(name) ? parseInt(name.slice(2), 16) : Number(name.slice(1));
  const valid = code > 0 && code < 0x110000 && !(code >= 0xd800 && code < 0xe000);
  return valid ? String.fromCodePoint(code) : "\ufffd";
}

/** A text without backslash escapes, with the characters of its entities. */
export function unescape(text) {
  return text.replace(ESCAPES, (all, mark, name) => mark ?? character(name) ?? all);
}

/** A destination as a URL, if it is one of http, https or mailto, or relative; else null. */
export function safe(destination) {
  try {
    const encoded = encodeURI(destination).replace(/%25([\da-f]{2})/gi, "%$1");
    const href = encoded.replace(/^(https?:\/\/)%5B([\da-f:.]+)%5D/i, "$1[$2]"); // an IPv6 address
    return SCHEMES.has(new URL(href, document.baseURI).protocol) ? href : null;
  } catch {
    return null; // not a URL
  }
}

/** The content of a link's parentheses, which begin at a place: { href, title, end }, or null. */
export function parentheses(text, at) {
  if (text[at] !== "(") return null;
  const found = destination(text, blanks(text, at + 1));
  if (!found) return null;
  let end = blanks(text, found.end);
  TITLE.lastIndex = end;
  const match = end > found.end && TITLE.exec(text);
  if (match) end = blanks(text, TITLE.lastIndex);
  if (text[end] !== ")") return null;
  const title = match ? unescape(match[1] ?? match[2] ?? match[3]) : undefined;
  return { href: unescape(found.href), title, end: end + 1 };
}

/** Where the spaces at a place end; they may include one end of a line. */
function blanks(text, at) {
  BLANKS.lastIndex = at;
  BLANKS.test(text);
  return BLANKS.lastIndex;
}

function destination(text, at) {
  if (text[at] === "<") {
    BRACKETED.lastIndex = at;
    const match = BRACKETED.exec(text);
    return match && { href: match[1], end: BRACKETED.lastIndex };
  }
  let depth = 0;
  let end = at;
  for (; end < text.length && text[end] > " " && text[end] !== "\x7f"; end++) {
    if (text[end] === "\\" && ESCAPABLE.test(text[end + 1] ?? "")) end++;
    else if (text[end] === "(" && ++depth > MAX_PARENTHESES) return null;
    else if (text[end] === ")" && --depth < 0) break;
  }
  return depth > 0 ? null : { href: text.slice(at, end), end };
}

/** The address that begins at a place of the text, by GFM's rules: { text, href }, or null. */
export function autolink(text, at) {
  ADDRESS.lastIndex = at;
  const match = ADDRESS.exec(text);
  if (!match) return null;
  const [all, scheme, host] = match;
  const named = scheme.toLowerCase() === "www.";
  const labels = (named ? scheme + host : host).split(".");
  if (labels.slice(-2).join("").includes("_") || (named && !labels[1])) return null;
  const address = trim(all);
  if (address.length <= scheme.length) return null;
  const href = safe(named ? `http://${address}` : address);
  return href === null ? null : { text: address, href };
}

/** An address without the punctuation of the sentence around it. */
function trim(address) {
  let end = address.length;
  let more = 0; // closing parentheses than opening ones
  for (const mark of address) more += (mark === ")") - (mark === "(");
  for (; end; end--) {
    const mark = address[end - 1];
    if (mark === ")" && more > 0) more--;
    else if (mark === ";") end -= entity(address, end);
    else if (!"?!.,:*_~'\"".includes(mark)) break;
  }
  return address.slice(0, end);
}

/** How many characters before the semicolon at a text's end are an entity's. */
function entity(text, end) {
  const match = /&[a-z\d]{2,31};$/i.exec(text.slice(Math.max(0, end - 34), end));
  return match ? match[0].length - 1 : 0;
}

/** Addresses of mail in a text without markup: yields { begin, end }. */
export function* mail(text) {
  let from = 0;
  for (let at = text.indexOf("@"); at >= 0; at = text.indexOf("@", at + 1)) {
    let begin = at;
    while (begin > from && LOCAL.test(text[begin - 1])) begin--;
    DOMAIN.lastIndex = at + 1;
    if (begin === at || !DOMAIN.test(text)) continue;
    const end = DOMAIN.lastIndex;
    if (/[-_]/.test(text[end - 1])) continue;
    yield { begin, end };
    from = end;
  }
}
