// The script of the page, over dom.mjs. Prints, by the name of each test, what failed, or null.
import assert from "node:assert/strict";

import { Page, settled } from "./dom.mjs";

const tests = {};
const test = (name, run) => (tests[name] = run);
const CHAT = "v1/chat/completions";
const MODEL = { id: "tiny", state: "ready", running: 1, waiting: 2, progress: null };
const STATUS = { version: "1.2.3", uptime: 59, models: [MODEL] };
const texts = (elements) => elements.map((one) => one.textContent);
const CALL = { index: 0, id: "call_1", function: { name: "get_time", arguments: "" } };

async function opened(options) {
  const page = new Page(options);
  await settled();
  return page;
}

async function shown(status, page) {
  page ??= await opened();
  if (!page.status().isOpen) page.status().begin();
  await page.status().tell({ ...STATUS, ...status });
  return page;
}

function rows(card) {
  const values = texts(card.all("dd"));
  return Object.fromEntries(texts(card.all("dt")).map((name, i) => [name, values[i]]));
}

// Requests

test("a request has the settings that are given and no others", async () => {
  const page = await opened();
  assert.deepEqual((await page.say("Hello")).body, {
    messages: [{ role: "user", content: "Hello" }],
    stream: true,
    stream_options: { include_usage: true },
    timings: true,
  });
  const told = await opened({ stored: { temperature: "0.5", top_p: "0.9", max_tokens: "7", key: " k ", system: "S" } });
  await shown({}, told);
  told.ids.tools.enter(' [{"type": "function"}] ');
  const call = await told.say("Hello");
  const { messages, stream, stream_options, timings, ...more } = call.body;
  assert.deepEqual(messages, [{ role: "system", content: "S" }, { role: "user", content: "Hello" }]);
  const tools = [{ type: "function" }];
  assert.deepEqual(more, { model: "tiny", temperature: 0.5, top_p: 0.9, max_tokens: 7, tools });
  assert.deepEqual(call.headers, { "Content-Type": "application/json", Authorization: "Bearer k" });
  assert.equal(told.status().headers.Authorization, "Bearer k");
  assert.equal(call.cache, "no-store");
});

test("a blank system prompt is none and tools that are no JSON are said", async () => {
  const page = await opened({ stored: { system: " \n", tools: "[" } });
  assert.equal(await page.say("Hello"), undefined);
  assert.match(page.chat(1).textContent, /The tools in the settings are no JSON: /);
  page.ids.tools.enter("");
  page.chat(1).button("Try again").click();
  await settled();
  assert.deepEqual(page.asked(CHAT)[0].body.messages, [{ role: "user", content: "Hello" }]);
});

const REFUSALS = [
  [400, {}, "Refused: why"],
  [401, {}, "The API key is missing or wrong. Enter a valid one in the settings."],
  [403, {}, "Not permitted: why"],
  [429, { "Retry-After": "6.5" }, "Too much at once: why. Try again in 7 s."],
  [429, {}, "Too much at once: why."],
  [503, { "Retry-After": "2" }, "Not ready: why. Try again in 2 s."],
  [500, {}, "The server failed: why."],
  [529, { "Retry-After": "2" }, "The server failed: why. Try again in 2 s."],
];
for (const [status, headers, said] of REFUSALS) {
  test(`a refusal is said in words: ${status} ${JSON.stringify(headers)}`, async () => {
    const page = await opened();
    (await page.say("Hello")).refuse(status, "why", headers);
    await settled();
    assert.equal(page.chat(1).all("p", "trouble")[0].textContent, `${said}Try again`);
    assert.equal(page.ids.settings.open ?? false, status === 401);
    assert.equal(page.ids.told.textContent, `Conversation 1: ${said}`);
    assert.deepEqual(texts(page.articles().map((one) => one.children[0])), ["You"]);
    assert.equal(page.chat(1).button("Send").disabled, false);
    assert.equal(page.chat(1).button("Stop").disabled, true);
    page.chat(1).button("Try again").click();
    await settled();
    assert.equal(page.chat(1).all("p", "trouble").length, 0);
    assert.deepEqual(page.asked(CHAT)[1].body, page.asked(CHAT)[0].body);
  });
}

test("the button to try again does nothing while an answer is on its way", async () => {
  const page = await opened();
  (await page.say("Hello")).refuse(500, "why");
  await settled();
  const again = page.chat(1).button("Try again");
  again.click();
  again.click();
  await settled();
  assert.equal(page.asked(CHAT).length, 2);
});

test("a refusal that is no JSON is said by its status", async () => {
  const page = await opened();
  (await page.say("Hello")).refuse(404, null);
  await settled();
  assert.match(page.chat(1).textContent, /Refused: as HTTP has it/);
});

test("a server that is gone and a key that no header can have are told apart", async () => {
  const page = await opened();
  await (await page.say("Hello")).fail();
  assert.match(page.chat(1).textContent, /The server does not answer. The conversation is kept/);
  page.ids.key.enter("schlüssel→");
  page.chat(1).button("Try again").click();
  await settled();
  assert.match(page.chat(1).textContent, /The API key is missing or wrong/);
});

// Answers

test("an answer is put together whatever pieces it comes in", async () => {
  const page = await opened();
  const call = await page.say("Hello");
  assert.equal(page.articles()[1].attributes["aria-busy"], "true");
  assert.deepEqual([page.chat(1).button("Send").disabled, page.chat(1).button("Stop").disabled], [true, false]);
  call.begin();
  const frames = ["Grü", "ße", " 世界"].map((content) => ({ choices: [{ delta: { content } }] }));
  const lines = frames.map((frame) => `data: ${JSON.stringify(frame)}\n\n`).join("");
  for (const letter of `: a comment\n${lines}`) await call.stream.enqueue(new TextEncoder().encode(letter));
  await settled();
  assert.equal(page.articles()[1].textContent, "Model"); // until it is shown all at once
  await page.pass(40);
  assert.equal(page.articles()[1].textContent, "ModelGrüße 世界");
  await call.delta({}, "stop");
  await call.tell({ choices: [], usage: { prompt_tokens: 9, completion_tokens: 4, prompt_tokens_details: { cached_tokens: 5 } } });
  page.now += 1960;
  await call.write("data: [DONE]\n\ndata: no JSON\n\n");
  const note = "4 tokens, 2.0 tokens/s; prompt 9, 5 of them cached";
  assert.equal(page.articles()[1].textContent, `ModelGrüße 世界${note}`);
  assert.equal("aria-busy" in page.articles()[1].attributes, false);
  assert.equal(page.ids.told.textContent, `Conversation 1: the answer is complete. ${note}`);
  assert.deepEqual(page.kept("chats"), [[{ role: "user", content: "Hello" }, { role: "assistant", content: "Grüße 世界", note }]]);
  assert.deepEqual([page.chat(1).button("Send").disabled, page.chat(1).button("Stop").disabled], [false, true]);
});

test("what a frame does not tell stays as another has told it", async () => {
  const page = await opened();
  const call = (await page.say("Hello")).begin();
  await call.tell({ choices: [{ delta: { content: "A" } }], usage: { prompt_tokens: 9, completion_tokens: 4 }, timings: { predicted_per_second: 3 } });
  await call.delta({}, "length");
  await call.delta({});
  await call.tell({ choices: [] });
  await call.write("data: [DONE]\n\n");
  const note = "4 tokens, 3.0 tokens/s; prompt 9; cut off at the limit of tokens";
  assert.equal(page.articles()[1].all("p", "note")[0].textContent, note);
});

test("text stands before the call that comes behind it, and code in it reads from the left", async () => {
  const page = await opened();
  const call = (await page.say("Hello")).begin();
  await call.delta({ content: "```\nx" });
  await call.delta({ tool_calls: [CALL] });
  await page.pass(40);
  assert.equal(page.articles()[1].textContent, "Modelxcalls the tool get_time");
  const [block] = page.articles()[1].all("div", "block");
  assert.equal(block.dir, "ltr");
  const labels = page.articles()[1].all("pre").map((one) => one.attributes["aria-label"]);
  assert.deepEqual(labels, ["Code", "Arguments of get_time"]);
  assert.equal(page.articles()[0].all("div", "block")[0].dir, "auto");
});

test("an answer's time begins when it is asked for", async () => {
  const page = await opened({ stored: { chats: [[], [], [], [], [], []] } });
  const calls = [];
  for (const number of [1, 2, 3, 4, 5, 6]) calls.push(await page.say("Hello", number));
  page.now += 60_000;
  await page.answer(calls[0], "Done");
  const last = page.asked(CHAT)[5].begin();
  page.now += 2000;
  await last.tell({ choices: [{ delta: { content: "A" }, finish_reason: "stop" }], usage: { prompt_tokens: 1, completion_tokens: 4 } });
  await last.write("data: [DONE]\n\n");
  assert.match(page.articles(6)[1].textContent, /4 tokens, 2\.0 tokens\/s/);
});

test("the text that waits is shown once however many pieces came", async () => {
  const page = await opened();
  const call = (await page.say("Hello")).begin();
  const begun = page.timers.size;
  for (const content of "abc") await call.delta({ content });
  assert.equal(page.timers.size, begun + 1);
  await page.pass(40);
  await call.delta({ content: "d" });
  await page.pass(40);
  assert.equal(page.articles()[1].textContent, "Modelabcd");
});

test("the rate is the server's where it tells one, and the limit of tokens is said", async () => {
  const page = await opened();
  const call = (await page.say("Hello")).begin();
  const usage = { prompt_tokens: 9, completion_tokens: 4 };
  await call.tell({ choices: [{ delta: { content: "A" }, finish_reason: "length" }], usage, timings: { predicted_per_second: 12.34 } });
  await call.write("data: [DONE]\n\n");
  const note = "4 tokens, 12.3 tokens/s; prompt 9; cut off at the limit of tokens";
  for (const one of [page, await opened({ stored: { chats: page.kept("chats") } })]) {
    assert.equal(one.articles()[1].all("p", "note")[0].textContent, note);
  }
});

for (const [name, cut, said] of [
  ["the end of the connection", (call) => call.end(), "The answer was cut off: the connection has ended."],
  ["a broken connection", (call) => call.fail(), "The server does not answer. The conversation is kept: try again once it is back."],
  ["an error", (call) => call.tell({ error: { message: "no memory" } }), "The answer was cut off: no memory"],
]) {
  test(`an answer that is cut off keeps what came: ${name}`, async () => {
    const page = await opened();
    const call = (await page.say("Hello")).begin();
    await call.delta({ content: "Half" });
    await call.delta({ tool_calls: [CALL] });
    await cut(call);
    assert.equal(page.chat(1).all("p", "trouble")[0].textContent, said); // nothing to try again
    assert.deepEqual(page.kept("chats")[0].at(-1), { role: "assistant", content: "Half", note: "" });
    assert.equal(page.field().value, "");
    const next = await page.say("Go on");
    assert.deepEqual(next.body.messages.map((one) => one.content), ["Hello", "Half", "Go on"]);
  });
}

for (const way of ["Escape", "Stop", "Close"]) {
  test(`an answer is stopped by ${way}`, async () => {
    const page = await opened();
    const call = (await page.say("Hello")).begin();
    await call.delta({ content: "Half" });
    if (way === "Escape") page.field().press("Escape");
    else page.chat(1).button(way).click();
    assert.equal(call.isAborted, true);
    await settled();
    if (way === "Close") return assert.equal(page.chat(1).articles, undefined);
    assert.equal(page.articles()[1].textContent, "ModelHalfstopped");
    assert.equal(page.chat(1).all("p", "trouble").length, 0);
    assert.deepEqual(page.kept("chats")[0].at(-1), { role: "assistant", content: "Half", note: "stopped" });
  });
}

test("a message behind one without an answer joins it", async () => {
  const page = await opened();
  (await page.say("One")).refuse(500, "why");
  await settled();
  const call = await page.say("Two");
  assert.deepEqual(call.body.messages, [{ role: "user", content: "One\n\nTwo" }]);
});

test("thoughts are folded away, kept, and not sent back", async () => {
  const page = await opened();
  const call = (await page.say("Hello")).begin();
  await call.delta({ reasoning_content: "Hm" });
  await call.delta({ reasoning_content: "m." });
  await page.answer(Object.assign(call, { begin: () => call }), "Yes");
  assert.equal(page.articles()[1].all("details")[0].textContent, "ThoughtsHmm.");
  assert.equal(page.articles()[1].textContent, "ModelThoughtsHmm.Yes");
  const next = await page.say("More");
  assert.deepEqual(next.body.messages[1], { role: "assistant", content: "Yes" });
  await next.begin().delta({ reasoning_content: "Is it ``" });
  await next.delta({ content: "No" }, "stop");
  await next.write("data: [DONE]\n\n");
  assert.equal(page.articles()[3].all("details")[0].textContent, "ThoughtsIs it ``");
  const again = await opened({ stored: { chats: page.kept("chats") } });
  assert.equal(again.articles()[1].textContent, "ModelThoughtsHmm.Yes");
});

test("calls of tools are shown and each is answered before the model goes on", async () => {
  const page = await opened();
  const call = (await page.say("When?")).begin();
  await call.delta({ tool_calls: [CALL] });
  await call.delta({ tool_calls: [{ index: 0, function: { arguments: '{"a"' } }] });
  await call.delta({ tool_calls: [{ index: 0, function: { arguments: ": 1}" } }] });
  await call.delta({ tool_calls: [{ index: 1, id: "call_2", function: { name: "get_day", arguments: "{}" } }] }, "tool_calls");
  await call.write("data: [DONE]\n\n");
  assert.equal(page.articles()[1].textContent, 'Modelcalls the tool get_time{"a": 1}calls the tool get_day{}');
  const label = () => page.chat(1).all("label")[0].textContent;
  assert.match(label(), /^Result of the tool get_time \(/);
  assert.equal(await page.say("12:00"), undefined);
  assert.equal(page.articles().at(-1).textContent, "Result of a tool12:00");
  assert.match(label(), /^Result of the tool get_day \(/);
  const kept = await opened({ stored: { chats: page.kept("chats") } });
  assert.deepEqual(texts(kept.articles()), texts(page.articles()));
  const next = await kept.say("Monday");
  assert.deepEqual(next.body.messages.slice(1), [
    {
      role: "assistant",
      content: "",
      tool_calls: [
        { id: "call_1", type: "function", function: { name: "get_time", arguments: '{"a": 1}' } },
        { id: "call_2", type: "function", function: { name: "get_day", arguments: "{}" } },
      ],
    },
    { role: "tool", tool_call_id: "call_1", content: "12:00" },
    { role: "tool", tool_call_id: "call_2", content: "Monday" },
  ]);
  assert.match(kept.chat(1).all("label")[0].textContent, /^Message \(/);
});

// Text

const TEXTS = [
  ["a line\nanother", ["text:a line\nanother"]],
  ["a\n```py\nx = 1\n```\nb", ["text:a\n", "language:py", "Code py:x = 1\n", "text:b"]],
  ["```\nx\n```", ["Code:x\n"]],
  ["```\nx", ["Code:x"]],
  ["   ```\nx\n   ```  \ny", ["Code:x\n", "text:y"]],
  ["    ```\nx", ["text:    ```\nx"]],
  ["a ``` b", ["text:a ``` b"]],
  ["```a`b\nx", ["text:```a`b\nx"]],
  ["```\n```py\n```", ["Code:```py\n"]],
  ["``", ["text:``"]],
  ["```\na\n```\n```\nb\n```", ["Code:a\n", "Code:b\n"]],
  ["x".repeat(16001), [`text:${"x".repeat(16000)}`, "text:x"]],
  [`\`\`\`${"x".repeat(200)}`, [`text:\`\`\`${"x".repeat(200)}`]],
];
TEXTS.forEach(([text, parts], i) => {
  test(`code stands between fences, however the text comes: ${i}`, async () => {
    const page = await opened();
    const call = (await page.say("Hello")).begin();
    for (const letter of text.length > 999 ? [text] : text) {
      await call.delta({ content: letter });
      await page.pass(40);
    }
    await call.delta({}, "stop");
    await call.write("data: [DONE]\n\n");
    const kept = await opened({ stored: { chats: page.kept("chats") } });
    for (const one of [page, kept]) {
      const found = one.articles()[1].children.slice(1).flatMap((part) => {
        if (part.name === "pre") return `${part.attributes["aria-label"]}:${part.textContent}`;
        return `${part.className.replace("block ", "")}:${part.textContent}`;
      });
      assert.deepEqual(found, parts);
    }
  });
});

test("the log follows an answer unless the visitor reads above", async () => {
  const page = await opened();
  const call = (await page.say("Hello")).begin();
  const log = page.chat(1).all("div", "log")[0];
  for (const [top, expected] of [[821, 1000], [820, 820]]) {
    Object.assign(log, { scrollHeight: 1000, clientHeight: 100, scrollTop: top });
    await call.delta({ content: "A" });
    await page.pass(40);
    assert.equal(log.scrollTop, expected);
  }
});

// Conversations

test("enter sends, and neither with shift nor in the middle of a word's composition", async () => {
  const page = await opened();
  page.field().value = "Hello";
  for (const more of [{ shiftKey: true }, { isComposing: true }]) {
    assert.equal(page.field().press("Enter", more).isHeld, undefined);
  }
  page.chat(1).button("Send").press("Enter"); // which the browser makes a click
  await settled();
  assert.equal(page.asked(CHAT).length, 0);
  assert.equal(page.field().press("Enter").isHeld, true);
  await settled();
  assert.equal(page.asked(CHAT).length, 1);
  assert.equal(page.field().value, "");
  page.field().value = "At once";
  page.field().press("Enter");
  assert.equal(page.field().value, "At once"); // until the answer is there
  page.chat(1).all("form")[0].happen("submit");
  await settled();
  assert.equal(page.asked(CHAT).length, 1);
  assert.equal(await (await opened()).say(" \n"), undefined);
});

test("the form sends as well", async () => {
  const page = await opened();
  page.field().value = "Hello";
  page.chat(1).all("form")[0].happen("submit");
  await settled();
  assert.equal(page.articles()[0].textContent, "YouHello");
  assert.equal(page.asked(CHAT).length, 1);
});

test("conversations are kept, added and closed by their numbers", async () => {
  const message = (content) => [{ role: "user", content }];
  const page = await opened({ stored: { chats: [message("One"), message("Two")] } });
  assert.equal(page.focused, page.field(1));
  page.ids.add.click();
  assert.equal(page.focused, page.field(3));
  assert.deepEqual(page.kept("chats"), [message("One"), message("Two"), []]);
  page.chat(1).button("Close").click();
  assert.equal(page.chat(1), undefined);
  assert.equal(page.focused, page.field(2));
  assert.deepEqual(page.kept("chats"), [message("Two"), []]);
  page.ids.add.click();
  assert.notEqual(page.chat(4), undefined);
  page.chat(4).button("Close").click();
  page.chat(3).button("Close").click();
  page.chat(2).button("Close").click();
  assert.deepEqual(page.kept("chats"), [[]]);
  assert.equal(page.focused, page.field(1));
  assert.equal(page.ids.chats.all("section").length, 1);
});

test("settings outlive a reload, and a browser that keeps nothing does no harm", async () => {
  const page = await opened();
  for (const name of ["model", "temperature", "top_p", "max_tokens", "key", "system", "tools", "theme"]) {
    page.ids[name].enter(`a ${name}`);
    assert.equal(page.kept(name), `a ${name}`);
  }
  const stored = Object.fromEntries([...page.stored].map(([name, value]) => [name, JSON.parse(value)]));
  const again = await opened({ stored });
  for (const name of Object.keys(stored)) if (name !== "model") assert.equal(again.ids[name].value, `a ${name}`);
  const torn = new Page({ stored: { key: "right" }, torn: ["chats"] });
  assert.deepEqual([torn.ids.key.value, torn.field().value], ["right", ""]);
  const poor = new Page({ stored });
  poor.keep = () => assert.fail("no room");
  poor.ids.tools.enter("");
  assert.notEqual(await poor.say("Hello"), undefined);
  for (const chats of [null, []]) assert.notEqual((await opened({ stored: { chats } })).chat(1), undefined);
});

test("the theme is the system's, or the visitor's", async () => {
  const page = await opened({ stored: { theme: "dark" } });
  assert.equal(page.root.dataset.theme, "dark");
  page.ids.theme.enter("light");
  assert.equal(page.root.dataset.theme, "light");
  page.ids.theme.enter("");
  assert.equal("theme" in page.root.dataset, false);
});

test("a browser's connections are shared out, and what waits says so", async () => {
  const page = await opened({ stored: { chats: [[], [], [], [], [], [], []] } });
  const calls = [];
  for (const number of [1, 2, 3, 4, 5, 6, 7]) calls.push(await page.say(`From ${number}`, number));
  assert.equal(page.asked(CHAT).length, 5);
  for (const number of [6, 7]) assert.match(page.chat(number).textContent, /Waits: 5 answers are on their way/);
  page.chat(6).button("Stop").click();
  await settled();
  assert.doesNotMatch(page.chat(6).textContent, /Waits: /);
  await page.answer(calls[1], "Done");
  assert.deepEqual(page.asked(CHAT).at(-1).body.messages, [{ role: "user", content: "From 7" }]);
  assert.doesNotMatch(page.chat(7).textContent, /Waits: /);
  await calls[0].fail();
  assert.notEqual(await page.say("Again", 6), undefined);
  assert.equal(await page.say("Again", 2), undefined);
  assert.equal(await page.say("Again", 1), undefined);
  for (const [done, number] of [[2, 2], [3, 1]]) {
    await page.answer(calls[done], "Done");
    const { messages } = page.asked(CHAT).at(-1).body;
    assert.match(messages.at(-1).content, /Again$/);
    assert.ok(messages[0].content.startsWith(`From ${number}`));
  }
});

test("with HTTP/2 nothing waits", async () => {
  for (const protocol of ["h2", "h3"]) {
    const page = await opened({ protocol, stored: { chats: [[], [], [], [], [], []] } });
    for (const number of [1, 2, 3, 4, 5, 6]) assert.notEqual(await page.say("Hello", number), undefined);
  }
});

// The state of the server

test("a page that is opened unseen asks for nothing", async () => {
  const page = new Page({ hidden: true });
  await settled();
  await page.pass(60_000);
  assert.equal(page.calls.length, 0);
});

test("the model that is kept is chosen once it is offered, and not behind another choice", async () => {
  const models = ["a", "b"].map((id) => ({ ...MODEL, id }));
  const page = await shown({ models }, await opened({ stored: { model: "b" } }));
  page.ids.model.value = "a"; // as a page that was loaded twice has it
  await shown({ models: [...models, { ...MODEL, id: "c" }] }, page);
  assert.equal(page.ids.model.value, "a");
});

test("the server's state is told in full to those who may see it", async () => {
  const full = {
    max_batch_size: 4, max_pending: 64, tokens_per_second: 50, prompt_tokens_per_second: 900, iteration_ms: 12.5,
    recoveries: 3, pages: { referenced: 5, all: 64 }, gpus: [{ name: "GPU 0", free: 2 ** 30, total: 4 * 2 ** 30 }],
  };
  const other = { ...MODEL, id: "other", state: "loading", progress: 0.256, running: 2, waiting: 3 };
  const third = { ...MODEL, id: "third", progress: 0.5, tokens_per_second: 0, prompt_tokens_per_second: 0, iteration_ms: 0, recoveries: 0 };
  const page = await shown({ models: [{ ...MODEL, ...full }, other, third], streams: 0, threads: { busy: 3, all: 8 } });
  assert.equal(page.ids.brief.textContent, "ready, loading; 4 running, 7 waiting");
  const [first, second, idle, server] = page.ids.status.children;
  assert.deepEqual(rows(first), {
    state: "ready", running: "1 of 4", waiting: "2 of 64", "tokens/s": "50", "prompt tokens/s": "900", iteration: "12.5 ms", recoveries: "3",
  });
  assert.deepEqual(texts(first.all("div")), ["Cache pages in use: 5 of 64", "Memory of GPU 0: 3.0 of 4.0 GiB"]);
  assert.deepEqual(first.all("progress").map((one) => [one.value, one.max, one.attributes["aria-label"]]),
    [[5, 64, "Cache pages in use"], [3 * 2 ** 30, 4 * 2 ** 30, "Memory of GPU 0"]].map(([v, m, l]) => [String(v), m, l]));
  assert.deepEqual(rows(second), { state: "loading", running: "2", waiting: "3" });
  assert.deepEqual(texts(second.all("div")), ["Loading: 26 %"]);
  assert.equal("iteration" in rows(idle), false);
  assert.deepEqual(texts(idle.all("div")), []);
  assert.deepEqual(texts([first, second, idle].map((card) => card.all("h3")[0])), ["tiny", "other", "third"]);
  assert.deepEqual(rows(server), { version: "1.2.3", "up for": "59 s", "open streams": "0", "request threads": "3 of 8" });
  await shown({}, page);
  assert.deepEqual(rows(page.ids.status.children[1]), { version: "1.2.3", "up for": "59 s" });
});

for (const [seconds, told] of [[59.9, "59 s"], [60, "1 min"], [3599, "59 min"], [3600, "1 h 0 min"], [86399, "23 h 59 min"], [93600, "1 d 2 h"]]) {
  test(`a span is told by its two greatest units: ${told}`, async () => {
    const page = await shown({ uptime: seconds });
    assert.equal(rows(page.ids.status.children[1])["up for"], told);
  });
}

test("the queue is told by its places", async () => {
  const queue = [
    { model: "tiny", place: 1, priority: 0, age: 1.5, prompt_tokens: 9 },
    { model: "other", place: 3, priority: -2, age: 61, prompt_tokens: 8 },
  ];
  const page = await shown({ queue });
  const list = page.ids.status.all("ol")[0];
  assert.deepEqual(list.children.map((one) => one.value), ["1", "3"]);
  assert.deepEqual(texts(list.children), ["tiny: 9 prompt tokens, waits 1 s", "other: 8 prompt tokens, waits 1 min, priority -2"]);
  await shown({ queue: [] }, page);
  assert.equal(page.ids.status.all("ol").length, 0);
});

test("the tokens of the last minute are drawn", async () => {
  const page = await opened();
  const line = () => page.ids.status.all("polyline")[0].attributes.points.split(" ");
  const at = (tokens_per_second) => shown({ models: [{ ...MODEL, tokens_per_second, prompt_tokens_per_second: 0 }] }, page);
  await at(50);
  await at(100);
  assert.deepEqual(line(), ["58,20.0", "59,2.0"]);
  assert.equal(page.ids.status.all("svg")[0].attributes["aria-label"], "Tokens a second over the last minute, 100 at most");
  for (let i = 0; i < 60; i++) await at(0);
  assert.equal(line().length, 60);
  assert.deepEqual([line()[0], line().at(-1)], ["0,38.0", "59,38.0"]);
});

test("the model that was chosen stays while it is offered", async () => {
  const page = await shown({ models: ["a", "b"].map((id) => ({ ...MODEL, id })) }, await opened({ stored: { model: "b" } }));
  const names = () => page.ids.model.options.map((option) => option.value);
  assert.deepEqual([names(), page.ids.model.value], [["a", "b"], "b"]);
  await shown({ models: ["c", "b"].map((id) => ({ ...MODEL, id })) }, page);
  assert.deepEqual([names(), page.ids.model.value], [["c", "b"], "b"]);
  await shown({ models: ["c"].map((id) => ({ ...MODEL, id })) }, page);
  assert.deepEqual([names(), page.ids.model.value], [["c"], "c"]);
  const [option] = page.ids.model.options;
  await shown({ models: ["c"].map((id) => ({ ...MODEL, id })) }, page);
  assert.equal(page.ids.model.options[0], option); // an open list is not shut each second
});

test("a stream of the state that ends or falls silent is asked for again", async () => {
  const page = await shown({});
  const first = page.status();
  await page.pass(5999);
  assert.equal(first.isAborted, false);
  await shown({}, page);
  await page.pass(5999);
  assert.equal(first.isAborted, false);
  await page.pass(1);
  assert.equal(first.isAborted, true);
  assert.equal(page.ids.trouble.hidden, false);
  assert.equal(page.ids.trouble.textContent, "The server does not answer. Next look in 3 s.");
  assert.equal(page.ids.brief.textContent, "not connected");
  await page.pass(3000);
  assert.equal(page.asked("ui/status").length, 2);
  await shown({}, page);
  assert.equal(page.ids.trouble.hidden, true);
  await page.status().end();
  await page.pass(1000);
  assert.equal(page.asked("ui/status").length, 3);
  await page.status().begin().write("retry: 5000\n");
  await page.status().end();
  await page.pass(4999);
  assert.equal(page.asked("ui/status").length, 3);
  await page.pass(1);
  assert.equal(page.asked("ui/status").length, 4);
});

test("a refusal of the state is said, and asked for again when it says", async () => {
  const page = await opened();
  page.status().refuse(429, "why", { "Retry-After": "9" });
  await settled();
  assert.equal(page.ids.trouble.textContent, "Too much at once: why. Try again in 9 s. Next look in 9 s.");
  await page.pass(8999);
  assert.equal(page.asked("ui/status").length, 1);
  await page.pass(1);
  assert.equal(page.asked("ui/status").length, 2);
});

test("a wrong key is not tried again, but another one", async () => {
  const page = await opened();
  page.status().refuse(401, "why");
  await settled();
  assert.equal(page.ids.brief.textContent, "an API key is needed");
  assert.equal(page.ids.trouble.textContent, "The API key is missing or wrong. Enter a valid one in the settings.");
  await page.pass(60_000);
  assert.equal(page.asked("ui/status").length, 1);
  page.ids.key.enter("right");
  await settled();
  assert.equal(page.asked("ui/status").length, 2);
  page.ids.key.enter("another");
  await settled();
  assert.deepEqual(page.asked("ui/status").map((call) => call.isAborted), [false, true, false]);
});

test("a page that nobody sees asks for nothing", async () => {
  const page = await shown({});
  await page.show(false);
  assert.equal(page.status().isAborted, true);
  assert.equal(page.ids.trouble.hidden, true);
  await page.pass(60_000);
  assert.equal(page.asked("ui/status").length, 1);
  await page.show(true);
  assert.equal(page.asked("ui/status").length, 2);
});

const results = {};
for (const [name, run] of Object.entries(tests)) {
  results[name] = await run().then(() => null, (error) => String(error.stack));
}
console.log(JSON.stringify(results));
