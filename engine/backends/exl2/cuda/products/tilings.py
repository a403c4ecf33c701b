"""Chooses how to compute products of each size, based on measurements on an H100 with an 8B and a
1B model.
"""

from switchyard.engine.backends.exl2.cuda.products.params import Tiling

MAX_ROWS = 64
PAIRED_ROWS = 16  # the most rows with which the product of gate and up also activates

# By the most rows: for launches of few tiles, and for those with a tile or more for each
# multiprocessor.
TILINGS = {
    8: (Tiling(1, 1, 8, 4, -2), Tiling(1, 1, 4, 6, -4)),
    16: (Tiling(2, 1, 8, 4, -1), Tiling(2, 4, 4, 4, -1)),
    32: (Tiling(4, 2, 4, 4, -1), Tiling(4, 4, 4, 3, -1)),
    64: (Tiling(8, 2, 4, 3, -1), Tiling(8, 4, 2, 4, -1)),
}


def choose(rows: int, tiles: int, multiprocessors: int) -> Tiling:
    """`tiles`: the number of tiles, each of 64 columns."""
    narrow, wide = next(pair for most, pair in TILINGS.items() if rows <= most)
    return wide if tiles >= multiprocessors else narrow
