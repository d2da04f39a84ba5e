"""Methods for sentence pairs: the probabilities of given translations, and the links between their words."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from numbers import Integral
from typing import TypeVar

import torch
from torch import Tensor

from dikkat.errors import InputError
from dikkat.translation.data.corpus import MAX_CHARACTERS
from dikkat.translation.decoding.alignment import ATTENTION_SHARE, Link, links, merge_pieces, posteriors
from dikkat.translation.decoding.search import forced_scores
from dikkat.translation.memory.pair_memory import Snapshot
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.text.slots import Slots
from dikkat.translation.text.tokenizer import Tokenizer
from dikkat.translation.text.units import Units

Checked = TypeVar("Checked")

_FULL_BATCH_TOKENS = 100  # batches of sentences with more source tokens are smaller, to bound memory


class PairScorer:
    """The methods of translators and ensembles for given translations."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    slots: Slots

    def _models(self) -> tuple[TranslationModel, ...]:
        raise NotImplementedError

    def _memories(self) -> tuple[Snapshot | None, ...]:
        raise NotImplementedError

    @property
    def attends(self) -> bool:
        """True if at least one model has attention. Links between words need it."""
        return any(model.attends for model in self._models())

    def score(self, pairs: Iterable[tuple[str, str]], *, batch_size: int = 64) -> list[float]:
        """Compute the log-probabilities of given translations.

        Args:
            pairs: Sentences and their translations, any text. An unknown word has the probability of `<unk>`.
            batch_size: Pairs scored at once; sentences of similar lengths go together, and fewer if they have more than
                100 tokens.

        Returns:
            The natural log-probability of each translation with its end, in order; 0 for two empty sentences.

        Raises:
            InputError: A sentence is too long or not Unicode, an empty sentence has a translation, or the batch size is
                below 1.
            TypeError: A pair is not two strings.

        Example:
            >>> right, nothing = translator.score([("Go.", "Va !"), ("", "")])
            >>> right < nothing
            True
        """
        check_batch_size(batch_size)
        checked = [check_pair(pair, index) for index, pair in enumerate(pairs)]
        masked = [self.slots.mask(*pair) for pair in checked]
        sources = self.source_tokenizer.numbers([source.text for source, _ in masked])
        targets = self.target_tokenizer.numbers([target.text for _, target in masked])
        for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
            if target and not source:
                raise InputError(
                    f"pairs[{index}]: got a translation of an empty sentence, {checked[index][1]!r}; leave the pair out"
                )
        scores = [0.0] * len(checked)
        lengths = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]
        for batch in batches(lengths, batch_size):
            pairs_of_batch = [(sources[index], targets[index]) for index in batch]
            results = forced_scores(self._models(), pairs_of_batch, self._memories())
            for index, score in zip(batch, results, strict=True):
                scores[index] = score
        return scores

    def align(
        self, pairs: Iterable[tuple[str, str]], *, reverse: "PairScorer | None" = None, batch_size: int = 64
    ) -> list[set[Link]]:
        """Link the words of sentences and their translations.

        The model computes `posteriors` of the given translation. Each target word is linked to its likeliest source
        word, and each source word to its likeliest target word. Both directions are joined by grow-diag-final-and.

        Args:
            pairs: Sentences and their translations. A pair with an empty sentence has no links.
            reverse: A translator of the opposite direction. Its posteriors are multiplied with these, for better links.
            batch_size: Pairs at once; fewer if they have more than 100 tokens.

        Returns:
            The links of each pair: indices, from 0, of a source and a target word. White space separates words.

        Raises:
            InputError: A sentence is too long or not Unicode, the batch size is below 1, or the model has no attention.
            TypeError: A pair is not two strings.

        Example:
            >>> sorted(translator.align([("Go.", "Va !")])[0])
            [(0, 0), (0, 1)]
        """
        checked = [check_pair(pair, index) for index, pair in enumerate(pairs)]
        weights = self.weights_of_units(checked, batch_size)
        if reverse is not None:
            reverse_weights = reverse.weights_of_units([(target, source) for source, target in checked], batch_size)
            weights = [forward * backward.T for forward, backward in zip(weights, reverse_weights, strict=True)]
        return [
            links(pair_weights, Units.of(source), Units.of(target))
            for pair_weights, (source, target) in zip(weights, checked, strict=True)
        ]

    def weights_of_units(
        self, pairs: Sequence[tuple[str, str]], batch_size: int = 64, *, whole_spans: bool = False,
        attention_share: float = ATTENTION_SHARE,
    ) -> list[Tensor]:  # fmt: skip
        """Return for each pair (T, S): how much each target unit comes from each source unit (`Units`). Rows sum to 1.

        They are `posteriors` of tokens, with this share of the attention weights.

        Raises:
            InputError: The batch size is below 1, or the model has no attention.
        """
        check_batch_size(batch_size)
        models = [model for model in self._models() if model.attends]
        if not self.attends:
            raise InputError("model: got score='none'; expected a model with attention, which word links need")
        numbers, shares = list[list[list[int]]](), list[list[Tensor]]()
        masked = [self.slots.mask(*pair) for pair in pairs]
        for side, tokenizer in enumerate((self.source_tokenizer, self.target_tokenizer)):
            texts = [pair[side].text for pair in masked]
            numbers.append(tokenizer.numbers(texts))
            shares.append(
                [
                    Units.of(pair[side], whole_spans=whole_spans).shares(masks[side].locate(spans))
                    for pair, masks, spans in zip(pairs, masked, tokenizer.offsets(texts), strict=True)
                ]
            )
        totals = [torch.zeros(len(target), len(source), device="cpu") for source, target in zip(*shares, strict=True)]
        lengths = [max(map(len, pair)) if all(pair) else 0 for pair in zip(*numbers, strict=True)]
        for batch in batches(lengths, batch_size):
            tokens = [(numbers[0][index], numbers[1][index]) for index in batch]
            for model in models:
                for index, weights in zip(
                    batch, posteriors(model, tokens, attention_share=attention_share), strict=True
                ):
                    totals[index] += merge_pieces(weights, shares[0][index], shares[1][index]) / len(models)
        return totals


def batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Yield batches of indices of sentences with similar lengths, without empty sentences."""
    order = sorted((index for index, length in enumerate(lengths) if length), key=lengths.__getitem__, reverse=True)
    start = 0
    while start < len(order):
        size = max(1, min(batch_size, batch_size * _FULL_BATCH_TOKENS // lengths[order[start]]))
        yield order[start : start + size]
        start += size


def check_sentence(sentence: str, name: str) -> str:
    """Return a sentence; raise `TypeError` or `InputError` if it cannot be translated."""
    if not isinstance(sentence, str):
        raise TypeError(f"{name}: got {type(sentence).__name__}; expected a string")
    if not sentence.isascii() and any("\ud800" <= c <= "\udfff" for c in sentence):  # surrogates of a command line
        raise InputError(f"{name}: got {sentence!r}; expected Unicode text. Give it as UTF-8")
    if len(sentence) > MAX_CHARACTERS:
        raise InputError(f"{name}: got {len(sentence):,} characters; expected at most {MAX_CHARACTERS:,}. Split it")
    return sentence


def check_pair(pair: tuple[str, str], index: int) -> tuple[str, str]:
    """Return a checked sentence and its checked translation."""
    if isinstance(pair, str) or len(pair) != 2:
        raise TypeError(f"pairs[{index}]: got {pair!r}; expected a sentence and its translation")
    source, target = (check_sentence(sentence, f"pairs[{index}][{side}]") for side, sentence in enumerate(pair))
    return source, target


def check_batch_size(batch_size: int) -> None:
    """Raise `InputError` unless the batch size is a whole number of at least 1."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
        raise InputError(f"batch_size: got {batch_size!r}; expected a whole number of at least 1")


def read_windows(sentences: Iterable[str], size: int, check: Callable[[str, str], Checked]) -> Iterator[list[Checked]]:
    """Yield lists of at most `size` checked sentences. Sentences before an error are yielded before it is raised."""
    checked = (check(sentence, f"sentences[{index}]") for index, sentence in enumerate(sentences))
    while True:
        window: list[Checked] = []
        try:
            for sentence in islice(checked, size):
                window.append(sentence)
        except Exception:
            if window:
                yield window
            raise
        if not window:
            return
        yield window
