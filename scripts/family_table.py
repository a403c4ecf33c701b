"""Write the table in docs/models.md that lists the families whose tokenizers and chat templates are
tested.

Usage: .venv/bin/python scripts/family_table.py, after scripts/test-tokenizers has fetched the files
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from switchyard.app.request.infill_forms import FORMS  # noqa: E402
from tests.tokenizers import families  # noqa: E402
from tests.tokenizers.calls import opening  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- families tried -->\n", "<!-- end of families tried -->\n"
NAMES = {
    "llama2": "Llama 2",
    "llama3_1": "Llama 3.1",
    "llama3_2": "Llama 3.2",
    "qwen2_5": "Qwen 2.5",
    "qwen3": "Qwen 3",
    "mistral_nemo": "Mistral Nemo",
    "deepseek_v3": "DeepSeek V3",
    "gptoss": "gpt-oss",
}
HEAD = ("family", "tokenizer", "chat template", "calls", "thoughts", "fill-in-the-middle", "tried")


def row(family: str) -> list[str]:
    path = families.package(family)
    tokenizer = json.loads((path / "tokenizer.json").read_text("utf-8"))
    model = tokenizer["model"]
    tokens = {*model["vocab"], *(added["content"] for added in tokenizer["added_tokens"])}
    template = json.loads((path / "tokenizer_config.json").read_text("utf-8")).get("chat_template")
    kind = "character-level BPE with byte fallback" if model["byte_fallback"] else "byte-level BPE"
    gap = next((form for form in FORMS if tokens.issuperset(form.tokens)), None)
    return [
        NAMES[family],
        f"{kind}, {len(tokens):,} tokens",
        "written for the tests" if template is None else "its own",
        f"`{found}`" if (found := opening(family)) else "the server's format",
        "`<think>`" if "<think>" in (template or "") else "",
        "" if gap is None else f"`{gap.tokens[0]}`",
        "in each run" if family in families.EACH_RUN else "by `scripts/test-tokenizers`",
    ]


def line(family: str) -> str:
    cells = (cell.replace("|", r"\|") for cell in row(family))
    return f"| {' | '.join(cells)} |\n"


def write(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    head = f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|\n"
    return f"{before}{BEGIN}{head}{''.join(map(line, NAMES))}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text()))
