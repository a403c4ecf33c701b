"""Creates exllamav2's configuration of a model, before anything is loaded."""

from dataclasses import fields
from pathlib import Path

from exllamav2 import ExLlamaV2Config
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from switchyard.engine.backends.exl2.load.compatibility import mend
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.memory.lengths import lengths
from switchyard.engine.model.model_dir import ModelDir


def read_config(config: ModelConfig, model_dir: ModelDir, device: str) -> ExLlamaV2Config:
    """Raises ModelError."""
    exl2_config = _read(model_dir, device)
    if config.rope_scale is not None:
        exl2_config.scale_pos_emb = config.rope_scale
    if config.rope_alpha is not None:
        exl2_config.scale_alpha_value = config.rope_alpha
    found = lengths(config, exl2_config.max_seq_len, exl2_config.vocab_size)
    for field in fields(found):
        setattr(exl2_config, field.name, getattr(found, field.name))
    return exl2_config


def read_draft_config(config: ModelConfig, main: ExLlamaV2Config, device: str) -> ExLlamaV2Config:
    """Returns the configuration of the draft model for `main`. Raises ModelError if the draft model
    doesn't fit `main`.
    """
    assert config.draft_model is not None
    model_dir = ModelDir.read(config.draft_model)
    draft = _read(model_dir, device)
    if draft.max_seq_len < main.max_seq_len:
        raise ModelError(
            f"the draft model supports only {draft.max_seq_len} tokens: set max_seq_len to that"
            " or less",
            "draft_model",
        )
    _check_tokens(model_dir.path, Path(main.model_dir), draft.vocab_size)
    draft.max_seq_len = main.max_seq_len
    draft.max_input_len, draft.max_batch_size = main.max_input_len, main.max_batch_size
    return draft


def _check_tokens(draft_path: Path, path: Path, vocab_size: int) -> None:
    """Checks that the draft model's token ids mean the same as the main model's, and cover all of
    the main model's tokens.
    """
    drafts, own = (
        {token_id: token for token, token_id in _vocabulary(p).items()} for p in (draft_path, path)
    )
    differing = [i for i in drafts.keys() & own.keys() if drafts[i] != own[i]]
    if differing or max(own) >= vocab_size:
        raise ModelError("the draft model's tokens differ from the main model's", "draft_model")


def _vocabulary(path: Path) -> dict[str, int]:
    return Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab()


def _read(model_dir: ModelDir, device: str) -> ExLlamaV2Config:
    _check_files(model_dir.path)
    try:
        exl2_config = ExLlamaV2Config(str(model_dir.path))
    except (AssertionError, KeyError, TypeError, ValueError) as reason:  # for missing entries
        raise ModelError(
            f"ExLlamaV2 can't read the model in {model_dir.path}:"
            f" {type(reason).__name__}: {str(reason).strip(' #')}"
        ) from reason
    mend(exl2_config, model_dir.config)
    if device == "cuda":
        exl2_config.arch_compat_overrides(quiet=True)
    return exl2_config


def _check_files(path: Path) -> None:
    """Raises ModelError for a damaged file. The message includes the file's name, which the library
    omits.
    """
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as reason:
            raise ModelError(f"{file} can't be read: {reason}") from None
