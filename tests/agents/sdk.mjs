// Has the AI SDK's generateText and streamText ask for a tool and for an object in one request.
// Prints what came out of each. Usage: node sdk.mjs BASE_URL
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "switchyard",
  baseURL: process.argv[2],
  supportsStructuredOutputs: true,
});
const asked = {
  model: provider("agent"),
  prompt: "What is the secret word in notes.txt?",
  output: Output.object({ schema: z.object({ word: z.string() }) }),
  stopWhen: stepCountIs(3),
  tools: {
    read_file: tool({
      description: "Reads a file.",
      inputSchema: z.object({ path: z.string() }),
      execute: ({ path }) => (path === "notes.txt" ? "The secret word is heliotrope." : "?"),
    }),
  },
};
const whole = await generateText(asked);
const stream = streamText(asked);
await stream.consumeStream();
const kinds = [whole.steps, await stream.steps].map((steps) =>
  steps.map((step) => step.finishReason),
);
console.log(JSON.stringify({ outputs: [whole.output, await stream.output], kinds }));
