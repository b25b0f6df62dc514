"""A list that is read page by page is a list to whoever reads it, and fetches no more than that."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.codec import decode, encode
from onceflow.codec.paged import PAGE, PagedList


def make(items: list[int]) -> tuple[PagedList, list[tuple[int, int]]]:
    """The list, and the pages that were fetched."""
    fetched: list[tuple[int, int]] = []

    def fetch(start: int, stop: int) -> list[int]:
        fetched.append((start, stop))
        return items[start:stop]

    return PagedList(len(items), fetch, "task load"), fetched


@given(st.lists(st.integers(), max_size=3 * PAGE), st.slices(500))
def test_it_reads_as_the_list_does(items: list[int], part: slice) -> None:
    """Length, order, slices, equality, membership, sums and the recorded form are those of the list."""
    values, _ = make(items)
    assert (len(values), list(values), values == items, items == values) == (len(items), items, True, True)
    assert values[part] == items[part] and list(reversed(values)) == items[::-1]
    assert (values + [1], [1] + values, sum(values), str(values)) == ([*items, 1], [1, *items], sum(items), str(items))  # noqa: RUF005 (it has both additions)
    assert decode(encode(values)) == items and decode(encode({"a": values})) == {"a": items}
    assert values != [*items, 1] and values != "other" and bool(values) == bool(items)
    assert all(values.index(item) == items.index(item) for item in items[:3])


def test_it_fetches_page_by_page_and_only_what_is_asked_for() -> None:
    """len() and repr() fetch nothing, a loop each page once, one item one page."""
    values, fetched = make(list(range(2 * PAGE + 5)))
    assert len(values) == 2 * PAGE + 5 and isinstance(values, Sequence) and "read page by page" in repr(values)
    assert fetched == []
    assert values[-1] == 2 * PAGE + 4 and fetched == [(2 * PAGE, 2 * PAGE + 5)]
    assert list(values) == list(range(2 * PAGE + 5))
    assert fetched[1:] == [(0, PAGE), (PAGE, 2 * PAGE), (2 * PAGE, 2 * PAGE + 5)]
    with pytest.raises(IndexError):
        values[2 * PAGE + 5]
