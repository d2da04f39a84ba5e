"""What a bandwidth is chosen by, over places in partitions: the same sums, made of pairs of pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat.regression.criterion import Criterion, Fits, Kind, Measure, Spread, Trial
from dikkat.regression.joined import Array, Joined, Whole
from dikkat.regression.local import local_fit
from dikkat.regression.moments import Profile, sensitivity, state, unpacked
from dikkat.regression.partitions.graphs import Later, added, here, kept, later, merged, tree
from dikkat.regression.partitions.places import Box, Frame, Partitioned
from dikkat.state import State

# The share of a place's weight that all far pieces together may be, where they are not looked at: it is squared
# differences that it stands for in a gradient.
_SHARE = float(np.finfo(np.float64).eps) * 1e-3


@dataclass(frozen=True)
class PartitionedTrial(Trial):
    """The criterion at one t, with what the gradient there needs.

    Attributes:
        fits: `Fits` of each piece, where the pieces are.
        taken: (3,), the sums over all places.
    """

    fits: list[Later]
    taken: Array


class PartitionedCriterion(Measure[PartitionedTrial]):
    """The criterion over places in partitions.

    Args:
        joined: The places.
        profile: As for `Measure`, and what follows.
        degree: Likewise.
        device: Likewise.
        ridge: Likewise.
        kind: Likewise.
    """

    def __init__(
        self,
        joined: Partitioned,
        profile: Profile,
        degree: int,
        device: torch.device,
        ridge: float | None = 0.0,
        kind: Kind = "loo",
    ) -> None:
        super().__init__(joined.known, profile, degree, device, ridge, kind)
        self.joined = joined
        share = math.log(_SHARE / len(joined.pieces))
        self._task = _Task(joined.frame, joined.known, profile, degree, device, ridge, kind, share)

    def __call__(self, t: Array) -> PartitionedTrial:
        """The error at one t: each piece sees itself, and then what of the others may count beside that."""
        pieces, task = self.joined.pieces, self._task
        fits = []
        for i, piece in enumerate(pieces):
            own = later(task.own, t, piece)
            others = [
                later(partial(task.other, t, box), piece, own, other)
                for j, (other, box) in enumerate(zip(pieces, self.joined.boxes, strict=True))
                if j != i
            ]
            fits.append(later(task.fits, t, piece, tree(merged, [own, *others])))
        fits = kept(fits)
        sums = np.sum(here([later(task.sums, *each) for each in zip(pieces, fits, strict=True)]), 0)
        return PartitionedTrial(t, self.error(sums), fits, sums)

    def gradient(self, trial: PartitionedTrial) -> tuple[Array, Array]:
        """Of the error with respect to t, and Gauss and Newton's guess at its second derivatives, a matrix."""
        if self.kind != "loo":
            return self._differences(trial)
        pieces, boxes, task, found = self.joined.pieces, self.joined.boxes, self._task, []
        for i, (piece, fits) in enumerate(zip(pieces, trial.fits, strict=True)):
            changes = [
                later(partial(task.change, trial.t, box, i == j), piece, fits, other)
                for j, (other, box) in enumerate(zip(pieces, boxes, strict=True))
            ]
            found.append(later(task.slopes, piece, fits, tree(added, changes)))
        slopes, curves = zip(*here(found), strict=True)
        return np.sum(slopes, 0), np.sum(curves, 0)

    def sums(self, trial: PartitionedTrial) -> Array:
        """(3,): of the places the mean squared errors, those of the residuals, and ν; they add."""
        return trial.taken

    def excess(self, trial: PartitionedTrial, best: PartitionedTrial) -> Spread:
        """By how much each place's part of the mean squared error, in units of the mean, is more than in another."""
        each = zip(self.joined.pieces, trial.fits, best.fits, strict=True)
        return tree_of(here([later(self._task.excess, *three) for three in each]))


def tree_of(spreads: list[Spread]) -> Spread:
    """Those of all numbers together."""
    whole = spreads[0]
    for spread in spreads[1:]:
        whole = whole.merged(spread)
    return whole


class _Task(NamedTuple):
    """What is done where the pieces are, and all that has to be known for it."""

    frame: Frame
    known: Whole
    profile: Profile
    degree: int
    device: torch.device
    ridge: float | None
    kind: Kind
    share: float

    def _criterion(self, piece: Joined) -> Criterion:
        _, known, profile, degree, device, ridge, kind, _ = self
        return Criterion(self.frame.of(piece), profile, degree, device, ridge, kind, known)

    def own(self, t: Array, piece: Joined) -> State:
        criterion = self._criterion(piece)
        key = criterion.points.key
        places = torch.arange(len(key), device=self.device)
        return state(key, criterion.points, criterion.window(t), degree=self.degree, exclude=places)

    def other(self, t: Array, box: Box, piece: Joined, own: State, other: Joined) -> State:
        measure = self._criterion(piece)
        query, window = measure.points.key, measure.window(t)
        seen = box.seen(query, window, own.lse + self.share)
        mean, lse = torch.zeros_like(own.mean), torch.full_like(own.lse, -math.inf)
        if seen.any():
            mean[seen], lse[seen], _ = state(query[seen], self._criterion(other).points, window, degree=self.degree)
        return State(mean, lse)

    def fits(self, t: Array, piece: Joined, found: State) -> Fits:
        criterion = self._criterion(piece)
        ridge = criterion.ridge_at(t, criterion.window(t))
        fit = local_fit(unpacked(found, piece.x.shape[1], self.degree), ridge)
        return criterion.fits(t, found.lse, fit.row, fit.theta)

    def sums(self, piece: Joined, fits: Fits) -> Array:
        return self._criterion(piece).sums(fits)

    def excess(self, piece: Joined, fits: Fits, best: Fits) -> Spread:
        return self._criterion(piece).excess(fits, best)

    def change(self, t: Array, box: Box, own: bool, piece: Joined, fits: Fits, other: Joined) -> Tensor:
        criterion = self._criterion(piece)
        query, window = criterion.points.key, criterion.window(t)
        seen = torch.ones(len(query), dtype=torch.bool) if own else box.seen(query, window, fits.lse + self.share)
        found = query.new_zeros(len(query), query.shape[1], criterion.points.value.shape[1])
        if seen.any():
            exclude = torch.arange(len(query), device=self.device) if own else None
            points = criterion.points if own else self._criterion(other).points
            by_query = fits.lse[seen], fits.row[seen], fits.theta[seen]
            found[seen] = sensitivity(query[seen], points, window, *by_query, exclude=exclude)
        return found

    def slopes(self, piece: Joined, fits: Fits, change: Tensor) -> tuple[Array, Array]:
        return self._criterion(piece).slopes(fits, change)
