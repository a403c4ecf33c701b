"""The first layers of the EXL2 demo model, on a CPU: as exllamav2 holds them after loading, and the
functions of its kernels.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors import safe_open

from switchyard.engine.backends.exl2.cuda.products.kernels import MAX_TILES, Kernels
from switchyard.engine.backends.exl2.cuda.products.packing import read_groups
from switchyard.engine.backends.exl2.cuda.products.tilings import TILINGS
from tests.engine.products.compiled import compiled, launch
from tests.engine.products.matrices import words_of
from tests.engine.test_memory import DEMO_EXL2, exl2_config

LAYERS, PAGE = 2, 256
SPACE = 2**18  # numbers of exllamav2's work space; the head is unpacked in parts


class CpuKernels(Kernels):
    """Launches the kernels' source, compiled for the CPU, on tensors of the host."""

    def __init__(self):
        self._device = torch.device("cpu")
        self.multiprocessors, self._most_shared = 3, 227 * 1024
        self._normalize = compiled("between.cu").launch_normalize
        self._gather = compiled("between.cu").launch_gather
        self._activate = compiled("between.cu").launch_activate
        self._unpack = compiled("unpack.cu").launch_unpack
        most = max(abs(t.blocks) * t.space for pair in TILINGS.values() for t in pair)
        self._space = torch.full((most * self.multiprocessors,), 255, dtype=torch.uint8)
        self._counters = torch.zeros(MAX_TILES, dtype=torch.int32)

    def _function(self, tiling):
        kernel = compiled("multiply.cu", tiling).launch_multiply
        return SimpleNamespace(resident_blocks=lambda threads, shared: 2, kernel=kernel)

    def _launch(self, kernel, grid, threads, shared, found):
        launch(getattr(kernel, "kernel", kernel), found, *grid, threads, shared)


def plain_codes(words, bits):
    """(rows, columns) of a file's words: each column is a stream of bits."""
    wide = words.long() & 0xFFFFFFFF
    chunks = wide.view(-1, bits, words.shape[1])
    rows = []
    for row in range(32):
        word, bit = divmod(row * bits, 32)
        value = chunks[:, word] >> bit
        if bit + bits > 32:
            value = value | chunks[:, word + 1] << (32 - bit)
        rows.append(value & (2**bits - 1))
    return torch.stack(rows, 1).flatten(0, 1)


class Demo:
    """`model`: exllamav2's, whose matrices have handles. `freed`: handles that were freed.
    `is_changed`: each matrix has a bias, and an order of rows of its own.
    """

    def __init__(self, is_changed=False):
        from exllamav2 import ExLlamaV2
        from exllamav2.attn import ExLlamaV2Attention
        from exllamav2.linear import ExLlamaV2Linear
        from exllamav2.mlp import ExLlamaV2MLP

        config = exl2_config(DEMO_EXL2)
        config.num_hidden_layers = LAYERS
        self.model = ExLlamaV2(config)
        self.weights, self.freed = {}, []
        self._random = torch.Generator().manual_seed(0) if is_changed else None
        modules = [part for m in self.model.modules for part in (*m.submodules, m)]
        with safe_open(self.model.config.tensor_file_map["lm_head.q_weight"], "pt") as file:
            for module in modules:
                module.device_idx = torch.device("cpu")
                match module:
                    case ExLlamaV2Linear():
                        self._load(file, module)
                    case ExLlamaV2Attention() | ExLlamaV2MLP():
                        module.q_handle = 1
                    case _:
                        weight = torch.nn.Parameter(file.get_tensor(f"{module.key}.weight"))
                        module.weight, module.variance_epsilon = weight, 1e-5
        embedding = self.model.modules[0]
        embedding.embedding = SimpleNamespace(weight=embedding.weight)
        embedding.forward = lambda token_ids: embedding.weight[token_ids]
        norm = self.model.modules[-2]
        norm.forward = lambda x, **_: rms_norm(x, norm.weight)
        cos, sin = self._tables()
        context = SimpleNamespace(
            cos=[cos], sin=[sin], scratch=torch.zeros(SPACE, dtype=torch.half)
        )
        self.model.get_device_context = lambda index, scratch=True: context
        self.cache = Cache(self.model.config, 8)

    def _load(self, file, linear):
        raw = {
            name: file.get_tensor(f"{linear.key}.{name}")
            for name in ("q_weight", "q_scale", "q_scale_max", "q_groups", "q_invperm")
        }
        groups = read_groups(raw["q_groups"].tolist(), len(raw["q_weight"]))
        words, weights, begin = [], [], 0
        for bits, rows in groups:
            end = begin + rows * bits // 32
            codes = plain_codes(raw["q_weight"][begin:end], bits)
            words.append(words_of(codes, bits))
            weights.append(codes - 2 ** (bits - 1))
            begin = end
        most = raw["q_scale_max"] / 256
        order = torch.argsort(raw["q_invperm"])
        if self._random is not None:
            order = torch.randperm(len(order), generator=self._random)
        linear.q_tensors = {
            "q_weight": torch.cat(words),
            "q_scale": raw["q_scale"],
            "q_scale_max": most,
            "q_groups": raw["q_groups"],
        }
        if linear.key.endswith("down_proj"):  # exllamav2 moves the columns of those before it
            order = torch.arange(len(order))
        else:
            linear.q_tensors["q_perm"] = order.short()
        if self._random is not None:
            bias = torch.randn(linear.out_features, generator=self._random) / 4
            linear.has_bias, linear.q_tensors["bias"] = True, bias.half()
        roots = (raw["q_scale"][..., None] >> torch.arange(0, 32, 4) & 15).flatten(1) + 1
        scales = (roots**2).half() * most[:, None]
        sizes = torch.tensor([rows for _, rows in groups])
        exact = torch.empty((linear.in_features, linear.out_features), dtype=torch.half)
        exact[order] = torch.cat(weights).half() * scales.repeat_interleave(sizes, 0)
        linear.q_handle = linear.key
        self.weights[linear.key] = exact

    def _tables(self):
        size = self.model.config.head_dim
        angles = torch.outer(
            torch.arange(2048).float(), 10000.0 ** -(torch.arange(0, size, 2).float() / size)
        )
        return (part.half().repeat(1, 2)[None, None] for part in (angles.cos(), angles.sin()))

    def extension(self):
        """The functions of exllamav2_ext that our products call."""

        def reconstruct(handle, out):
            out.copy_(self.weights[handle])

        def normalize(x, weight, out, epsilon):
            out.copy_(rms_norm(x, weight))

        free = self.freed.append
        return SimpleNamespace(
            reconstruct=reconstruct,
            rms_norm=normalize,
            free_q_attn=free,
            free_q_mlp=free,
            free_q_matrix=free,
        )

    def run(self, token_ids, start):
        """Logits, (rows, tokens, vocabulary). Rows have pages of their own."""
        rows = len(token_ids)
        lengths = torch.full((rows,), start, dtype=torch.int32)
        pages = torch.arange(rows, dtype=torch.int32)[:, None]
        params = SimpleNamespace(
            page_size=PAGE,
            max_cache_seqlen=1,
            get_cache_seqlens=lambda index: lengths,
            get_block_index=lambda index: pages,
        )
        x = self.model.modules[0].weight[token_ids].clone()
        for module in self.model.modules[1:]:
            x = module.forward(x, cache=self.cache, attn_params=params, past_len=0, loras=None)
        return x.float()


class Cache:
    q_block = 0

    def __init__(self, config, num_pages):
        self.max_seq_len = num_pages * PAGE
        shape = (1, self.max_seq_len, config.num_key_value_heads, config.head_dim)
        self._layers = [
            tuple(torch.zeros(shape, dtype=torch.half) for _ in range(2))
            for _ in range(config.num_hidden_layers)
        ]

    def get_kv_state(self, layer, *_):
        return self._layers[layer]

    def store_kv_state(self, *_):
        pass


def rms_norm(x, weight):
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight.float()).half()


def flash_attn_with_kvcache(
    *, q, k, v, k_cache, v_cache, rotary_cos, rotary_sin, cache_seqlens, block_table, **settings
):
    """As flash-attn's, a row after another."""
    assert settings["causal"] and not settings["rotary_interleaved"]
    results = []
    for row, start in enumerate(cache_seqlens.tolist()):
        positions = torch.arange(start, start + q.shape[1])
        cos, sin = (table[positions][:, None].float() for table in (rotary_cos, rotary_sin))

        def rotated(x, cos=cos, sin=sin):
            a, b = x.float().chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).half()

        pages, places = block_table[row][positions // PAGE].long(), positions % PAGE
        k_cache[pages, places], v_cache[pages, places] = rotated(k[row]), v[row]
        seen = torch.arange(start + q.shape[1])
        held = block_table[row][seen // PAGE].long(), seen % PAGE
        keys, values = (
            cache[held].float().repeat_interleave(q.shape[2] // k.shape[2], 1).transpose(0, 1)
            for cache in (k_cache, v_cache)
        )
        mask = seen[None] <= positions[:, None]
        queries = rotated(q[row]).float().transpose(0, 1)
        scale = settings["softmax_scale"]
        mixed = F.scaled_dot_product_attention(queries, keys, values, mask, scale=scale)
        results.append(mixed.transpose(0, 1).half())
    return torch.stack(results)
