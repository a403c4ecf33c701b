"""Make a Hugging Face directory of a Llama's GGUF file, as transformers reads it, in float16.

Usage: python -m tests.real_model.convert MODEL.gguf DIR
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def main(source: str, target: str) -> None:
    directory, file = Path(target), Path(source)
    directory.mkdir(parents=True)
    named = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    config = AutoConfig.from_pretrained(**named)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    found = load_gguf_checkpoint(source, True, model)["tensors"]
    weights = {name: torch.as_tensor(one).half().contiguous() for name, one in found.items()}
    assert all(one.isfinite().all() for one in weights.values())
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    content = {
        **config.to_dict(),
        "architectures": ["LlamaForCausalLM"],
        "rms_norm_eps": round(config.rms_norm_eps, 9),
        "rope_theta": config.rope_parameters["rope_theta"],
        "torch_dtype": "float16",
    }
    (directory / "config.json").write_text(json.dumps(content))
    tokenizer = AutoTokenizer.from_pretrained(**named)
    parts = [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)  # SmolLM's own
    tokenizer.backend_tokenizer.save(str(directory / "tokenizer.json"))
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position_embeddings,
        **{name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "chat_template")},
        **{"add_bos_token": False, "clean_up_tokenization_spaces": False},
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(content, ensure_ascii=False))
    print(f"{directory}: {sum(one.nbytes for one in weights.values()) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
