// SillyTavern, from npm, without its pages: its server's routes are served here, and its pages' modules
// that connect, make a request's fields and read streams run over them. What these import of the pages
// are stand-ins. Prints what came of each step. Usage: sillytavern.mjs DIRECTORY URL TYPE CHANGES
import { once } from "node:events";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import vm from "node:vm";

const [directory, url, type, changes] = process.argv.slice(2);
const log = console.log;
for (const level of ["log", "info", "debug", "warn", "error"]) console[level] = () => {};

const require = createRequire(import.meta.url);
const root = path.dirname(require.resolve("sillytavern/package.json"));
const express = createRequire(path.join(root, "server.js"))("express");
const own = (file) => import(path.join(root, "src", file));

fs.writeFileSync(path.join(directory, "config.yaml"), "{}");
(await own("util.js")).setConfigFilePath(path.join(directory, "config.yaml"));
const app = express();
app.use(express.json());
app.use((request, _, next) => {
  request.user = { directories: { root: directory } };
  next();
});
app.use("/api/backends/text-completions", (await own("endpoints/backends/text-completions.js")).router);
app.use("/api/backends/chat-completions", (await own("endpoints/backends/chat-completions.js")).router);
app.use("/api/backends/kobold", (await own("endpoints/backends/kobold.js")).router);
app.use("/api/tokenizers", (await own("endpoints/tokenizers.js")).router);
const listener = app.listen(0, "127.0.0.1");
await once(listener, "listening");
const served = `http://127.0.0.1:${listener.address().port}`;

const power_user = { context_derived: true, context_size_derived: true, instruct: {} };
power_user.model_templates_mappings = {};
const told = {};
const stand_ins = {
  power_user,
  BIAS_CACHE: new Map(),
  abortStatusCheck: new AbortController(),
  deriveTemplatesFromChatTemplate: async (template) => (told.template = template) && {},
  eventSource: { emit: async () => {} },
  event_types: {},
  getCustomStoppingStrings: () => ["\nYou:"],
  getRequestHeaders: () => ({ "Content-Type": "application/json" }),
  getStoppingStrings: () => ["\nYou:"],
  isValidUrl: (text) => URL.canParse(text),
  isObject: (value) => typeof value === "object" && value !== null && !Array.isArray(value),
  main_api: type === "kobold" ? "kobold" : "textgenerationwebui",
  max_context: 512,
  online_status: "no_connection",
  setGenerationParamsFromPreset: ({ max_length }) => (told.context = max_length),
  substituteParams: (text) => text,
  t: (strings, ...values) => String.raw({ raw: strings }, ...values),
  versionCompare: (one, least) => one.localeCompare(least, undefined, { numeric: true }) >= 0,
};
const fetched = (where, options) => fetch(new URL(where, served), options);
// What a page has, of which nothing is looked at here.
const anything = new Proxy(function () {}, {
  get: (_, name) => (name === Symbol.toPrimitive ? () => "" : name === "then" ? undefined : anything),
  apply: () => anything,
});
const storage = { getItem: () => null, setItem() {}, removeItem() {} };
const page = { $: anything, document: anything, localStorage: storage, sessionStorage: storage };
const names = ["console", "AbortController", "TextDecoderStream", "TransformStream", "MessageEvent"];
names.push("URL", "structuredClone", "setTimeout");
for (const name of names) page[name] = globalThis[name];
page.toastr = { error: (text) => (told.error = text), info() {} };
const context = vm.createContext({ ...page, window: page, fetch: fetched });

const modules = {};
function load(name, more = "") {
  const file = path.join(root, "public", "scripts", name);
  const source = fs.readFileSync(file, "utf8") + more;
  const imported = {};
  for (const [, list, from] of source.matchAll(/^import\s*\{([^}]*)\}\s*from\s*'([^']+)'/gm))
    imported[from] = list.split(",").map((part) => part.trim()).filter(Boolean);
  const module = new vm.SourceTextModule(source, { context, identifier: name });
  return module.link((from) => {
    if (from === "./sse-stream.js") return (modules[from] ??= load("sse-stream.js"));
    const stand_in = new vm.SyntheticModule(
      imported[from],
      () => {
        for (const name of imported[from]) {
          let value = stand_ins[name] ?? anything;
          if (name === "setOnlineStatus")
            value = (status) => {
              told.status = status;
              if (imported[from].includes("online_status")) stand_in.setExport("online_status", status);
            };
          stand_in.setExport(name, value);
        }
      },
      { context },
    );
    return stand_in;
  }).then(() => module.evaluate()).then(() => module);
}

async function read(generate, body, chunks = Infinity) {
  const controller = new AbortController();
  const stream = await generate(body, controller.signal);
  let text = "";
  let count = 0;
  for await (const chunk of stream()) {
    text = chunk.text;
    if (++count >= chunks) break;
  }
  controller.abort();
  return text;
}

async function post(where, body) {
  const answer = await fetched(where, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  return answer.json();
}

const PROMPT = "Once upon a";
let make, stream, where, count;
if (type === "custom") {
  const openai = (await load("openai.js", "\nexport { getStatusOpen };")).namespace;
  const settings = openai.oai_settings;
  Object.assign(settings, { chat_completion_source: "custom", custom_url: `${url}/v1` });
  Object.assign(settings, { stream_openai: true, ...JSON.parse(changes) });
  await openai.getStatusOpen();
  told.models = openai.model_list.map((model) => model.id);
  settings.custom_model = told.models[0];
  make = (tokens, kind) => ({ tokens, kind });
  stream = ({ tokens, kind }, signal) => {
    settings.openai_max_tokens = tokens;
    return openai.sendOpenAIRequest(kind, [{ role: "user", content: PROMPT }], signal);
  };
} else if (type === "kobold") {
  const kai = (await load("kai-settings.js")).namespace;
  Object.assign(kai.kai_settings, { api_server: kai.formatKoboldUrl(url), streaming_kobold: true });
  Object.assign(kai.kai_settings, JSON.parse(changes));
  await kai.getStatusKobold();
  told.flags = { ...kai.kai_flags };
  make = (tokens, kind) =>
    kai.getKoboldGenerationData(PROMPT, kai.kai_settings, tokens, 512, false, kind);
  [stream, where] = [kai.generateKoboldWithStreaming, "/api/backends/kobold/generate"];
  count = ["/api/tokenizers/remote/kobold/count", { url: kai.kai_settings.api_server }];
} else {
  // Only its page's buttons call it.
  const textgen = (await load("textgen-settings.js", "\nexport { getStatusTextgen };")).namespace;
  const settings = textgen.textgenerationwebui_settings;
  Object.assign(settings, { type, server_urls: { [type]: textgen.formatTextGenURL(url) } });
  Object.assign(settings, JSON.parse(changes));
  await textgen.getStatusTextgen();
  make = (tokens) => textgen.getTextGenGenerationData(PROMPT, tokens, false, false, null, "normal");
  [stream, where] = [textgen.generateTextGenWithStreaming, "/api/backends/text-completions/generate"];
  if (type !== "generic")
    count = ["/api/tokenizers/remote/textgenerationwebui/encode", { api_type: type, url, model: "tiny" }];
}
const quiet = await make(8, "quiet");
told.whole = where ? await post(where, { ...quiet, stream: false }) : await stream(quiet);
told.streamed = await read(stream, await make(8, "normal"));
if (count) told.count = (await post(count[0], { ...count[1], text: PROMPT })).count;
await read(stream, await make(400, "normal"), 2);
log(JSON.stringify(told));
process.exit(0);
