"""Which boxes of a grid may have a cell in common.

Pure columns: boxes × dimensions in, a label per box out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["overlapping"]


def overlapping(
    starts: npt.NDArray[np.uint64], stops: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Label boxes so that two with different labels have no cell in common.

    Boxes are told apart along one dimension after the other, for as long as that divides a group. Boxes of one
    label need not all meet: what is cut along its grid falls apart, and what is not stays together.

    Parameters
    ----------
    starts, stops
        The first cell of each box along each dimension, and the one after the last.
    """
    count, ndim = starts.shape
    labels = np.zeros(count, np.int64)
    idle = 0
    dimension = 0
    while idle < ndim and count:
        before = int(labels.max())
        labels = _divided(labels, starts[:, dimension], stops[:, dimension])
        idle = idle + 1 if int(labels.max()) == before else 0
        dimension = (dimension + 1) % ndim
    return labels


def _divided(
    labels: npt.NDArray[np.int64], starts: npt.NDArray[Any], stops: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """Divide groups where no interval of theirs crosses a place between two of them."""
    order = np.lexsort([starts, labels])
    group, first, last = labels[order], starts[order], stops[order]
    new_group = np.r_[True, group[1:] != group[:-1]]
    # the reach so far, within a group: ranks make groups follow one another in one running maximum
    ranks = np.unique(np.r_[first, last], return_inverse=True)[1]
    base = group * (len(ranks) + 1)
    reach = np.maximum.accumulate(base + ranks[len(first) :])
    begins = base + ranks[: len(first)]
    gap = np.r_[True, begins[1:] >= reach[:-1]]
    found = np.empty(len(labels), np.int64)
    found[order] = np.cumsum(new_group | gap) - 1
    return found
