"""What happens where our products can't take over after a load."""

import contextlib
import logging
import shutil

import pytest
import torch


def test_a_model_that_is_refused_loads_anew_with_exllamav2s_products(monkeypatch, caplog):
    from switchyard.engine.backends.exl2.cuda import loader
    from switchyard.engine.backends.exl2.cuda.products.compare import ProductsRefused

    loads = []

    def load(*arguments):
        loads.append(arguments)
        if len(loads) == 1:
            raise ProductsRefused("logits differ")
        return "loaded"

    monkeypatch.setattr(loader, "_load", load)
    arguments = ("config", "configs", "Q8", 4096, "progress", 0, 2)
    assert loader._load_checked(*arguments) == "loaded"
    assert loads == [arguments, (*arguments, "logits differ")]
    assert "logits differ" in caplog.text


@pytest.mark.parametrize("reason", [None, "chosen in the settings"])
def test_a_system_without_nvrtc_keeps_exllamav2s_products(monkeypatch, caplog, reason):
    from switchyard.engine.backends.exl2.cuda import loader
    from switchyard.engine.backends.exl2.cuda.products.driver import Unavailable

    def kernels(index):
        raise Unavailable("NVRTC can't be loaded")

    monkeypatch.setattr(loader, "Kernels", kernels)
    products = "exllamav2: " + (reason or "NVRTC can't be loaded")
    with caplog.at_level(logging.INFO):
        assert loader._kernels(0, reason) == (None, products)
    assert f"products: {products}" in caplog.text


class Broken:
    """Kernels that a GPU can't have, or for which memory runs out."""

    def __init__(self, error):
        self._error = error

    def unpack(self, *_):
        raise self._error


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize("error", ["shared memory", torch.OutOfMemoryError("no memory")])
def test_kernels_that_fail_are_a_refusal(monkeypatch, error):
    from switchyard.engine.backends.exl2.cuda.kept import multiplying
    from switchyard.engine.backends.exl2.cuda.products import compare, own
    from switchyard.engine.backends.exl2.cuda.products.driver import Unavailable
    from tests.engine.products.loaded import Demo

    demo = Demo()
    monkeypatch.setattr(compare, "ext_c", demo.extension())
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    failing = Broken(error if isinstance(error, Exception) else Unavailable(error))
    with pytest.raises(compare.ProductsRefused, match="memory"):
        own.take_over(demo.model, demo.cache, failing, multiplying(demo.model))
    assert not demo.freed
