// Has the anthropic client's runner call a tool and send its results back, at most so many times,
// and prints the last message. Usage: node runner.mjs BASE_URL PARAMETERS
import Anthropic from "@anthropic-ai/sdk";

const [baseURL, parameters] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0 });
const ask = JSON.parse(parameters);
const tools = ask.tools.map((tool) => ({ ...tool, parse: (input) => input, run: () => "2" }));
const runner = client.beta.messages.toolRunner({ ...ask, tools });
let calls = 0;
for await (const message of runner) {
  calls += message.content.filter((block) => block.type === "tool_use").length;
}
console.log(JSON.stringify({ calls, last: await runner.done() }));
