"""Bodies of answers, in any pieces: what was asked for comes out, or the answer is refused; no more is kept."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.errors import OversizedFileError
from icechunk_arrow.storage import answers
from icechunk_arrow.storage.answers import BadAnswerError, Intake, Question, RefusedAnswerError

FILE = bytes(range(100))
cuts = st.lists(st.integers(0, 100), max_size=6)


def taken(intake: Intake, body: bytes, cuts: list[int]) -> tuple[bytes, int | None]:
    """Give an intake a body in pieces, until it has enough."""
    places = sorted({0, len(body), *(min(cut, len(body)) for cut in cuts)})
    for start, stop in pairwise(places):
        if intake.take(body[start:stop]):
            break
    return intake.end()


@given(start=st.integers(0, 120), length=st.integers(1, 120), cuts=cuts, told=st.booleans())
def test_a_range_is_cut_out_of_a_whole_file(
    start: int, length: int, cuts: list[int], told: bool
) -> None:
    """Where a server ignores ranges, however its body comes, and whether it says how long that is."""
    intake = Intake(
        Question(key="k", start=start, length=length), None, len(FILE) if told else None
    )
    data, size = taken(intake, FILE, cuts)

    assert data == FILE[start : start + length]
    assert size in ({len(FILE)} if told or start + length > len(FILE) else {len(FILE), None})


@given(length=st.integers(1, 120), cuts=cuts, told=st.booleans())
def test_last_bytes_are_cut_out_of_a_whole_file(length: int, cuts: list[int], told: bool) -> None:
    """The same of a file's end; no more is held than that and a piece."""
    intake = Intake(Question(key="k", start=None, length=length), None, 100 if told else None)

    assert taken(intake, FILE, cuts) == (FILE[-length:], 100)


@given(start=st.integers(0, 99), length=st.integers(1, 120), cuts=cuts)
def test_a_part_is_held_against_what_was_asked_for(
    start: int, length: int, cuts: list[int]
) -> None:
    """A part that is told rightly is given; one byte more or less than it tells is refused."""
    question = Question(key="k", start=start, length=length)
    part = FILE[start : start + length]
    place = f"bytes {start}-{start + len(part) - 1}/100"

    assert taken(Intake(question, place, len(part)), part, cuts) == (part, 100)
    for body in (part[:-1], part + b"x"):
        with pytest.raises(BadAnswerError, match="announced"):
            taken(Intake(question, place, None), body, cuts)
    for wrong in (f"bytes {start + 1}-{start + len(part)}/200", "bytes */100", ""):
        with pytest.raises(BadAnswerError):
            Intake(question, wrong, None)


@given(cuts=cuts, told=st.booleans(), limit=st.integers(0, 120))
def test_everything_is_taken_up_to_the_limit(cuts: list[int], told: bool, limit: int) -> None:
    """One that announces more is refused before a byte, one that sends more with the first of these."""
    question = Question(key="k", limit_bytes=limit)
    if limit >= len(FILE):
        assert taken(Intake(question, None, 100 if told else None), FILE, cuts) == (FILE, 100)
        return
    with pytest.raises(OversizedFileError, match=f"k has at least .*{limit} are allowed"):
        taken(Intake(question, None, 100 if told else None), FILE, cuts)
    if told:
        with pytest.raises(OversizedFileError):
            Intake(question, None, 100)


def test_a_part_is_no_whole_file() -> None:
    """Who asks for everything and is sent a part is not given that, unless it is everything."""
    assert taken(Intake(Question(key="k"), "bytes 0-99/100", 100), FILE, []) == (FILE, 100)
    for place in ("bytes 0-98/100", "bytes 1-99/100", "bytes 0-99/*", "nonsense"):
        with pytest.raises(BadAnswerError):
            Intake(Question(key="k"), place, 99)


@pytest.mark.parametrize("question", [Question(key="k"), Question(key="k", start=None, length=9)])
def test_a_body_that_ended_early_is_noticed(question: Question) -> None:
    """However it is asked for, fewer bytes than were announced are not a file."""
    with pytest.raises(BadAnswerError, match="99 bytes came, where 100 were announced"):
        taken(Intake(question, None, 100), FILE[:-1], [])


def test_much_is_not_taken_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies before the wanted bytes is passed over up to a limit, told or found out."""
    monkeypatch.setattr(answers, "_MOST_SKIPPED", 50)
    for question in (
        Question(key="k", start=51, length=1),
        Question(key="k", start=None, length=49),
    ):
        with pytest.raises(RefusedAnswerError, match="ignores ranges"):
            taken(Intake(question, None, 100), FILE, [])
    for question in (
        Question(key="k", start=50, length=1),
        Question(key="k", start=None, length=50),
    ):
        assert taken(Intake(question, None, 100), FILE, [])[1] == 100
    with pytest.raises(RefusedAnswerError):
        taken(Intake(Question(key="k", start=None, length=49), None, None), FILE, [])
