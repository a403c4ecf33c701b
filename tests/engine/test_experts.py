"""Mixtures of experts beside ExLlamaV2's own way in torch."""

from types import SimpleNamespace

import pytest
import torch

from switchyard.engine.backends.exl2 import cpu

SIZE, INNER, CHOSEN = 32, 48, 2


@pytest.fixture
def experts():
    cpu.install()
    from switchyard.engine.backends.exl2.cuda import experts

    return experts


def layer(num_experts, q_handle=None, device="cpu"):
    """With float32 weights, so that the order of sums hardly matters."""
    torch.manual_seed(num_experts)

    def linear(rows, columns):
        weight = torch.randn(rows, columns, device=device) / rows**0.5
        return SimpleNamespace(forward=lambda states, loras=None: states @ weight)

    def norm(states):
        return states / states.square().mean(-1, keepdim=True).sqrt()

    return SimpleNamespace(
        num_experts=num_experts,
        num_experts_per_token=CHOSEN,
        q_handle=q_handle,
        archparams=SimpleNamespace(mlp_act_func="silu"),
        post_attention_layernorm=SimpleNamespace(forward=norm),
        gate=linear(SIZE, num_experts),
        w1=[linear(SIZE, INNER) for _ in range(num_experts)],
        w2=[linear(INNER, SIZE) for _ in range(num_experts)],
        w3=[linear(SIZE, INNER) for _ in range(num_experts)],
    )


def wanted(module, states):
    from exllamav2.moe_mlp import ExLlamaV2MoEMLP

    return ExLlamaV2MoEMLP.forward_torch(module, states)


@pytest.mark.parametrize("num_experts", [4, 8, 60, 128])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (40, 1), (2, 100)])
def test_a_mixture_of_experts_is_what_the_library_computes(experts, num_experts, shape):
    module = layer(num_experts)
    states = torch.randn(*shape, SIZE)
    torch.testing.assert_close(experts.forward(module, states), wanted(module, states))


def test_an_expert_that_was_not_chosen_may_overflow(experts):
    module = layer(4)
    states = torch.randn(1, 1, SIZE)
    right = wanted(module, states)
    chosen = experts._choose(module, module.post_attention_layernorm.forward(states[0]))[1]
    other = next(i for i in range(4) if i not in chosen)
    module.w2[other] = SimpleNamespace(forward=lambda states: torch.full((1, SIZE), torch.inf))
    torch.testing.assert_close(experts.forward(module, states), right)


@pytest.mark.parametrize("num_tokens", [1, 2, 4, 9])
def test_of_128_experts_each_token_has_its_own(experts, monkeypatch, num_tokens):
    """The library's kernels compute those that the first token has chosen."""
    from exllamav2 import moe_mlp

    module = layer(128, q_handle=1)

    def kernels(handle, states):
        alone = states[:1].clone()
        states[:1] = wanted(module, alone[None])[0]
        states[1:] = torch.nan

    monkeypatch.setattr(moe_mlp, "ext_c", SimpleNamespace(q_moe_mlp_forward_=kernels))
    states = torch.randn(num_tokens, 1, SIZE)
    right = wanted(module, states)
    torch.testing.assert_close(experts.forward(module, states), right)


def test_few_experts_wait_for_no_number_on_the_host(experts):
    """What waits can't be captured."""
    states = torch.randn(64, 1, SIZE, device="meta")
    assert experts.forward(layer(8, device="meta"), states).shape == states.shape
    with pytest.raises(NotImplementedError):
        experts.forward(layer(128, device="meta"), states)
