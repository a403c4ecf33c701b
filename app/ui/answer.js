// An answer as it comes: it fills a message and the view of it.

import { Refusal } from "./api.js";
import { strings } from "./strings.js";

const FLUSH = 40; // milliseconds between updates of the shown text
const MOST = 8192; // characters that are shown at once: more would block the page for its visitor

export class Answer {
  // The message may have content already, which the answer continues.
  constructor(message, view) {
    Object.assign(this, { message, view });
    this.usage = this.timings = this.reason = this.first = null;
    this.begin = performance.now();
    this.before = message.figures?.tokens ?? 0; // of the part that this continues
    this.waiting = { content: "", reasoning: "" };
    this.timer = 0;
  }

  // Resolves once at most MOST characters wait to be shown, so that a fast server is read no faster.
  async add(body) {
    this.take(body);
    this.timer ||= setTimeout(() => this.flush(), FLUSH);
    while (this.isBehind) {
      this.flush();
      await this.view.rest();
    }
  }

  get isBehind() {
    return this.waiting.content.length + this.waiting.reasoning.length > MOST;
  }

  take(body) {
    if (body.error) throw new Refusal(strings.brokenOff(String(body.error.message)));
    this.usage = body.usage ?? this.usage;
    this.timings = body.timings ?? this.timings;
    for (const choice of body.choices ?? []) {
      const delta = choice.delta ?? {};
      this.waiting.reasoning += delta.reasoning_content ?? "";
      this.waiting.content += delta.content ?? "";
      for (const call of delta.tool_calls ?? []) this.addCall(call);
      if (delta.reasoning_content || delta.content || delta.tool_calls) this.first ??= performance.now();
      this.reason = choice.finish_reason ?? this.reason;
    }
  }

  addCall(part) {
    const calls = (this.message.tool_calls ??= []);
    let call = calls[part.index];
    if (!call) {
      call = { id: part.id, type: "function", function: { name: part.function.name, arguments: "" } };
      calls[part.index] = call;
      this.flush(Infinity);
      this.view.begins(part.index, call);
    }
    const more = part.function?.arguments ?? "";
    call.function.arguments += more;
    this.view.calls(part.index, more);
  }

  flush(most = MOST) {
    clearTimeout(this.timer);
    this.timer = 0;
    const reasoning = this.next("reasoning", most);
    const content = this.next("content", most);
    if (reasoning) {
      this.view.thinks(reasoning);
      this.message.reasoning = (this.message.reasoning ?? "") + reasoning;
    }
    if (content) {
      this.view.writes(content);
      this.message.content += content;
    }
  }

  next(kind, most) {
    const whole = this.waiting[kind];
    const text = whole.slice(0, most - /[\ud800-\udbff]/.test(whole[most - 1] ?? "")); // not half a character
    this.waiting[kind] = this.waiting[kind].slice(text.length);
    return text;
  }

  end(isStopped) {
    this.flush(Infinity);
    this.view.ends();
    const { usage, timings } = this;
    const seconds = (performance.now() - this.begin) / 1000;
    this.message.figures = {
      ...(usage && {
        tokens: this.before + usage.completion_tokens,
        rate: timings?.predicted_per_second || usage.completion_tokens / seconds,
        prompt: usage.prompt_tokens,
        cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
      }),
      ...(this.first !== null && { first: (this.first - this.begin) / 1000 }),
      ...(this.reason === "length" && { isCut: true }),
      ...(isStopped && { isStopped: true }),
    };
  }
}

// The figures of an answer as text.
export function note(figures) {
  const { tokens, rate, first, prompt, cached, isCut, isStopped, isEdited } = figures;
  const said = [];
  if (tokens !== undefined) said.push(strings.tokens(tokens), strings.rate(rate));
  if (first !== undefined) said.push(strings.first(first));
  if (prompt !== undefined) said.push(strings.prompt(prompt, cached));
  if (isCut) said.push(strings.cutOff);
  if (isStopped) said.push(strings.stopped);
  if (isEdited) said.push(strings.edited);
  return said.join("; ");
}
