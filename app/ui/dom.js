// Elements of the page. Text of a model or a server becomes text nodes only.

import { strings } from "./strings.js";

const UNDO = 10_000; // milliseconds

export const byId = (id) => document.getElementById(id);

// An element. A property that it lacks becomes an attribute.
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export function button(text, act, properties = {}) {
  const made = make("button", { type: "button", textContent: text, ...properties });
  made.addEventListener("click", act);
  return made;
}

// Make these the children of an element. Those that stay keep what the visitor has there: focus, selection, a press.
export function arrange(parent, children) {
  const wanted = new Set(children);
  for (const one of [...parent.children]) if (!wanted.has(one)) one.remove();
  children.forEach((child, i) => {
    if (parent.children[i] !== child) parent.insertBefore(child, parent.children[i] ?? null);
  });
}

// Write the texts that index.html names.
export function fill(root = document) {
  for (const element of root.querySelectorAll("[data-text]")) element.textContent = strings[element.dataset.text];
  for (const element of root.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", strings[element.dataset.label]);
  }
  for (const element of root.querySelectorAll("[data-hint]")) element.placeholder = strings[element.dataset.hint];
}

// Whether Enter should break the line, as on a phone's keyboard.
export const isTouch = () => matchMedia("(max-width: 50rem), (pointer: coarse)").matches;

// Whether a field can have the focus without a keyboard that covers half of the screen.
export const hasKeyboard = () => !matchMedia("(pointer: coarse)").matches;

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without TLS a browser has no clipboard for pages, but the old way still works.
    const area = make("textarea", { value: text, className: "unseen" });
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

// A sentence at the edge of the window, for some milliseconds; 0: until someone dismisses it.
export function notify(text, { undo = null, span = undo ? UNDO : 0 } = {}) {
  const box = make("p", { className: "notice" }, make("span", { textContent: text }));
  const end = () => box.remove();
  box.append(undo ? button(strings.undo, () => (end(), undo())) : button(strings.dismiss, end));
  if (span) setTimeout(end, span);
  byId("notices").append(box);
}

// Announce it to screen readers.
export function announce(text) {
  const log = byId("told");
  log.append(make("p", { textContent: text.slice(0, 2000) }));
  while (log.childElementCount > 3) log.firstElementChild.remove();
}

export const kept = {
  read(name, otherwise, storage = "sessionStorage") {
    try {
      return JSON.parse(window[storage].getItem(name)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  write(name, value, storage = "sessionStorage") {
    try {
      window[storage].setItem(name, JSON.stringify(value));
    } catch {
      // No room, or forbidden: the page works, but forgets this when it closes.
    }
  },
};
