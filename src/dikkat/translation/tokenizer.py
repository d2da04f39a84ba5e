"""Text to token numbers and back to text as a person would write it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from dikkat.files import write_whole
from dikkat.translation.errors import ModelFolderError, SettingsError

Kind = Literal["word", "bpe"]

SPECIAL_TOKENS = ("<pad>", "<unk>", "<bos>", "<eos>")
PAD, UNKNOWN, BEGIN, END = range(4)

_LETTER = r"[\p{L}\p{M}]"
# Elided words (l'homme, qu'il) are words of their own; every other apostrophe (he's, don't, aujourd'hui) is within one.
_ELIDED = rf"(?<!{_LETTER})(?i:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu)'(?={_LETTER})"
_WORD = rf"{_LETTER}+(?:['-](?:{_LETTER}|\p{{N}})+)*"
_NUMBER = r"\p{N}+(?:[.,:]\p{N}+)*"
_ELLIPSIS = r"\.{2,}"
_WORD_PIECES = rf"{_ELIDED}|{_WORD}|{_NUMBER}|{_ELLIPSIS}|[^\s]"
_BYTE_PIECES = rf" ?{_ELIDED}| ?{_LETTER}+| ?\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+|\s+"

_SENTENCE_ENDS = (".", "!", "?", "…")
_NEVER_SPACED = frozenset(".,)]}…")  # in front of these no language that dikkat has met puts a space
_SENTENCE_MARKS = frozenset("?!;:")


class Encoded(NamedTuple):
    """A tokenized sentence: numbers for the model, and the same pieces of the sentence as its reader knows them."""

    ids: list[int]
    pieces: list[str]


class Tokenizer:
    """A word or a byte-pair tokenizer of the `tokenizers` library, with four special tokens.

    `"word"`: lower case; punctuation is split off; French elisions are words of their own (`l'` + `homme`), other words
    keep their apostrophe (`he's`). Words outside the vocabulary are `<unk>`. Decoding puts back what the training text
    showed: which words have a capital, how a sentence begins, on which sides of a punctuation mark a space stands.

    `"bpe"`: byte-level byte-pair encoding, in the text's own case: nothing is unknown, and decoding gives the text back
    (in Unicode's composed form, each run of white space as one space).

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
        # A user's "<eos>" is text, not the end of a sentence. The library does not store this switch.
        self._inner.encode_special_tokens = True
        self.kind: Kind = "bpe" if isinstance(inner.model, models.BPE) else "word"

    @classmethod
    def train(cls, sentences: Sequence[str], kind: Kind, *, min_freq: int, vocabulary_size: int) -> "Tokenizer":
        """Learn a vocabulary.

        Args:
            sentences: the text to learn from.
            kind: `"word"` or `"bpe"`.
            min_freq: how often a word, or a pair that is to be merged, must occur.
            vocabulary_size: the largest number of tokens, the special ones included; the most frequent are kept.

        Returns:
            The tokenizer.

        Raises:
            SettingsError: an unknown kind.
        """
        if kind == "word":
            return cls(_train_words(sentences, min_freq, vocabulary_size))
        if kind == "bpe":
            return cls(_train_byte_pairs(sentences, min_freq, vocabulary_size))
        raise SettingsError(f"tokenizer is {kind!r}; it must be one of {', '.join(get_args(Kind))}")

    def __len__(self) -> int:
        """Number of tokens, the special ones included."""
        return self._inner.get_vocab_size()

    def encode(self, sentence: str) -> Encoded:
        """Token numbers of a sentence, without special tokens around it, and the pieces of its text.

        Args:
            sentence: any text.

        Returns:
            As many numbers as pieces; none for a sentence without anything but white space.
        """
        return self.encode_all([sentence])[0]

    def encode_all(self, sentences: Sequence[str]) -> list[Encoded]:
        """`encode` for many sentences at once, on all cores."""
        encodings = self._inner.encode_batch(list(sentences))
        if self.kind == "bpe":
            return [Encoded(encoding.ids, self.labels(encoding.ids)) for encoding in encodings]
        return [
            Encoded(encoding.ids, [sentence[start:end] for start, end in encoding.offsets])
            for sentence, encoding in zip(sentences, encodings, strict=True)
        ]

    def numbers(self, sentences: Sequence[str]) -> list[list[int]]:
        """Token numbers alone, where nobody will look at the pieces."""
        return [encoding.ids for encoding in self._inner.encode_batch(list(sentences))]

    def offsets(self, sentences: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Where in its sentence each piece stands: the first character, and the one behind the last."""
        return [encoding.offsets for encoding in self._inner.encode_batch(list(sentences))]

    def decode(self, ids: Sequence[int], *, replace: Sequence[str | None] | None = None) -> str:
        """Text as a person would write it.

        Args:
            ids: token numbers; special tokens other than `<unk>` give nothing.
            replace: for each number a word to stand there instead of its token, or None: an unknown word that was
                copied from the source, for instance.

        Returns:
            The text.

        Raises:
            ValueError: a number outside the vocabulary, or not as many replacements as numbers.
        """
        replacements = [None] * len(ids) if replace is None else replace
        tokens = [
            self._token(number) if word is None else word
            for number, word in zip(ids, replacements, strict=True)
            if word is not None or number not in (PAD, BEGIN, END)
        ]
        text: str = self._inner.decoder.decode(tokens) if tokens else ""
        if self.kind == "bpe":
            return text.removeprefix(" ")
        return re.sub(r'" ([^"]+) "', r'"\1"', text)

    def labels(self, ids: Sequence[int]) -> list[str]:
        """Each token as a label for a picture: a word, or a part of one with · in front where it continues a word."""
        if self.kind == "word":
            return [self._token(number) for number in ids]
        return [_byte_pair_label(self._inner.decoder.decode([self._token(number)])) for number in ids]

    def to_json(self) -> str:
        """The contents of a tokenizer.json, which the `tokenizers` library reads too."""
        return self._inner.to_str(pretty=True)

    @classmethod
    def from_json(cls, text: str, where: str) -> "Tokenizer":
        """A tokenizer from the contents of its tokenizer.json.

        Args:
            text: the contents.
            where: the file's name, for errors.

        Raises:
            ModelFolderError: not a tokenizer.json, or one without dikkat's special tokens in their places.
        """
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise ModelFolderError(f"{where}: not a tokenizer.json ({error}). Save the model again") from error
        found = tuple(inner.id_to_token(number) for number in range(len(SPECIAL_TOKENS)))
        if found != SPECIAL_TOKENS or not isinstance(inner.model, (models.BPE, models.WordLevel)):
            raise ModelFolderError(
                f"{where}: its first tokens are {found}; a tokenizer of dikkat's, word or bpe, begins with "
                f"{SPECIAL_TOKENS}"
            )
        numbers = inner.get_vocab().values()
        if sorted(numbers) != list(range(len(numbers))):
            raise ModelFolderError(f"{where}: its tokens are not numbered from 0 without a gap. Save the model again")
        return cls(inner)

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json, whole or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        write_whole(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer.json.

        Raises:
            ModelFolderError: no such file, or not a tokenizer of dikkat.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise ModelFolderError(f"{path}: missing or not text ({error})") from error
        return cls.from_json(text, str(path))

    def _token(self, number: int) -> str:
        token = self._inner.id_to_token(number) if number >= 0 else None
        if token is None:
            raise ValueError(f"token {number} is outside the vocabulary of {len(self)}")
        return token


def _byte_pair_label(text: str) -> str:
    if text.startswith(" "):
        return text.removeprefix(" ") or "␣"
    return f"·{text}" if not text or text[0].isalnum() else text  # a full stop needs no mark to follow its word


def _train_words(sentences: Sequence[str], min_freq: int, vocabulary_size: int) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKENS[UNKNOWN]))
    written = normalizers.Sequence([normalizers.NFC(), normalizers.Replace("’", "'")])
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD_PIECES), "removed", invert=True)
    inner.normalizer = normalizers.Sequence([written, normalizers.Lowercase()])
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_freq,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    inner.train_from_iterator(sentences, trainer)
    as_written = [written.normalize_str(sentence) for sentence in sentences]
    inner.decoder = _writing(as_written, inner.pre_tokenizer, inner.get_vocab())
    return inner


def _train_byte_pairs(sentences: Sequence[str], min_freq: int, vocabulary_size: int) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    # A space in front of the first word as well, so that a word is the same token wherever it stands.
    inner.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
            normalizers.Prepend(" "),
        ]
    )
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_BYTE_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocabulary_size, len(SPECIAL_TOKENS) + len(pre_tokenizers.ByteLevel.alphabet())),
        min_frequency=min_freq,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(sentences, trainer)
    return inner


class _Piece(NamedTuple):
    """A piece of a sentence and how it was written."""

    text: str
    starts: bool  # begins a sentence
    space_before: bool | None  # None: no word stands before it
    space_after: bool | None


def _pieces(sentence: str, split: pre_tokenizers.PreTokenizer) -> Iterator[_Piece]:
    found = split.pre_tokenize_str(sentence)
    starts = True
    for index, (text, (start, end)) in enumerate(found):
        # Between two punctuation marks either could be the reason for a space: only words beside a mark tell.
        before = found[index - 1][1][1] < start if index and found[index - 1][0][0].isalnum() else None
        after = end < found[index + 1][1][0] if index + 1 < len(found) and found[index + 1][0][0].isalnum() else None
        yield _Piece(text, starts, before, after)
        starts = text in _SENTENCE_ENDS if text[0].isalnum() or text in _SENTENCE_ENDS else starts


def _writing(
    sentences: Iterable[str], split: pre_tokenizers.PreTokenizer, vocabulary: Mapping[str, int]
) -> decoders.Decoder:
    """How the target language is written, learnt from text, as a chain of the library's own decoding steps.

    It is stored in tokenizer.json with the rest. The steps work on one string, each token with a space before it.
    """
    inside: dict[str, Counter[str]] = {}
    first_letters: Counter[str] = Counter()
    before: dict[str, Counter[bool]] = {}
    after: dict[str, Counter[bool]] = {}
    for sentence in sentences:
        for piece in _pieces(sentence, split):
            if not piece.text[0].isalnum():
                if piece.space_before is not None:
                    before.setdefault(piece.text, Counter())[piece.space_before] += 1
                if piece.space_after is not None:
                    after.setdefault(piece.text, Counter())[piece.space_after] += 1
            elif piece.starts:
                first_letters[piece.text[0]] += 1
            elif piece.text.lower() in vocabulary:  # no other word is ever decoded
                inside.setdefault(piece.text.lower(), Counter())[piece.text] += 1
    steps: list[decoders.Decoder] = [decoders.Replace(Regex("^"), " "), decoders.Fuse()]
    steps += _capitals_inside(inside)
    steps += _capitals_at_the_start(first_letters, inside)
    steps += _spaces(before, after)
    # Of all tokens that end in an apostrophe only elided words have a letter before it.
    steps += [decoders.Replace(Regex(rf"(?<={_LETTER}')[ ](?={_LETTER})"), "")]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])


def _capitals_inside(inside: dict[str, Counter[str]]) -> Iterator[decoders.Decoder]:
    """Names: words that have a capital more often than not where no sentence begins."""
    for word in sorted(inside):
        usual = max(sorted(inside[word]), key=inside[word].__getitem__)
        if usual != word:
            yield decoders.Replace(Regex(rf"(?<=[ ]){_literal(word)}(?=[ ]|$)"), usual)


def _capitals_at_the_start(first_letters: Counter[str], inside: dict[str, Counter[str]]) -> Iterator[decoders.Decoder]:
    """A capital for the first letter of a sentence, where the training text has it so."""
    upper = sum(count for letter, count in first_letters.items() if letter.isupper())
    lower = sum(count for letter, count in first_letters.items() if letter.islower())
    if upper > lower:
        letters = {letter.lower() for letter in first_letters} | {word[0] for word in inside}
        for letter in sorted(letter for letter in letters if letter.upper() != letter):
            start = rf"(?:(?<=\A[ ])|(?<=\A[ ][\"«“(][ ])|(?<=[ ][.!?][ ])){_literal(letter)}"
            yield decoders.Replace(Regex(start), letter.upper())


def _spaces(before: dict[str, Counter[bool]], after: dict[str, Counter[bool]]) -> Iterator[decoders.Decoder]:
    """No space beside a punctuation mark on the sides where the training text mostly has none."""
    marks = sum((count for mark, count in before.items() if mark in _SENTENCE_MARKS), Counter[bool]())
    for mark in sorted({*before, *_NEVER_SPACED, *_SENTENCE_MARKS} - {'"'}):  # Tokenizer.decode pairs these
        seen = before.get(mark) or (marks if mark in _SENTENCE_MARKS else Counter())
        if mark[0] in _NEVER_SPACED or seen[False] > seen[True]:
            yield decoders.Replace(Regex(rf"[ ](?={_literal(mark)}(?:[ ]|$))"), "")
    for mark, seen in sorted(after.items()):
        if seen[False] > seen[True] and mark not in {*_NEVER_SPACED, *_SENTENCE_MARKS, '"'}:
            yield decoders.Replace(Regex(rf"(?<=[ ]{_literal(mark)})[ ]"), "")


_literal: Callable[[str], str] = re.escape
