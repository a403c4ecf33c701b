// One conversation: its messages, the answer being received, and its column of the page.

import { Answer, note } from "./answer.js";
import { Refusal, events, places, post } from "./api.js";
import { announce, arrange, button, make, notify } from "./dom.js";
import { MessageView } from "./message.js";
import { answerBody, summary } from "./request.js";
import { strings } from "./strings.js";
import { add, branch, openCalls, path, remove, shown, titleOf } from "./tree.js";

const SAVE = 3000; // milliseconds between two saves of an unfinished answer

export class Conversation {
  constructor(data, page) {
    Object.assign(this, { data, page });
    this.draft = { text: "", files: [] };
    this.abort = this.trouble = null;
    this.views = new Map();
    this.log = make("div", { className: "log" });
    this.heading = make("h2");
    this.tools = make("div", { className: "buttons" });
    this.differs = make("p", { className: "note" });
    this.section = make("section", { className: "pane" },
      make("header", {}, this.heading, this.tools, this.differs), this.log);
  }

  get title() {
    return titleOf(this.data) || strings.untitled;
  }

  get isBusy() {
    return this.abort !== null;
  }

  // Calls of tools that still lack results.
  get open() {
    return openCalls(shown(this.data));
  }

  // The column

  render() {
    this.heading.textContent = this.title;
    this.section.setAttribute("aria-label", this.title);
    this.differs.textContent = summary(this.data.settings);
    this.differs.hidden = !this.differs.textContent;
    const hadFocus = this.section.contains(document.activeElement);
    const steps = path(this.data);
    const articles = steps.map(({ message }) => this.view(message).article);
    if (!articles.length) articles.push(make("p", { className: "empty", textContent: strings.empty }));
    if (this.trouble) articles.push(this.trouble);
    arrange(this.log, articles);
    this.offer(steps);
    if (hadFocus && document.activeElement === document.body) this.page.focus(); // what had it is gone
  }

  view(message) {
    let view = this.views.get(message.id);
    if (!view) {
      view = new MessageView(message, this, this.data.settings);
      this.views.set(message.id, view);
    }
    return view;
  }

  offer(steps = path(this.data)) {
    steps.forEach(({ message, alternatives }, i) => {
      const [place, count] = [alternatives.indexOf(message) + 1, alternatives.length];
      this.view(message).offer({ place, count, isLast: i === steps.length - 1, isBusy: this.isBusy });
    });
  }

  // Show all messages again, as after a change of settings.
  refresh() {
    if (this.isBusy) return;
    this.clear();
    this.render();
  }

  // Free the elements of a hidden column.
  leave() {
    if (this.isBusy) return;
    this.clear();
    this.log.replaceChildren();
  }

  clear() {
    for (const view of this.views.values()) view.drop();
    this.views.clear();
  }

  changed() {
    this.data.updated = Date.now();
    this.render();
    this.page.changed(this);
  }

  // Questions and answers

  send(content, files = []) {
    const messages = shown(this.data);
    const [call] = this.open;
    const message = call
      ? { role: "tool", tool_call_id: call.id, content }
      : { role: "user", content, ...(files.length && { files }) };
    const { id } = add(this.data, messages.at(-1)?.id ?? "", message);
    this.trouble = null;
    this.changed();
    this.page.toEnd();
    if (!this.open.length) this.answer(id);
  }

  // An answer to a message, as a further alternative.
  answer(parent) {
    if (this.isBusy) return;
    this.run(add(this.data, parent, { role: "assistant", content: "" }), () => this.answer(parent));
  }

  continues(message) {
    if (this.isBusy) return;
    this.run(message, () => this.continues(message), true);
  }

  async run(message, again, continues = false) {
    this.abort = new AbortController();
    this.trouble = null;
    const view = this.view(message);
    const before = { ...message };
    view.begin();
    this.changed();
    const answer = new Answer(message, view);
    const saves = setInterval(() => this.page.store.put(this.data), SAVE);
    let problem = null;
    try {
      const messages = shown(this.data);
      const body = answerBody(this.data.settings, continues ? messages : messages.slice(0, -1), continues);
      await this.fetch(body, answer, this.abort.signal);
    } catch (error) {
      problem = error;
    }
    clearInterval(saves);
    this.finish(answer, problem, { again, before });
  }

  async fetch(body, answer, signal) {
    const wait = make("p", { className: "note", textContent: strings.waits(places.most) });
    if (places.isFull) this.log.append(wait);
    await places.take(signal).finally(() => wait.remove());
    try {
      answer.begin = performance.now();
      for await (const event of events(await post("v1/chat/completions", body, signal))) await answer.add(event);
      if (!answer.reason) throw new Refusal(strings.brokenOff(strings.connectionEnded));
    } finally {
      places.giveBack();
    }
  }

  finish(answer, error, { again, before }) {
    const { message } = answer;
    const isStopped = error?.name === "AbortError";
    const problem = isStopped ? null : error;
    answer.end(isStopped);
    this.abort = null;
    const view = this.view(message);
    if (error && message.tool_calls) {
      delete message.tool_calls; // they may be in pieces
      view.show();
    }
    const isNew = message.content !== before.content || message.reasoning !== before.reasoning || message.tool_calls;
    if (problem && !isNew) {
      message.figures = before.figures;
      if (!message.content) remove(this.data, message);
    }
    view.showNote();
    if (problem) this.complain(problem, isNew ? null : again);
    this.changed();
    const said = problem ? problem.message : `${message.content.slice(0, 1500)} ${note(message.figures)}`;
    announce(`${strings.answerBy(this.title)} ${said}`);
  }

  complain(problem, again) {
    this.trouble = make("p", { className: "trouble" }, problem.message);
    if (problem.status === 401) this.trouble.append(button(strings.enterKey, () => this.page.preferences()));
    if (again) this.trouble.append(button(strings.tryAgain, again));
  }

  stop() {
    this.abort?.abort();
  }

  // What can be done with a message: see MessageView

  regenerate(message) {
    const isFocused = this.view(message).tools.contains(document.activeElement);
    this.answer(message.parent);
    if (isFocused) this.view(shown(this.data).at(-1)).focusLike(strings.regenerate);
  }

  edit(message, content) {
    if (message.role === "user") {
      const { role, parent, files } = message;
      this.view(message).show();
      this.answer(add(this.data, parent, { role, content, ...(files && { files }) }).id);
    } else {
      if (content !== message.content) Object.assign(message, { content, figures: { isEdited: true } });
      this.view(message).show();
      this.changed();
    }
    this.page.focus();
  }

  choose(message, step) {
    const { alternatives } = path(this.data).find((one) => one.message === message);
    const other = alternatives[alternatives.indexOf(message) + step];
    this.data.chosen[message.parent] = other.id;
    this.trouble = null;
    this.changed();
    const [back, , on] = this.view(other).which.children;
    const isEnd = (step > 0 ? on : back).ariaDisabled === "true";
    (step > 0 !== isEnd ? on : back).focus();
  }

  branch(message) {
    this.page.begin(branch(this.data, message.id, strings.branchTitle(this.title)));
  }

  remove(message) {
    const restore = remove(this.data, message);
    this.trouble = null;
    this.changed();
    this.page.focus();
    const undo = () => {
      restore();
      this.changed();
    };
    notify(strings.deletedMessage, { undo });
  }
}
