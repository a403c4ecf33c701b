"""Chooses how to compute products of each size, based on measurements on an H100 with an 8B and a
1B model.
"""

from switchyard.engine.backends.exl2.cuda.products.params import Tiling

FEW_ROWS, MAX_ROWS = 8, 64
PAIRED_ROWS = FEW_ROWS  # maximum rows for which the product of gate and up also activates
STAGED_ROWS = 2  # maximum rows that a product puts into order itself, up to FEW_ROWS
STAGED_NUMBERS = 2 * 4096  # of x and of the norm's weight, in shared memory; more took longer

# By maximum number of rows: the tilings for launches of few tiles, and for launches with at least
# one tile for each multiprocessor.
TILINGS = {
    FEW_ROWS: (Tiling(1, 1, 8, 4, -2), Tiling(1, 1, 4, 6, -4)),
    16: (Tiling(2, 1, 8, 4, -1), Tiling(2, 4, 4, 4, -1)),
    32: (Tiling(4, 2, 4, 4, -1), Tiling(4, 4, 4, 3, -1)),
    64: (Tiling(8, 2, 4, 3, -1), Tiling(8, 4, 2, 4, -1)),
}


def choose(rows: int, tiles: int, multiprocessors: int) -> Tiling:
    """`tiles`: the number of tiles, each of 64 columns."""
    narrow, wide = next(pair for most, pair in TILINGS.items() if rows <= most)
    return wide if tiles >= multiprocessors else narrow


def is_staged(rows: int, size: int) -> bool:
    """Returns whether a product of `rows` rows of this size reorders its inputs itself."""
    return rows <= STAGED_ROWS and (rows + 1) * size <= STAGED_NUMBERS
