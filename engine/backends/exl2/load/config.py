"""What exllamav2 is told of a model, before anything is loaded."""

from pathlib import Path

from exllamav2 import ExLlamaV2Config
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from switchyard.engine.backends.exl2.load.compatibility import mend
from switchyard.engine.config import PAGE_SIZE, ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.model.model_dir import ModelDir

MAX_STEP = 8  # tokens of a job in one step; more than one where some are guessed


def read_config(
    config: ModelConfig, model_dir: ModelDir, chunk_size: int, device: str
) -> ExLlamaV2Config:
    """`chunk_size`: most tokens of a prompt at once. Raises ModelError."""
    exl2_config = _read(model_dir, device)
    if config.rope_scale is not None:
        exl2_config.scale_pos_emb = config.rope_scale
    if config.rope_alpha is not None:
        exl2_config.scale_alpha_value = config.rope_alpha
    is_scaled = (config.rope_scale or 1.0) > 1.0 or (config.rope_alpha or 1.0) > 1.0
    native, asked = exl2_config.max_seq_len, config.max_seq_len
    if asked is not None and asked > native and not is_scaled:
        raise ModelError(
            f"max_seq_len {asked}: the model was made for {native} tokens; more need a rope_alpha"
            " or a rope_scale",
            "max_seq_len",
        )
    if (asked or native) < PAGE_SIZE:
        raise ModelError(f"a context of {native} tokens is less than a page of {PAGE_SIZE}")
    # Whole pages: the loader cuts the longest input to this, and that must be whole pages.
    exl2_config.max_seq_len = (asked or native) // PAGE_SIZE * PAGE_SIZE
    whole_chunk = -(-chunk_size // PAGE_SIZE) * PAGE_SIZE
    exl2_config.max_input_len = min(whole_chunk, exl2_config.max_seq_len)
    if config.tensor_parallel:  # its buffers have no room for more rows than that
        num_rows = config.max_batch_size * (1 + config.num_draft_tokens * config.has_draft)
        whole_step = -(-num_rows // PAGE_SIZE) * PAGE_SIZE
        exl2_config.max_input_len = max(exl2_config.max_input_len, whole_step)
        # Of this and the vocabulary is its buffer of logits, whose rows are multiples of 32 wide.
        padded = exl2_config.vocab_size + -exl2_config.vocab_size % 32
        exl2_config.max_output_len = -(
            -exl2_config.max_input_len * padded // exl2_config.vocab_size
        )
    # Work space is reserved for so many inputs: each place in the batch takes a few tokens.
    exl2_config.max_batch_size = -(-MAX_STEP * config.max_batch_size // exl2_config.max_input_len)
    return exl2_config


def read_draft_config(config: ModelConfig, main: ExLlamaV2Config, device: str) -> ExLlamaV2Config:
    """Of the model that guesses tokens for `main`. Raises ModelError if it can't."""
    assert config.draft_model is not None
    model_dir = ModelDir.read(config.draft_model)
    draft = _read(model_dir, device)
    if draft.max_seq_len < main.max_seq_len:
        raise ModelError(
            f"the draft model was made for {draft.max_seq_len} tokens: set max_seq_len to no more",
            "draft_model",
        )
    _check_tokens(model_dir.path, Path(main.model_dir), draft.vocab_size)
    draft.max_seq_len = main.max_seq_len
    draft.max_input_len, draft.max_batch_size = main.max_input_len, main.max_batch_size
    return draft


def _check_tokens(draft_path: Path, path: Path, vocab_size: int) -> None:
    """A draft model's token ids must mean what the model's do, and be there for all of them."""
    drafts, own = (
        {token_id: token for token, token_id in _vocabulary(p).items()} for p in (draft_path, path)
    )
    differing = [i for i in drafts.keys() & own.keys() if drafts[i] != own[i]]
    if differing or max(own) >= vocab_size:
        raise ModelError("the draft model has other tokens than the model", "draft_model")


def _vocabulary(path: Path) -> dict[str, int]:
    return Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab()


def _read(model_dir: ModelDir, device: str) -> ExLlamaV2Config:
    _check_files(model_dir.path)
    try:
        exl2_config = ExLlamaV2Config(str(model_dir.path))
    except (AssertionError, KeyError, TypeError, ValueError) as reason:  # of what it doesn't find
        raise ModelError(
            f"ExLlamaV2 can't read the model in {model_dir.path}:"
            f" {type(reason).__name__}: {str(reason).strip(' #')}"
        ) from reason
    mend(exl2_config, model_dir.config)
    if device == "cuda":
        exl2_config.arch_compat_overrides(quiet=True)
    return exl2_config


def _check_files(path: Path) -> None:
    """Raises ModelError for a damaged file, whose name the library doesn't tell."""
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as reason:
            raise ModelError(f"{file} can't be read: {reason}") from None
