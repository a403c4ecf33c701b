"""The pages that no job uses, in the order in which jobs take them. Used on the engine thread."""

from collections import deque
from typing import Any


class Pool:
    """Gives out pages in the order in which they were released. The last page of a prefix comes
    before the prefix's other pages.
    """

    def __init__(self, generator: Any) -> None:
        """`generator`: the library's generator; its table of pages must stay the same."""
        self._generator = generator
        # Serials and pages as of the last sort, oldest first. Pages used since have later serials.
        self._order: deque[tuple[int, Any]] = deque()

    def take(self) -> Any | None:
        """Returns a page for one job, or None if no page is left. While `can_revert` is set,
        releasing the page restores its former content.
        """
        generator = self._generator
        if not generator.unreferenced_pages:
            return None
        page = self._oldest()
        generator.access_serial += 1  # same: serials only need to grow
        page.add_ref_unique(generator.access_serial)
        return page

    def _oldest(self) -> Any:
        while True:
            if not self._order:  # same: sorting each time finds the same page
                found = [(p.access_serial, p) for p in self._generator.unreferenced_pages.values()]
                self._order = deque(sorted(found, key=lambda pair: pair[0]))
            serial, page = self._order.popleft()
            if page.access_serial == serial:
                return page
