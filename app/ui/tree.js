// The messages of a conversation: a tree, since a message may have alternatives. Without a document.
//
// A conversation has `messages`, each with an `id` and the id of its `parent` ("" at the top), and
// `chosen`: by parent, the alternative that is shown.

export const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 10);

export function newConversation(more = {}) {
  const now = Date.now();
  const empty = { id: newId(), title: "", created: now, updated: now, settings: {}, messages: [], chosen: {} };
  return { ...empty, ...more };
}

function byParent(conversation) {
  const children = new Map();
  for (const message of conversation.messages) {
    const among = children.get(message.parent);
    if (among) among.push(message);
    else children.set(message.parent, [message]);
  }
  return children;
}

// The messages that are shown, each with its alternatives.
export function path(conversation) {
  const children = byParent(conversation);
  const found = [];
  for (let parent = ""; children.has(parent); parent = found.at(-1).message.id) {
    const alternatives = children.get(parent);
    const chosen = conversation.chosen[parent];
    const message = alternatives.find((one) => one.id === chosen) ?? alternatives.at(-1);
    found.push({ message, alternatives });
  }
  return found;
}

export const shown = (conversation) => path(conversation).map((step) => step.message);

// Add a message, which is then the one that is shown.
export function add(conversation, parent, message) {
  const added = { id: newId(), parent, ...message };
  conversation.messages.push(added);
  conversation.chosen[parent] = added.id;
  return added;
}

// Remove a message and all that follows it, in every branch. Returns a function that restores them.
export function remove(conversation, message) {
  const children = byParent(conversation);
  const gone = new Set();
  const left = [message];
  const chosen = { ...conversation.chosen };
  while (left.length) {
    const one = left.pop();
    gone.add(one.id);
    delete conversation.chosen[one.id];
    left.push(...(children.get(one.id) ?? []));
  }
  const removed = conversation.messages.filter((one) => gone.has(one.id));
  conversation.messages = conversation.messages.filter((one) => !gone.has(one.id));
  if (conversation.chosen[message.parent] === message.id) delete conversation.chosen[message.parent];
  return () => {
    conversation.messages.push(...removed);
    for (const id of gone) if (chosen[id]) conversation.chosen[id] = chosen[id];
    conversation.chosen[message.parent] = message.id;
  };
}

// What each message was when a conversation was last read or written: see merge.
export const snapshot = (conversation) => new Map(conversation.messages.map((one) => [one.id, { ...one }]));

// Bring what another tab has written into a conversation: messages that `before`, a snapshot, lacks, and changes of
// those that this one has left as they were. Returns whether there were any. A message that both have changed stays.
export function merge(conversation, other, before) {
  const own = new Map(conversation.messages.map((one) => [one.id, one]));
  let isNew = false;
  for (const theirs of other.messages) {
    const [mine, old] = [own.get(theirs.id), before.get(theirs.id)];
    if (!mine && !old) {
      conversation.messages.push(theirs);
      conversation.chosen[theirs.parent] ??= theirs.id;
    } else if (mine && old && same(mine, old) && !same(theirs, old)) Object.assign(mine, theirs);
    else continue;
    isNew = true;
  }
  conversation.updated = Math.max(conversation.updated, other.updated);
  return isNew;
}

const rest = ({ figures, tool_calls }) => JSON.stringify([figures, tool_calls]);
const same = (one, other) =>
  one.content === other.content && one.reasoning === other.reasoning && rest(one) === rest(other);

// A copy of what is shown, up to a message, as a new conversation.
export function branch(conversation, until, title) {
  const made = newConversation({ title, settings: structuredClone(conversation.settings) });
  let parent = "";
  for (const message of shown(conversation)) {
    const { id, parent: _, ...rest } = structuredClone(message);
    parent = add(made, parent, rest).id;
    if (id === until) break;
  }
  return made;
}

// The first words of the first question.
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = conversation.messages.find((message) => message.role === "user");
  const words = (first?.content ?? "").slice(0, 400).trim().split(/\s+/).slice(0, 8).join(" ");
  return words.length > 60 ? `${words.slice(0, 59)}…` : words;
}

// Whether a text, in lower case, is in the title or a message.
export function matches(conversation, text) {
  const has = (other) => (other ?? "").toLowerCase().includes(text);
  return has(titleOf(conversation)) || conversation.messages.some((message) => has(message.content));
}

// Calls of tools in the last answer whose results are missing.
export function openCalls(messages) {
  const at = messages.findLastIndex((message) => message.tool_calls);
  if (at < 0 || messages.slice(at + 1).some((message) => message.role !== "tool")) return [];
  return messages[at].tool_calls.slice(messages.length - at - 1);
}
