"""Chat templates of all shapes: how they write calls, and what they refuse."""

HERMES = """
{%- for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# As of Llama 3.1 to 3.3
SINGLE = """
{%- for m in messages %}{{ '<|start|>' ~ m.role ~ '<|header|>' }}
{%- if m.tool_calls %}{% if m.tool_calls | length != 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}{% endif %}
{%- set call = m.tool_calls[0].function %}
{{- '{"name": "' ~ call.name ~ '", "parameters": ' }}{{ call.arguments | tojson }}{{ '}' }}
{%- else %}{{ m.content }}{% endif %}{{ '<|eot|>' }}{% endfor %}{% if tools %} {% endif %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|header|>' }}{% endif %}"""
FIRST_ALONE = SINGLE.replace("m.tool_calls | length != 1", "false")  # leaves out the others

# As of Mistral
ALTERNATING = """
{%- for m in messages | rejectattr('role', 'equalto', 'tool')
    | rejectattr('role', 'equalto', 'system') | selectattr('tool_calls', 'undefined') %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('conversation roles must alternate user/assistant') }}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' or m.role == 'system' %}{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.tool_calls is defined %}{{ '[TOOL_CALLS] [' }}{% for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('IDs should have length 9!') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
{{- '' if loop.last else ', ' }}{% endfor %}{{ ']</s>' }}
{%- elif m.role == 'assistant' %}{{ m.content + '</s>' }}
{%- else %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('IDs!') }}{% endif %}
{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{% endif %}{% endfor %}
{%- if tools %} {% endif %}"""

# As of Gemma
NO_SYSTEM = """
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user') }}{% endif %}
{{- '<start_of_turn>' + m.role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

# As of DeepSeek V3: arguments are text, calls have no text beside them, and only the first turn
# with calls has its opening.
NAMED = """
{%- set ns = namespace(has_calls=false) %}{% for m in messages %}
{%- if m.role == 'user' or m.role == 'system' %}{{ '<|User|>' + m.content }}
{%- elif m.role == 'tool' %}{{ '<|output|>' + m.content + '<|/output|>' }}
{%- elif m.content is not none %}{{ '<|Assistant|>' + m.content + '<|end|>' }}
{%- else %}{% for call in m.tool_calls %}
{%- if ns.has_calls %}{{ '\\n' }}{% else %}{{ '<|Assistant|><|calls|>' }}{% endif %}
{{- '<|call|>' + call.type + '<|sep|>' + call.function.name + '\\n```json\\n' }}
{{- call.function.arguments + '\\n```<|/call|>' }}
{%- if ns.has_calls %}{{ '<|/calls|><|end|>' }}{% endif %}{% set ns.has_calls = true %}
{%- endfor %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}"""

LISTED = """
{%- for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ (m.content or '') }}
{%- if m.tool_calls %}{{ '[' }}{% for call in m.tool_calls %}{{ call.function | tojson }}
{{- '' if loop.last else ', ' }}{% endfor %}{{ ']' }}{% endif %}{{ '<|end|>' }}{% endfor %}
{%- if tools %} {% endif %}"""

PLAIN = "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content ~ '<|end|>' }}{% endfor %}"

SHAPES = {
    "hermes": HERMES,
    "single": SINGLE,
    "first alone": FIRST_ALONE,
    "alternating": ALTERNATING,
    "no system": NO_SYSTEM,
    "named": NAMED,
    "listed": LISTED,
    "plain": PLAIN,
    "by name": [
        {"name": "default", "template": NO_SYSTEM},
        {"name": "tool_use", "template": SINGLE},
    ],
}
