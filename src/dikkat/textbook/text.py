"""Text for the textbook's translators: its corpus, vocabularies, and sentences as arrays of token ids.

Nothing here is of a framework: arrays are NumPy's, and each drop-in module makes its own kind of them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dikkat.extras import needing

with needing("textbook"):
    from dikkat.translation import Corpus, CorpusError, PairCorpus, bleu_k, named, phrasebook

__all__ = [
    "Ids", "RawCorpus", "Vocab", "bleu", "build_array_nmt", "load_data_nmt", "parallel_arrays", "preprocess_nmt",
    "raw_corpus", "read_data_nmt", "tokenize_nmt", "truncate_pad",
]  # fmt: skip

Tokens = Sequence[str]
Ids = NDArray[np.int64]
Arrays = tuple[Ids, Ids, Ids, Ids]

UNKNOWN, PAD, BEGIN, END = "<unk>", "<pad>", "<bos>", "<eos>"


class Vocab:
    """Tokens and their numbers: the unknown token first, then the reserved ones, then by falling frequency.

    Attributes:
        idx_to_token: The token of each number.
        token_to_idx: The number of each token.
        token_freqs: (token, count) pairs of all tokens that came, by falling count; of equal ones the first seen first.
        unk: The number of the unknown token, 0.

    Source: *Dive into Deep Learning*, section "Converting Raw Text into Sequence Data".

    Example:
        >>> vocab = Vocab([["a", "b", "b"], ["c", "b", "a"]], min_freq=2, reserved_tokens=["<pad>"])
        >>> vocab["b"], vocab[["a", "z"]], vocab.to_tokens([2, 3, 0]), len(vocab)
        (2, [3, 0], ['b', 'a', '<unk>'], 4)
    """

    unk = 0

    def __init__(
        self, tokens: Sequence[Any] | None = None, min_freq: int = 0, reserved_tokens: Sequence[str] | None = None
    ) -> None:
        tokens = [] if tokens is None else tokens
        nested = bool(len(tokens)) and isinstance(tokens[0], list | tuple)
        count = Counter(chain.from_iterable(tokens) if nested else tokens)
        self.token_freqs = count.most_common()
        frequent = [token for token, times in self.token_freqs if times >= min_freq]
        self.idx_to_token = list(dict.fromkeys([UNKNOWN, *(reserved_tokens or []), *frequent]))
        self.token_to_idx = {token: index for index, token in enumerate(self.idx_to_token)}

    def __len__(self) -> int:
        return len(self.idx_to_token)

    def __getitem__(self, tokens: Any) -> Any:
        """The number of a token, or, however deep, the list of numbers of a list of tokens."""
        if isinstance(tokens, list | tuple):
            return [self[token] for token in tokens]
        return self.token_to_idx.get(tokens, self.unk)

    def to_tokens(self, indices: Any) -> Any:
        """The token of a number, or the list of tokens of a list, tuple or array of numbers."""
        if isinstance(indices, list | tuple) or bool(getattr(indices, "ndim", False)):
            return [self.to_tokens(index) for index in indices]
        number = float(indices)  # MXNet's arrays are of floats
        if not number.is_integer():
            raise ValueError(f"a token's number: got {number}; expected a whole number")
        return self.idx_to_token[int(number)]


class RawCorpus(NamedTuple):
    """Sentence pairs as they are."""

    text: str  # A line a pair, a tab between its two sentences
    min_freq: int  # how often a word must occur to have a number of its own


@cache
def raw_corpus() -> RawCorpus:
    """The book's corpus where it can be had, and otherwise the phrasebook, in which every word counts.

    The book gives words that occur once no number of their own. Its corpus says things many times over; the phrasebook
    does not: of its first 600 pairs, 'va' and 'moi' are in one each, and could not be said without a number.
    """
    pairs: Corpus
    try:
        pairs, min_freq = named("tatoeba-fra-eng").whole, 2
        print("The sentences are those of the textbook: tatoeba-fra-eng.")
    except (CorpusError, OSError, ImportError) as error:
        pairs, min_freq = PairCorpus(phrasebook.pairs()), 1
        print(f"The sentences are those of dikkat's phrasebook, since tatoeba-fra-eng cannot be had: {error}")
    return RawCorpus("".join(f"{english}\t{french}\n" for english, french in pairs), min_freq)


def read_data_nmt() -> str:
    """English sentences and their French translations: a line a pair, a tab between the two.

    They are those of the book's corpus where it is in the cache folder or can be fetched (`dikkat.translation.named`),
    and otherwise those of the embedded phrasebook, whose first 600 pairs hold the sentences that the book translates.
    The first call prints which.
    """
    return raw_corpus().text


def preprocess_nmt(text: str) -> str:
    r"""Lower case, plain spaces, and a space before each of `,.!?`.

    Example:
        >>> preprocess_nmt("I'm home, Tom!\tQui\xa0?").split("\t")
        ["i'm home , tom !", 'qui ?']
    """
    return re.sub(r"(?<=[^ ])(?=[,.!?])", " ", re.sub("[\u202f\xa0]", " ", text).lower())


def tokenize_nmt(text: str, num_examples: int | None = None) -> tuple[list[list[str]], list[list[str]]]:
    r"""Source and target sentences as lists of words; lines that are not a pair are left out.

    Example:
        >>> tokenize_nmt("go .\tva !\nhi .\tsalut !\n", num_examples=1)
        ([['go', '.']], [['va', '!']])
    """
    lines = (line.split("\t") for line in text.split("\n"))
    pairs = [parts for parts in lines if len(parts) == 2][: num_examples or None]
    return [source.split() for source, _ in pairs], [target.split() for _, target in pairs]


def truncate_pad(line: Sequence[Any], num_steps: int, padding_token: Any) -> list[Any]:
    """The first `num_steps` of a sequence, padded to as many.

    Example:
        >>> truncate_pad([5, 6, 7], 2, 0), truncate_pad([5], 3, 0)
        ([5, 6], [5, 0, 0])
    """
    return [*line[:num_steps], *[padding_token] * (num_steps - len(line))]


def build_array_nmt(lines: Sequence[Tokens], vocab: Vocab, num_steps: int) -> tuple[Ids, Ids]:
    """Sentences as token ids, each with `<eos>` after it, cut or padded to `num_steps`.

    Example:
        >>> vocab = Vocab([["a", "b"]], reserved_tokens=["<pad>", "<eos>"])
        >>> build_array_nmt([["b"]], vocab, 4)
        (array([[4, 2, 1, 1]]), array([2]))
    """
    ended = [[*vocab[list(line)], vocab[END]] for line in lines]
    ids = np.array([truncate_pad(line, num_steps, vocab[PAD]) for line in ended], dtype=np.int64)
    lens = np.array([min(len(line), num_steps) for line in ended], dtype=np.int64)
    return ids.reshape(len(ended), num_steps), lens


def load_data_nmt(num_steps: int, num_examples: int | None = 600) -> tuple[Arrays, Vocab, Vocab]:
    """The corpus's first pairs: what the first generation's `load_data_nmt` makes an iterator of."""
    return _pairs(read_data_nmt(), num_steps, num_examples, (None, None), raw_corpus().min_freq)


def _pairs(
    text: str, num_steps: int, num_examples: int | None, vocabs: Sequence[Vocab | None], min_freq: int
) -> tuple[Arrays, Vocab, Vocab]:
    """Sources, their lengths, targets and theirs, of raw text; the vocabularies, made of it where they are None."""
    # Of a long text only the pairs that are taken are prepared.
    taken = [line for line in text.split("\n") if line.count("\t") == 1][: num_examples or None]
    lines = tokenize_nmt(preprocess_nmt("\n".join(taken)))
    source, target = (
        vocab or Vocab(own, min_freq, [PAD, BEGIN, END]) for vocab, own in zip(vocabs, lines, strict=True)
    )
    arrays = (*build_array_nmt(lines[0], source, num_steps), *build_array_nmt(lines[1], target, num_steps))
    return arrays, source, target


def parallel_arrays(
    text: str, num_steps: int, num_examples: int | None = None, source_vocab: Vocab | None = None,
    target_vocab: Vocab | None = None, min_freq: int = 1,
) -> tuple[Arrays, Vocab, Vocab]:  # fmt: skip
    r"""Pairs as the second generation's arrays.

    Example:
        >>> (source, read, lens, said), vocab, _ = parallel_arrays("Go.\tVa !", 4)
        >>> source.shape, lens, vocab.to_tokens(source[0])
        ((1, 4), array([3]), ['go', '.', '<eos>', '<pad>'])
    """
    (sources, lens, targets, _), source_vocab, target_vocab = _pairs(
        text, num_steps, num_examples, (source_vocab, target_vocab), min_freq
    )
    begin = np.full((len(targets), 1), target_vocab[BEGIN], dtype=np.int64)
    return (sources, np.hstack([begin, targets[:, :-1]]), lens, targets), source_vocab, target_vocab


def bleu(pred_seq: str, label_seq: str, k: int) -> float:
    """`dikkat.translation.bleu_k`, by the textbook's name: n-grams up to k, a prediction without words is worth 0."""
    return bleu_k(pred_seq, label_seq, k)
