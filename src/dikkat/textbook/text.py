"""Text for the textbook's translators: the corpus, vocabularies, and sentences as arrays of token ids.

Arrays are NumPy's; each drop-in module converts them to its framework.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dikkat.extras import require_extra

with require_extra("textbook"):
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
    """Tokens and their numbers: the unknown token, then reserved tokens, then by falling frequency.

    Attributes:
        idx_to_token: The token of each number.
        token_to_idx: The number of each token.
        token_freqs: (token, count) pairs of all tokens, by falling count, then in order of first occurrence.
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
        """Return the number of a token, or the (nested) list of numbers of a list of tokens."""
        if isinstance(tokens, list | tuple):
            return [self[token] for token in tokens]
        return self.token_to_idx.get(tokens, self.unk)

    def to_tokens(self, indices: Any) -> Any:
        """Return the token of a number, or the list of tokens of a list, tuple or array of numbers."""
        if isinstance(indices, list | tuple) or bool(getattr(indices, "ndim", False)):
            return [self.to_tokens(index) for index in indices]
        number = float(indices)  # MXNet's arrays are of floats
        if not number.is_integer():
            raise ValueError(f"indices: got {number}; expected whole numbers")
        return self.idx_to_token[int(number)]


class RawCorpus(NamedTuple):
    """Sentence pairs as text."""

    text: str  # one pair per line, separated by a tab
    min_freq: int  # occurrences from which a word has a number


@cache
def raw_corpus() -> RawCorpus:
    """Return the book's corpus if it is available, else the phrasebook, and print which.

    In the book words that occur once have no number. In the smaller phrasebook every word has one: among its first 600
    pairs 'va' and 'moi' occur only once.
    """
    pairs: Corpus
    try:
        pairs, min_freq = named("tatoeba-fra-eng").whole, 2
        print("The sentences are those of the textbook: tatoeba-fra-eng.")
    except (CorpusError, OSError, ImportError) as error:
        pairs, min_freq = PairCorpus(phrasebook.pairs()), 1
        print(f"The sentences are those of dikkat's phrasebook, because tatoeba-fra-eng is not available: {error}")
    return RawCorpus("".join(f"{english}\t{french}\n" for english, french in pairs), min_freq)


def read_data_nmt() -> str:
    """Return English sentences and their French translations, one pair per line, separated by a tab.

    The text is the book's corpus if it is in the cache folder or can be downloaded (`dikkat.translation.named`), else
    the embedded phrasebook, whose first 600 pairs contain the sentences that the book translates. The first call prints
    which.
    """
    return raw_corpus().text


def preprocess_nmt(text: str) -> str:
    r"""Return the text in lower case, with plain spaces and a space before each of `,.!?`.

    Example:
        >>> preprocess_nmt("I'm home, Tom!\tQui\xa0?").split("\t")
        ["i'm home , tom !", 'qui ?']
    """
    return re.sub(r"(?<=[^ ])(?=[,.!?])", " ", re.sub("[\u202f\xa0]", " ", text).lower())


def tokenize_nmt(text: str, num_examples: int | None = None) -> tuple[list[list[str]], list[list[str]]]:
    r"""Return source and target sentences as lists of words, without lines that are not a pair.

    Example:
        >>> tokenize_nmt("go .\tva !\nhi .\tsalut !\n", num_examples=1)
        ([['go', '.']], [['va', '!']])
    """
    lines = (line.split("\t") for line in text.split("\n"))
    pairs = [fields for fields in lines if len(fields) == 2][: num_examples or None]
    return [source.split() for source, _ in pairs], [target.split() for _, target in pairs]


def truncate_pad(line: Sequence[Any], num_steps: int, padding_token: Any) -> list[Any]:
    """Return a sequence cut or padded to `num_steps`.

    Example:
        >>> truncate_pad([5, 6, 7], 2, 0), truncate_pad([5], 3, 0)
        ([5, 6], [5, 0, 0])
    """
    return [*line[:num_steps], *[padding_token] * (num_steps - len(line))]


def build_array_nmt(lines: Sequence[Tokens], vocab: Vocab, num_steps: int) -> tuple[Ids, Ids]:
    """Return sentences as token ids with `<eos>`, cut or padded to `num_steps`, and their lengths.

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
    """Return the corpus's first pairs as arrays, for `load_data_nmt` of edition 0.17."""
    return _build_arrays(read_data_nmt(), num_steps, num_examples, (None, None), raw_corpus().min_freq)


def _build_arrays(
    text: str, num_steps: int, num_examples: int | None, vocabs: Sequence[Vocab | None], min_freq: int
) -> tuple[Arrays, Vocab, Vocab]:
    """Return (sources, lengths, targets, lengths) of raw text, and the vocabularies, built if None."""
    # Only these pairs of a long text are processed.
    lines = [line for line in text.split("\n") if line.count("\t") == 1][: num_examples or None]
    sentences = tokenize_nmt(preprocess_nmt("\n".join(lines)))
    source, target = (
        vocab or Vocab(tokens, min_freq, [PAD, BEGIN, END]) for vocab, tokens in zip(vocabs, sentences, strict=True)
    )
    arrays = (*build_array_nmt(sentences[0], source, num_steps), *build_array_nmt(sentences[1], target, num_steps))
    return arrays, source, target


def parallel_arrays(
    text: str, num_steps: int, num_examples: int | None = None, source_vocab: Vocab | None = None,
    target_vocab: Vocab | None = None, min_freq: int = 1,
) -> tuple[Arrays, Vocab, Vocab]:  # fmt: skip
    r"""Return pairs as the arrays of edition 1.0: sources, decoder inputs, lengths, labels.

    Example:
        >>> (source, dec_input, lens, label), vocab, _ = parallel_arrays("Go.\tVa !", 4)
        >>> source.shape, lens, vocab.to_tokens(source[0])
        ((1, 4), array([3]), ['go', '.', '<eos>', '<pad>'])
    """
    (sources, lens, targets, _), source_vocab, target_vocab = _build_arrays(
        text, num_steps, num_examples, (source_vocab, target_vocab), min_freq
    )
    begin = np.full((len(targets), 1), target_vocab[BEGIN], dtype=np.int64)
    return (sources, np.hstack([begin, targets[:, :-1]]), lens, targets), source_vocab, target_vocab


def bleu(pred_seq: str, label_seq: str, k: int) -> float:
    """Return `dikkat.translation.bleu_k`, with n-grams up to k; an empty prediction has 0."""
    return bleu_k(pred_seq, label_seq, k)
