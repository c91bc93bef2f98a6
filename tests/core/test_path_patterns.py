"""Path patterns match whole paths, refuse what is no pattern, and never take long."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icechunk_arrow.core.paths import LONGEST_PATTERN, PathPattern
from icechunk_arrow.errors import InvalidInputError

names = st.text("ab/.\n", max_size=5)
plain_parts = st.text("ab/ -", max_size=3)


@st.composite
def endings(draw: st.DrawFn) -> str:
    """Patterns of the usual form: perhaps ``.*``, letters, perhaps alternatives."""
    start = draw(st.sampled_from(["", ".*"]))
    choices = draw(st.lists(plain_parts, min_size=1, max_size=3))
    tail = f"({'|'.join(choices)})" if draw(st.booleans()) else ""
    return start + draw(plain_parts) + tail


@given(endings().filter(bool), st.lists(names, max_size=6))
@example(".*/(a|b)", ["/a", "/b", "/c/a", "a", "/ab", "/\n/a", "\n/a", "/a\n"])
@example(".*/a", ["/a", "/xa", "/a/", "//a"])
@example("/a", ["/a", "/aa", "a/a"])
@example("/a()", ["/a"])
def test_the_usual_form_means_what_it_means_as_an_expression(text: str, paths: list[str]) -> None:
    """The way without an engine gives what Python's engine gives, which is harmless here."""
    expected = [re.fullmatch(text, path) is not None for path in paths]

    assert PathPattern(text).matches_all(paths) == expected
    assert [PathPattern(text).matches(path) for path in paths] == expected


@pytest.mark.parametrize(
    "text", [r"/well[0-9]+/a", r"/a|/b", r"(?i)/A", r"/a.b", r"/\w+$", r"/é{2}"]
)
def test_other_expressions_match_whole_paths(text: str) -> None:
    """Anchors are not needed: an alternative, a flag or a repetition holds for the whole path."""
    paths = [
        "/well1/a",
        "/well12/a",
        "/well/a",
        "/a",
        "/b",
        "/aa",
        "/a/b",
        "/a\nb",
        "/éé",
        "x/a",
        "",
        "/a\n",
    ]

    expected = [re.fullmatch(text, path, re.ASCII) is not None for path in paths]

    assert PathPattern(text).matches_all(paths) == expected


@pytest.mark.parametrize("paths", [[], ["/a"]])
def test_columns_of_any_length(paths: list[str]) -> None:
    """No paths, no answers."""
    assert PathPattern("/[a]").matches_all(paths) == [True] * len(paths)


@pytest.mark.parametrize(
    "text",
    ["(", "a)|(b", "*", "(?=a)", r"(a)\1", "a{100000}", "[", "\\", r"a\Q", "\ud800[", "(" * 900],
)
def test_what_is_no_expression_is_refused_in_few_words(text: str) -> None:
    """Also what only the engine of Python knows, and what would be one only in brackets."""
    with pytest.raises(InvalidInputError, match="RE2") as caught:
        PathPattern(text)

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ["", "a" * (LONGEST_PATTERN + 1), 5, None, ["a"]])
def test_expressions_have_a_bounded_length(text: object) -> None:
    """Neither nothing nor a book, nor something that is no text."""
    with pytest.raises(InvalidInputError, match="1000 characters"):
        PathPattern(text)  # type: ignore[arg-type]


def test_no_expression_takes_long() -> None:
    """Where a backtracking engine needs more than the age of the universe, this takes no time."""
    path = "/" + "a" * 50_000

    assert not PathPattern(r"/((a+)+b|(a|a)*c|(.*)*d)").matches(path)
    assert not PathPattern("(a|a)" * 150 + "b").matches(path)
    assert PathPattern(r"/(a+)+").matches(path)


def test_patterns_are_values() -> None:
    """Equal, hashable, and the same after a journey to another process."""
    for text in (".*/time", "/[ab]+"):
        pattern = PathPattern(text)
        again = pickle.loads(pickle.dumps(pattern))

        assert again == pattern
        assert {again} == {pattern}
        assert again.matches_all(["/a", "/time"]) == pattern.matches_all(["/a", "/time"])


def test_default_patterns_need_no_engine() -> None:
    """Arrow's engine takes longer to import than a repository to open: the usual forms do without."""
    code = (
        "import sys; from icechunk_arrow.core.manifest_settings import ManifestSettings; "
        "assert ManifestSettings().preload.selects(['/x', '/a/time']) == [False, True]; "
        "assert 'pyarrow.compute' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
