"""EXL2 matrices in the layout that weights.cuh reads. Uses only torch, and works on any device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

CHUNK = 32  # rows
TILE = 64  # columns
MAX_RUNS = 6
SLAB = 2**24  # codes laid out at once: one byte each, and temporarily a few times that


class Unsuitable(ValueError):
    """A matrix that the kernels can't handle."""


class CodeBits(NamedTuple):
    """Some bits of a code, from the code's bit `low` upwards. They are stored in word `word`, from
    its bit `bit` upwards.
    """

    word: int
    bit: int
    low: int
    number: int


class Run(NamedTuple):
    """Chunks of one width, as in weights.cuh."""

    start: int
    bits: int
    prefix: int
    group: int
    shift: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as exllamav2 holds it after loading. Its words are in the order that exllamav2's
    kernels need.
    """

    words: torch.Tensor  # (words of a column, columns), int32
    scales: torch.Tensor  # (groups, columns / 8), int32: four bits each
    most: torch.Tensor  # of each group's scales, / 256, float16
    groups: tuple[tuple[int, int], ...]  # (bits, rows), of permuted rows
    order: torch.Tensor  # natural row of each permuted row


@dataclass(frozen=True, slots=True)
class Packed:
    words: torch.Tensor  # (tiles, words), int32
    scales: torch.Tensor
    most: torch.Tensor  # int32, the number in both halves
    order: torch.Tensor  # natural row of each permuted row, int32
    width: int  # columns without padding
    cost: int  # the sum of the bits of a column's chunks
    runs: tuple[Run, ...]

    @property
    def rows(self) -> int:
        return len(self.order)

    @property
    def columns(self) -> int:
        return len(self.words) * TILE

    @property
    def num_bytes(self) -> int:
        return sum(t.nbytes for t in (self.words, self.scales, self.most, self.order))


def read_groups(numbers: Sequence[int], num_words: int) -> tuple[tuple[int, int], ...]:
    """Returns (bits, rows) for each group. `numbers`: exllamav2's `q_groups`; `num_words`: the
    number of words in a column.
    """
    bits = numbers[::2]
    first = [number & 0xFFFF for number in numbers[1::2]] + [num_words]
    return tuple((b, (first[i + 1] - first[i]) * 32 // b) for i, b in enumerate(bits))


def _pairs(bits: int) -> tuple[int, list[list[CodeBits]]]:
    """Returns the number of words in a set, and the pieces of each pair of rows in it. These pieces
    belong to the row in the low halves; the other row's pieces are 16 bits higher.
    """
    match bits:
        case 3 | 5:
            whole = 15 // bits  # codes in a half; the half's last bit belongs to the last code
            pairs = [[CodeBits(i // whole, i % whole * bits, 0, bits)] for i in range(15)]
            return bits, [*pairs, [CodeBits(bit, 15, bit, 1) for bit in range(bits)]]
        case 6:
            pairs = [[CodeBits(i // 2, i % 2 * 6, 0, 6)] for i in range(6)]
            last = [[CodeBits(word, 12, 0, 4), CodeBits(2, 12 + 2 * word, 4, 2)] for word in (0, 1)]
            return 3, pairs + last
        case 2 | 4 | 8:
            return 1, [[CodeBits(0, bits * i, 0, bits)] for i in range(16 // bits)]
    raise Unsuitable(f"weights of {bits} bits")


def _places(bits: int) -> list[list[CodeBits]]:
    """Returns the pieces of each of the 32 rows in a chunk, in a column of exllamav2's layout."""
    if bits == 8:
        return [[CodeBits(row // 4, row % 4 * 8, 0, 8)] for row in range(CHUNK)]
    words, pairs = _pairs(bits)
    places = []
    for row in range(CHUNK):
        begin, inner = divmod(row, 2 * len(pairs))
        pieces = pairs[inner // 2]
        places.append(
            [p._replace(word=p.word + begin * words, bit=p.bit + 16 * (row % 2)) for p in pieces]
        )
    return places


def find_runs(groups: Sequence[tuple[int, int]]) -> tuple[tuple[Run, ...], bool]:
    """Returns the runs of equal width, and whether every 32 rows need their own group because the
    groups of a run differ in size. Raises Unsuitable.
    """
    if any(rows % CHUNK or not rows for _, rows in groups):
        raise Unsuitable("groups whose number of rows is not a multiple of 32")
    found: list[list[tuple[int, int]]] = []
    for group in groups:
        if not found or found[-1][0][0] != group[0]:
            found.append([])
        found[-1].append(group)
    if len(found) > MAX_RUNS:
        raise Unsuitable(f"{len(found)} changes of width")
    runs, start, prefix, first, is_split = [], 0, 0, 0, False
    for run in found:
        bits, size = run[0]
        _pairs(bits)
        chunks = sum(rows for _, rows in run) // CHUNK
        same = all(rows == size for _, rows in run[:-1]) and run[-1][1] <= size
        is_split = is_split or not same or size & (size - 1) != 0
        runs.append(Run(start, bits, prefix, first, (size // CHUNK).bit_length() - 1))
        start, prefix, first = start + chunks, prefix + chunks * bits, first + len(run)
    if is_split:
        runs = [run._replace(group=run.start, shift=0) for run in runs]
    return tuple(runs), is_split


def pack(matrix: Matrix, columns: torch.Tensor | None = None) -> Packed:
    """Returns the matrix in our layout. `columns`: for each stored column, its natural column, or
    None if the columns are stored in their natural order. Raises Unsuitable.
    """
    runs, is_split = find_runs(matrix.groups)
    scales, most, width = matrix.scales, matrix.most, matrix.words.shape[1]
    if columns is not None:
        scales = _permuted(scales, columns)
    scales = F.pad(scales, (0, -width % TILE // 8))
    if is_split:
        numbers = [i for i, (_, rows) in enumerate(matrix.groups) for _ in range(rows // CHUNK)]
        index = torch.tensor(numbers, device=scales.device)
        scales, most = scales[index], most[index]
    half = most.view(torch.int16).int() & 0xFFFF
    return Packed(
        _lay_out(matrix, runs, columns),
        scales.contiguous(),
        half | half << 16,
        matrix.order.int(),
        width,
        len(matrix.words),
        runs,
    )


def _permuted(scales: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    shifts = torch.arange(0, 32, 4, device=scales.device)
    apart = (scales[..., None] >> shifts & 15).flatten(1)[:, columns]
    # The numbers share no bit, so their sum is their union; int32 wraps as the words do.
    return (apart.view(len(scales), -1, 8) << shifts).sum(-1, dtype=torch.int32)


def _lay_out(matrix: Matrix, runs: Sequence[Run], columns: torch.Tensor | None) -> torch.Tensor:
    """Returns the words, (tiles, words of a tile), int32."""
    cost, width = matrix.words.shape
    num_tiles = -(-width // TILE)
    device = matrix.scales.device  # the words may be on the host
    tiles = torch.empty((num_tiles, cost * TILE), dtype=torch.int32, device=device)
    step = max(SLAB // len(matrix.order) // TILE, 1)
    for begin in range(0, num_tiles, step):
        part = slice(begin * TILE, min((begin + step) * TILE, width))
        chosen = part if columns is None else columns[part].to(matrix.words.device)
        words = matrix.words[:, chosen].to(device)
        words = F.pad(words, (0, -words.shape[1] % TILE))
        for i, run in enumerate(runs):
            end = runs[i + 1].prefix if i + 1 < len(runs) else cost
            codes = _codes(words[run.prefix : end], run.bits)
            tiles[begin : begin + step, run.prefix * TILE : end * TILE] = _tiles(codes, run.bits)
    return tiles


def _codes(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns the codes in exllamav2's words of one run, (chunks, 32, columns), uint8."""
    chunks = words.view(-1, bits, words.shape[1])
    codes = torch.zeros(
        (len(chunks), CHUNK, words.shape[1]), dtype=torch.uint8, device=words.device
    )
    for row, pieces in enumerate(_places(bits)):
        for piece in pieces:
            part = chunks[:, piece.word] >> piece.bit & (1 << piece.number) - 1
            codes[:, row] |= (part << piece.low).to(torch.uint8)
    return codes


def _tiles(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns one run's codes in words, (tiles, words)."""
    chunks, tiles = len(codes), codes.shape[2] // TILE
    num_words, pairs = _pairs(bits)
    # A lane is (column / 8, row / 8); its pairs of rows are stored column by column.
    lanes = codes.view(chunks, 4, 4, 2, tiles, 8, 8).permute(4, 0, 5, 1, 6, 2, 3)
    sets = lanes.reshape(tiles, chunks, CHUNK, -1, len(pairs), 2)
    words = torch.zeros((*sets.shape[:4], num_words), dtype=torch.int32, device=codes.device)
    for i, pieces in enumerate(pairs):
        for piece in pieces:
            for half in (0, 1):
                part = sets[..., i, half].int() >> piece.low & (1 << piece.number) - 1
                words[..., piece.word] |= part << piece.bit + 16 * half
    lane_words = words.view(tiles, chunks, CHUNK, 2 * bits)
    # Four words of one lane follow four of another, so that a warp reads 512 contiguous bytes.
    whole = bits // 2 * 4
    fours = lane_words[..., :whole].view(tiles, chunks, CHUNK, -1, 4).transpose(2, 3).flatten(2)
    return torch.cat((fours, lane_words[..., whole:].flatten(2)), -1).flatten(1)
