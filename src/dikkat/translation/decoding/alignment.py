"""Which word translates which: links from attention, and their error rate against a person's."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from dikkat.errors import InputError
from dikkat.translation.data.corpus import Pair, read_lines
from dikkat.translation.decoding.translator import Translator
from dikkat.translation.errors import CorpusError
from dikkat.translation.network.model import collate
from dikkat.translation.text.tokenizer import Tokenizer

Link = tuple[int, int]
"""Numbers, from 0, of a source word and of a target word."""


class GoldLinks(NamedTuple):
    """A person's links of a sentence pair.

    Attributes:
        sure: Those that are certainly right.
        possible: Those that may be right, the sure ones among them.
    """

    sure: frozenset[Link]
    possible: frozenset[Link]


def align(translator: Translator, pairs: Sequence[Pair], *, batch_size: int = 64) -> list[set[Link]]:
    """Link the words of sentence pairs by what a model looks at.

    The model is given the target sentence; each of its tokens is linked to the source token most attended before it is
    written. Words are what white space separates, as in files of links; a word that the model cuts into several
    tokens has the links of all of them.

    Args:
        translator: A model with attention.
        pairs: (source, target) sentences.
        batch_size: How many to go through at once.

    Returns:
        The links of each pair.

    Raises:
        InputError: The model has no attention, or a sentence has no word.
    """
    if translator.settings.score == "none":
        raise InputError("the model's score is none: without attention there are no links")
    for number, pair in enumerate(pairs, start=1):
        if not all(side.strip() for side in pair):
            raise InputError(f"pair {number} has an empty sentence, which has no links")
    links: list[set[Link]] = []
    for start in range(0, len(pairs), batch_size):
        links += _align_batch(translator, pairs[start : start + batch_size])
    return links


@torch.no_grad()
def _align_batch(translator: Translator, pairs: Sequence[Pair]) -> list[set[Link]]:
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    source_ids = translator.source_tokenizer.numbers(sources)
    target_ids = translator.target_tokenizer.numbers(targets)
    model = translator.model.eval()
    device = next(model.parameters()).device
    batch = collate(list(zip(source_ids, target_ids, strict=True)))
    memory, state = model.encode(batch.source.to(device), batch.source_lengths.to(device))
    looked = []
    for previous in batch.target[:, :-2].to(device).unbind(1):  # before each token of the target, not before its end
        _, weights, state = model.step_features(previous, memory, state)
        looked.append(weights.argmax(1))
    most = torch.stack(looked, 1).tolist()
    source_words = _words(translator.source_tokenizer, sources)
    target_words = _words(translator.target_tokenizer, targets)
    return [
        {(source[at], word) for at, word in zip(row, target, strict=False)}
        for row, source, target in zip(most, source_words, target_words, strict=True)
    ]


def _words(tokenizer: Tokenizer, sentences: Sequence[str]) -> list[list[int]]:
    """For each token of each sentence the number of the word that it ends in."""
    numbers = []
    for sentence, offsets in zip(sentences, tokenizer.offsets(sentences), strict=True):
        starts = [word.start() for word in re.finditer(r"\S+", sentence)]
        numbers.append([max(0, sum(start < end for start in starts) - 1) for _, end in offsets])
    return numbers


def alignment_error_rate(found: Sequence[set[Link]], gold: Sequence[GoldLinks]) -> float:
    r"""The share of links that are wrong or missing, from 0 to 1; smaller is better.

    $$ 1 - \frac{|A \cap S| + |A \cap P|}{|A| + |S|} $$

    of the links A that were found, the sure ones S and the possible ones P, each counted over all sentences.
    Och and Ney, "A systematic comparison of various statistical alignment models" (2003), section 5.

    Args:
        found: The links of each pair.
        gold: A person's.

    Raises:
        InputError: Not as many of one as of the other, or no link at all.

    Example:
        >>> gold = GoldLinks(sure=frozenset({(0, 0)}), possible=frozenset({(0, 0), (1, 1)}))
        >>> alignment_error_rate([{(0, 0), (1, 1)}], [gold])
        0.0
    """
    if len(found) != len(gold):
        raise InputError(f"found: got links of {len(found)} pairs; expected {len(gold)}, as many as gold")
    total = sum(len(links) + len(each.sure) for links, each in zip(found, gold, strict=True))
    if not total:
        raise InputError("there is no link at all, neither found nor given")
    right = sum(len(links & each.sure) + len(links & each.possible) for links, each in zip(found, gold, strict=True))
    return 1 - right / total


def read_links(path: str | Path) -> list[GoldLinks]:
    """Gold links from a file in the Pharaoh format: a line a sentence pair, `0-0 1-2 2p3`.

    `1-2` is a sure link from source word 1 to target word 2, both counted from 0; `2p3` is a possible one.

    Args:
        path: A UTF-8 file, plain or compressed with gzip. An empty line is a pair without links.

    Raises:
        CorpusError: A link of another form; the message has the line.
        OSError: The file cannot be opened.
    """
    lines = []
    for number, line in enumerate(read_lines(path), start=1):
        sure, possible = set(), set()
        for text in line.split():
            parts = re.fullmatch(r"([0-9]+)([-p])([0-9]+)", text)
            if parts is None:
                raise CorpusError(
                    f"{path}, line {number}: {text!r} is no link: write 1-2 for a sure one, from source word 1 to "
                    "target word 2, counted from 0, and 1p2 for a possible one"
                )
            link = int(parts[1]), int(parts[3])
            possible.add(link)
            if parts[2] == "-":
                sure.add(link)
        lines.append(GoldLinks(frozenset(sure), frozenset(possible)))
    return lines
