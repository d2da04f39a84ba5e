"""Translation with an attentional GRU: corpus, tokenizers, model, training, search, evaluation, model folders."""

from typing import TYPE_CHECKING, Any

from dikkat.translation.corpus import hold_out, read_aligned, read_tsv
from dikkat.translation.errors import (
    CorpusError,
    InputError,
    ModelFolderError,
    SettingsError,
    TrainingDivergedError,
    TrainingError,
    TrainingFolderError,
    TrainingMemoryError,
    TrainingStorageError,
)
from dikkat.translation.evaluation import Evaluation, bleu_k, evaluate
from dikkat.translation.loss import linear_cross_entropy
from dikkat.translation.model import TranslationModel
from dikkat.translation.search import Hypothesis, Search, beam_search, greedy
from dikkat.translation.settings import Settings
from dikkat.translation.tokenizer import Tokenizer
from dikkat.translation.translator import Translation, Translator

if TYPE_CHECKING:
    from dikkat.translation.training import Training, train

__all__ = [
    "CorpusError",
    "Evaluation",
    "Hypothesis",
    "InputError",
    "ModelFolderError",
    "Search",
    "Settings",
    "SettingsError",
    "Tokenizer",
    "Training",
    "TrainingDivergedError",
    "TrainingError",
    "TrainingFolderError",
    "TrainingMemoryError",
    "TrainingStorageError",
    "Translation",
    "TranslationModel",
    "Translator",
    "beam_search",
    "bleu_k",
    "evaluate",
    "greedy",
    "hold_out",
    "linear_cross_entropy",
    "read_aligned",
    "read_tsv",
    "train",
]


def __getattr__(name: str) -> Any:
    """Training, with Lightning, is imported when it is first asked for."""
    if name in ("Training", "train"):
        from dikkat.translation import training

        return getattr(training, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
