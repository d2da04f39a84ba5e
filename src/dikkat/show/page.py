"""A self-contained page of translated sentences with the attention of each word."""

import os
import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dikkat.show.arrays import Weights, as_array
from dikkat.show.document import document, escaped
from dikkat.storage.files import write_whole

__all__ = ["LANGUAGE_CODE", "Aligned", "pack_translation", "page", "paragraph", "save_page"]

LANGUAGE_CODE = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{1,8})*")
"""A language code as in RFC 5646, section 2.1, such as "pt" or "zh-Hant-TW"; the name of a language is none."""

# Weights are stored in thousandths, as two digits of base 36, or - for 0. web/src/page/sentence.ts reads them.
_PER_UNIT = 1000
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_NUMBERS = ["-", *[first + second for first in _DIGITS for second in _DIGITS][1:]]
_EXAMPLES = 5  # sentences that the page offers to its translator
_SLACK = 0.01  # tolerance of weights and their sums, for rounding in low precision


class Aligned(Protocol):
    """A translated sentence with the attention weights of its tokens.

    It may also have an attribute `reference: str | None`, a human translation.

    Attributes:
        source: The source sentence as plain text.
        target: The translation as plain text.
        source_tokens: The words or word pieces of the source.
        target_tokens: The words or word pieces of the translation.
        weights: `(target tokens, source tokens)`, each from 0 to 1, with row sums of at most 1.
    """

    @property
    def source(self) -> str:
        """The source sentence."""

    @property
    def target(self) -> str:
        """The translation."""

    @property
    def source_tokens(self) -> Sequence[str]:
        """The source tokens."""

    @property
    def target_tokens(self) -> Sequence[str]:
        """The target tokens."""

    @property
    def weights(self) -> Weights:
        """The attention weights, a row for each target token."""


class Bundled(Protocol):
    """A translator that a page can contain, such as `dikkat.translation.Translator`."""

    def bundle(self) -> bytes:
        """Return the files of the model and its tokenizers."""


def page(
    translations: Sequence[Aligned], *, title: str = "What the translator looks at",
    scores: Sequence[float] | None = None, score_name: str = "score", source_language: str = "",
    target_language: str = "", translator: Bundled | None = None,
) -> str:  # fmt: skip
    """Return an interactive HTML page of translated sentences.

    The page is one file that needs no network. Without JavaScript it still shows sentences, references and scores. With
    `translator`, the page contains the model and translates typed text, like the page of `Translator.export_html`.

    Args:
        translations: The sentences; see `Aligned`.
        title: The heading.
        scores: A finite number for each sentence, shown next to it.
        score_name: The name of the scores, such as `"chrF"`.
        source_language: The language code of the sources, such as `"de"`; empty if unknown. Browsers use it to select a
            voice and the forms of Chinese characters.
        target_language: The language code of the translations and references.
        translator: The translator, to include its weights in the page in int8.

    Returns:
        The page as text.

    Raises:
        ValueError: Weights have a wrong shape or are out of range, scores do not fit, or a language code is invalid.
            The message names the sentence's index.
        TypeError: A sentence lacks an attribute, or an attribute has a wrong type.
        InputError: The page does not support the translator's model.

    Example:
        >>> from types import SimpleNamespace
        >>> cat = SimpleNamespace(
        ...     source="le chat", source_tokens=["le", "chat"], target="the cat", target_tokens=["the", "cat"],
        ...     weights=[[0.9, 0.1], [0.2, 0.8]],
        ... )
        >>> text = page([cat], title="A cat")
        >>> "<title>A cat</title>" in text
        True
    """
    numbers = _shown_scores(scores, len(translations))
    for name, code in (("source_language", source_language), ("target_language", target_language)):
        if code and not LANGUAGE_CODE.fullmatch(code):
            raise ValueError(f"{name}: got {code!r}; expected a code such as 'de' or 'zh-Hant', or ''")
    records, articles = [], []
    for index, translation in enumerate(translations):
        records.append(pack_translation(translation, f"translations[{index}]"))
        score = None if numbers is None else f"{escaped(score_name)} <b>{numbers[index]}</b>"
        articles.append(_article(index + 1, translation, score, source_language, target_language))
    count = "1 sentence" if len(articles) == 1 else f"{len(articles)} sentences"
    plain = [f'<main id="room"><p class="quiet" id="count">{count}</p>', *articles, "</main>"]
    model = translator.bundle() if translator else b""
    examples = [translation.source for translation in translations[:_EXAMPLES]] if translator else []
    return document(title, "\n".join(plain), model=model, sentences=records, examples=examples)


def save_page(path: str | os.PathLike[str], translations: Sequence[Aligned], **options: Any) -> None:
    """Write the page of `page` to a file.

    Args:
        path: The file to write; its folder must exist.
        translations: The sentences.
        **options: The other arguments of `page`.

    Raises:
        TypeError, ValueError, InputError: See `page`.
        OSError: The system could not write; an existing file is unchanged.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "page.html"
        >>> save_page(path, [])
        >>> path.read_text(encoding="utf-8").startswith("<!doctype html>")
        True
    """
    write_whole(path, page(translations, **options))


def _shown_scores(scores: Sequence[float] | None, count: int) -> list[str] | None:
    if scores is None:
        return None
    if len(scores) != count:
        raise ValueError(f"scores: got {len(scores)}; expected {count}, one for each sentence")
    numbers = [float(score) for score in scores]
    for index, number in enumerate(numbers):
        if not np.isfinite(number):
            raise ValueError(f"scores[{index}]: got {number}; expected finite numbers")
    digits = 2 if max(map(abs, numbers), default=0.0) > 1 else 4  # chrF is from 0 to 100, some other scores from 0 to 1
    return [f"{number:.{digits}f}" for number in numbers]


def pack_translation(translation: Aligned, name: str) -> tuple[list[str], list[str], str]:
    """Return the source tokens, target tokens and packed weights of a sentence for the script."""
    source = _tokens(translation, "source_tokens", name)
    target = _tokens(translation, "target_tokens", name)
    weights = as_array(_attribute(translation, "weights", name), f"{name}.weights")
    expected = len(target), len(source)
    if weights.shape != expected:
        raise ValueError(
            f"{name}.weights: got shape {weights.shape}; expected {expected}, (target tokens, source tokens)"
        )
    is_wrong = ~((weights >= -_SLACK) & (weights <= 1 + _SLACK))  # also True for NaN
    if is_wrong.any():
        row, column = np.argwhere(is_wrong)[0].tolist()
        raise ValueError(f"{name}.weights[{row}, {column}]: got {weights[row, column]}; expected weights from 0 to 1")
    sums = weights.sum(axis=1)
    if (sums > 1 + _SLACK).any():
        row = int(sums.argmax())
        raise ValueError(f"{name}.weights[{row}]: got a sum of {sums[row]:.4g}; expected sums up to 1")
    thousandths = np.rint(np.clip(weights, 0, 1) * _PER_UNIT).astype(int)
    return source, target, "".join(_NUMBERS[number] for number in thousandths.ravel())


def _attribute(translation: Aligned, attribute: str, name: str) -> Weights:
    if not hasattr(translation, attribute):
        kind = type(translation).__name__
        raise TypeError(
            f"{name}: got {kind}, which has no attribute {attribute!r}; expected the attributes of dikkat.show.Aligned"
        )
    value: Weights = getattr(translation, attribute)
    return value


def _tokens(translation: Aligned, attribute: str, name: str) -> list[str]:
    tokens = _attribute(translation, attribute, name)
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in tokens):
        raise TypeError(f"{name}.{attribute}: got {tokens!r}; expected a list of strings")
    return list(tokens)


def _article(number: int, translation: Aligned, score: str | None, source_language: str, target_language: str) -> str:
    """Return the HTML of a sentence, readable without the script."""
    name = f"translations[{number - 1}]"
    reference = getattr(translation, "reference", None)
    lines = [
        f'<article class="card sentence" id="s={number}" aria-label="Sentence {number}">',
        f'<header><a class="quiet" href="#s={number}">{number}</a>',
        "" if score is None else f'<span class="score">{score}</span>',
        "</header>",
        paragraph(_attribute(translation, "source", name), f"{name}.source", "source", source_language),
        paragraph(_attribute(translation, "target", name), f"{name}.target", "target", target_language),
    ]
    if reference is not None:
        text = paragraph(reference, f"{name}.reference", "", target_language)
        lines.append(f'<div class="reference"><span>Reference</span>{text}</div>')
    return "".join([*lines, "</article>"])


def paragraph(text: object, name: str, classes: str, language: str) -> str:
    """Return the HTML of a text in a language; errors call the text `name`."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: got {type(text).__name__}; expected str")
    return f'<p class="{classes}" dir="auto" lang="{language}">{escaped(text)}</p>'
