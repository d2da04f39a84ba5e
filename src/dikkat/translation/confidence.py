"""The confidence of a translated line: a calibrated probability that it is right."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from dikkat.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dikkat.translation.decoding.translation import Translation

RIGHT = 80.0
"""The least chrF, from 0 to 100, of a right translation."""

_PENALTY = 1.0  # half of it times the squared weights of standardised features is added to the loss
_ITERATIONS = 50
_BINS = 10


def features(translation: "Translation") -> dict[str, float]:
    """Return the features of a translation that predict whether it is right.

    Example:
        >>> features(translator.translate("Go."))["unknown words"]
        0.0
    """
    faults = (translation.repeated, not translation.finished, bool(translation.lost), bool(translation.invented))
    return {
        "mean log-probability": translation.score / (len(translation.target_tokens) + 1),
        "log of log-probability": math.log1p(-min(0.0, translation.score)),
        "unknown words": math.log1p(len(translation.unknown)),
        "faults": float(any(faults)),
    }


FEATURES = ("mean log-probability", "log of log-probability", "unknown words", "faults")


@dataclass(frozen=True)
class ConfidenceModel:
    r"""A logistic regression: the probability of a right translation, from its features.

    $$ p = \frac{1}{1 + \exp(-b - \sum_i w_i f_i)} $$

    with the `features` f. A translation is right if its chrF is at least 80.

    Attributes:
        weights: The weight of each feature, by name.
        constant: The constant b.
        pairs: The number of validation pairs that the weights were fitted to.
        right: The number of their translations that are right.

    Example:
        >>> pairs = [("Go.", "Va !"), ("I lost.", "J'ai perdu.")]
        >>> translations = translator.translate([source for source, _ in pairs])
        >>> model = ConfidenceModel.fit(translations, [target for _, target in pairs])
        >>> model.pairs, 0 < model.of(translations[0]) < 1
        (2, True)
    """

    weights: Mapping[str, float]
    constant: float
    pairs: int
    right: int

    @classmethod
    def fit(cls, translations: Sequence["Translation"], references: Sequence[str]) -> "ConfidenceModel":
        """Fit the weights to translations with references, with a penalty on the weights of standardised features.

        The targets are Platt's: (r + 1)/(r + 2) for each of r right translations, 1/(w + 2) for each of w wrong
        ones. So probabilities stay inside of 0 and 1, even if all translations are right.
        Platt, "Probabilistic outputs for support vector machines" (1999), section 2.2. The penalty is dikkat's.

        Raises:
            InputError: There are no translations, or as many references are missing.
        """
        if not translations or len(translations) != len(references):
            raise InputError(
                f"translations: got {len(translations)} with {len(references)} references; expected as many, at least "
                "one"
            )
        is_right = find_right([translation.target for translation in translations], references)
        rows = np.array([list(features(translation).values()) for translation in translations])
        right, wrong = int(is_right.sum()), int((~is_right).sum())
        targets = np.where(is_right, (right + 1) / (right + 2), 1 / (wrong + 2))
        mean, scale = rows.mean(0), rows.std(0)
        used = scale > 1e-9 * np.abs(mean).clip(1e-300)
        scale = np.where(used, scale, 1.0)
        standardised = np.where(used, (rows - mean) / scale, 0.0)
        design = np.column_stack([np.ones(len(rows)), standardised])
        weights = _fit_logistic(design, targets, np.array([0.0] + [_PENALTY] * rows.shape[1]))
        slopes = np.where(used, weights[1:] / scale, 0.0)
        constant = float(weights[0] - slopes @ mean)
        return cls(dict(zip(FEATURES, slopes.tolist(), strict=True)), constant, len(rows), right)

    def of(self, translation: "Translation") -> float:
        """Return the probability of a right translation; 1 for a copied line without letters."""
        if not translation.source_tokens:
            return 1.0
        values = features(translation)
        logit = self.constant + sum(self.weights[name] * values[name] for name in FEATURES)
        return 1 / (1 + math.exp(min(-logit, 700.0)))

    @classmethod
    def mean(cls, models: Sequence["ConfidenceModel | None"]) -> "ConfidenceModel | None":
        """Return the model with the mean weights of several models; None if one of them is None."""
        known = [model for model in models if model is not None]
        if not known or len(known) < len(models):
            return None
        weights = {name: fmean(model.weights[name] for model in known) for name in FEATURES}
        fewest = min(known, key=lambda model: model.pairs)
        return cls(weights, fmean(model.constant for model in known), fewest.pairs, fewest.right)

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name, of types that JSON has."""
        return {**vars(self), "weights": dict(self.weights)}

    @classmethod
    def from_dict(cls, values: Any) -> "ConfidenceModel":
        """Return the model with the values of `to_dict`.

        Raises:
            ValueError: A value that `to_dict` cannot have written; the message names it.
        """
        match values:
            case {"weights": dict(weights), "constant": constant, "pairs": int(pairs), "right": int(right)}:
                numbers = [*weights.values(), constant]
                are_finite = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
                if len(values) == 4 and set(weights) == set(FEATURES) and are_finite and 0 <= right <= pairs:
                    return cls({name: float(weights[name]) for name in FEATURES}, float(constant), pairs, right)
        raise ValueError(f"confidence: expected weights of {', '.join(FEATURES)}; a constant; pairs; right")


def find_right(targets: Sequence[str], references: Sequence[str]) -> "NDArray[np.bool_]":
    """Return for each translation whether it is right: its chrF is at least `RIGHT`."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    pairs = zip(targets, references, strict=True)
    return np.array([metric.sentence_score(target, [reference]).score >= RIGHT for target, reference in pairs], bool)


def _fit_logistic(design: "NDArray[Any]", targets: "NDArray[Any]", penalty: "NDArray[Any]") -> "NDArray[Any]":
    """Minimise the penalised cross-entropy by Newton's method, with halved steps while the loss would rise."""

    def loss(weights: "NDArray[Any]") -> float:
        logits = design @ weights
        return float((np.logaddexp(0, logits) - targets * logits).sum() + (penalty * weights**2).sum() / 2)

    weights = np.zeros(design.shape[1])
    for _ in range(_ITERATIONS):
        probabilities = 1 / (1 + np.exp(-(design @ weights).clip(-700, 700)))
        gradient = design.T @ (probabilities - targets) + penalty * weights
        curvature = (design.T * (probabilities * (1 - probabilities))) @ design + np.diag(penalty)
        step = np.linalg.lstsq(curvature, gradient, rcond=None)[0]
        size = 1.0
        while size > 1e-9 and loss(weights - size * step) > loss(weights):
            size /= 2
        weights = weights - size * step
        if np.abs(size * step).max() < 1e-9:
            break
    return weights


# --- calibration


@dataclass(frozen=True)
class ConfidenceBin:
    """Translations with similar confidences.

    Attributes:
        lower: The lower end of the bin.
        upper: The upper end.
        sentences: The number of translations.
        confidence: Their mean confidence.
        right: The share of them that is right.
    """

    lower: float
    upper: float
    sentences: int
    confidence: float
    right: float


@dataclass(frozen=True)
class Calibration:
    """How well confidences predict which translations are right.

    Attributes:
        sentences: The number of translations.
        right: The share of them that is right.
        error: The expected calibration error: the mean difference between confidence and share of right translations
            in ten bins of equal width, weighted by their numbers of translations. 0 is best.
        auc: The probability that a right translation has a larger confidence than a wrong one: 1 is best, 0.5 is
            chance. None if all are right, or none.
        bins: The bins that have translations, lowest first.
    """

    sentences: int
    right: float
    error: float
    auc: float | None
    bins: list[ConfidenceBin]


def calibration(confidences: Iterable[float], is_right: Iterable[bool]) -> Calibration:
    """Compare confidences with the share of right translations.

    Guo et al., "On calibration of modern neural networks" (2017), section 2. Fawcett, "An introduction to ROC
    analysis" (2006), section 7.

    Args:
        confidences: The confidence of each translation, from 0 to 1.
        is_right: Whether it is right.

    Raises:
        InputError: There are no translations, or not as many of both.

    Example:
        >>> result = calibration([0.1, 0.2, 0.9], [False, False, True])
        >>> round(result.error, 3), result.auc, [group.sentences for group in result.bins]
        (0.133, 1.0, [1, 1, 1])
    """
    p, right = np.array(list(confidences), float), np.array(list(is_right), bool)
    if not len(p) or len(p) != len(right):
        raise InputError(f"confidences: got {len(p)} of them for {len(right)} translations; expected as many")
    numbers = np.minimum((p * _BINS).astype(int), _BINS - 1)
    bins = [
        ConfidenceBin(
            number / _BINS,
            (number + 1) / _BINS,
            int(inside.sum()),
            float(p[inside].mean()),
            float(right[inside].mean()),
        )
        for number in range(_BINS)
        if (inside := numbers == number).any()
    ]
    error = sum(group.sentences * abs(group.confidence - group.right) for group in bins) / len(p)
    positive, negative = np.sort(p[right]), np.sort(p[~right])
    auc = None
    if len(positive) and len(negative):
        below = (negative.searchsorted(positive, "left") + negative.searchsorted(positive, "right")) / 2
        auc = float(below.mean() / len(negative))
    return Calibration(len(p), float(right.mean()), error, auc, bins)
