"""exllamav3's paged cache, with the interface that the generator calls. Used on the engine
thread.
"""

from typing import Any

import torch

from switchyard.engine.config import PAGE_SIZE


class Exl3Cache:
    """The part of the interface of exllamav2's caches that the paged generator calls."""

    batch_size = 1

    def __init__(self, library: Any) -> None:
        """`library`: exllamav3's Cache."""
        self.library = library
        self.max_seq_len: int = library.max_num_tokens

    def all_tensors(self) -> list[torch.Tensor]:
        """Returns an empty list. If there were tensors, the generator would allocate a buffer for
        moving pages, although it never moves any.
        """
        return []

    def copy_states(
        self,
        target: "Exl3Cache",
        from_column: int,
        from_columns: int,
        to_column: int,
        to_columns: int,
        from_row: int,
        from_rows: int,
        to_row: int,
        to_rows: int,
    ) -> None:
        """Copy the beginning of a page. The parameter names are exllamav2's. Columns are tokens,
        and there is one row.
        """
        assert from_columns == to_columns and not (from_column | to_column) % PAGE_SIZE
        self.library.copy_page(
            target.library, from_column // PAGE_SIZE, to_column // PAGE_SIZE, from_columns
        )
