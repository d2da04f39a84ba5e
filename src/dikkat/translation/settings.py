import dataclasses
import difflib
import reprlib
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from dikkat.translation.errors import SettingsError
from dikkat.translation.text.tokenizer import Kind

ScoreName = Literal[
    "additive", "dot", "scaled_dot", "bilinear", "cosine", "gaussian", "boxcar", "epanechnikov", "triangular",
    "vector_sum", "average", "none",
]  # fmt: skip
Cell = Literal["gru", "lstm"]
Tied = Literal["none", "two", "three"]
Schedule = Literal["constant", "linear", "inverse_sqrt", "cosine", "plateau"]
Criterion = Literal["loss", "bleu"]
Precision = Literal["float32", "bfloat16"]

VOCABULARY, NETWORK, TRAINING, COURSE = "Vocabulary", "Network", "Training", "Course of the training"


class Option(NamedTuple):
    """What is known of a setting beside its name, type and default.

    Attributes:
        help: what it does, for someone who has never trained a translator.
        group: the heading it stands under.
        smallest: of a number, the smallest that is allowed, and ...
        largest: ... the largest; None where the setting is no number.
        open_below: whether `smallest` itself is not allowed.
        open_above: whether `largest` itself is not allowed.
    """

    help: str
    group: str
    smallest: float | None = None
    largest: float | None = None
    open_below: bool = False
    open_above: bool = False


@dataclass(frozen=True)
class Settings:
    """Everything that a translator is built and trained with; stored with it.

    What each setting does, and its range, stands with it: `Settings.options()` has them by name, `dikkat train --help`
    and the table in the documentation show them.

    Raises:
        SettingsError: a value of the wrong type or out of its range, or two that contradict each other; the message
            names the settings and what is allowed.

    Example:
        >>> Settings(score="dot", hidden_size=128).learning_rate
        0.002
        >>> Settings(dropout=1.5)
        Traceback (most recent call last):
            ...
        dikkat.translation.errors.SettingsError: dropout is 1.5; it must be at least 0 and less than 1
    """

    tokenizer: Annotated[
        Kind,
        Option(
            "What a sentence is cut into: word (whole words, in lower case) or bpe (parts of words, so that rare "
            "words can be read and written too; for 10,000 pairs or more).",
            VOCABULARY,
        ),
    ] = "word"
    min_freq: Annotated[
        int,
        Option(
            "How often a word, or a pair of parts to be joined, must occur to be learnt. Larger: fewer words are "
            "known, each one better.",
            VOCABULARY,
            1,
            1_000_000,
        ),
    ] = 2
    vocabulary_size: Annotated[
        int,
        Option(
            "Most words, or parts of words, of a language; of both together with tied_embeddings three. Larger: fewer"
            " unknown words, slower training.",
            VOCABULARY,
            5,
            1_000_000,
        ),
    ] = 20_000

    cell: Annotated[Cell, Option("The recurrent network: gru, or lstm, a third larger and slower.", NETWORK)] = "gru"
    embedding_size: Annotated[
        int,
        Option(
            "Numbers that describe a word. Larger: finer distinctions, but slower, and a small corpus is learnt by "
            "heart.",
            NETWORK,
            1,
            65_536,
        ),
    ] = 256
    hidden_size: Annotated[
        int,
        Option(
            "Numbers that the network remembers while it reads and writes. Larger: as for embedding_size. In a "
            "bidirectional encoder each direction has half of them.",
            NETWORK,
            1,
            65_536,
        ),
    ] = 256
    num_layers: Annotated[
        int,
        Option(
            "Layers of the encoder and of the decoder. More: slower, and worth it for large corpora only.",
            NETWORK,
            1,
            64,
        ),
    ] = 1
    bidirectional: Annotated[
        bool, Option("Whether sentences are read backwards as well as forwards: slower, and mostly better.", NETWORK)
    ] = True
    score: Annotated[
        ScoreName,
        Option(
            "How attention compares what is about to be written with a word of the source; none: no attention, the "
            "decoder sees the source's last state alone.",
            NETWORK,
        ),
    ] = "additive"
    coverage: Annotated[
        bool,
        Option(
            "Whether attention also knows how much each source word was looked at before, which repeats and forgets "
            "less in long sentences. Slower.",
            NETWORK,
        ),
    ] = False
    tied_embeddings: Annotated[
        Tied,
        Option(
            "Which tables of word vectors are one: none, two (what the decoder reads and writes) or three (the "
            "encoder's too, with one vocabulary for both languages; for related languages).",
            NETWORK,
        ),
    ] = "two"

    dropout: Annotated[
        float,
        Option(
            "Share of the features of embeddings, encoder outputs, the last layer and between layers that is switched"
            " off at random while it learns. Larger: less is learnt by heart; for a small corpus.",
            TRAINING,
            0,
            1,
            open_above=True,
        ),
    ] = 0.2
    attention_dropout: Annotated[
        float,
        Option(
            "Share of the attention weights that is switched off at random while it learns.",
            TRAINING,
            0,
            1,
            open_above=True,
        ),
    ] = 0.0
    word_dropout: Annotated[
        float,
        Option(
            "Share of the words whose vectors are switched off as a whole at random while it learns.",
            TRAINING,
            0,
            1,
            open_above=True,
        ),
    ] = 0.0
    label_smoothing: Annotated[
        float,
        Option(
            "Share of the certainty taken from the right word and given to all. Larger: a less certain model, often a"
            " slightly better one; 0.1 is usual.",
            TRAINING,
            0,
            1,
            open_above=True,
        ),
    ] = 0.0
    learning_rate: Annotated[
        float,
        Option(
            "How large a step of learning is, at its largest. Larger: faster, until training diverges; then lower it.",
            TRAINING,
            0,
            10,
            open_below=True,
        ),
    ] = 2e-3
    schedule: Annotated[
        Schedule,
        Option(
            "How the learning rate goes on after the warm-up: constant; linear or cosine, down to 0 at the planned "
            "end; inverse_sqrt, as one over the square root of the steps; plateau, halved after each validation that "
            "is no better than the best.",
            TRAINING,
        ),
    ] = "linear"
    warmup_steps: Annotated[
        int, Option("Steps over which the learning rate rises from 0. Larger: a gentler start.", TRAINING, 0, 1_000_000)
    ] = 100
    gradient_clip: Annotated[
        float,
        Option(
            "Longest step that a single batch may ask for. Smaller: steadier and slower.",
            TRAINING,
            0,
            1_000_000,
            open_below=True,
        ),
    ] = 1.0
    batch_size: Annotated[
        int,
        Option(
            "Pairs to learn from at once, of all devices together. Larger: faster, more memory, fewer steps.",
            TRAINING,
            1,
            1_000_000,
        ),
    ] = 64
    batch_tokens: Annotated[
        int | None,
        Option(
            "Instead of batch_size: words, or parts of words, to learn from at once, padding and ends included, on "
            "the side that has more of them. Memory and time of a step then do not depend on how long the sentences "
            "are.",
            TRAINING,
            1,
            1_000_000_000,
        ),
    ] = None
    accumulate: Annotated[
        int,
        Option("Batches whose gradients make one step: as larger batches, without their memory.", TRAINING, 1, 100_000),
    ] = 1
    precision: Annotated[
        Precision,
        Option(
            "float32, or bfloat16: large products with fewer digits, faster on the processors that have them.", TRAINING
        ),
    ] = "float32"
    max_length: Annotated[
        int,
        Option(
            "Pairs with more words, or parts of words, on a side are left out. Larger: more memory.",
            TRAINING,
            1,
            10_000,
        ),
    ] = 100
    shuffle_buffer: Annotated[
        int,
        Option(
            "Pairs that are shuffled together, in memory; a larger corpus stays on the disk and is read buffer by "
            "buffer.",
            TRAINING,
            1,
            1_000_000_000,
        ),
    ] = 1_000_000

    epochs: Annotated[
        int,
        Option(
            "How often to go through the corpus at most. Larger: longer, and better up to a point.",
            COURSE,
            1,
            1_000_000,
        ),
    ] = 20
    max_minutes: Annotated[
        float | None,
        Option(
            "When to stop at the latest. A learning rate that falls to 0 then does so with the time, so that the "
            "result depends on the machine's speed.",
            COURSE,
            0,
            1_000_000,
            open_below=True,
        ),
    ] = None
    validation_steps: Annotated[
        int | None,
        Option(
            "Steps from one validation to the next; without: one at the end of each epoch. For large corpora.",
            COURSE,
            1,
            1_000_000_000,
        ),
    ] = None
    criterion: Annotated[
        Criterion,
        Option(
            "What the best model is best at, on the validation pairs: loss, or bleu, of their greedy translations, "
            "which takes longer to compute.",
            COURSE,
        ),
    ] = "loss"
    patience: Annotated[
        int,
        Option(
            "Validations without improvement after which to stop. Larger: longer, in case it improves yet.",
            COURSE,
            1,
            1_000_000,
        ),
    ] = 3
    average: Annotated[
        int,
        Option(
            "How many of the best validated models to average in the end: often a little better than the best one "
            "alone.",
            COURSE,
            1,
            100,
        ),
    ] = 1
    checkpoint_steps: Annotated[
        int,
        Option(
            "Steps from one checkpoint to the next, beside those at the end of each epoch: so much is lost at most "
            "when the machine stops.",
            COURSE,
            1,
            1_000_000_000,
        ),
    ] = 1000
    seed: Annotated[
        int,
        Option(
            "Where the random numbers begin: the same seed gives the same model, with as many threads (and without "
            "max_minutes).",
            COURSE,
            0,
            2**32 - 1,
        ),
    ] = 0

    def __post_init__(self) -> None:
        """Check every value, and those that contradict each other."""
        types_of = get_type_hints(type(self))
        for name, option in self.options().items():
            _check(name, getattr(self, name), types_of[name], option)
        if self.bidirectional and self.hidden_size % 2:
            raise SettingsError(
                f"hidden_size is {self.hidden_size}; it must be even for a bidirectional encoder, which gives each "
                "direction half of it"
            )
        if self.score == "none" and (self.coverage or self.attention_dropout):
            given = "coverage is true" if self.coverage else f"attention_dropout is {self.attention_dropout}"
            raise SettingsError(f"{given} and score is 'none': without attention there is nothing that it could act on")

    @classmethod
    def options(cls) -> dict[str, Option]:
        """What is known of each setting, by its name."""
        hints = get_type_hints(cls, include_extras=True)
        return {field.name: hints[field.name].__metadata__[0] for field in dataclasses.fields(cls)}

    def to_dict(self) -> dict[str, Any]:
        """The values by name, as JSON has them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Settings":
        """Settings from values by name; those that are not given have their defaults.

        Raises:
            SettingsError: a name that is not a setting (the message has the nearest that is), or a value that it may
                not have.
        """
        known = list(cls.options())
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}"
                raise SettingsError(f"{name}: no such setting; {hint}")
        return cls(**values)


def choices(kind: Any) -> tuple[str, ...] | None:
    """The values of a setting's type that has a few of them, None for others."""
    return get_args(kind) if get_origin(kind) is Literal else None


def _check(name: str, value: object, kind: Any, option: Option) -> None:
    if get_origin(kind) in (Union, types.UnionType):  # with None
        if value is None:
            return
        (kind,) = (each for each in get_args(kind) if each is not types.NoneType)
    if allowed := choices(kind):
        if value not in allowed:
            raise SettingsError(f"{name} is {reprlib.repr(value)}; it must be one of {', '.join(allowed)}")
    elif kind is bool:
        if not isinstance(value, bool):
            raise SettingsError(f"{name} is {reprlib.repr(value)}; it must be true or false")
    else:
        _check_range(name, value, option, whole=kind is int)


def _check_range(name: str, value: object, option: Option, *, whole: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise SettingsError(f"{name} is {reprlib.repr(value)}; it must be a {'whole ' if whole else ''}number")
    smallest, largest = option.smallest, option.largest
    if smallest is None or largest is None:
        raise TypeError(f"{name} has no range")
    above = value > smallest if option.open_below else value >= smallest
    below = value < largest if option.open_above else value <= largest
    if not (above and below):  # NaN is neither
        least = f"{'greater than' if option.open_below else 'at least'} {smallest}"
        most = f"{'less than' if option.open_above else 'at most'} {largest}"
        raise SettingsError(f"{name} is {reprlib.repr(value)}; it must be {least} and {most}")
