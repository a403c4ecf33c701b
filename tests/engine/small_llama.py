"""A Llama of a few kilobytes, beside transformers' own."""

import json
import pathlib

import torch
from safetensors.torch import save_file

from switchyard.engine.backends.exl2 import cpu
from tests.engine import dense_llama

PAGE = 256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Scenario:
    """A model of random weights on disk, loaded, with a cache, and what it should compute."""

    def __init__(self, path, pages=12, dtype=torch.float32, **changes):
        self.config = CONFIG | changes
        self.tensors = dense_llama.random_tensors(self.config, dtype)
        write(path, self.config, self.tensors)
        self._load(path, pages)

    @classmethod
    def of(cls, path, pages=12):
        """For a model that exists already."""
        scenario = cls.__new__(cls)
        scenario._load(path, pages)
        return scenario

    def _load(self, path, pages):
        self.model = open_model(path)
        self.model.load()
        from switchyard.engine.backends.exl2.cpu.cache import CpuCache

        self.cache = CpuCache(self.model, max_seq_len=pages * PAGE)

    def expected(self, token_ids):
        return dense_llama.logits(self.tensors, self.config, token_ids)

    def forward(self, rows, preprocess_only=False, **arguments):
        """One pass for rows of (tokens already in the cache, new token ids, pages)."""
        from exllamav2.attn_params import PagedParams

        starts = torch.tensor([start for start, _, _ in rows], dtype=torch.int32)
        width = max(len(pages) for _, _, pages in rows)
        table = torch.zeros((len(rows), width), dtype=torch.int32)  # padded as the generator does
        for row, (_, _, pages) in zip(table, rows, strict=True):
            row[: len(pages)] = torch.tensor(pages)
        input_ids = torch.tensor([ids for _, ids, _ in rows])
        params = PagedParams(
            batch_size=len(rows),
            block_index=table,
            cache_seqlens=starts,
            max_cache_seqlen=int(starts.max()),
            page_size=PAGE,
            q_len=input_ids.shape[1],
        )
        return self.model.forward_chunk(
            input_ids, self.cache, params, preprocess_only=preprocess_only, **arguments
        )

    def prefill(self, token_ids, pages, chunk=512):
        for start in range(0, len(token_ids), chunk):
            out = self.forward([(start, token_ids[start : start + chunk], pages)], True)
            assert out == {}


def write(path, config, tensors):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")


def open_model(path):
    cpu.install()
    from exllamav2 import ExLlamaV2Config
    from exllamav2.stloader import cleanup_stfiles

    from switchyard.engine.backends.exl2.cpu.llama import CpuLlama
    from switchyard.engine.backends.exl2.load.compatibility import mend

    cleanup_stfiles()  # exllamav2 remembers the headers of files by name
    config = ExLlamaV2Config(str(path))
    mend(config, json.loads(pathlib.Path(path, "config.json").read_text()))
    return CpuLlama(config)


def assert_close(logits, expected):
    vocab_size = expected.shape[-1]
    torch.testing.assert_close(logits[..., :vocab_size].double(), expected, rtol=1e-4, atol=1e-4)
    assert (logits[..., vocab_size:] == -65504.0).all()
