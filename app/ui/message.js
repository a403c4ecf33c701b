// The view of one message: its text, its figures, and what can be done with it.

import { note } from "./answer.js";
import { arrange, button, copy, hasKeyboard, make } from "./dom.js";
import { strings } from "./strings.js";
import { write, writer } from "./text.js";
import { isOver, nextTurn } from "./turns.js";

export class MessageView {
  // `act` has a function for each thing that can be done: see Conversation.
  constructor(message, act, settings) {
    Object.assign(this, { message, act });
    this.isRaw = settings.raw || message.role !== "assistant";
    this.unfolds = settings.showThoughts;
    this.arguments = [];
    this.text = this.thoughts = this.editor = null;
    this.buttons = new Map(); // by their text
    this.isOpen = false; // whether more text follows
    this.body = make("div", { className: "body" });
    this.note = make("p", { className: "note", hidden: true });
    this.tools = make("div", { className: "tools" });
    this.article = make("article", { className: `message ${message.role}` },
      make("h3", { textContent: strings.who[message.role] }), this.body, this.note, this.tools);
    this.show();
  }

  // Show the message again.
  show() {
    const { message } = this;
    this.drop();
    this.editor = null;
    this.body.replaceChildren();
    for (const file of message.files ?? []) {
      const name = strings.fileTokens(file.name, file.tokens ?? null);
      const details = make("details", { className: "file" }, make("summary", { textContent: name }));
      write(details, file.text, true);
      this.body.append(details);
    }
    if (message.reasoning) this.thinks(message.reasoning);
    if (message.content) this.writes(message.content);
    (message.tool_calls ?? []).forEach((call, i) => {
      this.begins(i, call);
      this.calls(i, call.function.arguments);
    });
    if (!this.isOpen) this.ends();
    this.showNote();
  }

  // The text continues

  thinks(text) {
    if (!this.thoughts) {
      const details = make("details", { open: this.unfolds }, make("summary", { textContent: strings.thoughts }));
      this.body.append(details);
      this.thoughts = writer(details, this.isRaw, "thoughts", () => this.mark());
    }
    this.thoughts.write(text);
    this.mark();
  }

  writes(text) {
    this.text ??= writer(this.body, this.isRaw, "text", () => this.mark());
    this.text.write(text);
    this.mark();
  }

  begins(index, call) {
    const { name } = call.function;
    const code = make("pre", { tabIndex: 0, role: "region", "aria-label": strings.argumentsOf(name) });
    this.arguments[index] = code.appendChild(document.createTextNode(""));
    this.body.append(make("div", { className: "call" }, strings.callsTool, make("strong", { textContent: name }), code));
  }

  calls(index, text) {
    this.arguments[index].appendData(text);
  }

  begin() {
    this.isOpen = true;
    this.show();
    this.mark();
  }

  ends() {
    this.isOpen = false;
    this.thoughts?.end();
    this.text?.end();
    this.mark();
  }

  // Show no more.
  drop() {
    this.thoughts?.drop();
    this.text?.drop();
    this.text = this.thoughts = null;
  }

  // Whether text waits to be shown.
  get isBehind() {
    return Boolean(this.thoughts?.isBehind || this.text?.isBehind);
  }

  // Resolves once all text is shown and the browser has had its turn.
  async rest() {
    while (this.isBehind || isOver()) await nextTurn();
  }

  mark() {
    if (this.isOpen || this.isBehind) this.article.setAttribute("aria-busy", "true");
    else this.article.removeAttribute("aria-busy");
  }

  showNote() {
    const text = note(this.message.figures ?? {});
    this.note.textContent = text;
    this.note.hidden = !text;
  }

  // What can be done. `place`: among how many alternatives; `isLast`: nothing follows.
  offer({ place, count, isLast, isBusy }) {
    if (this.editor) return;
    const { message, act } = this;
    const can = [];
    const offered = (text, run, isOff = isBusy) => can.push(this.button(text, run, isOff));
    if (count > 1) can.push(this.alternatives(place, count, isBusy));
    offered(strings.copy, (event) => this.copy(event.target), false);
    if (message.role !== "tool" && !message.tool_calls) offered(strings.edit, () => this.edit());
    if (message.role === "assistant") offered(strings.regenerate, () => act.regenerate(message));
    if (message.role === "assistant" && isLast && message.content && !message.tool_calls) {
      offered(strings.continues, () => act.continues(message));
    }
    offered(strings.branch, () => act.branch(message));
    offered(strings.deletes, () => act.remove(message));
    arrange(this.tools, can);
  }

  // The same one each time, and not disabled: else it would lose the focus as an answer begins or ends.
  button(text, run, isOff, label) {
    let made = this.buttons.get(text);
    if (!made) {
      const press = (event) => made.ariaDisabled !== "true" && run(event);
      made = button(text, press, label && { "aria-label": label, title: label });
      this.buttons.set(text, made);
    }
    made.ariaDisabled = String(isOff);
    return made;
  }

  alternatives(place, count, isBusy) {
    const to = (step) => this.act.choose(this.message, step);
    this.which ??= make("span", { className: "alternatives" },
      this.button("‹", () => to(-1), false, strings.before), make("span"),
      this.button("›", () => to(1), false, strings.after));
    const [back, said, on] = this.which.children;
    back.ariaDisabled = String(isBusy || place === 1);
    on.ariaDisabled = String(isBusy || place === count);
    said.textContent = strings.place(place, count);
    return this.which;
  }

  // Focus what does the same as the button of another view.
  focusLike(text) {
    this.buttons.get(text)?.focus();
  }

  async copy(pressed) {
    await copy(this.message.content);
    pressed.textContent = strings.copied;
    setTimeout(() => (pressed.textContent = strings.copy), 2000);
  }

  edit() {
    const { message, act } = this;
    const field = make("textarea", { value: message.content, rows: 4, "aria-label": strings.editLabel });
    const asks = message.role === "user";
    const end = () => {
      this.show();
      act.offer();
      this.tools.querySelector("button").focus();
    };
    const save = () => {
      if (!field.value.trim()) return field.focus();
      act.edit(message, field.value);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.stopPropagation(), end();
      if (event.key === "Enter" && event.ctrlKey) event.preventDefault(), save();
    });
    this.editor = field;
    this.body.replaceChildren(field);
    this.tools.replaceChildren(button(asks ? strings.askAgain : strings.save, save, { className: "main" }),
      button(strings.cancel, end));
    if (hasKeyboard()) this.tools.append(make("span", { className: "note", textContent: strings.editHint }));
    field.focus();
  }
}
