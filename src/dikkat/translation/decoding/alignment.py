"""Which word translates which: links from a model that is given both sentences, and their error rate."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dikkat._engine import cancellation
from dikkat.errors import InputError
from dikkat.translation.data.corpus import read_lines
from dikkat.translation.errors import CorpusError
from dikkat.translation.network.model import TranslationModel, collate
from dikkat.translation.text.units import Units

_TRIED = 4  # positions of a step: of the phrasebook's links 1.5 % are wrong by four, 2.3 % by all
_ATTENTION = 0.01  # its own part of the weight
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


@torch.no_grad()
def posteriors(model: TranslationModel, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Tensor]:
    r"""Where each token of a given translation comes from.

    $$ w_{tj} \propto \sqrt{\alpha_{tj}} \; p(y_t \mid y_{<t}, x, c_t = h_j) $$

    of the attention α of step t and the token's probability if the step had seen position j alone, at the four
    positions with the largest α; a hundredth of the weight is α itself, which leaves no position without any. Attention
    at step t is computed before the token before it has been read, and before the token itself is known: only the
    second factor takes the token into account. Where a kernel has no position in reach, all count the same. After
    Shankar and Sarawagi, "Posterior attention models for sequence to sequence learning" (2019), section 3; the root,
    with which attention counts half, the four and the hundredth were chosen here.

    Example:
        >>> from dikkat.translation import Settings
        >>> model = TranslationModel(Settings(embedding_size=4, hidden_size=4), 9, 9)
        >>> posteriors(model, [([4, 5, 6], [7, 8])])[0].shape
        torch.Size([2, 3])
    """
    model.eval()
    device = model.output_bias.device
    batch = collate(pairs).to(device)
    memory, state = model.encode(batch.source, batch.source_lengths)
    count, positions = batch.source.shape
    values = memory.value.reshape(count * positions, 1, -1)
    alone = model.decoder.prepare(values[..., : model.decoder.key_size], values=values)
    tried = min(_TRIED, positions)
    each = torch.arange(count, device=device).repeat_interleave(tried)
    inside = (torch.arange(positions, device=device) < batch.source_lengths.unsqueeze(1)).to(memory.value.dtype)
    rows = []
    for previous, token in zip(batch.target[:, :-2].unbind(1), batch.target[:, 1:-1].unbind(1), strict=True):
        cancellation.check()
        _, weights, after = model.step_features(previous, memory, state)
        most, places = weights.topk(tried, 1)
        here = alone.select(each * positions + places.flatten())
        features, _, _ = model.step_features(previous[each], here, model.select(state, each))
        gains = model.scores(features).log_softmax(1).gather(1, token[each].unsqueeze(1)).view(count, tried)
        found = torch.zeros_like(weights).scatter(1, places, (most.log() / 2 + gains).softmax(1))
        found = found.lerp(weights, _ATTENTION)
        rows.append(found.where(weights.any(1, keepdim=True), inside / inside.sum(1, keepdim=True)))
        state = after
    stacked = torch.stack(rows, 1).cpu()
    return [stacked[index, : len(target), : len(source)] for index, (source, target) in enumerate(pairs)]


def of_units(weights: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """(T, S) weights of units from those of pieces: of a unit's pieces the mean, at a unit's pieces the sum."""
    mean = target / target.sum(1, keepdim=True).clamp(min=1)
    return mean @ weights @ (source / source.sum(0).clamp(min=1)).T


def agreed(weights: Tensor) -> Tensor:
    """(T, S) weights whose rows add up to 1, in which a source unit counts less the more units come from it.

    The root is between leaving them as they are and dividing by the whole sum, with which one unit is as good as many.
    """
    shared = weights / weights.sum(0).clamp(min=1e-9).sqrt()
    return shared / shared.sum(1, keepdim=True).clamp(min=1e-9)


def links(weights: Tensor, source: Units, target: Units) -> set[Link]:
    """Links of words by (T, S) weights of units: each unit with its largest weight, from both sides, joined.

    Example:
        >>> sorted(links(torch.eye(2), Units.of("I go"), Units.of("je vais")))
        [(0, 0), (1, 1)]
    """
    if not weights.numel():
        return set()
    rows, columns = (torch.stack(weights.max(axis), 1).tolist() for axis in (1, 0))
    return grow_diag_final_and(
        {(source.words[int(best)], target.words[here]) for here, (most, best) in enumerate(rows) if most},
        {(source.words[here], target.words[int(best)]) for here, (most, best) in enumerate(columns) if most},
    )


def grow_diag_final_and(forward: set[Link], backward: set[Link]) -> set[Link]:
    """The links of two directions as one set.

    It begins with those of both, goes on with neighbours, also diagonal ones, that are in one of the two and have a
    word that is not linked yet, and ends with those whose words both are not. Koehn, Och, Marcu, "Statistical
    phrase-based translation" (2003), section 3.1, and its later symmetrisation of that name.

    Example:
        >>> sorted(grow_diag_final_and({(0, 0), (1, 1), (2, 3)}, {(0, 0), (2, 1)}))
        [(0, 0), (1, 1), (2, 1)]
    """
    found, either = forward & backward, forward | backward

    def free(link: Link) -> tuple[bool, bool]:
        return all(link[0] != one for one, _ in found), all(link[1] != other for _, other in found)

    queue = sorted(found)
    for one, other in queue:  # which grows
        for near in sorted(either - found):
            if max(abs(near[0] - one), abs(near[1] - other)) == 1 and any(free(near)):
                found.add(near)
                queue.append(near)
    for direction in (forward, backward):
        for link in sorted(direction):
            if all(free(link)):
                found.add(link)
    return found


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

    Returns:
        The links of each line, in their order.

    Raises:
        CorpusError: A link of another form; the message has the line.
        OSError: The file cannot be opened.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "links")
        >>> _ = path.write_text("0-0 1p0")
        >>> [gold] = read_links(path)
        >>> sorted(gold.sure), sorted(gold.possible)
        ([(0, 0)], [(0, 0), (1, 0)])
    """
    return gold_links(read_lines(path), str(path))


def gold_links(lines: Iterable[str], name: str) -> list[GoldLinks]:
    """Gold links of lines in the form of `read_links`, a line a pair; its CorpusError says `name` and line."""
    gold = []
    for number, line in enumerate(lines, start=1):
        sure, possible = set(), set()
        for text in line.split():
            parts = re.fullmatch(r"([0-9]{1,9})([-p])([0-9]{1,9})", text)
            if parts is None:
                raise CorpusError(
                    f"{name}, line {number}: {text!r} is no link: write 1-2 for a sure one, from source word 1 to "
                    "target word 2, counted from 0, and 1p2 for a possible one"
                )
            link = int(parts[1]), int(parts[3])
            possible.add(link)
            if parts[2] == "-":
                sure.add(link)
        gold.append(GoldLinks(frozenset(sure), frozenset(possible)))
    return gold


def check_links(gold: Sequence[GoldLinks], pairs: Sequence[tuple[str, str]], name: str) -> None:
    """Check that links are of these pairs' words."""
    if len(gold) != len(pairs):
        raise CorpusError(f"{name}: got links of {len(gold):,} pairs; expected {len(pairs):,}, a line for each")
    for number, (each, pair) in enumerate(zip(gold, pairs, strict=True), start=1):
        source, target = (len(side.split()) for side in pair)
        for one, other in sorted(each.possible):
            if one >= source or other >= target:
                raise CorpusError(
                    f"{name}, line {number}: got a link {one}-{other}; expected source words below {source} and target "
                    f"words below {target}, counted from 0"
                )
