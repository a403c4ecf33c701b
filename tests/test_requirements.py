"""The lists of requirements agree."""

from tests.conftest import ROOT


def pins(name):
    lines = (ROOT / name).read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def test_those_for_gpus_are_the_others_but_for_torch_and_flash_attn():
    usual, gpu = pins("requirements.txt"), pins("requirements-gpu.txt")
    assert {line.partition("==")[0] for line in gpu ^ usual} == {"torch", "flash-attn"}
    assert all("==" in line for line in gpu)
