// Conversations as files: JSON, and Markdown that can be read back. Without a document.

import { strings } from "./strings.js";
import { add, newConversation, shown, titleOf } from "./tree.js";

const FORMAT = "switchyard.conversations";
const ROLES = ["user", "assistant", "tool"];
const TITLE = /^<!-- conversation: (.*) -->$/;
const MARK = /^<!-- message: (user|assistant|tool) -->$/;
const LIKE_MARK = /^\\*<!-- (message|conversation): /;

export class NoExport extends Error {}

export function toJson(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

// The shown part of each. Lines that look like our own marks get a backslash, so that they can be read back.
export function toMarkdown(conversations) {
  const parts = [];
  for (const conversation of conversations) {
    const title = titleOf(conversation).replaceAll("-->", "--").replaceAll("\n", " ");
    parts.push(`<!-- conversation: ${title} -->`, `# ${title}`, "");
    for (const message of shown(conversation)) {
      parts.push(`<!-- message: ${message.role} -->`, `## ${strings.who[message.role]}`, "");
      for (const { name, text } of message.files ?? []) parts.push(escaped(`${name}:\n${text}`), "");
      parts.push(escaped(message.content), "");
      for (const call of message.tool_calls ?? []) {
        parts.push(escaped(`${call.function.name}(${call.function.arguments})`), "");
      }
    }
  }
  return parts.join("\n");
}

const escaped = (text) => text.split("\n").map((line) => (LIKE_MARK.test(line) ? `\\${line}` : line)).join("\n");

export const isMarkdown = (text) => TITLE.test(text.split("\n", 1)[0].trimEnd());

// The conversations of a file, with new ids. Raises NoExport with the reason.
export function fromText(text) {
  if (isMarkdown(text)) return fromMarkdown(text);
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    throw new NoExport(strings.notJson);
  }
  if (body?.format !== FORMAT || !Array.isArray(body.conversations)) throw new NoExport(strings.notExport);
  return body.conversations.map((one, i) => {
    if (!isConversation(one)) throw new NoExport(strings.brokenExport(i + 1));
    const { title, created, updated, settings, messages, chosen } = one;
    return newConversation({ title, created, updated, settings, messages, chosen });
  });
}

// Those that aren't among others already, as after an import of the same file. Markdown has only what is shown.
export function unknown(conversations, others, isText) {
  const content = isText
    ? (one) => toMarkdown([one])
    : ({ title, settings, messages, chosen }) => JSON.stringify([title, settings, messages, chosen]);
  const titles = new Set(conversations.map(titleOf)); // the others need not be compared
  const known = new Set(others.filter((one) => titles.has(titleOf(one))).map(content));
  return conversations.filter((one) => !known.has(content(one)));
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isText = (value) => typeof value === "string";

function isConversation(one) {
  if (!isObject(one) || !isText(one.title) || !isObject(one.settings) || !isObject(one.chosen)) return false;
  if (!Number.isFinite(one.created) || !Number.isFinite(one.updated) || !Array.isArray(one.messages)) return false;
  if (!one.messages.every(isMessage) || !areSettings(one.settings)) return false;
  // Ids are unique, so no path from the top can be a circle.
  return new Set(one.messages.map((message) => message.id).concat("")).size === one.messages.length + 1;
}

function areSettings(settings) {
  const texts = ["model", "preset", "system", "stop", "tools", "form", "formText"];
  return texts.every((name) => settings[name] === undefined || isText(settings[name]))
    && (settings.parameters === undefined || isObject(settings.parameters));
}

function isMessage(one) {
  if (!isObject(one) || !ROLES.includes(one.role) || !isText(one.id) || !isText(one.parent)) return false;
  if (!isText(one.content) || (one.reasoning !== undefined && !isText(one.reasoning))) return false;
  if (one.figures !== undefined && !isObject(one.figures)) return false;
  const areFiles = (one.files ?? []).every?.((file) => isText(file?.name) && isText(file?.text));
  const isCall = (call) => isText(call?.id) && isText(call?.function?.name) && isText(call?.function?.arguments);
  return Boolean(areFiles && (one.tool_calls ?? []).every?.(isCall));
}

function fromMarkdown(text) {
  const made = [];
  let [conversation, parent, role, lines] = [null, "", null, []];
  const flush = () => {
    if (role) parent = add(conversation, parent, { role, content: unescaped(lines) }).id;
    [role, lines] = [null, []];
  };
  for (const line of text.replaceAll("\r\n", "\n").split("\n")) {
    const [title, mark] = [TITLE.exec(line), MARK.exec(line)];
    if (title || mark) flush();
    if (title) made.push((conversation = newConversation({ title: title[1] }))), (parent = "");
    else if (mark) role = mark[1];
    else lines.push(line);
  }
  flush();
  return made;
}

// Without the heading, and the empty lines around the text.
function unescaped(lines) {
  const text = lines.slice(2, -1).map((line) => (LIKE_MARK.test(line) ? line.replace("\\", "") : line));
  return text.join("\n");
}
