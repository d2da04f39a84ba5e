"""Translators and ensembles: text in, text out, with the attention weights of each word."""

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, get_args, overload

import torch

from dikkat.errors import InputError
from dikkat.extras import require_extra
from dikkat.storage.files import write_whole
from dikkat.translation.confidence import ConfidenceModel
from dikkat.translation.decoding.alignment import agreed
from dikkat.translation.decoding.correcting import correct, pack_memory, share_corrections
from dikkat.translation.decoding.hypothesis import Hypothesis, fill_unknown, find_copies, find_end
from dikkat.translation.decoding.options import DEFAULT, Search
from dikkat.translation.decoding.pairs import PairScorer, batches, check_batch_size, check_sentence, read_windows
from dikkat.translation.decoding.search import beam_search
from dikkat.translation.decoding.term_use import blank_terms, link_terms, unique_targets, use_terms
from dikkat.translation.decoding.translation import Translation, join_sentences
from dikkat.translation.formats import model_folder
from dikkat.translation.formats.origin import Origin
from dikkat.translation.memory.pair_memory import PairMemory, Snapshot, find_by_ids, find_stored, normalise
from dikkat.translation.memory.pair_shares import list_sources
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.network.weights import undescribed
from dikkat.translation.settings import Settings
from dikkat.translation.terms import NO_TERMS, Terms
from dikkat.translation.text.capitals import SPACES, sentences_of
from dikkat.translation.text.markup import Element, carry, parse
from dikkat.translation.text.slots import NO_SLOTS, Masked, Slots
from dikkat.translation.text.tokenizer import Encoded, Tokenizer
from dikkat.translation.text.units import Units

if TYPE_CHECKING:
    from dikkat.show.notebook import TranslatorWidget

Markup = Literal["html"]
Marked = tuple[str, str, Element]
_Translate = Callable[[Sequence[str]], list[list[Translation]]]

_WINDOW_BATCHES = 16  # batches read at once: enough to sort sentences by length, few enough for output to start soon
_CPU_SIZE = 64  # sentences of a batch on a CPU: they fill its caches
_ROWS = 2_560  # hypotheses of a batch on another device: a step takes hardly longer than for a few

_replace = lru_cache(64)(replace)  # cached, since `Search` checks its values in each replacement


class _Options(TypedDict, total=False):
    batch_size: int | None
    search: Search
    markup: Markup | None
    split: bool
    terms: Terms | Mapping[str, str]


class BaseTranslator(PairScorer):
    """The methods of `Translator` and `Ensemble`."""

    confidence_model: ConfidenceModel | None

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
        terms: Terms | Mapping[str, str] = NO_TERMS,
    ) -> Translation | list[Translation]:
        """Translate one sentence, or several.

        If the model writes an unknown word, dikkat copies the unknown source word with the largest attention weight.
        A model without attention writes a known word instead.

        Args:
            sentences: A sentence of at most `MAX_CHARACTERS` characters, or several.
            batch_size: Sentences translated at once; sentences of similar lengths go together, and fewer if they have
                more than 100 tokens. None: 64 sentences, or 2,560 hypotheses on a device other than the CPU.
            search: The options of the search. `Search(beam=1)` is fastest, a wider beam mostly better.
            markup: `"html"`: the sentences are HTML, and so are `source` and `target`. Tags are moved around the
                corresponding words, each once and with the same nesting. Entities are decoded.
            split: Whether to translate the sentences of a text one by one and join them. HTML is never split, nor is a
                text for a model that was trained on several sentences in at least one line of twenty.
            terms: Source terms with the translations to use, such as `Terms.read("terms.tsv")` or
                `{"chuck": "mandrin"}`. Terms that could not be used are in `Translation.unused_terms`.

        Returns:
            One translation for each sentence, in order; for a single string its translation.

        Raises:
            InputError: A sentence is too long or not Unicode, the batch size is below 1, the model's scores are not
                finite, tags do not nest, a term is not a word, or there are tags or terms and the model has no
                attention.
            SettingsError: A beam or `top_k` beyond the model's target vocabulary, or a precision that the processor
                does not support.
            TypeError: A sentence is not a string.

        Example:
            >>> translator.translate("Go.").source, len(translator.translate(["Go.", "Go."]))
            ('Go.', 2)
        """
        lines = [sentences] if isinstance(sentences, str) else sentences
        translations = self.translate_n_best(
            lines, batch_size=batch_size, search=search, markup=markup, split=split, terms=terms
        )
        return next(translations)[0] if isinstance(sentences, str) else [best for best, *_ in translations]

    def translate_lines(
        self,
        lines: Iterable[str],
        *,
        batch_size: int | None = None,
        search: Search = DEFAULT,
        markup: Markup | None = None,
        split: bool = True,
        terms: Terms | Mapping[str, str] = NO_TERMS,
    ) -> Iterator[Translation]:
        """Translate any number of sentences in constant memory.

        Sentences are read when needed, 16 batches at once, or one by one with a `batch_size` of 1. If `lines` raises,
        or a sentence is invalid, the translations of all sentences before come first. Arguments and errors are those
        of `translate`, but a single string raises `TypeError`.

        Returns:
            An iterator of one translation for each sentence, in order.
        """
        translations = self.translate_n_best(
            lines, batch_size=batch_size, search=search, markup=markup, split=split, terms=terms
        )
        return (best for best, *_ in translations)

    def translate_n_best(
        self,
        lines: Iterable[str],
        *,
        batch_size: int | None = None,
        search: Search = DEFAULT,
        markup: Markup | None = None,
        split: bool = True,
        terms: Terms | Mapping[str, str] = NO_TERMS,
    ) -> Iterator[list[Translation]]:
        """Translate sentences into `search.n_best` translations each: `Search(beam=5, n_best=3)`, or samples.

        Arguments and errors are those of `translate_lines`. The iterator has a list for each sentence, in order: its
        translations, best first, or samples in the order of drawing. An empty sentence has one translation. With terms,
        translations that become equal are one; samples stay.
        """
        if isinstance(lines, str):
            raise TypeError("sentences: got one string; expected several of them: [sentence]")
        if search.length_penalty is None and not search.sample:
            search = _replace(search, length_penalty=self._length_penalty())
        if batch_size is None:
            on_cpu = self._models()[0].output_bias.is_cpu
            batch_size = _CPU_SIZE if on_cpu else max(1, _ROWS // (search.n_best if search.sample else search.beam))
        check_batch_size(batch_size)
        if markup not in (None, *get_args(Markup)):
            raise InputError(f"markup: got {markup!r}; expected one of {', '.join(get_args(Markup))}, or None")
        terms = self.check_terms(terms)
        translate = partial(self._translate_window, batch_size=batch_size, search=search, terms=terms)
        size = _WINDOW_BATCHES * batch_size if batch_size > 1 else 1
        if markup is None:
            windows = read_windows(lines, size, check_sentence)
            groups = (g for window in windows for g in self._translate(window, translate, terms, split=split))
        else:
            windows_ = read_windows(lines, size, self.marked)
            groups = (g for window in windows_ for g in self._translate_marked(window, translate, batch_size, terms))
        return groups if search.sample or not terms.targets else map(unique_targets, groups)

    def check_terms(self, terms: Terms | Mapping[str, str]) -> Terms:
        """Return the terms; raise `InputError` if a term is invalid, or the model cannot use terms."""
        terms = Terms.of(terms)
        if terms.targets and not self.attends:
            raise InputError(
                "terms: got terms, and a model without attention, which does not know where each word comes from; "
                "expected a model with attention, or no terms"
            )
        return terms

    def marked(self, sentence: str, name: str) -> Marked:
        """Parse HTML; return it, its text without tags, and the tree of its tags. Errors call it `name`.

        Raises:
            InputError: Tags do not nest, or there are tags and the model has no attention.
        """
        text, root = parse(check_sentence(sentence, name), name)
        if root.inside and not self.attends:
            raise InputError(
                f"{name}: got tags; expected text without tags, since a model without attention does not know where "
                "each word comes from"
            )
        return sentence, text, root

    def _translate_marked(
        self, window: Sequence[Marked], translate: _Translate, batch_size: int, terms: Terms
    ) -> list[list[Translation]]:
        groups = self._assess(translate([text for _, text, _ in window]), terms)
        tagged = [group for (_, _, root), group in zip(window, groups, strict=True) if root.inside]
        pairs = [(translation.source, translation.target) for group in tagged for translation in group]
        unit_weights = iter(self.weights_of_units(pairs, batch_size, whole_spans=True) if pairs else [])

        def carry_tags(translation: Translation, root: Element, sentence: str) -> str:
            weights = next(unit_weights) if root.inside else None
            if not translation.source_tokens and not translation.target.strip(SPACES):
                return sentence
            if weights is None:
                return html.escape(translation.target, quote=False)
            units = [Units.of(text, whole_spans=True) for text in (translation.source, translation.target)]
            link_terms(weights, terms, translation, units, self.target_tokenizer.forms)
            return carry(root, translation.target, agreed(weights), *units)

        return [
            [replace(result, source=sentence, target=carry_tags(result, root, sentence)) for result in group]
            for (sentence, _, root), group in zip(window, groups, strict=True)
        ]

    def _translate(
        self, lines: Sequence[str], translate: _Translate, terms: Terms, *, split: bool
    ) -> list[list[Translation]]:
        if not split or self.source_tokenizer.several:
            return self._assess(translate(lines), terms)
        memories = self._memories()
        texts = [([line], []) if find_stored(memories, line) else sentences_of(line) for line in lines]
        results = iter(translate([s for sentences, _ in texts for s in sentences]))
        joined = (
            groups[0] if len(sentences) == 1 else [join_sentences(line, t, spaces) for t in zip(*groups, strict=False)]
            for line, (sentences, spaces) in zip(lines, texts, strict=True)
            for groups in [[next(results) for _ in sentences]]
        )
        return self._assess(joined, terms)

    def _assess(self, groups: Iterable[list[Translation]], terms: Terms) -> list[list[Translation]]:
        """Add the lost and invented numbers of each translation outside of used terms, and its confidence.

        Corrections have no wrong numbers.
        """
        memories = self._memories()

        def assessed(translation: Translation) -> Translation:
            stored = find_stored(memories, translation.source)
            lost, invented = self.slots.find_wrong(*blank_terms(terms, translation, self.target_tokenizer))
            if (lost or invented) and (stored is None or stored.line != translation.target):
                translation = replace(translation, lost=lost, invented=invented)
            if self.confidence_model is None:
                return translation
            return replace(translation, confidence=self.confidence_model.of(translation))

        return [[assessed(translation) for translation in group] for group in groups]

    def _translate_window(
        self, sentences: Sequence[str], batch_size: int, search: Search, terms: Terms
    ) -> list[list[Translation]]:
        memories = self._memories()
        stored = [find_stored(memories, sentence) for sentence in sentences]
        masked = [
            pair.mask(self.slots, sentence) if pair else self.slots.mask(sentence)
            for sentence, pair in zip(sentences, stored, strict=True)
        ]
        encoded = self.source_tokenizer.encode_all([source.text for source, _ in masked])
        empty = torch.zeros(0, 0, device="cpu")
        copied = [self.slots.copies(source.text) for source, _ in masked]
        results = [
            [Translation(sentence, target.restore(source.text) if is_copied else "", [], [], empty, 0.0)]
            for sentence, (source, target), is_copied in zip(sentences, masked, copied, strict=True)
        ]
        lengths = [0 if is_copied else len(source.ids) for source, is_copied in zip(encoded, copied, strict=True)]
        for batch in batches(lengths, batch_size):
            groups = self._search([encoded[index].ids for index in batch], search, memories)
            for index, group in zip(batch, groups, strict=True):
                results[index] = [
                    self._make_translation(sentences[index], *masked[index], encoded[index], best, memories)
                    for best in group
                ]
        return use_terms(self, terms, results, stored, batch_size, search) if terms.targets else results

    def _search(
        self, sources: Sequence[list[int]], search: Search, memories: Sequence[Snapshot | None]
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each source. Repetitive or unfinished hypotheses come last."""
        tokenizers = self.source_tokenizer, self.target_tokenizer
        slots = self.source_tokenizer.slots, self.target_tokenizer.slots
        results = beam_search(self._models(), sources, search, slots, memories)

        def faults(k: int, hypothesis: Hypothesis) -> tuple[bool, bool]:
            end = find_end(tokenizers, hypothesis.ids, sources[k], find_by_ids(memories, sources[k]))
            return end < len(hypothesis.ids), not hypothesis.finished

        faulty = [k for k, group in enumerate(results) if any(any(faults(k, best)) for best in group)]
        if faulty and search.n_best < search.beam and not search.sample:
            wider = _replace(search, n_best=search.beam)
            retried = beam_search(self._models(), [sources[k] for k in faulty], wider, slots, memories)
            results = [dict(zip(faulty, retried, strict=True)).get(k, group) for k, group in enumerate(results)]
        for k in () if search.sample else faulty:
            results[k] = sorted(results[k], key=partial(faults, k))[: search.n_best]
        return results

    def _make_translation(
        self, sentence: str, source: Masked, target: Masked, encoded: Encoded, hypothesis: Hypothesis,
        memories: Sequence[Snapshot | None],
    ) -> Translation:  # fmt: skip
        tokenizers, pair = (self.source_tokenizer, self.target_tokenizer), find_by_ids(memories, encoded.ids)
        cut = find_end(tokenizers, hypothesis.ids, encoded.ids, pair)
        tokenizer, count = self.target_tokenizer, len(target.parts)
        indices = [index for index, token in enumerate(hypothesis.ids[:cut]) if tokenizer.slots.get(token, -1) < count]
        ids = [hypothesis.ids[index] for index in indices]
        weights = hypothesis.weights if len(ids) == len(hypothesis.ids) else hypothesis.weights[indices]
        words = find_copies(encoded, ids, weights)
        if pair is not None and pair.has_unknown:
            sides = zip(tokenizers, pair.mask(self.slots), strict=True)
            words = fill_unknown([reader.encode(side.text) for reader, side in sides], encoded, ids, words)
        unknown = source.locate(self.source_tokenizer.unknown(source.text))
        text, labels = tokenizer.text_and_labels(ids, words)
        text = target.write(text)
        if pair is not None and pair.target_ids == tuple(ids) and pair.key == normalise(sentence):
            text, labels, unknown = pair.line, tokenizer.encode(target.text).pieces, []
        return Translation(
            source=sentence,
            target=text,
            source_tokens=list(map(source.restore, encoded.pieces)),
            target_tokens=list(map(target.restore, labels)),
            weights=weights,
            score=hypothesis.score,
            finished=hypothesis.finished,
            unknown=tuple(sentence[start:end] for start, end in unknown),
            repeated=cut < len(hypothesis.ids),
            sources=list_sources(memories, hypothesis.nearest, indices),
        )


@dataclass(frozen=True)
class Translator(BaseTranslator):
    """A trained model with its tokenizers: sentences in, translations out.

    Attributes:
        model: The network.
        settings: The settings of the network and its training.
        source_tokenizer: The tokenizer of the source language.
        target_tokenizer: The tokenizer of the target language.
        origin: The record of the model's training, if known.
        slots: The spans, such as numbers, that translations copy.
        confidence_model: The model of the confidence of each translation; None after a training without validation
            pairs.
        memory: The stored pairs, such as corrections, that translations follow.

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
    confidence_model: ConfidenceModel | None = None
    memory: PairMemory = field(default_factory=PairMemory, compare=False)

    @classmethod
    def load(cls, folder: str | Path) -> "Translator":
        """Load a model folder of `save` or `dikkat train` onto the CPU; `translator.model.to(device)` moves it.

        Raises:
            ModelFolderError: A file is missing, damaged or does not fit; the message names it.
        """
        contents = model_folder.load(folder)
        return cls(*contents[:-1], PairMemory() if contents.memory is None else contents.memory)

    @staticmethod
    def ensemble(translators: Sequence["Translator"]) -> "Ensemble":
        """Combine several translators into one that averages their probabilities.

        Args:
            translators: At least one translator. All have the same tokenizers and slots; other settings may differ.

        Returns:
            An ensemble, with the methods of a translator and copies of the corrections of all translators. Later
            calls of `correct` of a translator do not change the ensemble. If translators have different corrections of
            one sentence, or of sentences that differ only in slots, the first translator's is used, and a warning has
            the number of unused corrections.

        Raises:
            InputError: Tokenizers or slots differ (the message says whose), or there is no translator.
            TypeError: One of them is not a `Translator`.

        Example:
            >>> Translator.ensemble([translator, translator]).translate(["Go."])[0].source_tokens
            ['Go', '.']
        """
        if not translators:
            raise InputError("translators: got none; expected at least one")
        first = translators[0]
        for index, translator in enumerate(translators):
            if not isinstance(translator, Translator):
                raise TypeError(
                    f"translators[{index}]: got {type(translator).__name__}; expected a Translator of one model"
                )
            for name in ("source_tokenizer", "target_tokenizer"):
                if getattr(translator, name).to_json() != getattr(first, name).to_json():
                    raise InputError(
                        f"translators[{index}]: got a {name} that differs from that of translators[0]; expected models "
                        "trained with the same tokenizers"
                    )
            if translator.slots != first.slots:
                raise InputError(
                    f"translators[{index}]: got slots that differ from those of translators[0]; expected models "
                    "trained with the same slots"
                )
        models = tuple(translator.model for translator in translators)
        penalty = fmean(translator._length_penalty() for translator in translators)
        confidence = ConfidenceModel.mean([translator.confidence_model for translator in translators])
        tokenizers, memories = (first.source_tokenizer, first.target_tokenizer), share_corrections(translators)
        return Ensemble(models, *tokenizers, first.slots, penalty, confidence, memories)

    def correct(self, source: str, target: str) -> list[str]:
        """Store a correction at once: later translations of this sentence are `target`, and similar sentences follow.

        A later correction of the same sentence replaces an earlier one. `save` stores the corrections with the model.
        Several threads may call this method while others translate.

        Args:
            source: The sentence.
            target: Its right translation.

        Returns:
            Messages: the different earlier correction that is replaced, and a target that will be cut.

        Raises:
            InputError: A text is empty, too long or not Unicode, or the sentence has no letters.
            TypeError: An argument is not a string.

        Example:
            >>> import copy
            >>> corrected = copy.deepcopy(translator)
            >>> corrected.correct("Go.", "Va !")
            []
            >>> corrected.translate("Go.").target
            'Va !'
        """
        check_sentence(source, "source")
        check_sentence(target, "target")
        return correct(self, source, target)

    def save(self, folder: str | Path, *, int8: bool = False) -> None:
        """Save a model folder atomically: weights, settings and tokenizers.

        Args:
            folder: The path. An existing model folder is replaced, with its corrections; anything else raises.
            int8: Whether to save matrices in int8 with one scale for each row, in a quarter of the size. The loaded
                model has the rounded weights, translates with any precision, and cannot be trained.

        Raises:
            ModelFolderError: The path exists and is not a model folder.
            OSError: The system could not write; an older model is unchanged.
        """
        model_folder.write(folder, self._contents(), int8=int8)

    def export_html(self, path: str | Path, *, title: str | None = None, examples: Sequence[str] | None = None) -> None:
        """Write the model atomically as one HTML file, with int8 weights and a decoder.

        The page works offline, and translates as `Search(precision="int8")`.

        Args:
            path: The file; its folder must exist.
            title: The heading. None: the languages, if the origin has them.
            examples: Example sentences; the page opens with the first one translated. None: the origin's examples,
                which were not used for training.

        Raises:
            InputError: The model has replaced layers, or hooks, which the page's decoder cannot run.
            OSError: The system could not write; an older file is unchanged.

        Example:
            >>> import tempfile
            >>> path = Path(tempfile.mkdtemp()) / "translator.html"
            >>> translator.export_html(path, examples=["Go."])
            >>> path.read_text(encoding="utf-8").startswith("<!doctype html>")
            True
        """
        write_whole(path, self.as_html(title=title, examples=examples))

    def as_html(self, *, title: str | None = None, examples: Sequence[str] | None = None) -> str:
        """Return the page of `export_html` as text, with the same arguments and errors."""
        from dikkat.show.living import living_page

        languages = self.origin.languages if self.origin else None
        if examples is None:
            examples = ((self.origin and self.origin.examples) or "").splitlines()
        return living_page(self.bundle(), title=title, languages=languages, examples=examples)

    def bundle(self) -> bytes:
        """Return the model for pages and widgets: the concatenated files of a model folder in int8, with corrections.

        `dikkat.show.page(translations, translator=translator)` puts it into a page of translations.

        Raises:
            InputError: As in `export_html`.

        Example:
            >>> b"settings.json" in translator.bundle()
            True
        """
        from dikkat.show.living import bundle

        if reasons := undescribed(self.model):
            raise InputError(f"model: cannot be exported to a page: {'; '.join(reasons)}")
        contents = self._contents()._replace(memory=None)
        files = model_folder.content(contents, int8=True, where=Path("page"))
        return bundle(files | {model_folder.MEMORY: pack_memory(self.memory, self.model)})

    def widget(self, text: str = "", *, examples: Sequence[str] = ()) -> "TranslatorWidget":
        """Return the page of `export_html` as a widget for a notebook.

        The int8 model is sent to the browser once and translates there, even without a running kernel. The widget
        contains the texts of the stored corrections. So does a notebook that is saved with its widget state.

        Args:
            text: The first text to translate.
            examples: Sentences to choose from.

        Returns:
            A widget, shown as the value of a cell. `widget.text` is the typed text, and can be set;
            `widget.translation` is its translation. Both can be observed.

        Raises:
            InputError: As in `export_html`.
            ModuleNotFoundError: anywidget is not installed.

        Example:
            >>> translator.widget("Go.").text
            'Go.'
        """
        with require_extra("notebook"):
            from dikkat.show.notebook import TranslatorWidget
        return TranslatorWidget(model=self.bundle(), text=text, examples=list(examples))

    def _contents(self) -> model_folder.Contents:
        return model_folder.Contents(*(getattr(self, attribute.name) for attribute in fields(self)))

    def _models(self) -> tuple[TranslationModel, ...]:
        return (self.model,)

    def _memories(self) -> tuple[Snapshot | None, ...]:
        return (self.memory.snapshot,)

    def _length_penalty(self) -> float:
        penalty = self.settings.length_penalty
        return 1.0 if penalty is None else penalty


@dataclass(frozen=True)
class Ensemble(BaseTranslator):
    """Several translators as one, made by `Translator.ensemble`: it averages their probabilities at each step.

    Attributes:
        models: The networks.
        source_tokenizer: The tokenizer of the source language.
        target_tokenizer: The tokenizer of the target language.
        slots: The spans, such as numbers, that translations copy.
        length_penalty: The mean of the models' length penalties, used by a search without one.
        confidence_model: The mean of the models' confidence models; None if a model has none.
        memories: The stored pairs for each model; the probabilities are merged before they are averaged.
    """

    models: tuple[TranslationModel, ...]
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    slots: Slots = NO_SLOTS
    length_penalty: float = 1.0
    confidence_model: ConfidenceModel | None = None
    memories: tuple[PairMemory, ...] = ()

    def _memories(self) -> tuple[Snapshot | None, ...]:
        return tuple(memory.snapshot for memory in self.memories)

    def _models(self) -> tuple[TranslationModel, ...]:
        return self.models

    def _length_penalty(self) -> float:
        return self.length_penalty
