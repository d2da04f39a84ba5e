"""Models of sentence pairs: the probabilities of given translations, and the links between their words."""

from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral

import torch
from torch import Tensor

from dikkat.errors import InputError
from dikkat.translation.data.corpus import MAX_CHARACTERS
from dikkat.translation.decoding.alignment import Link, links, merge_pieces, posteriors
from dikkat.translation.decoding.search import forced_scores
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.text.slots import Slots
from dikkat.translation.text.tokenizer import Tokenizer
from dikkat.translation.text.units import Units

_LENGTH = 100  # source tokens: sentences that are longer come fewer at once, so that memory stays bounded


class PairScorer:
    """The methods of a translator and of an ensemble that take given translations."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    slots: Slots

    def _models(self) -> tuple[TranslationModel, ...]:
        raise NotImplementedError

    @property
    def attends(self) -> bool:
        """Whether a model of it has attention, without which nobody can say where a word comes from."""
        return any(model.attends for model in self._models())

    def score(self, pairs: Iterable[tuple[str, str]], *, batch_size: int = 64) -> list[float]:
        """The log-probabilities of given translations.

        Args:
            pairs: Sentences and their translations, any text, as the tokenizers cut it. An unknown word counts with the
                probability of `<unk>`.
            batch_size: How many to score at once; sentences of similar lengths go together, and of more than 100
                tokens fewer.

        Returns:
            The log-probability of each translation and its end, natural logarithm, in their order; of an empty
            translation of an empty sentence 0.

        Raises:
            InputError: A sentence that is too long or not Unicode, a translation of an empty sentence, or a batch size
                below 1.
            TypeError: Something among them that is not a pair of strings.

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
                    f"pairs[{index}] is a translation of an empty sentence: {checked[index][1]!r}. Leave it out"
                )
        scores = [0.0] * len(checked)
        lengths = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]
        for batch in batches(lengths, batch_size):
            results = forced_scores(self._models(), [(sources[index], targets[index]) for index in batch])
            for index, each in zip(batch, results, strict=True):
                scores[index] = each
        return scores

    def align(
        self, pairs: Iterable[tuple[str, str]], *, reverse: "PairScorer | None" = None, batch_size: int = 64
    ) -> list[set[Link]]:
        """Link the words of sentences and their translations.

        The model is made to write the given translation. Each word is linked to the one that it most probably comes
        from, by attention and by what the model would have written from that place alone (`posteriors`), and each
        source word to the one that most probably comes from it; both are joined by grow-diag-final-and.

        Args:
            pairs: Sentences and their translations; a pair with an empty side has no links.
            reverse: A translator of the other direction, whose probabilities are multiplied with these: better links.
            batch_size: How many to go through at once; of more than 100 tokens fewer.

        Returns:
            Of each pair the links: numbers, from 0, of a source and a target word. White space separates words.

        Raises:
            InputError: A sentence that is too long or not Unicode, a batch size below 1, or a model
                without attention.
            TypeError: Something among them that is not a pair of strings.

        Example:
            >>> sorted(translator.align([("Go.", "Va !")])[0])
            [(0, 0), (0, 1)]
        """
        checked = [check_pair(pair, index) for index, pair in enumerate(pairs)]
        weights = self.weights_of_units(checked, batch_size)
        if reverse is not None:
            back = reverse.weights_of_units([(target, source) for source, target in checked], batch_size)
            weights = [one * other.T for one, other in zip(weights, back, strict=True)]
        return [
            links(each, Units.of(source), Units.of(target))
            for each, (source, target) in zip(weights, checked, strict=True)
        ]

    def weights_of_units(
        self, pairs: Sequence[tuple[str, str]], batch_size: int = 64, *, whole_spans: bool = False
    ) -> list[Tensor]:
        """(T, S) for each pair: from which of its source's `Units` each of its target comes; rows add up to 1.

        Raises:
            InputError: A batch size below 1, or a model without attention.
        """
        check_batch_size(batch_size)
        models = [model for model in self._models() if model.attends]
        if not self.attends:
            raise InputError("the model's score is none: without attention nobody can say where a word comes from")
        numbers, shares = list[list[list[int]]](), list[list[Tensor]]()
        masked = [self.slots.mask(*pair) for pair in pairs]
        for side, tokenizer in enumerate((self.source_tokenizer, self.target_tokenizer)):
            texts = [pair[side].text for pair in masked]
            numbers.append(tokenizer.numbers(texts))
            shares.append(
                [
                    Units.of(pair[side], whole_spans=whole_spans).shares(both[side].locate(places))
                    for pair, both, places in zip(pairs, masked, tokenizer.offsets(texts), strict=True)
                ]
            )
        found = [torch.zeros(len(target), len(source), device="cpu") for source, target in zip(*shares, strict=True)]
        lengths = [max(map(len, pair)) if all(pair) else 0 for pair in zip(*numbers, strict=True)]
        for batch in batches(lengths, batch_size):
            tokens = [(numbers[0][index], numbers[1][index]) for index in batch]
            for model in models:
                for index, weights in zip(batch, posteriors(model, tokens), strict=True):
                    found[index] += merge_pieces(weights, shares[0][index], shares[1][index]) / len(models)
        return found


def batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Batches of indices of sentences of similar lengths, without the empty ones."""
    order = sorted((index for index, length in enumerate(lengths) if length), key=lengths.__getitem__, reverse=True)
    start = 0
    while start < len(order):
        size = max(1, min(batch_size, batch_size * _LENGTH // lengths[order[start]]))
        yield order[start : start + size]
        start += size


def check_sentence(sentence: str, name: str) -> str:
    """A sentence that can be translated."""
    if not isinstance(sentence, str):
        raise TypeError(f"{name}: got {type(sentence).__name__}; expected a string")
    if not sentence.isascii() and any("\ud800" <= each <= "\udfff" for each in sentence):  # as from a command line
        raise InputError(f"{name}: got {sentence!r}; expected Unicode text. Give it as UTF-8")
    if len(sentence) > MAX_CHARACTERS:
        raise InputError(f"{name}: got {len(sentence):,} characters; expected at most {MAX_CHARACTERS:,}. Split it")
    return sentence


def check_pair(pair: tuple[str, str], index: int) -> tuple[str, str]:
    """Return a sentence and its translation, checked."""
    if isinstance(pair, str) or len(pair) != 2:
        raise TypeError(f"pairs[{index}]: got {pair!r}; expected a sentence and its translation")
    source, target = (check_sentence(sentence, f"pairs[{index}][{side}]") for side, sentence in enumerate(pair))
    return source, target


def check_batch_size(batch_size: int) -> None:
    """Raise an error for a batch size that is no whole number of at least 1."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
        raise InputError(f"batch_size: got {batch_size!r}; expected a whole number of at least 1")
