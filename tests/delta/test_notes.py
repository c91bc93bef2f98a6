"""What a table shows follows from its commits alone, whatever part of them is still there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icechunk_arrow.delta.notes import (
    Commit,
    Note,
    Shown,
    decode,
    encode,
    numbers_used,
    shown_after,
)

NAMES = ("a", "b", "c")


def note(repository: str, seen: int, snapshot: str, **others: Shown) -> Note:
    return Note(
        repository=repository,
        snapshot=snapshot,
        place="file:///" + repository,
        number=seen + 1,
        write_id="w",
        seen=seen,
        others=others,
    )


@given(st.text(), st.text(), st.dictionaries(st.text(), st.integers(0, 2**62)))
def test_a_note_survives_being_written(name: str, snapshot: str, others: dict[str, int]) -> None:
    """What is encoded is decoded, whatever repositories are called."""
    known = {
        each: Shown(snapshot=snapshot, place="p", number=number, version=number)
        for each, number in others.items()
    }
    made = Note(
        repository=name,
        snapshot=snapshot,
        place="p",
        number=3,
        write_id="w",
        seen=2,
        others=known,
    )

    assert decode(encode(made)) == made


@given(st.one_of(st.none(), st.text(), st.sampled_from(["{}", "[]", '{"icechunk_arrow": {}}'])))
def test_metadata_of_others_is_no_note(text: str | None) -> None:
    """Whatever else stands in user metadata is nobody's note."""
    assert decode(text) is None


@given(st.data())
def test_what_is_said_to_be_shown_is_shown(data: st.DataObject) -> None:
    """No history, nor any newest part of one, makes a table say what is not so.

    The model knows the truth: whose publishing each repository's rows are from, or that somebody else wrote.
    Publishers work from any earlier version since when nobody wrote the same repository; others write at any time.
    """
    commits = [Commit(version=0, operation="CREATE TABLE", note=None)]
    truths: list[dict[str, str | None]] = [dict.fromkeys(NAMES)]
    for version in range(1, data.draw(st.integers(1, 14))):
        truth = dict(truths[-1])
        what = data.draw(st.sampled_from(["publish", "publish", "publish", "delete", "optimize"]))
        if what == "publish":
            name = data.draw(st.sampled_from(NAMES))
            # Delta lets a publishing pass only if the repository was not published in between
            own = [
                each.version
                for each in commits
                if each.note is not None and each.note.repository == name
            ]
            seen = data.draw(st.integers(max([0, *own]), version - 1))
            before = shown_after(commits[: seen + 1])
            others = {each: shown for each, shown in before.items() if each != name}
            made = note(name, seen, f"s{version}", **others)
            disturbed = any(each.may_change_rows for each in commits[seen + 1 :])
            truth[name] = None if disturbed else f"s{version}"
            commits.append(Commit(version=version, operation="WRITE", note=made))
        else:
            if what == "delete":
                truth = dict.fromkeys(NAMES)
            commits.append(Commit(version=version, operation=what.upper(), note=None))
        truths.append(truth)
    first = data.draw(st.integers(0, len(commits) - 1))

    found = {name: each.snapshot for name, each in shown_after(commits[first:]).items()}

    assert all(truths[-1][name] == snapshot for name, snapshot in found.items())
    if first == 0:
        assert found == {name: each for name, each in truths[-1].items() if each is not None}


def test_what_others_publish_is_carried() -> None:
    """A repository whose own commit Delta has forgotten is known by the notes of the others."""
    old = Shown(snapshot="s1", place="file:///a", number=5, version=1)
    commits = [
        Commit(version=8, operation="WRITE", note=note("b", 7, "s8", a=old)),
        Commit(version=9, operation="OPTIMIZE", note=None),
    ]

    assert shown_after(commits)["a"] == old
    assert numbers_used(commits, "a") == 5
    assert shown_after(commits[1:]) == {}
