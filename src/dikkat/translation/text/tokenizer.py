"""Tokenizers: text to token numbers, and back to normal text."""

import json
import reprlib
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import regex
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from dikkat.errors import InputError
from dikkat.storage.files import parse_json, read_regular, write_whole
from dikkat.translation.errors import ModelFolderError, SettingsError
from dikkat.translation.text.capitals import ELIDED, INSIDE, LETTER, SLOT, SPACES, WORD, Capitals
from dikkat.translation.text.forms import Forms
from dikkat.translation.text.special_tokens import BEGIN, END, PAD, SLOTS, UNKNOWN

Kind = Literal["word", "bpe"]

SPECIAL_TOKENS = ("<pad>", "<unk>", "<bos>", "<eos>")

# A mark includes the spaces around it, but between two marks the second one does. One space separates words.
_MARK = rf"\s?(?:\.{{2,}}|[^\s{INSIDE}])(?:\s(?=[{INSIDE}]|$))?"
_PIECES = rf"{WORD}|{_MARK}|[^\S ]"
_PIECE = regex.compile(_PIECES)
_ELISION = ELIDED.replace("['’]", "'")
_BYTE_PIECES = rf"\s?{_ELISION}|\s?{LETTER}+|\s?\p{{N}}|\s?[{SLOT}]|\s?[^\s\p{{L}}\p{{M}}\p{{N}}{SLOT}]+|\s+"
_BLANK = r"\s{2,}|[\t-\r]"  # becomes a space; other single white space, as before « ? » in French, stays
_BEFORE = "\u2581"  # marks the beginning of each token in decoding
_CARRIER = "\0"  # not in any text
# A run of blanks, or a character with all marks that Unicode composition may join to it.
_COMPOSED = regex.compile(rf"(?P<blank>{_BLANK})|(?s:.)[\p{{M}}\u1161-\u1175\u11A8-\u11C2]*")
_LETTERS = regex.compile(r"\p{L}[^\ufffd]*")  # of a label, without incomplete characters
_LETTER_IN = regex.compile(r"\p{L}")
_NOT_NORMALISED = regex.compile(rf"\A\s|\s\Z|{_BLANK}")

Offsets = tuple[int, int]
"""The start and the end of a piece of text, in characters."""
_MAX_KNOWN_PIECES = 50_000

LARGEST = 1 << 25  # bytes of a tokenizer.json
MOST_TOKENS = 1 << 18  # of a vocabulary


def check_size(kind: Kind, vocabulary_size: int) -> None:
    """Raise `SettingsError` for a vocabulary size that is too small."""
    smallest = len(SPECIAL_TOKENS) + 256
    if kind == "bpe" and vocabulary_size < smallest:
        raise SettingsError(
            f"vocabulary_size: got {vocabulary_size}; expected at least {smallest} with the tokenizer bpe: the number "
            "of all bytes and special tokens"
        )


class Encoded(NamedTuple):
    """A tokenized sentence: token numbers for the model, and the tokens' pieces of the sentence for readers."""

    ids: list[int]
    pieces: list[str]


class Tokenizer:
    """A word or a byte-pair tokenizer of the `tokenizers` library, with four special tokens.

    Decoding restores the text, in Unicode's composed form and with one space for each run of white space: pieces
    include spaces. At the beginning of a sentence, which the training text shows, a word is the same token as within a
    sentence; only names keep their capital.

    `"word"`: pieces are words, and punctuation marks with the spaces around them: `"“"` with and without a space are
    two pieces.
    French elisions are separate words (`l'` + `homme`); other words keep their apostrophe (`he's`). A piece outside
    the vocabulary is read as one that differs only in case or spaces, if there is one, or else as `<unk>`.

    `"bpe"`: byte-level byte-pair encoding without unknown pieces.

    Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units" (2016), section 3.2.

    Example:
        >>> text = ["J'ai perdu, Marie !", "Où est l'homme ?", "Il voit Marie."]
        >>> tokenizer = Tokenizer.train(text, "word", min_freq=1, vocabulary_size=100)
        >>> tokenizer.encode("où est Marie ?").pieces
        ['où', 'est', 'Marie', '?']
        >>> tokenizer.decode(tokenizer.encode("j'ai perdu marie !").ids)
        "J'ai perdu Marie !"
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner
        # A user's "<eos>" is text, not the end of a sentence. The library does not save this option.
        self._inner.encode_special_tokens = True
        self.kind: Kind = "bpe" if isinstance(inner.model, models.BPE) else "word"
        decoder = json.loads(inner.decoder.__getstate__())
        self._capitals = _read_capitals(decoder)
        self._label_cache: dict[int, str] = {}
        self._nearest: dict[str, int] = {}  # the most frequent piece of each bare form
        self._known_pieces: Collection[str] = _read_known_pieces(decoder)  # bare forms in the training text
        if self.kind == "word":
            for token, number in sorted(inner.get_vocab().items(), key=itemgetter(1)):
                self._nearest.setdefault(_bare_form(token), number)
            self._known_pieces = self._nearest
        letters = SLOTS if self.kind == "word" else "".join(chr(256 + ord(character)) for character in SLOTS)
        self.slots = {
            number: letters.index(letter)
            for token, number in inner.get_vocab().items()
            if (letter := token.strip(SPACES)[-1:]) and letter in letters
        }

    @classmethod
    def train(cls, sentences: Sequence[str], kind: Kind, *, min_freq: int, vocabulary_size: int) -> "Tokenizer":
        """Learn a vocabulary.

        Args:
            sentences: The text to learn from.
            kind: `"word"` or `"bpe"`.
            min_freq: The least frequency of a word, or of a pair to merge.
            vocabulary_size: The largest number of tokens, special tokens included; the most frequent ones are kept.

        Returns:
            The tokenizer.

        Raises:
            SettingsError: An unknown kind, or a byte-pair vocabulary that is too small for all bytes.
        """
        check_size(kind, vocabulary_size)
        if kind not in get_args(Kind):
            raise SettingsError(f"tokenizer: got {kind!r}; expected one of {', '.join(get_args(Kind))}")
        composed = [_normalised(sentence)[0] for sentence in sentences]
        capitals = Capitals.learn(composed)
        inner, trainer = (
            _make_words(capitals) if kind == "word" else _make_byte_pairs(capitals, _frequent_pieces(composed))
        )
        inner.train_from_iterator(
            capitals.exchanged(composed),
            trainer(
                vocab_size=vocabulary_size,
                min_frequency=min_freq,
                special_tokens=list(SPECIAL_TOKENS),
                show_progress=False,
                **({} if kind == "word" else {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}),
            ),
        )
        return cls(inner)

    def extended(self, sentences: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer that knows the words of more sentences; numbers of tokens stay.

        A word tokenizer gets a token, at the end, for each piece that it reads as `<unk>`. A byte-pair tokenizer has no
        such pieces: only `unknown` no longer lists their words.

        Raises:
            ModelFolderError: More than `MOST_TOKENS` tokens.

        Example:
            >>> tokenizer = Tokenizer.train(["Il est calme."], "word", min_freq=1, vocabulary_size=100)
            >>> extended = tokenizer.extended(["Elle est calme."])
            >>> len(tokenizer), len(extended), extended.decode(extended.encode("elle est calme.").ids)
            (8, 9, 'Elle est calme.')
        """
        content, composed = json.loads(self.to_json()), [_normalised(sentence)[0] for sentence in sentences]
        if self.kind == "bpe":
            pieces = sorted({*_read_known_pieces(content["decoder"]), *_frequent_pieces(composed)})
            content["decoder"]["decoders"][1]["pattern"]["String"] = _CARRIER + " ".join(pieces)
        else:
            vocabulary, normalizer, splitter = (
                content["model"]["vocab"],
                self._inner.normalizer,
                self._inner.pre_tokenizer,
            )
            for text in self._capitals.exchanged(composed):
                for piece, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)):
                    if _bare_form(piece) not in self._nearest:
                        vocabulary.setdefault(piece, len(vocabulary))
        return Tokenizer.from_json(json.dumps(content).encode(), "the extended tokenizer")

    def __len__(self) -> int:
        return self._inner.get_vocab_size()

    def encode(self, sentence: str) -> Encoded:
        """Return the token numbers and the pieces of a sentence, equally many, without special tokens around it."""
        return self.encode_all([sentence])[0]

    def encode_all(self, sentences: Sequence[str]) -> list[Encoded]:
        """Encode many sentences at once, on all cores."""
        return [
            Encoded(ids, self.labels(ids) if self.kind == "bpe" else [sentence[start:end] for start, end in offsets])
            for sentence, (ids, offsets) in zip(sentences, self._read(sentences), strict=True)
        ]

    def numbers(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the token numbers of sentences, faster than `encode_all`. Equal sentences share a list."""
        unique = list(dict.fromkeys(sentences))
        numbers = {sentence: ids for sentence, (ids, _) in zip(unique, self._read(unique), strict=True)}
        return [numbers[sentence] for sentence in sentences]

    def offsets(self, sentences: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the start and the end of each piece in its sentence, in characters."""
        return [offsets for _, offsets in self._read(sentences)]

    @property
    def several(self) -> bool:
        """Whether lines of the training text often have several sentences."""
        return self._capitals.several

    @cached_property
    def forms(self) -> Forms:
        """The inflected forms of words in the training text: of all words, or the 50,000 most frequent ones."""
        return Forms(piece for piece in self._known_pieces if piece and all(map(str.isalpha, piece)))

    def knows(self, piece: str) -> bool:
        """Return whether the training text has a word or a mark, in any case."""
        return _bare_form(piece) in self._known_pieces

    def unknown(self, sentence: str) -> list[tuple[int, int]]:
        """Return the offsets of words and punctuation that the training text does not have, except numbers."""
        text, characters = _normalised(sentence)
        spans = [
            _without_spaces(text, piece.span())
            for piece in _PIECE.finditer(text)
            if (bare := _bare_form(piece.group())) not in self._known_pieces and bare and not bare[0].isdecimal()
        ]
        return spans if characters is None else to_original_spans(spans, characters)

    def _read(self, sentences: Sequence[str]) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        normalised = [_normalised(sentence) for sentence in sentences]
        exchanged = self._capitals.exchanged(text for text, _ in normalised)
        for (text, characters), encoding in zip(normalised, self._inner.encode_batch(exchanged), strict=True):
            ids, offsets = encoding.ids, encoding.offsets
            if self.kind == "word":
                offsets = [_without_spaces(text, span) for span in offsets]
                if UNKNOWN in ids:
                    ids = [
                        self._nearest.get(_bare_form(text[first:last]), UNKNOWN) if number == UNKNOWN else number
                        for number, (first, last) in zip(ids, offsets, strict=True)
                    ]
            yield ids, offsets if characters is None else to_original_spans(offsets, characters)

    def decode(self, ids: Sequence[int], *, replace: Sequence[str | None] | None = None) -> str:
        """Return the text of token numbers, with normal capitals and spaces.

        Args:
            ids: Token numbers; special tokens other than `<unk>` are skipped.
            replace: For each number a word that replaces its token, or None; for instance an unknown word of the
                source.

        Returns:
            The text.

        Raises:
            ValueError: A number outside the vocabulary, or not as many replacements as numbers.
        """
        return self._texts(ids, replace)[1]

    def labels(self, ids: Sequence[int], *, replace: Sequence[str | None] | None = None) -> list[str]:
        """Return the tokens of a text as labels for a picture, with the text's capitals; `replace` as in `decode`.

        Returns:
            Words, or parts of words, with · before a part that continues a word.
        """
        return self.text_and_labels(ids, replace)[1]

    def text_and_labels(self, ids: Sequence[int], replace: Sequence[str | None] | None) -> tuple[str, list[str]]:
        """Return the results of `decode` and `labels`, which share most of their work."""
        replacements = replace or [None] * len(ids)
        labels = [word or self._label(number) for number, word in zip(ids, replacements, strict=True)]
        (raw, text), end = self._texts(ids, replace), 0
        last_change = max((index for index, (a, b) in enumerate(zip(raw, text, strict=False)) if a != b), default=-1)
        for index, label in enumerate(labels):
            if end > last_change:
                break
            if (letters := _LETTERS.search(label)) and (start := raw.find(letters[0], end)) >= 0:
                end = start + len(letters[0])
                labels[index] = label.replace(letters[0], text[start:end], 1)
        return text, labels

    def begins_word(self, number: int) -> bool:
        """Return whether a token begins a word. Punctuation, digits and continuations of a word do not."""
        label = self._label(number)
        return not label.startswith("·") and bool(_LETTER_IN.search(label))

    def _label(self, number: int) -> str:
        if self.kind == "word":
            return self._token(number).strip(SPACES) or "␣"
        if number not in self._label_cache:
            self._label_cache[number] = _byte_pair_label(self._inner.decoder.decode([self._token(number)]))
        return self._label_cache[number]

    def _texts(self, ids: Sequence[int], replace: Sequence[str | None] | None) -> tuple[str, str]:
        """Return the text of tokens, before and after capitals at the beginning of sentences are restored."""
        replacements = [None] * len(ids) if replace is None else replace
        if self.kind == "word":
            unknown = SPECIAL_TOKENS[UNKNOWN]
            replacements = [
                word or unknown * (number == UNKNOWN) or None for number, word in zip(ids, replacements, strict=True)
            ]
        tokens = [
            self._token(number) if word is None else _add_spaces(word)
            for number, word in zip(ids, replacements, strict=True)
            if word is not None or number not in (PAD, BEGIN, END)
        ]
        text: str = self._inner.decoder.decode(tokens) if tokens else ""
        text = text if self.kind == "word" else text.replace("\ufffd", "")  # incomplete characters
        capitals = self._capitals
        if any(replacements):
            capitalised = ("Unk", *(word for word in replacements if word and word[0].isupper()))
            capitals = Capitals(capitals.marks, capitals.names.union(capitalised))
        text = text.removeprefix(" ")
        return text, capitals.exchanged([text])[0]

    def to_json(self) -> str:
        """Return the content of a tokenizer.json, which the `tokenizers` library can read."""
        return self._inner.to_str()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Tokenizer":
        """Return a tokenizer from the content of its tokenizer.json; errors name it `where`.

        Raises:
            ModelFolderError: Other tokens, steps or patterns than dikkat writes; the message names the difference.
        """
        try:
            content = parse_json(data)
            _check_content(content)
            # The library gets only this module's patterns: it would run forever on a malicious one.
            return cls(tokenizers.Tokenizer.from_str(json.dumps(content)))
        except Exception as error:  # the library raises nothing narrower
            raise ModelFolderError(f"{where}: not a tokenizer of dikkat's: {error}. Save the model again") from error

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json atomically.

        Raises:
            OSError: The file cannot be written.
        """
        write_whole(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer.json.

        Raises:
            ModelFolderError: A file that is missing, not regular, too large, or not written by dikkat.
        """
        try:
            data = read_regular(path, most=LARGEST)
        except OSError as error:
            raise ModelFolderError(f"{path}: missing, or cannot be read ({error.strerror})") from error
        except InputError as error:
            raise ModelFolderError(str(error)) from error
        return cls.from_json(data, str(path))

    def _token(self, number: int) -> str:
        token = self._inner.id_to_token(number) if number >= 0 else None
        if token is None:
            raise ValueError(f"ids: got {number}; expected 0 to {len(self) - 1}, numbers of the vocabulary's tokens")
        return token


def to_original_spans(spans: Iterable[Offsets], characters: Sequence[Offsets]) -> list[Offsets]:
    """Convert spans of a rewritten text to spans of the original text.

    `characters[i]` is the span in the original text of the rewritten text's character i.
    """
    ends = [*characters, (characters[-1][1],) * 2] if characters else [(0, 0)]
    return [(ends[first][0], ends[last - 1][1] if first < last else ends[first][0]) for first, last in spans]


def _normalised(text: str) -> tuple[str, list[Offsets] | None]:
    """Return a text in composed form without needless blanks, and its characters' spans in the original text.

    The spans are None if the text is unchanged.
    """
    if unicodedata.is_normalized("NFC", text) and not _NOT_NORMALISED.search(text):
        return text, None
    composed, offsets = "", list[Offsets]()
    for match in _COMPOSED.finditer(text):
        piece = " " if match["blank"] else unicodedata.normalize("NFC", match[0])
        composed += piece
        offsets += [match.span()] * len(piece)
    start, end = len(composed) - len(composed.lstrip(SPACES)), len(composed.rstrip(SPACES))
    return composed[start:end], offsets[start:end]


def _byte_pair_label(text: str) -> str:
    if text.startswith(" "):
        return text.removeprefix(" ") or "␣"
    return f"·{text}" if not text or text[0].isalnum() else text  # a full stop gets no ·


def _bare_form(piece: str) -> str:
    return piece.strip(SPACES).lower().replace("’", "'")


def _add_spaces(word: str) -> str:
    """Return a word unchanged, or a punctuation mark with spaces around it."""
    return f"{'' if word[0].isalnum() else ' '}{word}{'' if word[-1].isalnum() else ' '}"


def _without_spaces(sentence: str, span: tuple[int, int]) -> tuple[int, int]:
    first, last = span
    piece = sentence[first:last]
    start = first + len(piece) - len(piece.lstrip(SPACES))
    return (start, first + len(piece.rstrip(SPACES))) if start < last else span


def _make_words(capitals: Capitals) -> tuple[tokenizers.Tokenizer, Any]:
    inner = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKENS[UNKNOWN]))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), "removed", invert=True)
    ends = (normalizers.Prepend(" "), normalizers.Replace(Regex("$"), " "))  # so marks there get spaces too
    inner.normalizer = normalizers.Sequence([*_make_normalizers(), *ends])
    inner.decoder = decoders.Sequence(
        [
            _carry_capitals(capitals),
            decoders.Replace(Regex("^"), _BEFORE),
            decoders.Fuse(),
            decoders.Replace(Regex(rf"\s{_BEFORE}(?=[^{INSIDE}])"), ""),
            decoders.Replace(Regex(rf"(?<=[{INSIDE}]){_BEFORE}(?=[{INSIDE}])"), " "),
            decoders.Replace(_BEFORE, ""),
            decoders.Strip(" ", 1, 1),
        ]
    )
    return inner, trainers.WordLevelTrainer


def _frequent_pieces(sentences: Sequence[str]) -> list[str]:
    counts = Counter(_bare_form(piece) for sentence in sentences for piece in _PIECE.findall(sentence))
    return sorted(piece for piece, _ in counts.most_common(_MAX_KNOWN_PIECES) if piece and not piece[0].isdecimal())


def _make_byte_pairs(capitals: Capitals, pieces: Sequence[str]) -> tuple[tokenizers.Tokenizer, Any]:
    inner = tokenizers.Tokenizer(models.BPE())
    # The first word also gets a space, so that a word is the same token anywhere.
    inner.normalizer = normalizers.Sequence([*_make_normalizers(), normalizers.Prepend(" ")])
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_BYTE_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    carrier = decoders.Replace(_CARRIER + " ".join(pieces), "")
    inner.decoder = decoders.Sequence([_carry_capitals(capitals), carrier, decoders.ByteLevel()])
    return inner, trainers.BpeTrainer


def _make_normalizers() -> list[normalizers.Normalizer]:
    return [normalizers.NFC(), normalizers.Replace(Regex(_BLANK), " "), normalizers.Strip()]


def _carry_capitals(capitals: Capitals) -> decoders.Decoder:
    """Return a step without effect that stores the capitals in tokenizer.json, as the library has no such step."""
    return decoders.Replace(_CARRIER.join(["", capitals.marks, " ".join(sorted(capitals.names))]), "")


def _read_capitals(decoder: Any) -> Capitals:
    match decoder:
        case {"decoders": [{"pattern": {"String": str(text)}}, *_]} if text.startswith(_CARRIER):
            _, marks, names = text.split(_CARRIER)
            return Capitals(marks, frozenset(names.split()))
    return Capitals()


def _read_known_pieces(decoder: Any) -> frozenset[str]:
    match decoder:
        case {"decoders": [_, {"pattern": {"String": str(text)}}, _]} if text.startswith(_CARRIER):
            return frozenset(text.removeprefix(_CARRIER).split(" "))
    return frozenset()


def _check_content(content: Any) -> None:
    kind = (
        content["model"].get("type") if isinstance(content, dict) and isinstance(content.get("model"), dict) else None
    )
    if kind not in ("WordLevel", "BPE"):
        raise ValueError(f"model: got {kind!r}; expected WordLevel or BPE")
    capitals = _read_capitals(content.get("decoder"))
    pieces = sorted(_read_known_pieces(content.get("decoder")))
    inner, _ = _make_words(capitals) if kind == "WordLevel" else _make_byte_pairs(capitals, pieces)
    expected = json.loads(inner.to_str())
    vocabulary = content["model"].get("vocab")
    _check_vocabulary(vocabulary)
    _check_special(content.get("added_tokens"))
    if kind == "BPE":
        _check_merges(content["model"].get("merges"), vocabulary)
        expected["model"]["merges"] = content["model"]["merges"]
    expected["model"]["vocab"], expected["added_tokens"] = vocabulary, content["added_tokens"]
    for name in expected.keys() | content.keys():
        if not _is_equal(content.get(name), expected.get(name)):
            got, want = reprlib.repr(content.get(name)), reprlib.repr(expected.get(name))
            raise ValueError(f"{name}: got {got}; expected {want}")


def _check_vocabulary(vocabulary: Any) -> None:
    if isinstance(vocabulary, dict) and len(vocabulary) > MOST_TOKENS:
        raise ValueError(f"got {len(vocabulary):,} tokens; expected at most {MOST_TOKENS:,}")
    if not isinstance(vocabulary, dict) or any(type(number) is not int for number in vocabulary.values()):
        raise ValueError(f"vocab: got {reprlib.repr(vocabulary)}; expected a JSON object that maps tokens to integers")
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if tuple(tokens[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
        raise ValueError(f"first tokens: got {tokens[: len(SPECIAL_TOKENS)]}; expected {list(SPECIAL_TOKENS)}")
    for index, token in enumerate(tokens):
        if vocabulary[token] != index:
            raise ValueError(f"vocab: got number {vocabulary[token]} after {index - 1}; expected {index}")


def _check_special(tokens: Any) -> None:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    expected = [{"id": number, "content": token, **plain} for number, token in enumerate(SPECIAL_TOKENS)]
    if not _is_equal(tokens, expected):
        raise ValueError(f"added_tokens: got {reprlib.repr(tokens)}; expected {', '.join(SPECIAL_TOKENS)}")


def _check_merges(merges: Any, vocabulary: dict[str, int]) -> None:
    if missing := set(pre_tokenizers.ByteLevel.alphabet()) - vocabulary.keys():
        raise ValueError(f"vocab: no token for {reprlib.repr(missing)}; expected tokens for all 256 bytes")
    if not isinstance(merges, list) or len(merges) > len(vocabulary):
        raise ValueError(f"merges: got {reprlib.repr(merges)}; expected a list, with at most as many merges as tokens")


def _is_equal(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal; keys that only one has must be None or False.

    Another version of the library may have more options than the one that wrote the file.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        return all(_is_equal(a.get(name), b.get(name)) for name in a.keys() | b.keys())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_is_equal, a, b))
    return (a in (None, False) and b in (None, False)) or (type(a) is type(b) and a == b)
