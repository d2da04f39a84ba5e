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
        "tokenizer": "What a sentence is cut into: word (whole words) or bpe (parts of words, so that "
        "rare words can be read and written too; for 10,000 pairs or more, long words, or a script without spaces).",
        "min_freq": "How often a word, or a pair of parts to be joined, must occur to be learnt. Larger: fewer words "
        "are known, each one better.",
        "vocabulary_size": "Most words, or parts of words, of a language; of both together with tied_embeddings three. "
        "Larger: fewer unknown words, slower training.",
    },
    "Network": {
        "cell": "The recurrent network: gru, or lstm, a third larger and slower.",
        "embedding_size": "Numbers that describe a word. Larger: finer distinctions, but slower, and a small corpus is "
        "learnt by heart.",
        "hidden_size": "Numbers that the network remembers while it reads and writes. Larger: as for embedding_size. "
        "In a bidirectional encoder each direction has half of them.",
        "num_layers": "Layers of the encoder and of the decoder. More: slower, and worth it for large corpora only.",
        "bidirectional": "Whether sentences are read backwards as well as forwards: slower, and mostly better.",
        "score": "How attention compares what is about to be written with a word of the source; none: no attention, "
        "the decoder sees the source's last state alone.",
        "lexical": "Whether the source words that are looked at also say directly which word comes next, so that rare "
        "words are learnt sooner. Slower by about a sixth; without attention it has no effect.",
        "tied_embeddings": "Which tables of word vectors are one: none, two (what the decoder reads and writes) or "
        "three (the encoder's too, with one vocabulary for both languages; for related languages).",
    },
    "Training": {
        "dropout": "Share of the features of embeddings, encoder outputs, the last layer and between layers that is "
        "switched off at random while it learns. Larger: less is learnt by heart; for a small corpus.",
        "attention_dropout": "Share of the attention weights that is switched off at random while it learns.",
        "label_smoothing": "Share of the certainty taken from the right word and given to all. Larger: a less certain "
        "model, often a slightly better one; 0.1 is usual.",
        "r_drop": "How strongly the model is pushed to answer the same whichever features are switched off. Helps on "
        "small corpora; training takes twice the time and memory. 2 to 5 is usual.",
        "learning_rate": "How large a step of learning is, at its largest. Larger: faster, until training diverges; "
        "then lower it.",
        "schedule": "How the learning rate goes on after the warm-up: constant; linear or cosine, down to 0 at the "
        "planned end; inverse_sqrt, as one over the square root of the steps; plateau, halved after each validation "
        "that is no better than the best.",
        "warmup_steps": "Steps over which the learning rate rises from 0. Larger: a gentler start.",
        "gradient_clip": "Longest step that a single batch may ask for. Smaller: steadier and slower.",
        "batch_size": "Pairs to learn from at once, of all devices together. Larger: faster, more memory, fewer steps.",
        "batch_tokens": "Instead of batch_size: words, or parts of words, to learn from at once, padding and ends "
        "included, on the side that has more of them. Memory and time of a step then do not depend on how long the "
        "sentences are.",
        "accumulate": "Batches whose gradients make one step: as larger batches, without their memory.",
        "precision": "float32, or bfloat16: large products with fewer digits, faster on the processors that have them.",
        "max_length": "Pairs with more words, or parts of words, on a side are left out. Larger: more memory.",
        "shuffle_buffer": "Pairs that are shuffled together, in memory; a larger corpus stays on the disk and is read "
        "buffer by buffer.",
    },
    "Course of the training": {
        "epochs": "How often to go through the corpus at most. Larger: longer, and better up to a point.",
        "max_minutes": "When to stop at the latest. A learning rate that falls to 0 then does so with the time, so "
        "that the result depends on the machine's speed.",
        "validation_steps": "Steps from one validation to the next; without: one at the end of each epoch. For large "
        "corpora.",
        "criterion": "What the best model is best at, on the validation pairs: loss, or bleu, of the "
        "translations of up to 300 of them, which takes longer to compute.",
        "patience": "Validations without improvement after which to stop. Larger: longer, in case it improves yet.",
        "average": "How many of the best validated models to average in the end: often a little better than the best "
        "one alone.",
        "checkpoint_steps": "Steps from one checkpoint to the next, beside those at the end of each epoch: so much is "
        "lost at most when the machine stops.",
        "seed": "Where the random numbers begin: the same seed gives the same model, with as many threads (and without "
        "max_minutes).",
    },
    "Translating": {
        "length_penalty": "How strongly longer translations are preferred where a search does not say it. 0: not at "
        "all, so that short ones win. Without: 1, 1.2 or 1.4, by the BLEU of validation pairs when training ends; 1 "
        "where there are none."
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
