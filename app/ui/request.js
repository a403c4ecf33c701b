// The body of a request for an answer. Without a document.

import { strings } from "./strings.js";

// A file stands before the question, between fences longer than any in it.
function withFiles(message) {
  const blocks = (message.files ?? []).map(({ name, text }) => {
    const longest = (text.match(/`{3,}/g) ?? []).reduce((most, one) => Math.max(most, one.length), 2);
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}\n${fence}`;
  });
  return [...blocks, message.content].filter(Boolean).join("\n\n");
}

// Messages as the API has them. Questions in a row are one: many templates want turns.
export function messagesFor(shown, system = "") {
  const told = system.trim() ? [{ role: "system", content: system }] : [];
  for (const message of shown) {
    const { role, tool_calls, tool_call_id } = message;
    const content = role === "user" ? withFiles(message) : message.content;
    const last = told.at(-1);
    if (role === "user" && last?.role === "user") last.content += `\n\n${content}`;
    else told.push({ role, content, ...(tool_calls && { tool_calls }), ...(tool_call_id && { tool_call_id }) });
  }
  return told;
}

const lines = (text) => text.split("\n").filter(Boolean).map((line) => line.replaceAll("\\n", "\n"));

// Raises Error, whose message names the setting.
function json(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: ${strings.mustBeJson(error.message)}`);
  }
}

// Only what differs from the server's own settings is sent.
export function parametersOf(settings) {
  const { model, preset, maxTokens, seed, stop, tools, form, formText, parameters } = settings;
  return {
    ...(model && { model }),
    ...(preset && { preset }),
    ...(maxTokens && { max_tokens: maxTokens }),
    ...(seed !== undefined && { seed }),
    ...(stop?.trim() && { stop: lines(stop) }),
    ...(tools?.trim() && { tools: json(strings.tools, tools) }),
    ...(form && formText?.trim() && { [form]: form === "json_schema" ? json(strings.formText, formText) : formText }),
    ...parameters,
  };
}

// What differs from the server's own settings, in a line: which of two columns is which.
export function summary({ model, preset, maxTokens, seed, system, form, parameters }) {
  const named = Object.entries({ preset, max_tokens: maxTokens, seed, ...parameters });
  const said = named.filter(([, value]) => value !== undefined).map(([name, value]) => {
    return `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`;
  });
  if (form) said.push(strings.forms[form]);
  if (system?.trim()) said.push(`“${system.trim()}”`);
  return [...(model ? [model] : []), ...said].join("; ").slice(0, 200);
}

// What is counted by the server's route for it.
export function promptBody(settings, shown, continues = false) {
  const messages = messagesFor(shown, settings.system);
  return { messages, ...parametersOf(settings), ...(continues && { continue_final_message: true }) };
}

export function answerBody(settings, shown, continues = false) {
  const stream = { stream: true, stream_options: { include_usage: true }, timings: true };
  return { ...promptBody(settings, shown, continues), ...stream };
}
