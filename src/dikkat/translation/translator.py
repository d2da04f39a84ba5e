from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dikkat.translation import checkpoint
from dikkat.translation.corpus import MAX_CHARACTERS
from dikkat.translation.errors import InputError
from dikkat.translation.model import TranslationModel
from dikkat.translation.search import Hypothesis, greedy
from dikkat.translation.settings import Settings
from dikkat.translation.tokenizer import UNKNOWN, Encoded, Tokenizer


@dataclass(frozen=True)
class Translation:
    """A translated sentence, and what the model looked at for each word.

    Attributes:
        source: the sentence as it was given.
        target: its translation as a person would write it; empty for an empty sentence.
        source_tokens: the S pieces that the model read.
        target_tokens: the T pieces that it wrote.
        weights: (T, S) float32: where it looked before writing each piece; every row adds up to 1.
        score: log-probability of the translation, natural logarithm; 0 for an empty sentence.
        finished: whether the model ended the sentence itself. If not, it was cut at a length that no sensible
            translation reaches.
    """

    source: str
    target: str
    source_tokens: list[str]
    target_tokens: list[str]
    weights: Tensor
    score: float
    finished: bool = True


@dataclass(frozen=True)
class Translator:
    """A trained model with its tokenizers: sentences in, translations out.

    Attributes:
        model: the network.
        settings: what it was built and trained with.
        source_tokenizer: of the language it reads.
        target_tokenizer: of the language it writes.

    Example:
        >>> from dikkat.translation import Settings, Tokenizer, TranslationModel
        >>> english = Tokenizer.train(["Go."], "word", min_freq=1, vocabulary_size=9)
        >>> french = Tokenizer.train(["Va !"], "word", min_freq=1, vocabulary_size=9)
        >>> settings = Settings(embedding_size=4, hidden_size=4)
        >>> translator = Translator(TranslationModel(settings, len(english), len(french)), settings, english, french)
        >>> translation, nothing = translator.translate(["Go.", ""])
        >>> translation.source_tokens, nothing.target
        (['Go', '.'], '')
    """

    model: TranslationModel
    settings: Settings
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer

    @classmethod
    def load(cls, folder: str | Path) -> "Translator":
        """Load a model folder, onto the CPU; `translator.model.to(device)` moves it.

        Args:
            folder: what `save` or `dikkat train` wrote.

        Raises:
            ModelFolderError: anything in it is missing, damaged or does not fit; the message says what.
        """
        return cls(*checkpoint.load(folder))

    def save(self, folder: str | Path) -> None:
        """Save a model folder whole or not at all: weights, settings and tokenizers.

        Args:
            folder: where; a model folder of that name is replaced, anything else is not.

        Raises:
            ModelFolderError: something else than a model is there.
            OSError: the system could not write; an older model is as it was.
        """
        checkpoint.save(folder, self.model, self.settings, self.source_tokenizer, self.target_tokenizer)

    def translate(self, sentences: Sequence[str], *, batch_size: int = 64) -> list[Translation]:
        """Translate sentences.

        A word that the model would write as unknown is copied from the source: of the words that the model does not
        know, the one at which it looked most.

        Args:
            sentences: any text, a sentence each, of at most `MAX_CHARACTERS` characters.
            batch_size: how many to translate at once; sentences of similar lengths go together.

        Returns:
            One translation a sentence, in their order.

        Raises:
            InputError: a sentence that is too long or not Unicode, or a batch size below 1.
            TypeError: one string in place of a list of them, or something that is not a string in the list.
        """
        _check(sentences, batch_size)
        encoded = self.source_tokenizer.encode_all(sentences)
        full = sorted(
            (index for index, each in enumerate(encoded) if each.ids), key=lambda index: len(encoded[index].ids)
        )
        found: dict[int, Hypothesis] = {}
        for start in range(0, len(full), batch_size):
            batch = full[start : start + batch_size]
            found |= zip(batch, greedy(self.model, [encoded[index].ids for index in batch]), strict=True)
        return [
            self._translation(sentence, each, found[index]) if index in found else _empty(sentence)
            for index, (sentence, each) in enumerate(zip(sentences, encoded, strict=True))
        ]

    def _translation(self, sentence: str, encoded: Encoded, found: Hypothesis) -> Translation:
        copied = list(_copied_words(encoded, found))
        labels = self.target_tokenizer.labels(found.ids)
        return Translation(
            source=sentence,
            target=self.target_tokenizer.decode(found.ids, replace=copied),
            source_tokens=encoded.pieces,
            target_tokens=[label if word is None else word for word, label in zip(copied, labels, strict=True)],
            weights=found.weights,
            score=found.score,
            finished=found.finished,
        )


def _copied_words(encoded: Encoded, found: Hypothesis) -> Iterator[str | None]:
    """For each target token the source word to put in its place, if it is unknown."""
    known = torch.tensor([number != UNKNOWN for number in encoded.ids])
    for number, weights in zip(found.ids, found.weights, strict=True):
        # The search writes <unk> only where the source has an unknown word.
        yield encoded.pieces[int(weights.masked_fill(known, -1.0).argmax())] if number == UNKNOWN else None


def _empty(sentence: str) -> Translation:
    return Translation(sentence, "", [], [], torch.zeros(0, 0), 0.0)


def _check(sentences: Sequence[str], batch_size: int) -> None:
    if isinstance(sentences, str):
        raise TypeError("sentences is one string; it must be a list of them: translate([sentence])")
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be at least 1")
    for index, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise TypeError(f"sentences[{index}] is of type {type(sentence).__name__}; it must be a string")
        if any("\ud800" <= character <= "\udfff" for character in sentence):  # as from a command line
            raise InputError(f"sentences[{index}] is not Unicode text: {sentence!r}. Give it as UTF-8")
        if len(sentence) > MAX_CHARACTERS:
            raise InputError(
                f"sentences[{index}] has {len(sentence):,} characters; a sentence may have {MAX_CHARACTERS:,}. Split it"
            )
