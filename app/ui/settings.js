// The settings of one conversation, in a sheet.

import { ask } from "./api.js";
import { byId, button, make } from "./dom.js";
import { GROUPS, describe, parametersOf, read, shownValue } from "./samplers.js";
import { strings } from "./strings.js";

let parameters = null; // of the server's document, once it was read

async function serverParameters() {
  parameters ??= parametersOf(await (await ask("openapi.json", { cache: "no-cache" })).json());
  return parameters;
}

export class Settings {
  constructor(page) {
    this.page = page;
    this.samplers = []; // fields, and what the server says of them
    this.sheet = byId("settings");
    this.sheet.addEventListener("close", () => this.page.applied(this.conversation));
  }

  open(conversation) {
    this.conversation = conversation;
    this.values = conversation.data.settings;
    byId("settings-title").textContent = strings.settingsOf(conversation.title);
    const samplers = make("div", { className: "samplers" });
    const reset = button(strings.reset, () => this.reset());
    byId("settings-fields").replaceChildren(this.common(), samplers, this.forms(), reset);
    if (!this.sheet.open) this.sheet.showModal();
    this.sheet.scrollTop = 0;
    this.fillSamplers(samplers);
  }

  reset() {
    for (const name of Object.keys(this.values)) delete this.values[name];
    this.open(this.conversation);
    this.sheet.querySelector("select").focus();
  }

  // Fields that every conversation has

  common() {
    const { presets } = this.page;
    const names = [...this.page.models.keys()];
    const pairs = (names, first) => [["", first], ...names.map((name) => [name, name])];
    const offered = (names, own) => (own && !names.includes(own) ? [...names, own] : names);
    return make("div", { className: "fields" },
      this.choice("model", strings.model, pairs(offered(names, this.values.model), strings.modelDefault(names[0]))),
      this.choice("preset", strings.preset, pairs(offered(presets, this.values.preset), strings.noPreset)),
      this.integer("maxTokens", strings.maxTokens, { min: 1, placeholder: strings.serverDefault }),
      this.integer("seed", strings.seed, { placeholder: strings.random }),
      this.text("system", strings.system));
  }

  forms() {
    return make("div", { className: "fields" },
      this.text("stop", strings.stopStrings),
      this.choice("form", strings.form, Object.entries(strings.forms)),
      this.text("formText", strings.formText, (text) => this.values.form === "json_schema" && json(text)),
      this.text("tools", strings.tools, (text) => list(text)),
      this.flag("showThoughts", strings.showThoughts),
      this.flag("raw", strings.raw));
  }

  keep(name, value) {
    if (value === undefined || value === "" || value === false) delete this.values[name];
    else this.values[name] = value;
  }

  choice(name, label, pairs) {
    const field = make("select", {}, ...pairs.map(([value, text]) => make("option", { value, textContent: text })));
    field.value = this.values[name] ?? "";
    field.addEventListener("change", () => {
      this.keep(name, field.value);
      if (name === "preset") this.hint();
      if (name === "form") this.sheet.querySelector("[name=formText]").dispatchEvent(new Event("change"));
    });
    return labelled(label, field);
  }

  integer(name, label, more) {
    const field = make("input", { type: "number", step: 1, ...more });
    field.value = this.values[name] ?? "";
    field.addEventListener("change", () => {
      if (field.validity.valid) this.keep(name, field.value ? Number(field.value) : undefined);
    });
    return labelled(label, field);
  }

  // `check` raises for a text that can't be sent; such a text isn't kept.
  text(name, label, check = () => {}) {
    const field = make("textarea", { name, rows: 2, value: this.values[name] ?? "", dir: "auto" });
    checked(field, () => {
      if (field.value.trim()) check(field.value);
      this.keep(name, field.value.trim() ? field.value : "");
    });
    return labelled(label, field, "wide");
  }

  flag(name, label) {
    const field = make("input", { type: "checkbox", checked: Boolean(this.values[name]) });
    field.addEventListener("change", () => this.keep(name, field.checked));
    return make("label", { className: "flag" }, field, label);
  }

  // Fields of the server's own parameters

  async fillSamplers(box) {
    let found;
    try {
      found = await serverParameters();
    } catch (error) {
      box.append(make("p", { className: "trouble", textContent: strings.noSchema(error.message) }));
      return;
    }
    this.samplers = [];
    for (const [group, names] of Object.entries(GROUPS)) {
      const fields = names.split(" ").filter((name) => found[name]).map((name) => this.sampler(name, describe(found[name])));
      const isSet = names.split(" ").some((name) => this.values.parameters?.[name] !== undefined);
      box.append(make("details", { open: isSet }, make("summary", { textContent: strings.groups[group] }),
        make("div", { className: "fields" }, ...fields)));
    }
    this.hint();
  }

  // What holds where a field is empty. The page doesn't know what a preset sets.
  hint() {
    for (const { field, described } of this.samplers) {
      const own = shownValue(described, described.default);
      const word = { true: strings.on, false: strings.off }[own] ?? own;
      const isSelect = field.localName === "select";
      const otherwise = word || (isSelect ? strings.serverDefault : strings.notSet);
      const said = this.values.preset ? strings.orPreset(otherwise) : otherwise;
      if (isSelect) field.options[0].textContent = strings.defaultIs(said);
      else field.placeholder = said;
    }
  }

  sampler(name, described) {
    const field = fieldOf(described);
    this.samplers.push({ field, described });
    field.value = shownValue(described, this.values.parameters?.[name]);
    checked(field, () => {
      if (field.validity.badInput || field.validity.rangeUnderflow || field.validity.rangeOverflow) return;
      const value = read(described, field.value, Boolean(this.values.preset));
      const { [name]: _, ...others } = this.values.parameters ?? {};
      const all = value === undefined ? others : { ...others, [name]: value };
      this.keep("parameters", Object.keys(all).length ? all : undefined);
    });
    const hint = make("small", { id: `hint-${name}`, textContent: described.description.replaceAll("`", "") });
    field.setAttribute("aria-describedby", hint.id);
    const isWide = field.localName === "textarea" ? "wide" : "";
    return make("div", { className: `sampler ${isWide}` }, labelled(name, field), hint);
  }
}

// Run on each change; its errors are shown at the field, and keep the sheet open.
function checked(field, run) {
  field.addEventListener("change", () => {
    field.setCustomValidity("");
    try {
      run();
    } catch (error) {
      field.setCustomValidity(error.message);
      field.reportValidity();
    }
  });
  field.addEventListener("input", () => field.setCustomValidity(""));
}

function json(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(strings.mustBeJson(error.message));
  }
}

function list(text) {
  if (!Array.isArray(json(text))) throw new Error(strings.mustBeList);
}

function labelled(text, field, kind = "") {
  return make("label", { className: kind }, make("span", { textContent: text }), field);
}

function fieldOf(described) {
  const { type, minimum, maximum, choices } = described;
  const option = (value, text = "") => make("option", { value, textContent: text });
  if (type === "boolean") return make("select", {}, option(""), option("true", strings.on), option("false", strings.off));
  if (type === "choice") return make("select", {}, option(""), ...choices.map((one) => option(String(one), String(one))));
  if (type === "list" || type === "object" || type === "text") {
    return make("textarea", { rows: 1, spellcheck: type === "text" });
  }
  const step = type === "integer" ? 1 : "any";
  const bound = (value) => (Math.abs(value ?? Infinity) < 2 ** 53 ? value : "");
  return make("input", { type: "number", step, min: bound(minimum), max: bound(maximum) });
}
