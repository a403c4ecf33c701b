// Calls of the ollama client at a server whose model is scripted, and what came of them as JSON.
// Usage: node ollama.mjs URL
import { Ollama } from "ollama";

const [host] = process.argv.slice(2);
const client = new Ollama({ host });
const model = "demo";
const hello = "Hello! What can you do?";
const ask = "What is the secret word in notes.txt?";
const parameters = {
  type: "object", properties: { path: { type: "string" } }, required: ["path"],
};
const tools = [{ type: "function", function: { name: "read_file", description: "Reads.", parameters } }];
const schema = { type: "object", properties: { word: { type: "string" } }, required: ["word"] };
const chat = (content, more = {}) =>
  client.chat({ model, messages: [{ role: "user", content }], ...more });

const gathered = async (stream, textOf) => {
  let text = "";
  let last;
  for await (const part of stream) {
    text += textOf(part);
    last = part;
  }
  return [text, last.done_reason];
};

const errorOf = async (promise) => {
  try {
    await promise;
  } catch (error) {
    return [error.status_code, error.message];
  }
  return null;
};

const messages = [{ role: "user", content: ask }];
const asked = await client.chat({ model, messages, tools });
const [call] = asked.message.tool_calls;
messages.push(asked.message);
messages.push({ role: "tool", tool_name: call.function.name, content: "The secret word is heliotrope." });
const answered = await client.chat({ model, messages, tools });
const thought = await chat("Think first.", { think: true });

const left = await client.generate({
  model, prompt: hello, stream: true, options: { num_predict: 3000, ignore_eos: true },
});
let isAborted = false;
try {
  for await (const _ of left) left.abort();
} catch (error) {
  isAborted = error.name === "AbortError";
}
let numRunning = 1;
for (let i = 0; i < 200 && numRunning > 0; i++) {
  numRunning = (await (await fetch(`${host}/v1/requests`)).json()).data.length;
}

console.log(JSON.stringify({
  models: [(await client.list()).models[0].name, (await client.ps()).models[0].name],
  family: (await client.show({ model })).details.family,
  chat: (await chat(hello)).message.content,
  streamed: await gathered(await chat(hello, { stream: true }), (part) => part.message.content),
  generated: (await client.generate({ model, prompt: hello })).response,
  pieces: await gathered(
    await client.generate({ model, prompt: hello, stream: true }), (part) => part.response),
  arguments: call.function.arguments,
  answered: answered.message.content.slice(0, 19),
  form: JSON.parse(
    (await chat("The secret word is heliotrope. Say it.", { format: schema })).message.content),
  thought: [thought.message.thinking, thought.message.content],
  cut: (await chat(hello, { options: { num_predict: 2, temperature: 0 } })).eval_count,
  cancelled: [isAborted, numRunning],
  missing: await errorOf(client.chat({ model: "other", messages })),
}));
