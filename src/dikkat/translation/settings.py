"""Settings of a translator and its training: names, ranges, defaults and help texts."""

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

# Help for users who have never trained a translator, by heading and setting.
_HELP = {
    "Vocabulary": {
        "tokenizer": "How sentences are split: word (whole words) or bpe (parts of words, so that rare words can be "
        "read and written too; for 10,000 pairs or more, long words, or a script without spaces).",
        "min_freq": "The least frequency of a word, or of a pair of parts to merge. Larger: fewer words are known, but "
        "each one better.",
        "vocabulary_size": "The largest number of words, or parts of words, of each language, or of both together with "
        "tied_embeddings three. Larger: fewer unknown words, slower training.",
    },
    "Network": {
        "cell": "The recurrent network: gru, or lstm, which is a third larger and slower.",
        "embedding_size": "How many numbers describe a word. Larger: finer distinctions, but slower, and a small "
        "corpus is learnt by heart.",
        "hidden_size": "How many numbers the network remembers while it reads and writes. Larger: as for "
        "embedding_size. Each direction of a bidirectional encoder has half of them.",
        "num_layers": "Layers of the encoder and of the decoder. More: slower, and useful only for large corpora.",
        "bidirectional": "Whether sentences are also read backwards: slower, and mostly better.",
        "score": "How attention compares the next word with each source word; none: no attention, so that the decoder "
        "uses only the source's last state.",
        "lexical": "Whether the attended source words also vote directly for the next word, so that rare words are "
        "learnt sooner. About a sixth slower; without effect if score is none.",
        "tied_embeddings": "Which tables of word vectors are shared: none, two (the decoder's input and output) or "
        "three (also the encoder's, with one vocabulary for both languages; for related languages).",
    },
    "Training": {
        "dropout": "Share of features that are switched off at random in training: of embeddings, of encoder outputs, "
        "between layers and of the last layer. Larger: less is learnt by heart; for a small corpus.",
        "attention_dropout": "Share of attention weights that are switched off at random in training.",
        "label_smoothing": "Share of the right word's probability that is spread over all words. Larger: a less "
        "certain model, which is often slightly better; 0.1 is usual.",
        "r_drop": "How strongly two passes with different dropout must agree. Helps on small corpora, but doubles the "
        "time and memory of training. 2 to 5 is usual.",
        "learning_rate": "The largest learning rate of the schedule. Larger: faster, until training diverges; then "
        "lower it.",
        "schedule": "The learning rate after the warm-up: constant; linear or cosine, down to 0 at the planned end; "
        "inverse_sqrt, divided by the square root of the steps; plateau, halved after each validation that is no "
        "better than the best.",
        "warmup_steps": "Steps in which the learning rate rises from 0. Larger: a gentler start.",
        "gradient_clip": "The largest norm of a step's gradient. Smaller: steadier and slower.",
        "batch_size": "Pairs per batch, of all devices together. Larger: faster, more memory, fewer steps.",
        "batch_tokens": "Instead of batch_size, words, or parts of words, per batch, padding and ends included, on the "
        "longer side. Memory and time of a step then do not depend on the lengths of sentences.",
        "accumulate": "Batches whose gradients make one step: like larger batches, without their memory.",
        "precision": "float32, or bfloat16, which computes large products with fewer digits, and faster on processors "
        "that support it.",
        "max_length": "Pairs with more words, or parts of words, on a side are left out. Larger: more memory.",
        "shuffle_buffer": "Pairs that are shuffled together in memory; a larger corpus stays on the disk and is read "
        "buffer by buffer.",
    },
    "Course of the training": {
        "epochs": "The largest number of passes over the corpus. Larger: longer, and better up to a point.",
        "max_minutes": "The longest time in minutes. A learning rate that falls to 0 then falls with the time, so that "
        "the result depends on the machine's speed.",
        "validation_steps": "Steps between validations, for large corpora; without: a validation after each epoch.",
        "criterion": "The criterion of the best model on the validation pairs: loss, or bleu, of translations of up to "
        "300 pairs, which takes longer.",
        "patience": "Validations without improvement before training stops. Larger: longer, in case the model still "
        "improves.",
        "average": "How many of the best models to average in the end: often a little better than the single best one.",
        "checkpoint_steps": "Steps between checkpoints, which are also saved after each epoch: at most these steps are "
        "lost if the machine stops.",
        "keep_epochs": "Whether to save the weights after each epoch, so that `dikkat compare` shows how the "
        "translations change.",
        "seed": "The seed of the random numbers: the same seed gives the same model, with the same number of threads "
        "(and without max_minutes).",
    },
    "Translating": {
        "length_penalty": "How strongly searches prefer longer translations, unless they set their own penalty. 0: not "
        "at all, so that short ones win. Without: 1, 1.2 or 1.4, by the BLEU of validation pairs at the end of the "
        "training; 1 without validation pairs."
    },
}


class Option(NamedTuple):
    """The description of a setting: its help text, its heading and its allowed values."""

    help: str
    group: str
    allowed: Allowed


@dataclass(frozen=True)
class Settings:
    """Settings of a translator and its training, which the model folder stores.

    `Settings.options()` describes each setting and its allowed values, as do `dikkat train --help` and the table in
    the documentation.

    Raises:
        SettingsError: A value of the wrong type or out of its range, or two contradictory values; the message names the
            settings and the allowed values.

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
    keep_epochs: bool = False
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
                f"attention_dropout: got {self.attention_dropout}; expected 0 with score 'none', as a model without "
                "attention has no attention weights"
            )
        if self.r_drop and not (self.dropout or self.attention_dropout):
            raise SettingsError(
                f"r_drop: got {self.r_drop:g} without dropout, so both passes are equal; expected 0, or a dropout "
                "above 0"
            )

    @property
    def is_lexical(self) -> bool:
        """Whether source words vote for target words: `lexical`, if the model has attention."""
        return self.lexical and self.score != "none"

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Return the description of each setting by its name."""
        known = allowed(cls)
        return {
            name: Option(text, group, known[name]) for group, texts in _HELP.items() for name, text in texts.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name, of types that JSON has."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Settings":
        """Return settings with values by name; missing ones have their defaults.

        Raises:
            SettingsError: An unknown name (the message suggests the nearest setting), or a value that is not allowed.
        """
        known = list(cls.options())
        for name in values:
            if name not in known:
                raise SettingsError(f"{name}: unknown setting; {nearest(name, known)}")
        return cls(**values)
