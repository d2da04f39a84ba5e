"""Word alignment: links from a model that is given both sentences, gold links, and the alignment error rate."""

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

_POSITIONS = 4  # tried positions of a step: 1.5 % of the phrasebook's links are wrong, 2.3 % with all positions
ATTENTION_SHARE = 0.01
"""The share of attention weights in a posterior."""
Link = tuple[int, int]
"""The indices, from 0, of a source word and of a target word."""


class GoldLinks(NamedTuple):
    """The word links that a person marked in a sentence pair.

    Attributes:
        sure: Links that are certainly right.
        possible: Links that may be right, including all sure links.
    """

    sure: frozenset[Link]
    possible: frozenset[Link]


@torch.no_grad()
def posteriors(
    model: TranslationModel,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    attention_share: float = ATTENTION_SHARE,
) -> list[Tensor]:
    r"""Return for each pair (T, S) float32: how much each target token comes from each source token. Rows sum to 1.

    $$ w_{tj} \propto \sqrt{\alpha_{tj}} \; p(y_t \mid y_{<t}, x, c_t = h_j) $$

    with the attention α of step t and the token's probability if the context is only position j. It is computed for the
    four positions with the largest α. By default a hundredth of the result is α itself, so that no position with
    attention has weight 0.
    Attention at step t does not know the token; only the second factor does. If no position has attention (a kernel of
    bounded support), the result is uniform. After Shankar and Sarawagi, "Posterior attention models for sequence to
    sequence learning" (2019), section 3. The root, the four and the hundredth are dikkat's.

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
    one_position = model.decoder.prepare(values[..., : model.decoder.key_size], values=values)
    tried = min(_POSITIONS, positions)
    row = torch.arange(count, device=device).repeat_interleave(tried)
    is_real = (torch.arange(positions, device=device) < batch.source_lengths.unsqueeze(1)).to(memory.value.dtype)
    rows = []
    for previous, token in zip(batch.target[:, :-2].unbind(1), batch.target[:, 1:-1].unbind(1), strict=True):
        cancellation.check()
        _, weights, next_state = model.step_features(previous, memory, state)
        top_weights, top_positions = weights.topk(tried, 1)
        memory_of_one = one_position.select(row * positions + top_positions.flatten())
        features, _, _ = model.step_features(previous[row], memory_of_one, model.select(state, row))
        gains = model.scores(features).log_softmax(1).gather(1, token[row].unsqueeze(1)).view(count, tried)
        shares = torch.zeros_like(weights).scatter(1, top_positions, (top_weights.log() / 2 + gains).softmax(1))
        shares = shares.lerp(weights, attention_share)
        rows.append(shares.where(weights.any(1, keepdim=True), is_real / is_real.sum(1, keepdim=True)))
        state = next_state
    stacked = torch.stack(rows, 1).cpu()
    return [stacked[index, : len(target), : len(source)] for index, (source, target) in enumerate(pairs)]


@torch.no_grad()
def forced_weights(model: TranslationModel, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Tensor]:
    """Return for each pair (T, S) float32: the attention weights while the model writes the given target."""
    model.eval()
    batch = collate(pairs).to(model.output_bias.device)
    memory, state = model.encode(batch.source, batch.source_lengths)
    rows = []
    for previous in batch.target[:, :-2].unbind(1):
        cancellation.check()
        _, weights, state = model.step_features(previous, memory, state)
        rows.append(weights)
    stacked = torch.stack(rows, 1).float().cpu() if rows else torch.zeros(len(pairs), 0, batch.source.shape[1])
    return [stacked[index, : len(target), : len(source)] for index, (source, target) in enumerate(pairs)]


def merge_pieces(weights: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return (T, S) weights of units: means of a target unit's pieces, sums over a source unit's pieces."""
    mean = target / target.sum(1, keepdim=True).clamp(min=1)
    return mean @ weights @ (source / source.sum(0).clamp(min=1)).T


def agreed(weights: Tensor) -> Tensor:
    """Return (T, S) weights, rows sum to 1, in which a source unit counts less if many target units come from it.

    Columns are divided by the root of their sum: half way between no change and equal columns.
    """
    divided = weights / weights.sum(0).clamp(min=1e-9).sqrt()
    return divided / divided.sum(1, keepdim=True).clamp(min=1e-9)


def links(weights: Tensor, source: Units, target: Units) -> set[Link]:
    """Link words by (T, S) weights of units: each unit to its largest weight, in both directions, joined.

    Example:
        >>> sorted(links(torch.eye(2), Units.of("I go"), Units.of("je vais")))
        [(0, 0), (1, 1)]
    """
    if not weights.numel():
        return set()
    rows, columns = (torch.stack(weights.max(axis), 1).tolist() for axis in (1, 0))
    return grow_diag_final_and(
        {(source.words[int(best)], target.words[index]) for index, (weight, best) in enumerate(rows) if weight},
        {(source.words[index], target.words[int(best)]) for index, (weight, best) in enumerate(columns) if weight},
    )


def grow_diag_final_and(forward: set[Link], backward: set[Link]) -> set[Link]:
    """Join the links of two directions.

    Start with the links of both directions. Add their neighbours from either direction, also diagonal ones, if one of a
    neighbour's words is unlinked. Then add links of two unlinked words. Koehn, Och, Marcu, "Statistical phrase-based
    translation" (2003), section 3.1; Moses has the heuristic under this name.

    Example:
        >>> sorted(grow_diag_final_and({(0, 0), (1, 1), (2, 3)}, {(0, 0), (2, 1)}))
        [(0, 0), (1, 1), (2, 1)]
    """
    result, union = forward & backward, forward | backward

    def are_unlinked(link: Link) -> tuple[bool, bool]:
        return all(link[0] != source for source, _ in result), all(link[1] != target for _, target in result)

    queue = sorted(result)
    for source, target in queue:  # grows in the loop
        for neighbour in sorted(union - result):
            if max(abs(neighbour[0] - source), abs(neighbour[1] - target)) == 1 and any(are_unlinked(neighbour)):
                result.add(neighbour)
                queue.append(neighbour)
    for direction in (forward, backward):
        for link in sorted(direction):
            if all(are_unlinked(link)):
                result.add(link)
    return result


def alignment_error_rate(found: Sequence[set[Link]], gold: Sequence[GoldLinks]) -> float:
    r"""Return the share of links that are wrong or missing, from 0 to 1. Smaller is better.

    $$ 1 - \frac{|A \cap S| + |A \cap P|}{|A| + |S|} $$

    with the predicted links A, the sure links S and the possible links P of all sentences.
    Och and Ney, "A systematic comparison of various statistical alignment models" (2003), section 5.

    Args:
        found: The predicted links of each pair.
        gold: A person's links of each pair.

    Raises:
        InputError: The numbers of pairs differ, or there is no link.

    Example:
        >>> gold = GoldLinks(sure=frozenset({(0, 0)}), possible=frozenset({(0, 0), (1, 1)}))
        >>> alignment_error_rate([{(0, 0), (1, 1)}], [gold])
        0.0
    """
    if len(found) != len(gold):
        raise InputError(f"found: got links of {len(found)} pairs; expected {len(gold)}, as many as gold")
    total = sum(len(links) + len(pair.sure) for links, pair in zip(found, gold, strict=True))
    if not total:
        raise InputError("found, gold: got neither found nor sure links; expected at least one")
    right = sum(len(links & pair.sure) + len(links & pair.possible) for links, pair in zip(found, gold, strict=True))
    return 1 - right / total


def read_links(path: str | Path) -> list[GoldLinks]:
    """Read gold links from a file in the Pharaoh format, with a line for each sentence pair: `0-0 1-2 2p3`.

    `1-2` is a sure link from source word 1 to target word 2, both counted from 0; `2p3` is a possible link.

    Args:
        path: A UTF-8 file, plain or compressed with gzip. An empty line is a pair without links.

    Returns:
        The links of each line, in order.

    Raises:
        CorpusError: A link has another form; the message names the line.
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
    """Parse gold links from lines in the format of `read_links`; a `CorpusError` names `name` and the line number."""
    gold = []
    for number, line in enumerate(lines, start=1):
        sure, possible = set(), set()
        for text in line.split():
            match = re.fullmatch(r"([0-9]{1,9})([-p])([0-9]{1,9})", text)
            if match is None:
                raise CorpusError(
                    f"{name}, line {number}: got {text!r}; expected links: 1-2 for a sure link from source word 1 to "
                    "target word 2, counted from 0, 1p2 for a possible link"
                )
            link = int(match[1]), int(match[3])
            possible.add(link)
            if match[2] == "-":
                sure.add(link)
        gold.append(GoldLinks(frozenset(sure), frozenset(possible)))
    return gold


def check_links(gold: Sequence[GoldLinks], pairs: Sequence[tuple[str, str]], name: str) -> None:
    """Raise `CorpusError` unless the links fit the pairs' words."""
    if len(gold) != len(pairs):
        raise CorpusError(f"{name}: got links of {len(gold):,} pairs; expected {len(pairs):,}, a line for each")
    for number, (links, pair) in enumerate(zip(gold, pairs, strict=True), start=1):
        source_words, target_words = (len(text.split()) for text in pair)
        for source, target in sorted(links.possible):
            if source >= source_words or target >= target_words:
                raise CorpusError(
                    f"{name}, line {number}: got a link {source}-{target}; expected source words below {source_words} "
                    f"and target words below {target_words}, counted from 0"
                )
