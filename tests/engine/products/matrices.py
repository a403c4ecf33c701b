"""Random EXL2 matrices in the order of exllamav2's kernels, and their exact weights."""

import torch

from switchyard.engine.backends.exl2.cuda.products.packing import Matrix

# The row of each bit of a set's words, as exllamav2's qdq_*.cuh draw them: the highest bit first.
# The bits of a row are in rising order.
DRAWN = {
    2: ["ffddbb9977553311eeccaa8866442200"],
    3: [
        "v999777555333111u888666444222000",
        "vjjjhhhfffdddbbbuiiigggeeecccaaa",
        "vtttrrrpppnnnlllusssqqqooommmkkk",
    ],
    4: ["77775555333311116666444422220000"],
    5: [
        "v555553333311111u444442222200000",
        "vbbbbb9999977777uaaaaa8888866666",
        "vhhhhhfffffdddddugggggeeeeeccccc",
        "vnnnnnllllljjjjjummmmmkkkkkiiiii",
        "vtttttrrrrrpppppusssssqqqqqooooo",
    ],
    6: [
        "dddd333333111111cccc222222000000",
        "ffff777777555555eeee666666444444",
        "ffddbbbbbb999999eeccaaaaaa888888",
    ],
    8: ["33333333222222221111111100000000"],
}


def words_of(codes, bits):
    """(words, columns), int32, of (rows, columns)."""
    drawn = DRAWN[bits]
    size = 32 * len(drawn) // bits
    sets = codes.view(-1, size, codes.shape[1])
    words = torch.zeros((len(sets), len(drawn), codes.shape[1]), dtype=torch.int64)
    seen = [0] * size
    for i, text in enumerate(drawn):
        for bit, letter in enumerate(reversed(text)):
            row = int(letter, 32)
            words[:, i] |= (sets[:, row].long() >> seen[row] & 1) << bit
            seen[row] += 1
    assert seen == [bits] * size
    return words.flatten(0, 1).to(torch.int32)


class Random:
    """`plan`: (bits, rows, rows of a group)."""

    def __init__(self, columns, plan, seed=0):
        rows = sum(count for _, count, _ in plan)
        gen = torch.Generator().manual_seed(seed)
        words, weights, groups = [], [], []
        for bits, count, size in plan:
            codes = torch.randint(0, 2**bits, (count, columns), dtype=torch.uint8, generator=gen)
            words.append(words_of(codes, bits))
            weights.append(codes.int() - 2 ** (bits - 1))
            groups += [(bits, min(size, count - begin)) for begin in range(0, count, size)]
        roots = torch.randint(0, 16, (len(groups), columns), generator=gen)
        spread = torch.tensor([rows**-0.5 * 2.5 / 2**bits for bits, _ in groups])
        most = (spread * (0.75 + 0.5 * torch.rand(len(groups), generator=gen)) / 60).half()
        scales = ((roots + 1) ** 2).half() * most[:, None]
        sizes = torch.tensor([count for _, count in groups])
        self.weights = torch.cat(weights).half() * scales.repeat_interleave(sizes, 0)
        packed = (roots.view(len(groups), -1, 8) << torch.arange(0, 32, 4)).sum(-1)
        order = torch.randperm(rows, generator=gen)
        self.matrix = Matrix(torch.cat(words), packed.to(torch.int32), most, tuple(groups), order)
