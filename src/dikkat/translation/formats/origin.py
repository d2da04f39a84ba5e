"""The origin of a model, kept with it for whoever finds it later. No translation depends on it."""

import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, get_args, get_type_hints

from dikkat._version import __version__
from dikkat.translation.errors import ModelFolderError


@dataclass(frozen=True)
class Origin:
    """The training that a model comes from.

    Attributes:
        date: When its training ended, in UTC: `2026-11-22T08:00:00Z`.
        version: Of the dikkat that trained it.
        corpus: What it learnt from, as a recipe has it.
        source_language: The language that it reads, by a code or by the name of the corpus's column.
        target_language: The language that it writes.
        pairs: How many training pairs were used.
        epochs: How many were trained, the last one as far as it came.
        validation_loss: Mean loss of a target token in the best validation, in nats; None without validation.
        examples: Three sentences that it has not learnt from, a line each, with which its pages begin.
        test: What it was scored on; None: it was not.
        bleu: Its BLEU there, from 0 to 100.
        bleu_signature: How sacreBLEU computed that.
        chrf: Its chrF there, from 0 to 100.
        chrf_signature: How sacreBLEU computed that.
    """

    date: str
    version: str
    corpus: str | None = None
    source_language: str | None = None
    target_language: str | None = None
    pairs: int | None = None
    epochs: int | None = None
    validation_loss: float | None = None
    examples: str | None = None
    test: str | None = None
    bleu: float | None = None
    bleu_signature: str | None = None
    chrf: float | None = None
    chrf_signature: str | None = None

    @property
    def languages(self) -> tuple[str, str] | None:
        """The languages that it reads and writes; None if they are not known."""
        known = self.source_language, self.target_language
        return (known[0], known[1]) if known[0] and known[1] else None

    @classmethod
    def now(cls, **known: Any) -> "Origin":
        """The origin of a model whose training ends now.

        Example:
            >>> Origin.now(corpus="phrasebook", pairs=3_800).corpus
            'phrasebook'
        """
        return cls(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), __version__, **known)

    def scored(self, test: str, scores: Any) -> "Origin":
        """This origin, with the scores of a test."""
        values = {name: getattr(scores, name) for name in ("bleu", "bleu_signature", "chrf", "chrf_signature")}
        return replace(self, test=test, **values)

    def to_dict(self) -> dict[str, Any]:
        """The known values by name, as JSON has them."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Origin":
        """An origin from its values by name."""
        kinds = get_type_hints(cls)
        for name, value in values.items():
            allowed = get_args(kinds.get(name)) or (kinds.get(name, types.NoneType),)
            if type(value) not in (*allowed, *([int] if float in allowed else [])) or value is None:
                raise ModelFolderError(f"origin: {name} is {value!r}, which no origin of a model has")
        if missing := [field.name for field in fields(cls)[:2] if field.name not in values]:
            raise ModelFolderError(f"origin: {missing[0]} is missing")
        return cls(**values)
