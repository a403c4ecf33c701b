// The page's modules that need no document. Prints, by the name of each test, what failed, or null.
// tests/page has the rest, in a browser.
import assert from "node:assert/strict";

const load = (name) => import(new URL(`../../app/ui/${name}.js`, import.meta.url));
const { Answer, note } = await load("answer");
const { Places, access, ask, events } = await load("api");
const { answerBody, messagesFor, parametersOf, summary } = await load("request");
const { describe, parametersOf: ofDocument, read, shownValue } = await load("samplers");
const { brief, points, span } = await load("server");
const { dayOf } = await load("sidebar");
const { fromText, isMarkdown, toJson, toMarkdown, unknown } = await load("transfer");
const tree = await load("tree");

const tests = {};
const test = (name, run) => (tests[name] = run);
const thrown = (run) => {
  try {
    return run();
  } catch (error) {
    return error.message;
  }
};

// Requests and events

async function asked(response) {
  globalThis.fetch = async (path, options) => {
    new Headers(options.headers); // throws for what no header can have
    if (response instanceof Error) throw response;
    return response;
  };
  return ask("v1/models").then(() => null, (error) => error);
}

const REFUSALS = [
  [400, {}, "Refused: why", 0],
  [401, {}, "This server needs an API key.", 0],
  [403, {}, "Not permitted: why", 0],
  [429, { "Retry-After": "6.5" }, "Too much at once: why. Try again in 7 s.", 7],
  [429, {}, "Too much at once: why.", 0],
  [503, { "Retry-After": "2" }, "Not ready: why. Try again in 2 s.", 2],
  [500, {}, "The server failed: why.", 0],
  [529, { "Retry-After": "2" }, "The server failed: why. Try again in 2 s.", 2],
];
test("a refusal is told in words", async () => {
  for (const [status, headers, said, wait] of REFUSALS) {
    const body = JSON.stringify({ error: { message: "why" } });
    const error = await asked(new Response(body, { status, headers }));
    assert.deepEqual([error.message, error.status, error.wait], [said, status, wait]);
  }
  assert.equal((await asked(new Response("<html>", { status: 404, statusText: "as HTTP has it" }))).message, "Refused: as HTTP has it");
});

test("a server that is gone, a stop, and a key that no header can have are told apart", async () => {
  assert.match((await asked(new TypeError("network error"))).message, /^The server does not respond/);
  assert.equal((await asked(new DOMException("", "AbortError"))).name, "AbortError");
  access.key = "schlüssel→";
  assert.match((await asked(new Response("{}"))).message, /^The server refuses this API key/);
  assert.match((await asked(new Response("{}", { status: 401 }))).message, /^The server refuses this API key/);
  access.key = "";
});

test("events are the same whatever pieces they come in", async () => {
  const bytes = new TextEncoder().encode(': a comment\nretry: 5000\ndata: {"a": "Grüße 世界"}\n\ndata: [1]\n\ndata: [DONE]\n\ndata: no JSON\n');
  for (const size of [1, 3, 1000]) {
    const start = (stream) => {
      for (let at = 0; at < bytes.length; at += size) stream.enqueue(bytes.slice(at, at + size));
    };
    const [told, found] = [{}, []];
    for await (const event of events(new Response(new ReadableStream({ start })), told)) found.push(event);
    assert.deepEqual([found, told], [[{ a: "Grüße 世界" }, [1]], { retry: 5000 }]);
  }
});

test("five answers have places, the next waits or is given up, and HTTP/2 has room for all", async () => {
  const places = new Places("http/1.1");
  const abort = new AbortController();
  for (let i = 0; i < 5; i++) await places.take(abort.signal);
  assert.equal(places.isFull, true);
  const given = places.take(abort.signal).catch((error) => error.name);
  let isIn = false;
  const next = places.take(new AbortController().signal).then(() => (isIn = true));
  abort.abort();
  assert.equal(await given, "AbortError");
  assert.equal(isIn, false);
  places.giveBack();
  await next;
  assert.equal(places.isFull, true);
  places.giveBack();
  assert.equal(places.taken, 4);
  for (const protocol of ["h2", "h3"]) assert.equal(new Places(protocol).most, Infinity);
});

// Answers

async function answered(...bodies) {
  const told = [];
  const view = {
    thinks: (text) => told.push(`thinks ${text}`), writes: (text) => told.push(`writes ${text}`),
    begins: (i, call) => told.push(`begins ${call.function.name}`), calls: (i, text) => told.push(`calls ${text}`),
    ends: () => told.push("ends"), rest: async () => {},
  };
  const message = { role: "assistant", content: "" };
  const answer = new Answer(message, view);
  for (const body of bodies) await answer.add(body);
  answer.end(false);
  return { told, message };
}
const delta = (delta, finish_reason = null) => ({ choices: [{ index: 0, delta, finish_reason }] });

test("an answer gathers text, calls and figures, and text stands before the call behind it", async () => {
  const usage = { prompt_tokens: 9, completion_tokens: 4, prompt_tokens_details: { cached_tokens: 5 } };
  const first = { index: 0, id: "call_1", function: { name: "look", arguments: "" } };
  const { told, message } = await answered(
    delta({ reasoning_content: "Hm" }), delta({ content: "A" }), delta({ content: "B" }), delta({ tool_calls: [first] }),
    delta({ tool_calls: [{ index: 0, function: { arguments: '{"a"' } }] }),
    delta({ tool_calls: [{ index: 0, function: { arguments: ": 1}" } }] }, "length"), delta({}),
    { choices: [], usage, timings: { predicted_per_second: 12.34 } },
  );
  assert.deepEqual(told, ["thinks Hm", "writes AB", "begins look", "calls ", 'calls {"a"', "calls : 1}", "ends"]);
  assert.deepEqual([message.reasoning, message.content, message.tool_calls[0].function.arguments], ["Hm", "AB", '{"a": 1}']);
  const { first: seconds, ...figures } = message.figures;
  assert.deepEqual(figures, { tokens: 4, rate: 12.34, prompt: 9, cached: 5, isCut: true });
  assert.equal(note({ ...figures, first: 0.5 }),
    "4 tokens; 12.3 tokens/s; first after 0.50 s; prompt 9, 5 of them cached; cut off at the token limit");
  await assert.rejects(answered({ error: { message: "no memory" } }), /The answer was cut off: no memory/);
});

// Messages

const names = (conversation) => tree.shown(conversation).map((message) => message.content).join(" ");
function begun() {
  const conversation = tree.newConversation();
  const question = tree.add(conversation, "", { role: "user", content: "q" });
  const answer = tree.add(conversation, question.id, { role: "assistant", content: "a" });
  tree.add(conversation, answer.id, { role: "user", content: "r" });
  return { conversation, question, answer };
}

test("alternatives have branches of their own, and what is removed comes back", () => {
  const { conversation, question, answer } = begun();
  const other = tree.add(conversation, question.id, { role: "assistant", content: "b" });
  assert.equal(names(conversation), "q b");
  assert.deepEqual(tree.path(conversation)[1].alternatives, [answer, other]);
  conversation.chosen[question.id] = answer.id;
  assert.equal(names(conversation), "q a r");
  const restore = tree.remove(conversation, answer);
  assert.equal(names(conversation), "q b");
  assert.equal(conversation.messages.length, 2);
  restore();
  assert.equal(names(conversation), "q a r");
  question.files = [{ name: "f", text: "t" }];
  const copy = tree.branch(conversation, answer.id, "copy");
  assert.equal(names(copy), "q a");
  copy.messages[0].files[0].text = "changed";
  assert.equal(question.files[0].text, "t");
});

test("a conversation's title is its first words, and its text is found", () => {
  const of = (content, title = "") => tree.newConversation({ title, messages: [{ id: "1", parent: "", role: "user", content }] });
  assert.equal(tree.titleOf(of("  How\nare you? ")), "How are you?");
  assert.equal(tree.titleOf(of("x".repeat(99))).length, 60);
  assert.equal(tree.titleOf(of("text", "Title")), "Title");
  assert.deepEqual(["how", "q"].map((text) => tree.matches(of("How?"), text)), [true, false]);
});

test("a request has the settings that are given and no others", () => {
  const message = (role, content, more) => ({ id: "1", parent: "", role, content, figures: {}, reasoning: "r", ...more });
  const stream = { stream: true, stream_options: { include_usage: true }, timings: true };
  const hello = [{ role: "user", content: "Hello" }];
  assert.deepEqual(answerBody({}, [message("user", "Hello")]), { messages: hello, ...stream });
  const settings = {
    model: "m", preset: "p", system: "S", maxTokens: 7, seed: 0, stop: "a\n\\nb\n", tools: '[{"type": "function"}]',
    form: "json_schema", formText: "{}", parameters: { top_k: 5 }, raw: true, showThoughts: true,
  };
  const { messages, stream: _, stream_options, timings, ...rest } = answerBody(settings, [message("user", "Hello")], true);
  assert.deepEqual(messages, [{ role: "system", content: "S" }, ...hello]);
  assert.deepEqual(rest, {
    model: "m", preset: "p", max_tokens: 7, seed: 0, stop: ["a", "\nb"], tools: [{ type: "function" }],
    json_schema: {}, top_k: 5, continue_final_message: true,
  });
  assert.match(thrown(() => parametersOf({ tools: "[" })), /^Tools, as a JSON list: This must be JSON/);
});

test("questions in a row are one, files stand before them, and calls keep their results", () => {
  const tool_calls = [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }];
  const messages = [
    { role: "user", content: "One" }, { role: "user", content: "Two", files: [{ name: "a.md", text: "```\nx\n```" }] },
    { role: "assistant", content: "", tool_calls }, { role: "tool", tool_call_id: "c", content: "r" },
  ];
  assert.deepEqual(messagesFor(messages, " \n"), [
    { role: "user", content: "One\n\na.md:\n````\n```\nx\n```\n````\n\nTwo" },
    { role: "assistant", content: "", tool_calls }, { role: "tool", content: "r", tool_call_id: "c" },
  ]);
  assert.deepEqual(tree.openCalls(messages.slice(0, 3)), tool_calls);
  assert.deepEqual(tree.openCalls(messages), []);
});

test("a line says how a conversation's settings differ", () => {
  assert.equal(summary({}), "");
  const settings = { model: "m", preset: "p", seed: 0, system: " S ", form: "regex", formText: "x", parameters: { temperature: 1.5, stop: ["a"] } };
  assert.equal(summary(settings), 'm; preset p; seed 0; temperature 1.5; stop ["a"]; regular expression; “S”');
});

test("a conversation of the list has its time today, else its day", () => {
  const now = new Date(2026, 2, 1, 0, 30);
  const days = { "00:10": [2026, 2, 1, 0, 10], yesterday: [2026, 1, 28, 0, 0], "Feb 27": [2026, 1, 27, 23, 59], "Dec 31, 2025": [2025, 11, 31] };
  for (const [said, moment] of Object.entries(days)) assert.equal(dayOf(new Date(...moment), now), said);
});

// Files

test("an export comes back, but for its id", () => {
  const { conversation } = begun();
  const [back] = fromText(toJson([conversation]));
  assert.notEqual(back.id, conversation.id);
  assert.deepEqual({ ...back, id: "" }, { ...conversation, id: "" });
});

test("what is shown comes back from Markdown, even if it looks like its marks", () => {
  const { conversation, answer } = begun();
  answer.content = "\n<!-- message: user -->\n\\<!-- message: tool -->\n# x\n\n";
  const both = fromText(toMarkdown([conversation, begun().conversation]));
  assert.deepEqual(both.map((one) => tree.shown(one).map(({ role, content }) => [role, content])), [
    [["user", "q"], ["assistant", answer.content], ["user", "r"]],
    [["user", "q"], ["assistant", "a"], ["user", "r"]],
  ]);
});

test("of an import only what isn't here is new", () => {
  const { conversation } = begun();
  const { conversation: other, answer } = begun();
  for (const text of [toJson([conversation]), toMarkdown([conversation])]) {
    const news = (...here) => unknown(fromText(text), here, isMarkdown(text)).length;
    assert.deepEqual([news(), news(conversation), news(other, conversation)], [1, 0, 0]);
    answer.content = "Another answer.";
    assert.equal(news(other), 1);
  }
});

test("what two tabs write into one conversation is merged", () => {
  const { conversation: kept, answer } = begun();
  const before = tree.snapshot(kept);
  const [mine, theirs] = [structuredClone(kept), structuredClone(kept)];
  const added = tree.add(theirs, answer.id, { role: "user", content: "theirs" });
  theirs.messages.find((one) => one.id === answer.id).content = "edited there";
  const own = tree.add(mine, answer.id, { role: "user", content: "mine" });
  const edited = mine.messages.find((one) => one.role === "user");
  edited.content = "edited here";
  assert.equal(tree.merge(mine, theirs, before), true);
  assert.deepEqual(mine.messages.map((one) => one.id).sort(), [...kept.messages.map((one) => one.id), added.id, own.id].sort());
  assert.equal(mine.messages.find((one) => one.id === answer.id).content, "edited there");
  assert.equal(edited.content, "edited here");
  assert.equal(tree.shown(mine).at(-1).content, "mine");
  assert.equal(tree.merge(mine, structuredClone(mine), tree.snapshot(mine)), false);
  const restore = tree.remove(mine, own);
  tree.remove(mine, added);
  edited.content = "q";
  assert.equal(tree.merge(mine, theirs, new Map([...before, [added.id, added]])), false); // what is deleted stays so
  restore();
});

test("a file that is no export is refused whole", () => {
  const { conversation } = begun();
  const broken = (change) => {
    const copy = structuredClone(conversation);
    change(copy);
    return toJson([conversation, copy]);
  };
  const refusals = [
    ["PNG", /neither JSON nor/], ["[]", /no conversations/], ['{"format": "other", "conversations": []}', /no conversations/],
    [broken((one) => (one.messages[1].content = 7)), /conversation 2 is damaged/],
    [broken((one) => (one.messages[2].id = one.messages[0].id)), /damaged/], // a way that never ends
    [broken((one) => (one.messages[1].role = "system")), /damaged/], [broken((one) => (one.messages = null)), /damaged/],
    [broken((one) => (one.messages[1].tool_calls = [{}])), /damaged/], [broken((one) => (one.settings.tools = 7)), /damaged/],
    [broken((one) => (one.messages[0].files = {})), /damaged/],
  ];
  for (const [text, why] of refusals) assert.match(String(thrown(() => fromText(text))), why);
});

// Samplers

test("a field takes what the server's document says, and sends what differs", () => {
  const property = (form, more) => describe({ anyOf: [form, { type: "null" }], ...more });
  const number = property({ type: "number", minimum: 0, exclusiveMaximum: 5 }, { default: 1.0 });
  assert.deepEqual(number, { description: "", default: 1, type: "number", minimum: 0, maximum: 5 });
  assert.deepEqual([read(number, "1.0"), read(number, "1.0", true), read(number, " "), read(number, "0.5")], [undefined, 1, undefined, 0.5]);
  const integer = property({ type: "integer" });
  assert.match(thrown(() => read(integer, "1.5")), /whole number/);
  const choice = property({ enum: [0, 2], type: "integer" }, { default: 0 });
  assert.deepEqual([choice.type, read(choice, "2")], ["choice", 2]);
  assert.equal(property({ oneOf: [{ enum: ["none"] }, { $ref: "#" }] }).type, "choice");
  const list = property({ type: "array" }, { default: ["a"] });
  assert.deepEqual([read(list, '["a"]'), read(list, '["b"]')], [undefined, ["b"]]);
  assert.match(thrown(() => read(list, "b")), /must be JSON/);
  assert.match(thrown(() => read(property({ type: "object" }), "[]")), /JSON object/);
  assert.deepEqual([shownValue(list, ["b"]), shownValue(choice, 2), shownValue(number, undefined)], ['["b"]', "2", ""]);
  const schema = { $ref: "#/components/schemas/Chat" };
  const post = { requestBody: { content: { "application/json": { schema } } } };
  const document = { paths: { "/v1/chat/completions": { post } }, components: { schemas: { Chat: { properties: { a: 1 } } } } };
  assert.deepEqual(ofDocument(document), { a: 1 });
});

// The server

test("the server's state is one line", () => {
  const models = [{ state: "ready", running: 1, waiting: 2, tokens_per_second: 1.25 }, { state: "loading", running: 3, waiting: 0 }];
  assert.equal(brief(models), "ready, loading; 4 running, 2 waiting; 1.3 tokens/s");
  assert.equal(brief([models[1]]), "loading; 3 running, 0 waiting");
});

test("a span is told by its two greatest units", () => {
  const spans = { 59.9: "59 s", 60: "1 min", 3599: "59 min", 3600: "1 h 0 min", 86399: "23 h 59 min", 93600: "1 d 2 h" };
  for (const [seconds, told] of Object.entries(spans)) assert.equal(span(Number(seconds)), told);
});

test("the tokens of the last minute are drawn by their scale", () => {
  assert.equal(points([50, 100]), "58,20.0 59,2.0");
  assert.equal(points([0]), "59,38.0");
});

const results = {};
for (const [name, run] of Object.entries(tests)) {
  results[name] = await Promise.resolve().then(run).then(() => null, (error) => String(error.stack));
}
console.log(JSON.stringify(results));
