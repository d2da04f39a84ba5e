"""What settings say of a network, whatever framework it is built in."""

import math
from typing import Any, NamedTuple

from dikkat.translation.errors import SettingsError
from dikkat.translation.settings import Settings


class ScoreSpec(NamedTuple):
    """A scoring function.

    Attributes:
        name: Of its class, which is the same in every framework.
        sizes: Its arguments that say how many features queries and keys have; where a framework finds them out when it
            builds a score, it leaves them out.
        options: Its other arguments.
    """

    name: str
    sizes: dict[str, int]
    options: dict[str, Any]


def score_of(settings: Settings) -> ScoreSpec:
    """The score that settings name; the queries, which are states, and the keys have `hidden_size` features.

    Example:
        >>> score_of(Settings(hidden_size=4, score="bilinear"))
        ScoreSpec(name='Bilinear', sizes={'key_size': 4, 'query_size': 4}, options={})
    """
    size = settings.hidden_size
    both = {"key_size": size, "query_size": size}
    # Two states, whose features lie in −1 … 1, are at most 2√size apart: so a kernel reaches most keys at first.
    reach = {"bandwidth": math.sqrt(size)}
    learnt = reach | {"learnable": True}
    specs = {
        "additive": ScoreSpec("Additive", both, {"num_hiddens": size}),
        "dot": ScoreSpec("Dot", {}, {}),
        "scaled_dot": ScoreSpec("ScaledDot", {}, {}),
        "bilinear": ScoreSpec("Bilinear", both, {}),
        "cosine": ScoreSpec("Cosine", {}, {}),
        "gaussian": ScoreSpec("Gaussian", {}, learnt),
        "boxcar": ScoreSpec("Boxcar", {}, reach),
        "epanechnikov": ScoreSpec("Epanechnikov", {}, learnt),
        "triangular": ScoreSpec("Triangular", {}, learnt),
        "vector_sum": ScoreSpec("VectorSum", {"size": size}, {}),
        "average": ScoreSpec("Average", {}, {}),
        "none": ScoreSpec("Average", {}, {}),  # of the one position that there is
    }
    return specs[settings.score]


def has_source_table(settings: Settings, source_size: int, target_size: int) -> bool:
    """Whether the source has an embedding table of its own, and does not share the target's.

    Raises:
        SettingsError: Three-way tied embeddings of two vocabularies.
    """
    if settings.tied_embeddings != "three":
        return True
    if source_size != target_size:
        raise SettingsError(
            f"tied_embeddings: got 'three', and {source_size} tokens in the source vocabulary and {target_size} in the "
            "target vocabulary; expected one vocabulary for both: train one tokenizer on both languages, or use "
            "tied_embeddings 'two'"
        )
    return False
