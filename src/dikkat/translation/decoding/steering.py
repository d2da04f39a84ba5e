"""A translation step by step, each word the likeliest; a reader may put words and attention weights of their own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dikkat._engine import cancellation
from dikkat.attention import Memory
from dikkat.errors import InputError
from dikkat.translation.decoding.beams import allowed, best, unknown_scores
from dikkat.translation.decoding.options import GREEDY, limits
from dikkat.translation.decoding.translator import Translator, check_sentence
from dikkat.translation.text.special_tokens import BEGIN, END, UNKNOWN

_ROUNDING = 1e-6
"""By how much pinned weights may add up to more than 1."""
_NOTHING = 1e-12
"""The sum of weights below which their proportions are lost."""


@dataclass(frozen=True)
class Steering:
    """A reader's changes to a translation. Steps and positions are counted from 0.

    Attributes:
        words: Of steps, the token number that is to be written there.
        pins: Of steps, the attention weights of some source positions, from 0 to 1. The others keep their proportions
            and share what is left of 1, alike where they have none; where all are pinned, they are scaled to add up
            to 1. The page that `dikkat export` writes does the same.
    """

    words: Mapping[int, int] = field(default_factory=dict)
    pins: Mapping[int, Mapping[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A step of a translation: the token that was written, and the alternatives.

    Attributes:
        token: Its number; the end's for the last step, unless the sentence was cut.
        log_probability: Natural logarithm, given the tokens before.
        weights: (S,) float32, where the model looked, as pinned; they add up to 1.
        likeliest: Token numbers and log-probabilities of what might have come, the likeliest first.
    """

    token: int
    log_probability: float
    weights: Tensor
    likeliest: list[tuple[int, float]]


def steps(
    translator: Translator, sentence: str, steering: Steering = Steering(), *, likeliest: int = 5
) -> Iterator[Step]:
    r"""Translate a sentence greedily, a step at a time; the steps of `Search(beam=1)`, where nothing is steered.

    With the model's weights $w$ of a step and pins $p_j$ at positions $P$, the context is that of the weights

    $$ w'_j = p_j \ (j \in P), \qquad w'_j = w_j \frac{1 - \sum_{P} p}{\sum_{i \notin P} w_i} \ (j \notin P). $$

    Args:
        translator: The model and its tokenizers.
        sentence: Of at least one token.
        steering: The changes.
        likeliest: How many tokens to tell of at each step.

    Yields:
        The steps, up to that which ends the sentence.

    Raises:
        InputError: A sentence that cannot be translated; a step or position below 0; a position behind the sentence's
            end; a token that the model does not have, or that never comes out; a weight outside 0 to 1, or weights that
            add up to more; pins of a model without attention.
        StoppedError: The steps were stopped.

    Example:
        >>> from dikkat.translation import Settings, Tokenizer, TranslationModel
        >>> english = Tokenizer.train(["Go ."], "word", min_freq=1, vocabulary_size=9)
        >>> french = Tokenizer.train(["Va !"], "word", min_freq=1, vocabulary_size=9)
        >>> settings = Settings(embedding_size=4, hidden_size=4)
        >>> translator = Translator(TranslationModel(settings, len(english), len(french)), settings, english, french)
        >>> first, *_ = steps(translator, "Go.", Steering(words={0: 4}, pins={0: {1: 0.75}}))
        >>> first.token, first.weights.tolist()
        (4, [0.25, 0.75])
    """
    masked, _ = translator.slots.mask(check_sentence(sentence, "sentence"))
    source = translator.source_tokenizer.encode(masked.text).ids
    if not source:
        raise InputError("sentence: got one without tokens; expected at least one, or there is nothing to look at")
    _check(translator, steering, len(source))
    return _walk(translator, source, steering, likeliest)


@torch.no_grad()
def _walk(translator: Translator, source: list[int], steering: Steering, likeliest: int) -> Iterator[Step]:
    model = translator.model.eval()
    device = model.output_bias.device
    memory, state = model.encode(torch.tensor([source], device=device), torch.tensor([len(source)], device=device))
    copies = torch.tensor([model.attends and UNKNOWN in source])
    fewest, previous = limits(GREEDY, len(source))[0], BEGIN
    for index in range(_most(steering, len(source))):
        cancellation.check()
        features, weights, after = model.step_features(torch.tensor([previous], device=device), memory, state)
        if pins := steering.pins.get(index):
            weights = _pinned(weights, pins)
            # Of one position any score gives a weight of 1, so that its value is the context.
            context = weights.unsqueeze(1).to(memory.value.dtype) @ memory.value
            one = Memory(memory.score, memory.key[:, :1], context, None)
            features, _, after = model.step_features(torch.tensor([previous], device=device), one, state)
        state = after
        scores = model.scores(features)
        log_probabilities = scores.log_softmax(1)
        possible = allowed(log_probabilities, copies, torch.tensor([index >= fewest]))
        gains, tokens = best(possible, min(max(1, likeliest), possible.shape[1]))
        if not bool(gains[0, 0].isfinite()):
            raise unknown_scores()
        chosen = steering.words.get(index, int(tokens[0, 0]))
        looked_at = weights[0] if model.attends else torch.full((len(source),), 1 / len(source))
        told = [(int(t), float(p)) for t, p in zip(tokens[0], gains[0], strict=True) if p > -torch.inf]
        yield Step(chosen, float(log_probabilities[0, chosen]), looked_at.float().cpu(), told[:likeliest])
        if chosen == END:
            return
        previous = chosen


def _pinned(weights: Tensor, pins: Mapping[int, float]) -> Tensor:
    """Weights (1, S) with some of them pinned."""
    changed, positions = weights.double(), torch.tensor(sorted(pins), device=weights.device)
    pinned = torch.tensor([pins[each] for each in sorted(pins)], device=weights.device, dtype=torch.float64)
    others = changed.shape[1] - len(pins)
    if not others:
        pinned = pinned / pinned.sum()
    changed[0, positions] = 0
    left, total = max(0.0, 1 - float(pinned.sum())), float(changed.sum())
    changed = changed * (left / total) if total > _NOTHING else torch.full_like(changed, left / max(1, others))
    changed[0, positions] = pinned
    return changed.to(weights.dtype)


def _most(steering: Steering, positions: int) -> int:
    """The maximum number of steps: the search's limit, or the number of consecutive words that are given, if larger."""
    given = next(index for index in range(len(steering.words) + 1) if index not in steering.words)
    return max(limits(GREEDY, positions)[1], given)


def _check(translator: Translator, steering: Steering, positions: int) -> None:
    vocabulary, most = len(translator.model.output_bias), _most(steering, positions)
    for step, token in steering.words.items():
        _check_place("words", "step", step, most)
        whole = isinstance(token, int) and not isinstance(token, bool)
        if not (whole and (token == UNKNOWN or END <= token < vocabulary)):
            raise InputError(
                f"words: got token {token!r} at step {step}; expected the end, {END}, or a number up to "
                f"{vocabulary - 1}"
            )
        if token == END and step < (fewest := limits(GREEDY, positions)[0]):
            raise InputError(f"words: got the end at step {step}; expected it at step {fewest} or later")
    if steering.pins and not translator.model.attends:
        raise InputError("pins: the model has no attention, so that there is no weight to be pinned")
    for step, pins in steering.pins.items():
        _check_place("pins", "step", step, most)
        for position, weight in pins.items():
            _check_place("pins", "position", position, positions)
            if not 0 <= weight <= 1:  # NaN neither
                raise InputError(f"pins: got a weight of {weight} at step {step}; expected 0 to 1")
        total = sum(pins.values())
        if total > 1 + _ROUNDING:
            raise InputError(f"pins: got weights that add up to {total:g} at step {step}; expected at most 1")
        if len(pins) == positions and not total:
            raise InputError(f"pins: got 0 for every position at step {step}; expected something to look at")


def _check_place(name: str, what: str, number: Any, end: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < end:
        raise InputError(f"{name}: got {what} {number!r}; expected a whole number from 0 to {end - 1}")
