// Streams a chat by the openai client, and prints how many of its frames had choices, and the
// client's own sum of them. Usage: node chat.mjs BASE_URL PARAMETERS
import OpenAI from "openai";

const [baseURL, parameters] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const stream = client.chat.completions.stream(JSON.parse(parameters));
let frames = 0;
for await (const chunk of stream) {
  frames += chunk.choices.length;
}
console.log(JSON.stringify({ frames, completion: await stream.finalChatCompletion() }));
