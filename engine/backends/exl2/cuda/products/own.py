"""Puts our matrix products into a loaded model after comparing them with exllamav2's. Used on the
engine thread.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

import torch
from exllamav2.linear import ExLlamaV2Linear

from switchyard.engine.backends.exl2.cuda.products.compare import (
    ProductsRefused,
    compare_passes,
    compare_products,
    whole_pass,
)
from switchyard.engine.backends.exl2.cuda.products.driver import Unavailable
from switchyard.engine.backends.exl2.cuda.products.kernels import Kernels
from switchyard.engine.backends.exl2.cuda.products.layers import OwnProducts
from switchyard.engine.config import PAGE_SIZE

logger = logging.getLogger(__name__)


def take_over(model: Any, cache: Any, kernels: Kernels, modules: list[Any]) -> OwnProducts:
    """Replace exllamav2's products in `modules`, whose weights are EXL2. Overwrites the first pages
    of the cache. Raises ProductsRefused, after which the model must be reloaded.
    """
    begin = time.monotonic()
    products = OwnProducts(model, cache, kernels)
    try:
        space = model.get_device_context(model.modules[1].device_idx).scratch
        with torch.cuda.device(space.device):
            compare_products(_linears(modules), kernels, space)
            expected = whole_pass(model, cache, PAGE_SIZE, space.device)
            products.replace(modules)
            compare_passes(whole_pass(model, cache, PAGE_SIZE, space.device), expected)
    except (Unavailable, torch.OutOfMemoryError) as error:
        products.close()
        raise ProductsRefused(str(error)) from error
    except BaseException:
        products.close()
        raise
    logger.info("laid out and compared our own matrix products in %.1f s", time.monotonic() - begin)
    return products


def _linears(modules: Sequence[Any]) -> list[ExLlamaV2Linear]:
    parts = [part for module in modules for part in (*module.submodules, module)]
    return [part for part in parts if isinstance(part, ExLlamaV2Linear)]
