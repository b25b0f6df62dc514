"""The runner of pages can fail: a wrong output, a broken block, and whatever would go untested unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.blocks import PageFault, is_excerpt, matches, read_blocks
from tests.examples.page_run import PageRun, show_rows


def write_page(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def run_page(folder: Path, text: str) -> None:
    PageRun(write_page(folder, text), folder, {"PATH": "/usr/bin:/bin"}).run()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```python\nraise ValueError('no')\n```", "ValueError: no"),
        ("```python\nprint(1)\n```\n```text\n2\n```", "prints something else"),
        ("```python\n# one.py\nimport nothing_of_that_name\n```", "nothing_of_that_name"),
        ("```console\n$ false\n```", "exit code 1"),
        ("```console\n$ echo 1\n2\n```", "prints something else"),
        ("<!-- excerpt: README.md -->\n```python\nno such line\n```", "do not stand in README.md"),
    ],
)
def test_a_block_that_does_not_do_what_the_page_says_fails(tmp_path: Path, text: str, fault: str) -> None:
    """Errors, other outputs and lines that are not in the source fail the page, and the message says which."""
    with pytest.raises(AssertionError, match=fault):
        run_page(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```py\n1\n```", "language 'py'"),
        ("```\n1\n```", "language ''"),
        ("```text\n1\n```", "none that is run"),
        ("<!-- skip: -->\n```python\n1\n```", "says nothing"),
        ("<!-- file: one.py -->\n```python\n1\n```", "is no directive"),
        ("<!-- skipp: no -->\n```python\n1\n```", "is no directive"),
        ("<!-- skip: no -->\n\nwords\n", "stands above no block"),
        ("<!-- skip: no -->\n", "stands above no block"),
        ("```python\n1\n", "never ends"),
        ("- a list\n  ```python\n  1\n  ```\n", "indented"),
    ],
)
def test_what_would_go_untested_is_a_fault(tmp_path: Path, text: str, fault: str) -> None:
    """No block escapes by a typing error: unknown languages and directives, reasonless skips, outputs of nothing."""
    with pytest.raises(PageFault, match=fault):
        read_blocks(write_page(tmp_path, text))


def test_blocks_of_a_page_share_folder_and_shell(tmp_path: Path) -> None:
    """A variable, a file and a background process of one block are there for the next."""
    run_page(
        tmp_path,
        "```console\n$ export GREETING=hello\n$ sleep 60 &\n```\n"
        "```python\n# words.py\nimport os\n```\n```python\n# words.py\nGREETING = os.environ['GREETING']\n```\n"
        "```python\nfrom words import GREETING\nprint(GREETING)\n```\n```text\nhello\n```\n"
        "```console\n$ kill %1 && echo \\\n   ended\nended\n```\n",
    )


def test_a_skipped_block_is_not_run(tmp_path: Path) -> None:
    """A skip with a reason leaves the block out, and only that one."""
    run_page(tmp_path, "<!-- skip: never ends -->\n```console\n$ touch one\n```\n```console\n$ touch two\n```")
    assert not (tmp_path / "one").exists()
    assert (tmp_path / "two").exists()


def test_rows_look_as_in_psql() -> None:
    """Numbers to the right, texts to the left, true as t, null as nothing, the count below."""
    assert show_rows(["id", "name"], [(1, "ada"), (10, None)]) == " id | name\n----+------\n  1 | ada \n 10 |     \n(2 rows)"
    assert show_rows(["is_there"], [(True,), (False,)]) == " is_there\n----------\n t       \n f       \n(2 rows)"


def test_dots_stand_for_anything() -> None:
    """`...` in an expected output or an excerpt leaves something out; the rest must be there in order."""
    assert matches("a ...\nd", "a b\nc\nd\n\n")
    assert not matches("a ... e", "a b c d")
    assert is_excerpt("one\n...\nthree", "  one\ntwo\n  three\n")
    assert is_excerpt("f(..., b)", "x = 1\n    f(a, b)\n")
    assert not is_excerpt("three\none", "one\ntwo\nthree")
