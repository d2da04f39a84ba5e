"""The origin of a model, stored with it as information; translations do not depend on it."""

import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, get_args, get_type_hints

import numpy as np

from dikkat._version import __version__
from dikkat.translation.data.splits import count_common
from dikkat.translation.errors import ModelFolderError


@dataclass(frozen=True)
class Origin:
    """The training of a model.

    Attributes:
        date: The end of the training, in UTC: `2026-11-22T08:00:00Z`.
        version: The version of dikkat.
        corpus: The training corpus in a recipe's spelling.
        source_language: The language that the model reads: a code, or the name of the corpus's column.
        target_language: The language that the model writes.
        pairs: The number of training pairs.
        epochs: The number of epochs, including an incomplete last one.
        validation_loss: The mean loss of a target token in the best validation, in nats; None without validation.
        validation_sentences: The number of translated validation sentences.
        validation_bleu: The BLEU of these translations, from 0 to 100.
        validation_bleu_signature: sacreBLEU's signature of this BLEU.
        examples: Three held-out sentences, one per line, with which the model's pages begin.
        test: The test corpus; None: the model was not scored.
        bleu: The BLEU on the test corpus, from 0 to 100.
        bleu_signature: sacreBLEU's signature of the BLEU.
        chrf: The chrF on the test corpus, from 0 to 100.
        chrf_signature: sacreBLEU's signature of the chrF.
        training_hashes: Hashes of training source sentences, 8 hexadecimal digits each, by which `dikkat evaluate`
            recognises such sentences.
    """

    date: str
    version: str
    corpus: str | None = None
    source_language: str | None = None
    target_language: str | None = None
    pairs: int | None = None
    epochs: int | None = None
    validation_loss: float | None = None
    validation_sentences: int | None = None
    validation_bleu: float | None = None
    validation_bleu_signature: str | None = None
    examples: str | None = None
    test: str | None = None
    bleu: float | None = None
    bleu_signature: str | None = None
    chrf: float | None = None
    chrf_signature: str | None = None
    training_hashes: str | None = None

    @property
    def languages(self) -> tuple[str, str] | None:
        """The source and the target language; None if they are unknown."""
        languages = self.source_language, self.target_language
        return (languages[0], languages[1]) if languages[0] and languages[1] else None

    def count_trained(self, sentences: Iterable[str]) -> tuple[int, int]:
        """Return how many sentences are training sentences, and how many could be compared, as `count_common`."""
        return count_common(sentences, np.frombuffer(bytes.fromhex(self.training_hashes or ""), "<u4"))

    @classmethod
    def now(cls, **known: Any) -> "Origin":
        """Return the origin of a model whose training ends now.

        Example:
            >>> Origin.now(corpus="phrasebook", pairs=3_800).corpus
            'phrasebook'
        """
        return cls(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), __version__, **known)

    def scored(self, test: str, scores: Any) -> "Origin":
        """Return a copy with the scores of a test."""
        values = {name: getattr(scores, name) for name in ("bleu", "bleu_signature", "chrf", "chrf_signature")}
        return replace(self, test=test, **values)

    def to_dict(self) -> dict[str, Any]:
        """Return the known values by name, of types that JSON has."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Origin":
        """Return an origin from its values by name."""
        types_by_name = get_type_hints(cls)
        for name, value in values.items():
            allowed_types = get_args(types_by_name.get(name)) or (types_by_name.get(name, types.NoneType),)
            if type(value) not in (*allowed_types, *([int] if float in allowed_types else [])) or value is None:
                known = " or ".join(kind.__name__ for kind in allowed_types if kind is not types.NoneType)
                raise ModelFolderError(f"origin: got {value!r} for {name}; expected {known or 'a known name'}")
        if missing := [field.name for field in fields(cls)[:2] if field.name not in values]:
            raise ModelFolderError(f"origin: {missing[0]} is missing")
        if not re.fullmatch(r"([0-9a-f]{8})*", values.get("training_hashes", "")):
            raise ModelFolderError("origin: got invalid training_hashes; expected hexadecimal digits")
        return cls(**values)
