"""What schemathesis is told of this server: SCHEMATHESIS_HOOKS=tests.live.contract_hooks."""

import json
import re
import zlib

import jsonschema_rs
import schemathesis
from schemathesis.core.failures import AcceptedNegativeData
from schemathesis.openapi.checks import RejectedPositiveData

from switchyard.app.chat.request import Chat
from switchyard.app.formats.anthropic.parse import MessageRequest, MessagesBody
from switchyard.app.formats.kobold.parse import (
    KOBOLD_SWITCHES,
    TEXTGEN_SWITCHES,
    Kobold,
    KoboldStream,
    Textgen,
    is_textgen,
)
from switchyard.app.formats.llamacpp.gap import Infill
from switchyard.app.formats.llamacpp.parse import SWITCHES, LlamaCpp
from switchyard.app.formats.ollama.parse import ChatRequest, GenerateRequest
from switchyard.app.formats.openai.parse import Completion
from switchyard.app.formats.plain.parse import Generate
from switchyard.app.formats.responses.parse import ResponseRequest
from switchyard.app.formats.text.request import idle
from switchyard.app.request.neutral import OPENAI
from tests.contract import close

CHATS = (
    *("/v1/chat/completions", "/v1/chat/completions/input_tokens"),
    *("/apply-template", "/tokenize"),
)
FORM = "application/x-www-form-urlencoded"
VOCABULARY = 2048  # token ids that all models of the tests have
DOCUMENT = {}  # that is tried

# What the document can't say: how much this server takes in good time, ...
TOKENS_EACH = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_length")
TOKENS_EACH += ("max_new_tokens", "n_predict", "num_predict")
MOST = dict.fromkeys(TOKENS_EACH, 4) | {"min_tokens": 1, "n": 3, "best_of": 3, "priority": 0}
LIMITS = {
    **dict.fromkeys(["/completion", "/infill"], "n_predict"),
    **dict.fromkeys(["/api/chat", "/api/generate"], "num_predict"),
    **dict.fromkeys(["/api/v1/generate", "/api/extra/generate/stream"], "max_length"),
    **dict.fromkeys(["/api/extra/tokencount", "/v1/messages/count_tokens"]),
    **dict.fromkeys(["/v1/chat/completions/input_tokens", "/v1/responses/input_tokens"]),
}
# ... which parameters are for nothing without another one, ...
NEEDS = {
    "return_progress": "stream",
    "top_logprobs": "logprobs",
    "return_tokens_as_token_ids": "logprobs",
    "tool_choice": "tools",
    "repetition_decay": "repetition_penalty_range",
}
# ... and what may be wrong for what it means: not every text is a pattern, not every schema can be
# honoured. Of these a request has one at most.
MEANING = {
    "response_format",
    "structured_outputs",
    *("json_schema", "regex", "choice", "grammar"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar_string", "text"),
    *("preset", "sampler_order", "output_config", "reasoning", "thinking"),
    *("format", "options", "context", "raw", "think"),
    "input",  # of thoughts without a text, with nothing to answer
    *("tools", "chat_template_kwargs", "documents", "reasoning_effort", "reasoning_budget"),
}
# What may be wrong beside another parameter.
MEANT = MEANING | {
    *("tool_choice", "n", "guidance_scale", "negative_prompt", "from", "to"),
    "suffix",  # of a prompt of tokens
}
# Which need each other, and in order, the first pair.
PAIRS = ("dynatemp_low", "dynatemp_high", "cfg_scale", "negative_prompt")
TOKENS = {"stop_token_ids", "allowed_token_ids", "banned_token_ids", "prompt", "tokens"}
TOKENS |= {"banned_tokens", "custom_token_bans", "allowed_tokens"}
# Not with what ends the text by itself, or allows few texts.
ENDS = {"ignore_eos", "bypass_eos", "use_default_badwordsids", "min_tokens", "min_length"}
ENDS |= {"token_healing", "allowed_token_ids", "banned_strings"}


@schemathesis.hook
def before_load_schema(context, raw_schema):
    close(raw_schema)
    DOCUMENT.update(raw_schema)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Let valid data be what is valid for this server, too. Invalid data stays as it is."""
    if not case.meta.generation.mode.is_positive:
        return
    if isinstance(case.body, dict):
        body = plain(case.body)
        body.pop("previous_response_id", None)  # of which none is stored
        case.body = fit(body, LIMITS.get(case.path, "max_tokens"), other_names(case.path, body))
        if case.media_type == FORM:  # schemathesis passes over a field's `encoding`
            case.body = {
                name: json.dumps(value) if isinstance(value, dict) else value
                for name, value in case.body.items()
                if name not in OPENAI  # of any type, lists among them: a field given twice
            }
    if case.query:
        query = plain({name: number(value) for name, value in case.query.items()})
        case.query = fit(query, others=other_names(case.path, query))


@schemathesis.hook
def filter_failure(context, failure, case, response):
    if response.status_code in (408, 413, 414):  # too long, whatever else it is
        return False
    if response.status_code == 501:  # which is what a route is for that says it doesn't do that
        return False
    if isinstance(failure, AcceptedNegativeData) and (case.media_type == FORM or case.query):
        return False  # text has no types, and an empty one isn't given
    if isinstance(failure, AcceptedNegativeData) and isinstance(case.body, dict):
        # Null is always taken.
        changed = set(re.findall(r"/properties/(\w+)", failure.message))
        given = {name for name in changed if case.body.get(name) is not None}
        wrong = {name for name in given if not admits(case, name)}
        idle_ones = unread(case)
        others = dict(other_names(case.path, case.body) or {})
        idle_ones |= {name for name, own in others.items() if own in idle_ones}
        return not wrong or not wrong <= idle_ones
    if isinstance(failure, RejectedPositiveData) and response.status_code == 400:
        if case.path.startswith("/admin/models/"):
            return False  # a setting has bounds of the engine's, and may not go with another one
        error = response.json()["error"]
        # Anthropic's and Ollama's have a message only.
        if isinstance(error, str) or "param" not in error:
            given = MEANT & case.body.keys() if isinstance(case.body, dict) else ()
            message = error if isinstance(error, str) else error["message"]
            return not any(name in message for name in given)
        return (error["param"] or "").partition(".")[0] not in MEANT
    return True


def admits(case, name):
    """Whether the document does, this value of the body: the null that it was may have become what
    another branch takes.
    """
    schema = DOCUMENT["paths"][case.path]["post"]["requestBody"]["content"][case.media_type]
    kind = DOCUMENT["components"]["schemas"].get(schema["schema"].get("$ref", "").split("/")[-1])
    if kind is None or name not in kind["properties"]:
        return False
    components = {"components": DOCUMENT["components"]}
    validator = jsonschema_rs.validator_for({**kind["properties"][name], **components})
    return validator.is_valid(case.body[name])


KINDS = {
    "/v1/completions": Completion,
    **dict.fromkeys(CHATS, Chat),
    "/v1/messages": MessageRequest,
    "/v1/messages/count_tokens": MessagesBody,
    **dict.fromkeys(["/v1/responses", "/v1/responses/input_tokens"], ResponseRequest),
    **{"/generate": Generate, "/completion": LlamaCpp, "/infill": Infill},
    **{"/api/chat": ChatRequest, "/api/generate": GenerateRequest},
    **{"/api/v1/generate": Kobold, "/api/extra/generate/stream": KoboldStream},
}


def other_names(path, body):
    """Other names of this route's parameters; they may differ from what has the other name."""
    kind = KINDS.get(path)
    if kind is Kobold and is_textgen(body):
        kind = Textgen
    return kind.other_names() if kind else ()


def unread(case):
    """Parameters of samplers that are off: other servers' routes take them, whatever they say."""
    match case.path:
        case "/completion" | "/infill":
            return idle(case.body, SWITCHES)
        case "/api/v1/generate" if is_textgen(case.body):
            return idle(case.body, TEXTGEN_SWITCHES)
        case "/api/v1/generate" | "/api/extra/generate/stream":
            return idle(case.body, KOBOLD_SWITCHES)
    return set()


def number(text):
    """The number in what is text in a query string anyway."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return text


def plain(value):
    """Short texts and lists; integers without the fraction of 0 that JSON Schema lets them have."""
    match value:
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case list():
            return [plain(item) for item in value[:4]]
        case str():
            return value[:40].replace("\ufdd0", "")
        case float() if value.is_integer():
            return int(value)
    return value


def fit(body, limit="max_tokens", others=()):
    """`limit`: what the route calls the most new tokens. `others`: other names of parameters, which
    may differ from these.
    """
    body = {name: value for name, value in body.items() if value is not None and name not in others}
    for name in ("model", "max_context_length", "truncation_length", "dynamic_temperature"):
        body.pop(name, None)
    body.pop("keep_alive", None)  # 0 unloads the model
    if isinstance(body.get("dry_sequence_breakers"), str):
        body["dry_sequence_breakers"] = json.dumps([body["dry_sequence_breakers"] or " "])
    meant = sorted(MEANING & body.keys())
    kept = zlib.crc32(repr(sorted(body.items())).encode()) % (len(meant) + 1)
    # The first takes the place of others, the second depends on the prompt's last token.
    for name in ("mirostat", "mirostat_mode", "token_healing", *PAIRS):
        body.pop(name, None)
    dropped = {*meant} - {*meant[kept : kept + 1]}
    if len(meant) > len(dropped):
        dropped |= ENDS
    if "max_completion_tokens" in body:
        dropped.add("max_tokens")
    elif limit and {"prompt", "messages"} & body.keys() and "max_new_tokens" not in body:
        body.setdefault(limit, 4)
    body = {name: value for name, value in body.items() if name not in dropped}
    body = {
        name: min(value, MOST[name]) if name in MOST else value
        for name, value in body.items()
        if name not in NEEDS or (body.get(NEEDS[name]) or -1) != -1
    }
    if "best_of" in body:
        body["n"] = body["best_of"]
    if body.get("max_tokens") == 0:  # is for scoring a prompt
        body["echo"] = True
    if limit and body.get(limit) == 0:
        body.pop("min_tokens", None)
    if "timeout" in body:
        body["timeout"] = 20  # what ends in time is for other tests
    for name in TOKENS & body.keys():
        body[name] = known_tokens(body[name])
    biases = body.pop("logit_bias", {})  # of a query string: a text
    if isinstance(biases, dict) and biases:
        body["logit_bias"] = {
            str(int(name) % VOCABULARY) if name.isdecimal() else name: bias
            for name, bias in biases.items()
        }
    if body.get("stream") is True:
        body.pop("prompt_logprobs", None)
    if body.get("messages"):  # Ollama's may be none
        body["messages"] = [fit_message(message) for message in body["messages"]]
        last = body["messages"][-1]
        if last["role"] == "assistant" and not last.get("tool_calls"):
            body.pop("add_generation_prompt", None)
        else:
            body.pop("continue_final_message", None)
    return body


def fit_message(message):
    """The role says which fields the message has."""
    message = {name: value for name, value in message.items() if value is not None}
    if message["role"] != "assistant":
        message.pop("tool_calls", None)
        message.pop("reasoning_content", None)
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = "{}"
    if message["role"] == "tool":
        message.setdefault("tool_call_id", "1")
    else:
        message.pop("tool_call_id", None)
    message.setdefault("content", "x")
    if isinstance(message["content"], list):  # calls and results of tools must follow each other
        texts = [part for part in message["content"] if part["type"] == "text"]
        message["content"] = texts or "x"
    return message


def known_tokens(value):
    if isinstance(value, list):
        return [known_tokens(item) for item in value]
    if isinstance(value, str) and re.fullmatch(r"[0-9, ]*[0-9][0-9, ]*", value):
        # As a list: in a form or a query each value is one id.
        return [int(one) % VOCABULARY for one in value.replace(",", " ").split()]
    return value % VOCABULARY if isinstance(value, int) else value
