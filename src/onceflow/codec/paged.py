"""A list that is read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

PAGE = 200


class PagedList(Sequence[Any]):
    """A list whose items are fetched as they are asked for, a page at a time; one page is kept. Its length costs nothing.

    `fetch(start, stop)` answers the items in between. It equals a list of the same items, slices and sums are lists, and it is recorded as a list; what wants
    a `list` and nothing else gets one by `list(values)`.

    >>> numbers = PagedList(3, lambda start, stop: [0, 10, 20][start:stop], "numbers")
    >>> len(numbers), numbers[-1], numbers[:2], sum(numbers), numbers == [0, 10, 20]
    (3, 20, [0, 10], 30, True)
    """

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("_fetch", "_first", "_length", "_page", "what")

    def __init__(self, length: int, fetch: Callable[[int, int], list[Any]], what: str) -> None:
        self._length, self._fetch, self.what = length, fetch, what
        self._first, self._page = 0, list[Any]()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            numbers = range(self._length)[index]
            return [self[number] for number in numbers]
        number = range(self._length)[index]  # IndexError as a list's
        if not self._first <= number < self._first + len(self._page):
            self._first = number - number % PAGE
            self._page = self._fetch(self._first, min(self._first + PAGE, self._length))
        return self._page[number - self._first]

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(self._length))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | PagedList):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    def __add__(self, other: Any) -> list[Any]:
        return list(self) + list(other)

    def __radd__(self, other: Any) -> list[Any]:
        return list(other) + list(self)

    def __str__(self) -> str:
        return str(list(self))

    def __repr__(self) -> str:
        return f"<{self._length} values of {self.what}, read page by page>"
