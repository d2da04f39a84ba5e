"""Translators as a user has them: text in, text out, and where each word was looked for."""

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypedDict, TypeVar, Unpack, get_args, overload

import torch
from torch import Tensor

from dikkat.errors import InputError
from dikkat.extras import needing
from dikkat.storage.files import write_whole
from dikkat.translation.decoding.alignment import agreed
from dikkat.translation.decoding.hypothesis import Hypothesis, repetition
from dikkat.translation.decoding.options import DEFAULT, Search
from dikkat.translation.decoding.pairs import PairScorer, batches, check_batch_size, check_sentence
from dikkat.translation.decoding.search import beam_search
from dikkat.translation.decoding.translation import Translation, joined
from dikkat.translation.formats import model_folder
from dikkat.translation.formats.origin import Origin
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.network.weights import undescribed
from dikkat.translation.settings import Settings
from dikkat.translation.text.capitals import SPACES, sentences_of
from dikkat.translation.text.markup import Element, carry, parse
from dikkat.translation.text.slots import NO_SLOTS, Masked, Slots
from dikkat.translation.text.special_tokens import UNKNOWN
from dikkat.translation.text.tokenizer import Encoded, Tokenizer
from dikkat.translation.text.units import Units

if TYPE_CHECKING:
    from dikkat.show.notebook import TranslatorWidget

Markup = Literal["html"]
Kind = TypeVar("Kind")
Marked = tuple[str, str, Element]

_WINDOW = 16  # batches: enough to sort sentences by length, few enough for output to start soon
_AT_ONCE = 64  # sentences on a CPU, whose caches they fill
_PLACES = 2_560  # hypotheses elsewhere, of which a step takes hardly longer than of a few


_changed = lru_cache(64)(replace)  # of a search, whose values are checked the first time only


class _Options(TypedDict, total=False):
    batch_size: int | None
    search: Search
    markup: Markup | None
    split: bool


class BaseTranslator(PairScorer):
    """Sentences in, translations out: the methods of a translator and of an ensemble."""

    def _length_penalty(self) -> float:
        return 1.0

    @overload  # to a type checker, a string is also several strings
    def translate(  # type: ignore[overload-overlap]
        self, sentences: str, **options: Unpack[_Options]
    ) -> Translation: ...

    @overload
    def translate(self, sentences: Iterable[str], **options: Unpack[_Options]) -> list[Translation]: ...

    def translate(
        self,
        sentences: str | Iterable[str],
        *,
        batch_size: int | None = None,
        search: Search = DEFAULT,
        markup: Markup | None = None,
        split: bool = True,
    ) -> Translation | list[Translation]:
        """Translate sentences, or one.

        A word that the model would write as unknown is copied from the source: of the words that the model does not
        know, the one at which it looked most. Without attention there is none, and a known word stands there.

        Args:
            sentences: Any text, a sentence each, of at most `MAX_CHARACTERS` characters; or one sentence.
            batch_size: How many to translate at once; sentences of similar lengths go together, and of more than 100
                tokens fewer. None: 64, and on a device other than the CPU 2,560 hypotheses.
            search: How to look for the best translation: `Search(beam=1)` is fastest, a wider beam mostly better.
            markup: `"html"`: the sentences are HTML, and so are `source` and `target`. Tags arrive around the words
                that say what theirs said, each once and nested as they were; entities are read.
            split: Whether to translate the sentences of a text one by one and to join them. HTML is never split, and
                neither is a text for a model that learnt from several sentences in one line of twenty or more.

        Returns:
            One translation a sentence, in their order; of one sentence its translation.

        Raises:
            InputError: A sentence that is too long or not Unicode, a batch size below 1, or a model whose scores are
                not numbers; with markup tags that do not nest, or tags and a model without attention.
            SettingsError: A beam or `top_k` beyond the model's target vocabulary, or a precision that the processor has
                not.
            TypeError: Something among them that is not a string.

        Example:
            >>> translator.translate("Go.").source, len(translator.translate(["Go.", "Go."]))
            ('Go.', 2)
        """
        lines = [sentences] if isinstance(sentences, str) else sentences
        found = self.translate_n_best(lines, batch_size=batch_size, search=search, markup=markup, split=split)
        return next(found)[0] if isinstance(sentences, str) else [best for best, *_ in found]

    def translate_lines(
        self,
        lines: Iterable[str],
        *,
        batch_size: int | None = None,
        search: Search = DEFAULT,
        markup: Markup | None = None,
        split: bool = True,
    ) -> Iterator[Translation]:
        """Translate any number of sentences in constant memory, each as soon as those that it was read with are done.

        It reads sentences as they are needed, 16 batches at once (with a `batch_size` of 1 one by one). An error of
        their source, or a sentence that is none, comes after the translations of all before it. Arguments and errors
        are those of `translate`; one string in place of several is a TypeError.

        Returns:
            An iterator of one translation a sentence, in their order.
        """
        found = self.translate_n_best(lines, batch_size=batch_size, search=search, markup=markup, split=split)
        return (best for best, *_ in found)

    def translate_n_best(
        self,
        lines: Iterable[str],
        *,
        batch_size: int | None = None,
        search: Search = DEFAULT,
        markup: Markup | None = None,
        split: bool = True,
    ) -> Iterator[list[Translation]]:
        """Translate sentences into `search.n_best` translations each: `Search(beam=5, n_best=3)`, or samples.

        Arguments and errors are those of `translate_lines`. The iterator has one list a sentence, in their order: its
        translations, best first, or as they were drawn; one for an empty one.
        """
        if isinstance(lines, str):
            raise TypeError("sentences: got one string; expected several of them: [sentence]")
        if search.length_penalty is None and not search.sample:
            search = _changed(search, length_penalty=self._length_penalty())
        if batch_size is None:
            on_cpu = self._models()[0].output_bias.is_cpu
            batch_size = _AT_ONCE if on_cpu else max(1, _PLACES // (search.n_best if search.sample else search.beam))
        check_batch_size(batch_size)
        if markup not in (None, *get_args(Markup)):
            raise InputError(f"markup: got {markup!r}; expected one of {', '.join(get_args(Markup))}, or None")
        size = _WINDOW * batch_size if batch_size > 1 else 1
        if markup is None:
            plain = _windows(lines, size, check_sentence)
            return (group for window in plain for group in self._lines(window, batch_size, search, split=split))
        marked = _windows(lines, size, self.marked)
        return (group for window in marked for group in self._marked_window(window, batch_size, search))

    def marked(self, sentence: str, name: str) -> Marked:
        """A sentence in HTML, its text without tags, and the tree of its tags; errors name it `name`.

        Raises:
            InputError: Tags that do not nest, or tags and a model without attention.
        """
        text, root = parse(check_sentence(sentence, name), name)
        if root.inside and not self.attends:
            raise InputError(
                f"{name}: got tags, and a model without attention, by which nobody can say where a word comes from; "
                "expected a text without tags"
            )
        return sentence, text, root

    def _marked_window(self, window: Sequence[Marked], batch_size: int, search: Search) -> list[list[Translation]]:
        found = self._window([text for _, text, _ in window], batch_size, search)
        tagged = [group for (_, _, root), group in zip(window, found, strict=True) if root.inside]
        pairs = [(each.source, each.target) for group in tagged for each in group]
        looked = iter(self.weights_of_units(pairs, batch_size, whole_spans=True) if pairs else [])

        def carried(each: Translation, root: Element, sentence: str) -> str:
            weights = next(looked) if root.inside else None
            if not each.source_tokens and not each.target.strip(SPACES):
                return sentence
            if weights is None:
                return html.escape(each.target, quote=False)
            units = [Units.of(text, whole_spans=True) for text in (each.source, each.target)]
            return carry(root, each.target, agreed(weights), *units)

        return [
            [replace(each, source=sentence, target=carried(each, root, sentence)) for each in group]
            for (sentence, _, root), group in zip(window, found, strict=True)
        ]

    def _lines(self, lines: Sequence[str], batch_size: int, search: Search, *, split: bool) -> list[list[Translation]]:
        if not split or self.source_tokenizer.several:
            return self._window(lines, batch_size, search)
        parts = [sentences_of(line) for line in lines]
        found = iter(self._window([each for sentences, _ in parts for each in sentences], batch_size, search))
        return [
            groups[0] if len(sentences) == 1 else [joined(line, each, spaces) for each in zip(*groups, strict=False)]
            for line, (sentences, spaces) in zip(lines, parts, strict=True)
            for groups in [[next(found) for _ in sentences]]
        ]

    def _window(self, sentences: Sequence[str], batch_size: int, search: Search) -> list[list[Translation]]:
        masked = [self.slots.mask(sentence) for sentence in sentences]
        encoded = self.source_tokenizer.encode_all([source.text for source, _ in masked])
        empty = torch.zeros(0, 0, device="cpu")
        copied = [self.slots.copies(source.text) for source, _ in masked]
        results = [
            [Translation(sentence, target.restore(source.text) if is_copied else "", [], [], empty, 0.0)]
            for sentence, (source, target), is_copied in zip(sentences, masked, copied, strict=True)
        ]
        lengths = [0 if is_copied else len(each.ids) for each, is_copied in zip(encoded, copied, strict=True)]
        for batch in batches(lengths, batch_size):
            groups = self._searched([encoded[index].ids for index in batch], search)
            for index, best in zip(batch, groups, strict=True):
                results[index] = [
                    self._as_translation(sentences[index], *masked[index], encoded[index], each) for each in best
                ]
        return results

    def _searched(self, sources: Sequence[list[int]], search: Search) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each source; those that repeat themselves or do not end are the last."""
        slots = self.source_tokenizer.slots, self.target_tokenizer.slots
        found = beam_search(self._models(), sources, search, slots)

        def faults(index: int, hypothesis: Hypothesis) -> tuple[bool, bool]:
            return self._cut(hypothesis.ids, sources[index]) < len(hypothesis.ids), not hypothesis.finished

        doubtful = [k for k, best in enumerate(found) if any(any(faults(k, each)) for each in best)]
        if doubtful and search.n_best < search.beam and not search.sample:
            wide = _changed(search, n_best=search.beam)
            again = beam_search(self._models(), [sources[k] for k in doubtful], wide, slots)
            found = [dict(zip(doubtful, again, strict=True)).get(k, best) for k, best in enumerate(found)]
        for k in () if search.sample else doubtful:
            found[k] = sorted(found[k], key=partial(faults, k))[: search.n_best]
        return found

    def _cut(self, ids: Sequence[int], source: Sequence[int]) -> int:
        """Return the end of the first tokens that repeat three times, and more often than any of the source do."""
        allowed = 2
        if repetition(ids, self.target_tokenizer.begins_word)[0] > allowed:
            allowed = max(allowed, repetition(source, self.source_tokenizer.begins_word)[0])
        return repetition(ids, self.target_tokenizer.begins_word, allowed)[1]

    def _as_translation(
        self, sentence: str, source: Masked, target: Masked, encoded: Encoded, hypothesis: Hypothesis
    ) -> Translation:
        cut = self._cut(hypothesis.ids, encoded.ids)
        slots, count = self.target_tokenizer.slots, len(target.parts)
        written = [k for k, token in enumerate(hypothesis.ids[:cut]) if slots.get(token, -1) < count]
        ids = [hypothesis.ids[k] for k in written]
        weights = hypothesis.weights[written]
        copied = _copied_words(encoded, ids, weights)
        unknown = source.locate(self.source_tokenizer.unknown(source.text))
        return Translation(
            source=sentence,
            target=target.write(self.target_tokenizer.decode(ids, replace=copied)),
            source_tokens=list(map(source.restore, encoded.pieces)),
            target_tokens=list(map(target.restore, self.target_tokenizer.labels(ids, replace=copied))),
            weights=weights,
            score=hypothesis.score,
            finished=hypothesis.finished,
            unknown=tuple(sentence[start:end] for start, end in unknown),
            repeated=cut < len(hypothesis.ids),
        )


@dataclass(frozen=True)
class Translator(BaseTranslator):
    """A trained model with its tokenizers: sentences in, translations out.

    Attributes:
        model: The network.
        settings: What it was built and trained with.
        source_tokenizer: Of the language it reads.
        target_tokenizer: Of the language it writes.
        origin: Where it comes from, if that is known.
        slots: The spans that it reads and writes as slots.

    Example:
        >>> translation, nothing = translator.translate(["Go.", ""])
        >>> translation.source_tokens, nothing.target
        (['Go', '.'], '')
        >>> [each.source_tokens for each in translator.translate_lines(iter(["Go.", ""]))]
        [['Go', '.'], []]
    """

    model: TranslationModel
    settings: Settings
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    origin: Origin | None = None
    slots: Slots = NO_SLOTS

    @classmethod
    def load(cls, folder: str | Path) -> "Translator":
        """Load a model folder of `save` or `dikkat train` onto the CPU; `translator.model.to(device)` moves it.

        Raises:
            ModelFolderError: Anything in it is missing, damaged or does not fit; the message says what.
        """
        return cls(*model_folder.load(folder))

    @staticmethod
    def ensemble(translators: Sequence["Translator"]) -> "Ensemble":
        """Several translators as one, which writes what they find likely on average.

        Args:
            translators: At least one, all of the same two tokenizers, whatever their other settings.

        Returns:
            What translates and scores as a translator does.

        Raises:
            InputError: tokenizers that differ, and the message says whose; or no translator.
            TypeError: Something else than a translator of one model.

        Example:
            >>> Translator.ensemble([translator, translator]).translate(["Go."])[0].source_tokens
            ['Go', '.']
        """
        if not translators:
            raise InputError("translators: got none; expected at least one")
        first = translators[0]
        for index, other in enumerate(translators):
            if not isinstance(other, Translator):
                raise TypeError(f"translators[{index}]: got {type(other).__name__}; expected a Translator of one model")
            for name in ("source_tokenizer", "target_tokenizer"):
                if getattr(other, name).to_json() != getattr(first, name).to_json():
                    raise InputError(
                        f"translators[{index}]: got a {name} that differs from that of translators[0]; expected models "
                        "trained with the same tokenizers"
                    )
            if other.slots != first.slots:
                raise InputError(
                    f"translators[{index}]: got slots that differ from those of translators[0]; expected models "
                    "trained with the same slots"
                )
        models = tuple(each.model for each in translators)
        penalty = fmean(each._length_penalty() for each in translators)
        return Ensemble(models, first.source_tokenizer, first.target_tokenizer, first.slots, penalty)

    def save(self, folder: str | Path, *, int8: bool = False) -> None:
        """Save a model folder whole or not at all: weights, settings and tokenizers.

        Args:
            folder: Where; a model folder of that name is replaced, anything else is not.
            int8: Whether to save matrices in int8, with one scale a row: a quarter of the size. What is loaded from
                there has these numbers, translates with any precision, and does not learn.

        Raises:
            ModelFolderError: Something else than a model is there.
            OSError: The system could not write; an older model is as it was.
        """
        model_folder.write(folder, self._contents(), int8=int8)

    def export_html(self, path: str | Path, *, title: str | None = None, examples: Sequence[str] | None = None) -> None:
        """Write the model as one HTML file, whole or not at all: weights in int8, and a decoder in the page itself.

        The page asks nothing of a network, and translates as `Search(precision="int8")` does.

        Args:
            path: The file; its folder must exist.
            title: The heading; None: the languages, where the origin knows them.
            examples: Sentences to begin with, the first of which is translated when the page opens; None: those of
                the origin, which its training did not learn from.

        Raises:
            InputError: The model has replaced layers, or hooks, which the page's decoder cannot run.
            OSError: The system could not write; an older file is as it was.

        Example:
            >>> import tempfile
            >>> path = Path(tempfile.mkdtemp()) / "translator.html"
            >>> translator.export_html(path, examples=["Go."])
            >>> path.read_text(encoding="utf-8").startswith("<!doctype html>")
            True
        """
        write_whole(path, self.as_html(title=title, examples=examples))

    def as_html(self, *, title: str | None = None, examples: Sequence[str] | None = None) -> str:
        """The page of `export_html`, with its arguments and errors, as text."""
        from dikkat.show.living import living_page

        languages = self.origin.languages if self.origin else None
        if examples is None:
            examples = ((self.origin and self.origin.examples) or "").splitlines()
        return living_page(self.bundle(), title=title, languages=languages, examples=examples)

    def bundle(self) -> bytes:
        """The model as pages and widgets carry it: the files of a model folder in int8, one behind the other.

        `dikkat.show.page(translations, translator=translator)` puts it into a page of translations.

        Raises:
            InputError: As in `export_html`.

        Example:
            >>> b"settings.json" in translator.bundle()
            True
        """
        from dikkat.show.living import bundle

        if reasons := undescribed(self.model):
            raise InputError(f"model: got one that cannot be a page: {'; '.join(reasons)}")
        return bundle(model_folder.content(self._contents(), int8=True, where=Path("page")))

    def widget(self, text: str = "", *, examples: Sequence[str] = ()) -> "TranslatorWidget":
        """The page of `export_html` in a cell of a notebook, between Python and a reader.

        The model goes to the reader's browser once, in int8, and translates there: without a running kernel too.

        Args:
            text: What it begins with.
            examples: Sentences to choose from.

        Returns:
            A widget, which shows itself as the value of a cell. `widget.text` is what is typed, and may be set;
            `widget.translation` is what is shown for it; both can be observed.

        Raises:
            InputError: As in `export_html`.
            ModuleNotFoundError: anywidget is not installed.

        Example:
            >>> translator.widget("Go.").text
            'Go.'
        """
        with needing("notebook"):
            from dikkat.show.notebook import TranslatorWidget
        return TranslatorWidget(model=self.bundle(), text=text, examples=list(examples))

    def _contents(self) -> model_folder.Contents:
        texts = self.source_tokenizer, self.target_tokenizer
        return model_folder.Contents(self.model, self.settings, *texts, self.origin, self.slots)

    def _models(self) -> tuple[TranslationModel, ...]:
        return (self.model,)

    def _length_penalty(self) -> float:
        own = self.settings.length_penalty
        return 1.0 if own is None else own


@dataclass(frozen=True)
class Ensemble(BaseTranslator):
    """Several translators as one: at each step the mean of their probabilities counts. `Translator.ensemble` makes it.

    Attributes:
        models: The networks.
        source_tokenizer: Of the language they read.
        target_tokenizer: Of the language they write.
        slots: The spans that they read and write as slots.
        length_penalty: That of a search that says none, the mean of theirs.
    """

    models: tuple[TranslationModel, ...]
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    slots: Slots = NO_SLOTS
    length_penalty: float = 1.0

    def _models(self) -> tuple[TranslationModel, ...]:
        return self.models

    def _length_penalty(self) -> float:
        return self.length_penalty


def _copied_words(encoded: Encoded, ids: Sequence[int], weights: Tensor) -> list[str | None]:
    words: list[str | None] = [None] * len(ids)
    if UNKNOWN not in ids or UNKNOWN not in encoded.ids:
        return words
    known = torch.tensor([number != UNKNOWN for number in encoded.ids], device="cpu")
    for index, number in enumerate(ids):
        if number == UNKNOWN:
            words[index] = encoded.pieces[int(weights[index].masked_fill(known, -1.0).argmax())]
    return words


def _windows(sentences: Iterable[str], size: int, check: Callable[[str, str], Kind]) -> Iterator[list[Kind]]:
    """Lists of at most `size` checked sentences; those before an error are yielded before it is raised."""
    checked = (check(sentence, f"sentences[{index}]") for index, sentence in enumerate(sentences))
    while True:
        window: list[Kind] = []
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
