// The server's own parameters, as its OpenAPI document has them. Without a document of the page.

import { strings } from "./strings.js";

// Parameters with a field, by group. tests/app/test_ui.py compares them with the server's samplers.
export const GROUPS = {
  temperature: "temperature temperature_last dynatemp_low dynatemp_high dynatemp_exponent smoothing_factor smoothing_curve",
  filters: "top_k top_p top_a min_p tfs typical_p xtc_probability xtc_threshold mirostat_mode mirostat_tau mirostat_eta",
  draw: "skew",
  repetition:
    "repetition_penalty repetition_penalty_range repetition_decay frequency_penalty presence_penalty" +
    " dry_multiplier dry_base dry_allowed_length dry_range dry_sequence_breakers",
  tokens: "logit_bias banned_token_ids allowed_token_ids banned_strings token_healing",
  guidance: "cfg_scale negative_prompt",
  length: "min_tokens stop_token_ids ignore_eos include_stop_str_in_output stop_on_loop",
  reasoning: "enable_thinking reasoning_budget reasoning_effort",
  toolUse: "tool_choice parallel_tool_calls",
};

// The parameters of a chat.
export function parametersOf(document) {
  const { schema } = document.paths["/v1/chat/completions"].post.requestBody.content["application/json"];
  const name = schema.$ref?.split("/").at(-1);
  return (name ? document.components.schemas[name] : schema).properties;
}

// What a field needs: `type` is number, integer, boolean, choice, text, list or object.
export function describe(property) {
  const { description = "", default: otherwise } = property;
  const forms = (property.anyOf ?? [property]).flatMap((form) => form.oneOf ?? [form]);
  const of = (type) => forms.find((form) => form.type === type);
  const choices = forms.find((form) => form.enum)?.enum;
  const described = { description, default: otherwise };
  if (choices) return { ...described, type: "choice", choices };
  if (of("boolean")) return { ...described, type: "boolean" };
  if (of("array")) return { ...described, type: "list" };
  if (of("object")) return { ...described, type: "object" };
  const number = of("integer") ?? of("number");
  if (!number) return { ...described, type: "text" };
  const { type, minimum = number.exclusiveMinimum, maximum = number.exclusiveMaximum } = number;
  return { ...described, type, minimum, maximum };
}

// The value of what was typed; undefined for the server's own value. Raises Error with the reason.
export function read(described, text, hasPreset = false) {
  if (!text.trim()) return undefined;
  const value = parse(described, text);
  // A preset may set another value than the default, which this replaces.
  return !hasPreset && JSON.stringify(value) === JSON.stringify(described.default) ? undefined : value;
}

function parse({ type, choices }, text) {
  if (type === "text") return text;
  if (type === "choice") return choices.find((choice) => String(choice) === text);
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(strings.mustBeJson(error.message));
  }
  if (type === "list" && !Array.isArray(value)) throw new Error(strings.mustBeList);
  if (type === "object" && (typeof value !== "object" || !value || Array.isArray(value))) {
    throw new Error(strings.mustBeObject);
  }
  if (type === "integer" && !Number.isInteger(value)) throw new Error(strings.mustBeInteger);
  return value;
}

export const shownValue = ({ type }, value) => {
  if (value === undefined || value === null) return "";
  return type === "text" || type === "choice" ? String(value) : JSON.stringify(value);
};
