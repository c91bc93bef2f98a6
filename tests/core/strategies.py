"""Random JSON values and Zarr documents, from the most ordinary to the barely valid."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

# Through json once, so that two halves of a pair beside each other are one character, as in files.
_texts = st.text(st.characters(codec=None), max_size=6).map(
    lambda text: str(json.loads(json.dumps(text)))
)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=12,
)

finite_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)

_names = _texts.filter(bool)


@st.composite
def _named(draw: st.DrawFn, *, bare: bool = True) -> Any:
    """A bare name, or an object with a name and perhaps more."""
    name = draw(_names)
    if bare and draw(st.booleans()):
        return name
    named: dict[str, Any] = {"name": name}
    if draw(st.booleans()):
        named["configuration"] = draw(st.dictionaries(_texts, finite_values, max_size=3))
    if draw(st.booleans()):
        named["must_understand"] = draw(st.booleans())
    return named


@st.composite
def grids(draw: st.DrawFn, shape: list[int]) -> Any:
    """A chunk grid that covers a shape."""
    edges = st.integers(1, 9) | st.integers(1, 2**63 - 1)
    if draw(st.booleans()):
        specs: list[Any] = [draw(edges) for _ in shape]
        # Small chunks cannot cover every large extent: their number would not fit.
        specs = [
            edge if extent // edge < 2**61 else 2**60
            for extent, edge in zip(shape, specs, strict=True)
        ]
        return {"name": "regular", "configuration": {"chunk_shape": specs}}
    specs = []
    for extent in shape:
        runs: list[Any] = draw(
            st.lists(st.integers(1, 9) | st.lists(st.integers(1, 9), min_size=2, max_size=2))
        )
        total = sum(run if isinstance(run, int) else run[0] * run[1] for run in runs)
        if total < extent or not runs:
            runs = [*runs, max(extent - total, 1)]
        specs.append(runs)
    return {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": specs}}


@st.composite
def array_documents(draw: st.DrawFn) -> dict[str, Any]:
    """A valid array document."""
    shape = draw(st.lists(st.integers(0, 20) | st.integers(0, 2**63 - 1), max_size=4))
    encoding: Any = {"name": draw(st.sampled_from(["default", "v2"]))}
    match draw(st.sampled_from(["bare", "absent", "empty", "full"])):
        case "bare":
            encoding = encoding["name"]
        case "empty":
            encoding["configuration"] = {}
        case "full":
            encoding["configuration"] = {"separator": draw(st.sampled_from("/."))}
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": draw(_named()),
        "chunk_grid": draw(grids(shape)),
        "chunk_key_encoding": encoding,
        "fill_value": draw(finite_values),
        "codecs": draw(st.lists(_named(), min_size=1, max_size=3)),
    }
    if draw(st.booleans()):
        document["storage_transformers"] = draw(st.lists(_named(), max_size=2))
    if draw(st.booleans()):
        names = st.lists(st.none() | _texts, min_size=len(shape), max_size=len(shape))
        document["dimension_names"] = draw(st.none() | names)
    return draw(_extended(document))


@st.composite
def _extended(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """The document with attributes and members that nobody knows, in any order."""
    if draw(st.booleans()):
        document["attributes"] = draw(st.dictionaries(_texts, json_values, max_size=4))
    if draw(st.booleans()):
        document["consolidated_metadata"] = None
    extra = draw(st.dictionaries(_names.map("x-{}".format), finite_values, max_size=2))
    members = draw(st.permutations(list((document | extra).items())))
    return dict(members)


def group_documents() -> st.SearchStrategy[dict[str, Any]]:
    """A valid group document."""
    return st.builds(lambda: {"zarr_format": 3, "node_type": "group"}).flatmap(_extended)


documents = array_documents() | group_documents()
