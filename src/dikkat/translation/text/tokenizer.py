"""Text to token numbers and back to text as a person would write it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from dikkat.errors import InputError
from dikkat.storage.files import parse_json, read_regular, write_whole
from dikkat.translation.errors import ModelFolderError, SettingsError
from dikkat.translation.text import orthography
from dikkat.translation.text.orthography import LETTER
from dikkat.translation.text.special_tokens import BEGIN, END, PAD, UNKNOWN

Kind = Literal["word", "bpe"]

SPECIAL_TOKENS = ("<pad>", "<unk>", "<bos>", "<eos>")

# Elided words (l'homme, qu'il) are words of their own; every other apostrophe (he's, don't, aujourd'hui) is within one.
_ELIDED = rf"(?<!{LETTER})(?i:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu)'(?={LETTER})"
_WORD = rf"{LETTER}+(?:['-](?:{LETTER}|\p{{N}})+)*"
_NUMBER = r"\p{N}+(?:[.,:]\p{N}+)*"
_ELLIPSIS = r"\.{2,}"
_WORD_PIECES = rf"{_ELIDED}|{_WORD}|{_NUMBER}|{_ELLIPSIS}|[^\s]"
_BYTE_PIECES = rf" ?{_ELIDED}| ?{LETTER}+| ?\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+|\s+"

LARGEST = 1 << 25  # bytes of a tokenizer.json
MOST_TOKENS = 1 << 18  # of a vocabulary


def check_size(kind: Kind, vocabulary_size: int) -> None:
    """Refuse a largest vocabulary that is too small.

    Raises:
        SettingsError: The bytes and the special tokens alone are more.
    """
    smallest = len(SPECIAL_TOKENS) + 256
    if kind == "bpe" and vocabulary_size < smallest:
        raise SettingsError(
            f"vocabulary_size: got {vocabulary_size}; expected at least {smallest} with the tokenizer bpe: the number "
            "of all bytes and special tokens"
        )


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
        self._labels: dict[int, str] = {}  # of the tokens met so far

    @classmethod
    def train(cls, sentences: Sequence[str], kind: Kind, *, min_freq: int, vocabulary_size: int) -> "Tokenizer":
        """Learn a vocabulary.

        Args:
            sentences: The text to learn from.
            kind: `"word"` or `"bpe"`.
            min_freq: How often a word, or a pair that is to be merged, must occur.
            vocabulary_size: The largest number of tokens, the special ones included; the most frequent are kept.

        Returns:
            The tokenizer.

        Raises:
            SettingsError: An unknown kind, or a byte-pair vocabulary that has no room for all bytes.
        """
        check_size(kind, vocabulary_size)
        if kind == "word":
            return cls(_train_words(sentences, min_freq, vocabulary_size))
        if kind == "bpe":
            return cls(_train_byte_pairs(sentences, min_freq, vocabulary_size))
        raise SettingsError(f"tokenizer: got {kind!r}; expected one of {', '.join(get_args(Kind))}")

    def __len__(self) -> int:
        """Number of tokens, the special ones included."""
        return self._inner.get_vocab_size()

    def encode(self, sentence: str) -> Encoded:
        """Token numbers of a sentence, without special tokens around it, and the pieces of its text.

        Args:
            sentence: Any text.

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
        """The place of each piece in its sentence: the first character, and the one behind the last."""
        return [encoding.offsets for encoding in self._inner.encode_batch(list(sentences))]

    def decode(self, ids: Sequence[int], *, replace: Sequence[str | None] | None = None) -> str:
        """Text as a person would write it.

        Args:
            ids: Token numbers; special tokens other than `<unk>` give nothing.
            replace: For each number a word to stand there instead of its token, or None: an unknown word that was
                copied from the source, for instance.

        Returns:
            The text.

        Raises:
            ValueError: A number outside the vocabulary, or not as many replacements as numbers.
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
        for number in {*ids} - self._labels.keys():
            self._labels[number] = _byte_pair_label(self._inner.decoder.decode([self._token(number)]))
        return [self._labels[number] for number in ids]

    def to_json(self) -> str:
        """The contents of a tokenizer.json, which the `tokenizers` library reads too."""
        return self._inner.to_str()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Tokenizer":
        """A tokenizer from the contents of its tokenizer.json.

        Args:
            data: The contents.
            where: The file's name, for errors.

        Raises:
            ModelFolderError: Not a tokenizer.json as dikkat writes it: other tokens, steps or patterns; the message
                has what differs.
        """
        try:
            _check(parse_json(data))
            # What the library is given has no pattern but those written here: it does not stop at any that never ends.
            return cls(tokenizers.Tokenizer.from_buffer(data))
        except Exception as error:  # the library raises nothing narrower
            raise ModelFolderError(f"{where}: not a tokenizer of dikkat's: {error}. Save the model again") from error

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json, whole or not at all.

        Raises:
            OSError: The file cannot be written.
        """
        write_whole(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer.json.

        Raises:
            ModelFolderError: No such file, no regular one, one that is too large, or not a tokenizer of dikkat's.
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


def _byte_pair_label(text: str) -> str:
    if text.startswith(" "):
        return text.removeprefix(" ") or "␣"
    return f"·{text}" if not text or text[0].isalnum() else text  # a full stop needs no mark to follow its word


def _train_words(sentences: Sequence[str], min_freq: int, vocabulary_size: int) -> tokenizers.Tokenizer:
    inner = _untrained_words()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_freq,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    inner.train_from_iterator(sentences, trainer)
    normalise = _normalised_as_written()
    as_written = [normalise.normalize_str(sentence) for sentence in sentences]
    inner.decoder = orthography.learn(as_written, inner.pre_tokenizer, inner.get_vocab())
    return inner


def _normalised_as_written() -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.NFC(), normalizers.Replace("’", "'")])


def _untrained_words() -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKENS[UNKNOWN]))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD_PIECES), "removed", invert=True)
    inner.normalizer = normalizers.Sequence([_normalised_as_written(), normalizers.Lowercase()])
    return inner


def _untrained_byte_pairs() -> tokenizers.Tokenizer:
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
    return inner


def _train_byte_pairs(sentences: Sequence[str], min_freq: int, vocabulary_size: int) -> tokenizers.Tokenizer:
    inner = _untrained_byte_pairs()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_freq,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(sentences, trainer)
    return inner


def _check(content: Any) -> None:
    """Refuse a tokenizer.json that `Tokenizer.to_json` could not have written.

    Raises:
        ValueError: It is another; the message says what differs.
    """
    kind = (
        content["model"].get("type") if isinstance(content, dict) and isinstance(content.get("model"), dict) else None
    )
    if kind not in ("WordLevel", "BPE"):
        raise ValueError(f"model: got {kind!r}; expected WordLevel or BPE")
    own = json.loads((_untrained_words() if kind == "WordLevel" else _untrained_byte_pairs()).to_str())
    vocabulary, decoder = content["model"].get("vocab"), content.get("decoder")
    _check_vocabulary(vocabulary)
    _check_special(content.get("added_tokens"))
    if kind == "WordLevel":
        orthography.check(decoder, vocabulary)
        own["decoder"] = decoder
    else:
        _check_merges(content["model"].get("merges"), vocabulary)
        own["model"]["merges"] = content["model"]["merges"]
    own["model"]["vocab"], own["added_tokens"] = vocabulary, content["added_tokens"]
    for name in own.keys() | content.keys():
        if not _agree(content.get(name), own.get(name)):
            raise ValueError(f"its {name} is another than those that dikkat writes")


def _check_vocabulary(vocabulary: Any) -> None:
    if isinstance(vocabulary, dict) and len(vocabulary) > MOST_TOKENS:
        raise ValueError(f"got {len(vocabulary):,} tokens; expected at most {MOST_TOKENS:,}")
    if not isinstance(vocabulary, dict) or any(type(number) is not int for number in vocabulary.values()):
        raise ValueError("it has no vocabulary of tokens and their numbers")
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if tuple(tokens[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
        raise ValueError(f"first tokens: got {tokens[: len(SPECIAL_TOKENS)]}; expected {list(SPECIAL_TOKENS)}")
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError("its tokens are not numbered from 0 without a gap")


def _check_special(tokens: Any) -> None:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    own = [{"id": number, "content": token, **plain} for number, token in enumerate(SPECIAL_TOKENS)]
    if not _agree(tokens, own):
        raise ValueError(f"its added tokens are not {', '.join(SPECIAL_TOKENS)}")


def _check_merges(merges: Any, vocabulary: dict[str, int]) -> None:
    if missing := set(pre_tokenizers.ByteLevel.alphabet()) - vocabulary.keys():
        raise ValueError(f"{len(missing)} of the 256 bytes are missing from its vocabulary")
    if not isinstance(merges, list) or len(merges) > len(vocabulary):
        raise ValueError("it has no list of merges, or more of them than tokens")


def _agree(value: Any, own: Any) -> bool:
    """True for two values of JSON that are the same; what only one of them has must be switched off there.

    Another version of the library may know of more switches than the one that wrote the file.
    """
    if isinstance(value, dict) and isinstance(own, dict):
        return all(_agree(value.get(name), own.get(name)) for name in value.keys() | own.keys())
    if isinstance(value, list) and isinstance(own, list):
        return len(value) == len(own) and all(map(_agree, value, own))
    return (value in (None, False) and own in (None, False)) or (type(value) is type(own) and value == own)
