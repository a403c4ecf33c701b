"""The kernels of products/: their source, run on the CPU thread by thread."""

import shutil

import pytest
import torch

from switchyard.engine.backends.exl2.cuda.products import params
from switchyard.engine.backends.exl2.cuda.products.packing import Unsuitable, pack
from switchyard.engine.backends.exl2.cuda.products.tilings import TILINGS
from tests.engine.products.compiled import compiled, launch, reversed_blocks
from tests.engine.products.matrices import Random

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

ROWS, MULTIPROCESSORS = 512, 3
PLANS = {
    **{f"{bits}": [(bits, ROWS, 128)] for bits in (2, 3, 4, 5, 6, 8)},
    "4 by 32": [(4, ROWS, 32)],
    "5 by 64": [(5, ROWS, 64)],
    "all": [(8, 32, 32), (6, 64, 64), (5, 64, 32), (4, 96, 64), (3, 32, 32), (2, 224, 64)],
    "uneven groups": [(5, 96, 96), (4, 416, 160)],
}
ALL = [tiling for pair in TILINGS.values() for tiling in pair]
# One of each way: scales on sums and on weights, one warp and several side by side.
IN_CI = [TILINGS[8][1], TILINGS[16][1], TILINGS[64][0]]


def tilings(chosen):
    hardship = pytest.mark.hardship
    return [pytest.param(c, marks=[] if c in chosen else hardship, id=str(tuple(c))) for c in ALL]


def multiply(tiling, matrices, x, outputs, blocks, is_reversed=False, **options):
    packed = [pack(one.matrix) for one in matrices]
    inputs = [x if tiling.STAGED else x[:, one.order.long()].contiguous() for one in packed]
    found = params.multiply(tiling, packed, inputs, outputs, **options)
    space = torch.full((params.workspace_bytes(found, tiling, blocks) // 4,), float("nan"))
    counters = torch.zeros(params.num_tiles(found), dtype=torch.int32)
    found.ws, found.counters = space.data_ptr(), counters.data_ptr()
    library = compiled("multiply.cu", tiling)
    shared = params.shared_bytes(found, tiling)
    with reversed_blocks(library, is_reversed):
        launch(library.launch_multiply, found, blocks, 1, tiling.threads, shared)
    assert not counters.any()


def exact(one, x):
    return x[:, one.matrix.order].double() @ one.weights.double()


def error(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


def random_input(rows):
    return torch.randn((rows, ROWS), generator=torch.Generator().manual_seed(rows)).half()


def outputs(rows, *matrices):
    widths = [one.matrix.words.shape[1] for one in matrices]
    return [torch.full((rows, -(-width // 64) * 64), float("nan")).half() for width in widths]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("tiling", tilings(IN_CI))
def test_a_product_of_any_widths_is_exact(tiling, plan):
    """Shared among 5 blocks, whose shares end within tiles, and by one."""
    one = Random(192, PLANS[plan], seed=len(plan))
    for rows, blocks in ((tiling.TT * 8 - 3, 5), (tiling.TT * 8, 1)):
        x, [out] = random_input(rows), outputs(rows, one)
        multiply(tiling, [one], x, [out], blocks)
        assert error(out, exact(one, x)) < 5e-4


@pytest.mark.parametrize("rows", range(1, 65))
def test_a_product_of_any_number_of_rows_is_exact(rows):
    tiling = next(pair[0] for most, pair in TILINGS.items() if rows <= most)
    one = Random(64, [(6, 128, 128), (4, ROWS - 128, 128)], seed=rows)
    x, [out] = random_input(rows), outputs(rows, one)
    multiply(tiling, [one], x, [out], 2)
    assert error(out, exact(one, x)) < 5e-4


@pytest.mark.parametrize("tiling", tilings(IN_CI))
def test_three_matrices_are_multiplied_in_one_launch(tiling):
    """One of them with a width that is not a multiple of 64. Results are added to what is there."""
    shapes = ((256, "all"), (96, "4"), (128, "6"))
    several = [Random(width, PLANS[plan], seed=width) for width, plan in shapes]
    x = random_input(3)
    before = [torch.randn((3, -(-width // 64) * 64)).half() for width, _ in shapes]
    found = [one.clone() for one in before]
    multiply(tiling, several, x, found, 7, add=True)
    for one, old, new, (width, _) in zip(several, before, found, shapes, strict=True):
        assert error(new[:, :width], exact(one, x) + old[:, :width].double()) < 5e-4


@pytest.mark.parametrize("tiling", tilings(IN_CI))
def test_less_shared_memory_is_fewer_stages(tiling):
    one, x = Random(192, PLANS["6"]), random_input(5)
    [out] = outputs(5, one)
    found = params.multiply(tiling, [pack(one.matrix)], [x], [out])
    little = params.shared_bytes(found, tiling) // 2
    fewer = params.fitting(found, tiling, little)
    assert 2 <= fewer.STAGES < tiling.STAGES
    assert fewer.STAGES == 2 or params.shared_bytes(found, fewer) <= little
    multiply(fewer, [one], x, [out], 4)
    assert error(out, exact(one, x)) < 5e-4


@pytest.mark.parametrize("pair", [False, True])
def test_the_same_bits_come_from_any_order_of_blocks(pair):
    """Sums of shared tiles have a fixed order."""
    tiling, x = TILINGS[8][0], random_input(5)
    several = [Random(128, PLANS[plan]) for plan in ("all", "4")]
    found = outputs(5, *several, *several)
    for outs, is_reversed in ((found[:2], False), (found[2:], True)):
        multiply(tiling, several, x, outs, 9, is_reversed=is_reversed, pair=pair)
    first, second = (torch.cat(outs) for outs in (found[:2], found[2:]))
    assert torch.equal(first.view(torch.int16), second.view(torch.int16))


@pytest.mark.parametrize("blocks", [1, 2, 7, 12])
@pytest.mark.parametrize("tiling", TILINGS[8], ids=str)
def test_a_pair_is_activated(tiling, blocks):
    """By one block; by one for each matrix; by blocks whose shares end within tiles, also in both
    matrices at once.
    """
    gate, up = (Random(320, PLANS[plan], seed=1) for plan in ("all", "5 by 64"))
    x, [out, none] = random_input(tiling.TT * 8 - 1) * 3, outputs(tiling.TT * 8 - 1, gate, up)
    multiply(tiling, [gate, up], x, [out, none], blocks, pair=True)
    expected = torch.nn.functional.silu(exact(gate, x)) * exact(up, x)
    assert error(out, expected) < 5e-4
    assert none.isnan().all()


def test_a_pair_beyond_float16_is_clamped_and_nan_stays():
    """silu(-infinity) is 0, not NaN."""
    tiling, one = TILINGS[8][0], Random(64, PLANS["4"])
    x = torch.full((3, ROWS), 6.5e4).half()
    x[1, 7] = float("nan")
    x[2] = 0
    x[2, one.matrix.order[one.weights[:, 0].argmin()]] = float("inf")
    [out] = outputs(3, one)
    multiply(tiling, [one, one], x, [out, out], 2, pair=True)
    assert torch.isfinite(out[0]).all() and out[0].abs().max() == 65504
    assert out[1].isnan().all()
    assert out[2, 0] == 0


def test_a_residual_beyond_float16_is_clamped_and_nan_stays():
    tiling, one = TILINGS[8][0], Random(64, PLANS["4"])
    x = torch.full((2, ROWS), 3e4).half()
    x[1, 7] = float("nan")
    out = torch.full((2, 64), 6.5e4).half()
    multiply(tiling, [one], x, [out], 2, add=True)
    assert torch.isfinite(out[0]).all() and out[0].abs().max() == 65504
    assert out[1].isnan().all()


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("tiling", [one._replace(STAGED=1) for one in TILINGS[8]], ids=str)
def test_x_is_put_into_order_and_normalized(tiling, has_norm):
    """By each block that needs it: for parts of tiles, and once for several tiles."""
    several = [Random(256, PLANS["all"], seed=1), Random(128, PLANS["4"], seed=2)]
    gen = torch.Generator().manual_seed(0)
    weight = torch.randn(ROWS, generator=gen).half()
    for rows, blocks in ((1, 1), (2, 5), (7, 9)):
        x = torch.randn((rows, ROWS), generator=gen).half()
        normal, options = x, {}
        if has_norm:
            x[0, 5] = float("inf")  # a residual beyond float16's range
            clamped = x.double().clamp(-65504, 65504)
            root = torch.rsqrt(clamped.square().mean(-1, keepdim=True) + 0.5)
            normal, options = clamped * root * weight, {"norm": (weight, 0.5)}
        found = outputs(rows, *several)
        multiply(tiling, several, x, found, blocks, **options)
        for one, out in zip(several, found, strict=True):
            assert error(out, exact(one, normal)) < 5e-4


def test_nan_in_a_row_that_is_normalized_stays():
    tiling, one, x = TILINGS[8][1]._replace(STAGED=1), Random(64, PLANS["4"]), random_input(2)
    x[1, 7] = float("nan")
    [out] = outputs(2, one)
    multiply(tiling, [one], x, [out], 2, norm=(torch.ones(ROWS).half(), 1e-5))
    assert torch.isfinite(out[0]).all() and out[1].isnan().all()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("is_natural", [True, False])
def test_unpacked_weights_are_equal_in_every_bit(plan, is_natural):
    one = Random(192, PLANS[plan], seed=len(plan))
    columns = torch.randperm(192, generator=torch.Generator().manual_seed(1))
    packed = pack(one.matrix, None if is_natural else columns)
    out = torch.zeros((ROWS, 192)).half()
    found = params.unpack(packed, out, packed.order if is_natural else None)
    launch(compiled("unpack.cu").launch_unpack, found, 3, ROWS // 32 // 4, 128)
    expected = one.weights[:, columns]
    if is_natural:
        expected = torch.empty_like(out)
        expected[one.matrix.order] = one.weights
    assert torch.equal(out.view(torch.int16), expected.view(torch.int16))


def test_norm_gather_and_activation_write_in_the_next_ones_order():
    size, rows = 2048, 3
    gen = torch.Generator().manual_seed(0)
    x = torch.randn((rows, size), generator=gen).half()
    x[1, 5] = float("inf")  # a residual beyond float16's range
    weight = torch.randn(size, generator=gen).half()
    orders = [torch.randperm(size, generator=gen).int() for _ in range(2)]
    kernels = compiled("between.cu")

    ys = [torch.empty_like(x) for _ in orders]
    found = params.Norm(x=x.data_ptr(), weight=weight.data_ptr(), n=size, num=2, eps=1e-5)
    for i, (order, y) in enumerate(zip(orders, ys, strict=True)):
        found.perm[i], found.y[i] = order.data_ptr(), y.data_ptr()
    launch(kernels.launch_normalize, found, rows, 1, 512, size * 2 + 64)
    clamped = x.float().clamp(-65504, 65504)
    root = torch.rsqrt(clamped.square().mean(-1, keepdim=True) + 1e-5)
    for order, y in zip(orders, ys, strict=True):
        expected = (clamped * root * weight.float())[:, order.long()]
        torch.testing.assert_close(y.float(), expected, rtol=1e-3, atol=1e-6)

    y = torch.empty_like(x)
    gathered = params.Gather(x.data_ptr(), orders[0].data_ptr(), y.data_ptr(), size)
    launch(kernels.launch_gather, gathered, size // 512, rows, 256)
    assert torch.equal(y, x[:, orders[0].long()])

    gate, up = torch.randn((2, rows, size), generator=gen).half() * 4
    found = params.Activate(gate.data_ptr(), up.data_ptr(), y.data_ptr(), y.numel() // 2)
    launch(kernels.launch_activate, found, y.numel() // 512, 1, 256)
    expected = torch.nn.functional.silu(gate.float()) * up.float()
    torch.testing.assert_close(y.float(), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ([(4, 64, 16)], "multiple of 32"),
        ([(b, 32, 32) for b in (8, 6, 5, 4, 3, 2, 4)], "7 changes of width"),
    ],
)
def test_matrices_that_the_kernels_cant_have_are_refused(plan, reason):
    with pytest.raises(Unsuitable, match=reason):
        pack(Random(64, plan).matrix)
