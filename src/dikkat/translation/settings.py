import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dikkat.translation.errors import SettingsError
from dikkat.translation.precision import Precision
from dikkat.translation.tokenizer import Kind

ScoreName = Literal[
    "additive", "dot", "scaled_dot", "bilinear", "cosine", "gaussian", "boxcar", "epanechnikov", "triangular",
    "vector_sum", "average",
]  # fmt: skip


# name: smallest, largest; a bound is allowed itself unless it stands in _OPEN
_RANGES: dict[str, tuple[float, float]] = {
    "min_freq": (1, 1_000_000),
    "vocabulary_size": (5, 1_000_000),
    "embedding_size": (1, 65_536),
    "hidden_size": (1, 65_536),
    "num_layers": (1, 64),
    "dropout": (0, 1),
    "label_smoothing": (0, 1),
    "learning_rate": (0, 10),
    "warmup_steps": (0, 1_000_000),
    "gradient_clip": (0, 1_000_000),
    "batch_size": (1, 1_000_000),
    "batch_tokens": (1, 1_000_000_000),
    "max_length": (1, 10_000),
    "epochs": (1, 1_000_000),
    "max_minutes": (0, 1_000_000),
    "patience": (1, 1_000_000),
    "seed": (0, 2**32 - 1),
}
_ABOVE = {"learning_rate", "gradient_clip", "max_minutes"}  # greater than the smallest value, not equal to it
_BELOW = {"dropout", "label_smoothing"}  # less than the largest value


@dataclass(frozen=True)
class Settings:
    """Everything that a translator is built and trained with; stored with it.

    Attributes:
        tokenizer: `"word"` or `"bpe"`, for both languages.
        min_freq: how often a word (or a pair to be merged) must occur in training to be in the vocabulary.
        vocabulary_size: largest number of tokens of a language.
        embedding_size: features of a token.
        hidden_size: features of the encoder's outputs (both directions together), of the decoder's state and of the
            additive score.
        num_layers: GRU layers in the encoder and in the decoder.
        bidirectional: whether the encoder reads in both directions.
        score: the scoring function of the attention: any of the core's, by its name in lower case (`ScoreName`).
        dropout: probability with which a feature of embeddings, readout and between layers is dropped in training.
        label_smoothing: part of the training target's probability that is spread over all tokens.
        learning_rate: Adam's, at its highest.
        warmup_steps: steps in which the learning rate grows from 0; then it falls to 0 at the planned end.
        gradient_clip: largest norm of the gradient.
        batch_size: pairs in a batch where `batch_tokens` is None; pairs of similar lengths go together.
        batch_tokens: instead of a number of pairs, most tokens in a batch, padding and ends included, on the side
            that has more of them: many short pairs, or few long ones.
        precision: `"float32"`, or `"bfloat16"` for training's large matrix products, where the processor has
            them; weights, sums, states and optimiser are float32 in either case.
        max_length: training pairs with more tokens on a side are left out.
        epochs: how often to go through the training pairs at most.
        max_minutes: when to stop at the latest, or None. The learning rate falls with the time, too, so that a result
            then depends on the machine's speed.
        patience: validations without improvement after which training stops.
        seed: of the weights, the order and the dropout.

    Raises:
        SettingsError: a value of the wrong type or out of its range; the message names the setting and the range.

    Example:
        >>> Settings(score="dot", hidden_size=128).learning_rate
        0.002
        >>> Settings(dropout=1.5)
        Traceback (most recent call last):
            ...
        dikkat.translation.errors.SettingsError: dropout is 1.5; it must be at least 0 and less than 1
    """

    tokenizer: Kind = "word"
    min_freq: int = 2
    vocabulary_size: int = 20_000
    embedding_size: int = 256
    hidden_size: int = 256
    num_layers: int = 1
    bidirectional: bool = True
    score: ScoreName = "additive"
    dropout: float = 0.2
    label_smoothing: float = 0.0
    learning_rate: float = 2e-3
    warmup_steps: int = 100
    gradient_clip: float = 1.0
    batch_size: int = 64
    batch_tokens: int | None = None
    precision: Precision = "float32"
    max_length: int = 100
    epochs: int = 20
    max_minutes: float | None = None
    patience: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value."""
        _check_choice("tokenizer", self.tokenizer, get_args(Kind))
        _check_choice("score", self.score, get_args(ScoreName))
        _check_choice("precision", self.precision, get_args(Precision))
        if not isinstance(self.bidirectional, bool):
            raise SettingsError(f"bidirectional is {self.bidirectional!r}; it must be true or false")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _RANGES and not (field.default is None and value is None):
                _check_range(field.name, value, whole=field.type in (int, int | None))
        if self.bidirectional and self.hidden_size % 2:
            raise SettingsError(
                f"hidden_size is {self.hidden_size}; it must be even for a bidirectional encoder, which gives each "
                "direction half of it"
            )

    def to_dict(self) -> dict[str, Any]:
        """The values by name, as JSON has them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Settings":
        """Settings from values by name; those that are not given have their defaults.

        Raises:
            SettingsError: a name that is not a setting, or a value that it may not have.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise SettingsError(f"{', '.join(unknown)}: no such setting; the settings are {', '.join(known)}")
        return cls(**values)


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingsError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def _check_range(name: str, value: object, *, whole: bool) -> None:
    smallest, largest = _RANGES[name]
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise SettingsError(f"{name} is {value!r}; it must be a {'whole ' if whole else ''}number")
    above = value > smallest if name in _ABOVE else value >= smallest
    below = value < largest if name in _BELOW else value <= largest
    if not (above and below):  # NaN is neither
        least = f"{'greater than' if name in _ABOVE else 'at least'} {smallest}"
        most = f"{'less than' if name in _BELOW else 'at most'} {largest}"
        raise SettingsError(f"{name} is {value}; it must be {least} and {most}")
