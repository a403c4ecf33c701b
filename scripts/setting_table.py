"""Write the tables of settings in docs/configuration.md, by group, from the code.

Usage: .venv/bin/python scripts/setting_table.py
"""

import json
import pathlib
import re
import sys

import pydantic

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from switchyard.app.config import Settings  # noqa: E402
from switchyard.app.table_settings import TableModel  # noqa: E402

PAGE = ROOT / "docs" / "configuration.md"
TABLE = re.compile(r"(<!-- settings: (.*) -->\n)(?:.*\n)*?(<!-- end of settings -->\n)")
GROUPS = {
    "Model": "model name device backend max_seq_len rope_scale rope_alpha loras",
    "Memory": "cache_tokens cache_mode gpu_reserve unpacked_weights products",
    "GPUs": "gpus gpu_split tensor_parallel",
    "Engines": "link replicas at engine_key_file silence_timeout hang_timeout hang_exit",
    "Speculation": "draft_model ngram_draft num_draft_tokens",
    "Scheduling": "max_batch_size max_pending max_pending_tokens max_priority fair_wait_factor"
    " max_chunk_size max_gap_ms",
    "Sampling defaults": "default_max_tokens default_repetition_penalty default_frequency_penalty"
    " default_stop_on_loop presets clamp_max_tokens unknown_parameters",
    "Tools and reasoning": "tool_format reasoning_start reasoning_end",
    "Several models": "models default_model models_dir max_loaded load_wait model_aliases",
    "A table of models": "aliases load idle_timeout drain",
    "Several machines": "cluster engines gpus_each nodes",
    "HTTP": "bind bind_wait allowed_hosts cors_origins formats max_body_bytes heartbeat"
    " reserve_threads max_websockets websocket_timeout",
    "Page": "ui max_viewers",
    "Deadlines": "queue_timeout first_token_timeout total_timeout body_timeout send_timeout grace",
    "Resuming, idempotency, stored responses": "resume_timeout idempotency_timeout"
    " store_timeout max_stored_bytes",
    "Keys and limits": "keys_file trusted_proxies ledger ledger_days",
    "Logs and metrics": "log_level log_format access_log metrics",
}


def fields() -> dict[str, pydantic.fields.FieldInfo]:
    return {**TableModel.model_fields, **Settings.model_fields}


def table(group: str) -> str:
    lines = ["| setting | default | what it does |", "|---|---|---|"]
    for name in GROUPS[group].split():
        field = fields()[name]
        default = "models/demo" if name == "model" else field.default
        shown = "" if default in (None, "") else f"`{_toml(default)}`"
        lines.append(f"| `{name}` | {shown} | {field.description} |")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def write(page: str) -> str:
    """Returns the page with each table at its position."""
    return TABLE.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text()))
