"""Everything that a translator is built and trained with: names, ranges, defaults, and what each setting does."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from dikkat.translation.errors import SettingsError
from dikkat.translation.fields import Allowed, Range, allowed, check, nearest
from dikkat.translation.text.tokenizer import MOST_TOKENS, Kind

ScoreName = Literal["additive", "dot", "scaled_dot", "bilinear", "none"]
Cell = Literal["gru", "lstm"]
Tied = Literal["none", "two", "three"]
Schedule = Literal["constant", "linear", "inverse_sqrt", "cosine", "plateau"]
Criterion = Literal["loss", "bleu"]
Precision = Literal["float32", "bfloat16"]

Share = Annotated[float, Range(0, 1, open_above=True)]
Count = Annotated[int, Range(1, 1_000_000)]
_MANY = Range(1, 1_000_000_000)

# What each setting does, for someone who has never trained a translator, by the heading that it stands under.
_HELP = {
    "Vocabulary": {
        "tokenizer": "Units of text: word (whole words); or bpe (parts of words, which can represent rare words; for "
        "10,000 pairs or more, long words, or a script without spaces).",
        "min_freq": "Minimum frequency of a word, or of a pair of parts to join. Larger: a smaller vocabulary whose "
        "words are learned better.",
        "vocabulary_size": "Maximum number of words, or parts of words, of a language (of both languages with "
        "tied_embeddings three). Larger: fewer unknown words, slower training.",
    },
    "Network": {
        "cell": "The recurrent network: gru; or lstm, one third larger and slower.",
        "embedding_size": "Size of a word vector. Larger: finer distinctions, but slower, and more overfitting on a "
        "small corpus.",
        "hidden_size": "Size of the hidden state. Larger: as for embedding_size. In a bidirectional encoder each "
        "direction has half of it.",
        "num_layers": "Layers of the encoder and of the decoder. More: slower, and useful only for large corpora.",
        "bidirectional": "Whether the encoder also reads sentences backwards: slower, and usually better.",
        "score": "How attention compares the decoder's state with a source word; none: no attention, so the decoder "
        "sees only the last state of the encoder.",
        "lexical": "Whether the attended source words also predict the next word directly, so that rare words are "
        "learned sooner. About one sixth slower; no effect without attention.",
        "tied_embeddings": "Which tables of word vectors are shared: none; two (decoder input and output); or three "
        "(also the encoder's, with one vocabulary for both languages; for related languages).",
    },
    "Training": {
        "dropout": "Share of the features that training switches off at random, in embeddings, encoder outputs, the "
        "last layer and between layers. Larger: less overfitting; for a small corpus.",
        "attention_dropout": "Share of the attention weights that training switches off at random.",
        "label_smoothing": "Share of the target probability to spread over all words. Larger: a less certain model, "
        "often slightly better; 0.1 is usual.",
        "r_drop": "Weight of the R-Drop loss, which makes two passes with different dropout agree. Helps on small "
        "corpora; training takes twice the time and memory. 2 to 5 is usual.",
        "learning_rate": "Largest learning rate. Larger: faster, until training diverges.",
        "schedule": "Learning rate after the warm-up: constant; linear or cosine, down to 0 at the planned end; "
        "inverse_sqrt, in proportion to 1/√step; plateau, halved after each validation without improvement.",
        "warmup_steps": "Steps over which the learning rate rises from 0. Larger: a gentler start.",
        "gradient_clip": "Maximum norm of the gradient of a step. Smaller: steadier and slower.",
        "batch_size": "Pairs in a batch, over all devices. Larger: faster, more memory, fewer steps.",
        "batch_tokens": "Instead of batch_size: words, or parts of words, in a batch, with padding and end tokens, on "
        "the longer side. Memory and time of a step then do not depend on the length of sentences.",
        "accumulate": "Batches whose gradients make one step: the effect of a larger batch without its memory.",
        "precision": "float32; or bfloat16, which computes large products with fewer digits, faster on processors "
        "that support it.",
        "max_length": "Maximum length of each side of a pair, in words or parts of words; longer pairs are left out. "
        "Larger: more memory.",
        "shuffle_buffer": "Pairs to shuffle together in memory; a larger corpus stays on disk and is read one buffer "
        "at a time.",
    },
    "Course of the training": {
        "epochs": "Maximum number of passes over the corpus. Larger: longer, and better up to a point.",
        "max_minutes": "Maximum duration in minutes. A learning rate that falls to 0 then follows the time, so the "
        "result depends on the speed of the machine.",
        "validation_steps": "Steps from one validation to the next, for large corpora; none: one validation at the "
        "end of each epoch.",
        "criterion": "Score that selects the best model, on the validation pairs: loss; or bleu, of the translations "
        "of up to 300 of them, which takes longer.",
        "patience": "Validations without improvement before early stopping. Larger: longer, in case the model still "
        "improves.",
        "average": "Number of the best validated models to average at the end: often slightly better than only the "
        "best.",
        "checkpoint_steps": "Steps from one checkpoint to the next, in addition to the one at the end of each epoch. "
        "A crash loses at most these steps.",
        "seed": "Seed of the random numbers: the same seed gives the same model, with the same number of threads (and "
        "without max_minutes).",
    },
    "Translating": {
        "length_penalty": "Preference for longer translations, unless the search sets one. 0: none, so short "
        "translations win. Unset: 1, 1.2 or 1.4, by the BLEU of validation pairs at the end of training; 1 without "
        "validation pairs."
    },
}


class Option(NamedTuple):
    """The description of a setting: its help, the heading that it stands under, and what it may be."""

    help: str
    group: str
    allowed: Allowed


@dataclass(frozen=True)
class Settings:
    """Everything that a translator is built and trained with; stored with it.

    `Settings.options()` has what each setting does, and what it may be; `dikkat train --help` and the table in the
    documentation show it.

    Raises:
        SettingsError: a value of the wrong type or out of its range, or two that contradict each other; the message
            names the settings and what is allowed.

    Example:
        >>> Settings(score="dot", hidden_size=128).learning_rate
        0.002
        >>> Settings(dropout=1.5)
        Traceback (most recent call last):
            ...
        dikkat.translation.errors.SettingsError: dropout: got 1.5; expected a number of at least 0 and less than 1
    """

    tokenizer: Kind = "word"
    min_freq: Count = 2
    vocabulary_size: Annotated[int, Range(5, MOST_TOKENS)] = 20_000

    cell: Cell = "gru"
    embedding_size: Annotated[int, Range(1, 65_536)] = 256
    hidden_size: Annotated[int, Range(1, 65_536)] = 256
    num_layers: Annotated[int, Range(1, 64)] = 1
    bidirectional: bool = True
    score: ScoreName = "additive"
    lexical: bool = True
    tied_embeddings: Tied = "two"

    dropout: Share = 0.2
    attention_dropout: Share = 0.0
    label_smoothing: Share = 0.0
    r_drop: Annotated[float, Range(0, 1_000)] = 0.0
    learning_rate: Annotated[float, Range(0, 10, open_below=True)] = 2e-3
    schedule: Schedule = "linear"
    warmup_steps: Annotated[int, Range(0, 1_000_000)] = 100
    gradient_clip: Annotated[float, Range(0, 1_000_000, open_below=True)] = 1.0
    batch_size: Count = 64
    batch_tokens: Annotated[int | None, _MANY] = None
    accumulate: Annotated[int, Range(1, 100_000)] = 1
    precision: Precision = "float32"
    max_length: Annotated[int, Range(1, 10_000)] = 100
    shuffle_buffer: Annotated[int, _MANY] = 1_000_000

    epochs: Count = 20
    max_minutes: Annotated[float | None, Range(0, 1_000_000, open_below=True)] = None
    validation_steps: Annotated[int | None, _MANY] = None
    criterion: Criterion = "loss"
    patience: Count = 3
    average: Annotated[int, Range(1, 100)] = 1
    checkpoint_steps: Annotated[int, _MANY] = 1000
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0

    length_penalty: Annotated[float | None, Range(0, 10)] = None

    def __post_init__(self) -> None:
        check(self)
        if self.bidirectional and self.hidden_size % 2:
            raise SettingsError(
                f"hidden_size: got {self.hidden_size}; expected an even number, since a bidirectional encoder gives "
                "each direction half of it"
            )
        if self.score == "none" and self.attention_dropout:
            raise SettingsError(
                f"attention_dropout is {self.attention_dropout} and score is 'none': without attention there is "
                "nothing that it could act on"
            )
        if self.r_drop and not (self.dropout or self.attention_dropout):
            raise SettingsError(
                f"r_drop is {self.r_drop:g}, and nothing is dropped, so that both passes are the same: give a dropout"
            )

    @property
    def is_lexical(self) -> bool:
        """Whether source words vote for target words: `lexical`, where there is attention."""
        return self.lexical and self.score != "none"

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The description of each setting, by its name."""
        known = allowed(cls)
        return {
            name: Option(text, group, known[name]) for group, texts in _HELP.items() for name, text in texts.items()
        }

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
                raise SettingsError(f"{name}: no such setting; {nearest(name, known)}")
        return cls(**values)
