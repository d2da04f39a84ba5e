"""Translation by attentional recurrent networks: corpus, tokenizers, model, training, search, evaluation, folders."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dikkat.errors import InputError
from dikkat.extras import require_extra

with require_extra("translation"):
    from dikkat.translation.confidence import Calibration, ConfidenceModel, calibration
    from dikkat.translation.data.catalogues import CatalogueCorpus
    from dikkat.translation.data.corpus import AlignedCorpus, Corpus, DatasetCorpus, PairCorpus, TsvCorpus, as_corpus
    from dikkat.translation.data.corpus_source import CorpusSource
    from dikkat.translation.data.named_corpora import NamedCorpus, named
    from dikkat.translation.data.splits import hold_out, split, without_leaks
    from dikkat.translation.decoding.alignment import GoldLinks, alignment_error_rate, gold_links, read_links
    from dikkat.translation.decoding.evaluation import (
        Bucket,
        Difference,
        Evaluation,
        TokenEvaluation,
        bleu_k,
        evaluate,
        evaluate_by_length,
        evaluate_lowercased_tokens,
        significance,
    )
    from dikkat.translation.decoding.hypothesis import Hypothesis
    from dikkat.translation.decoding.options import Search
    from dikkat.translation.decoding.search import beam_search, forced_scores, greedy
    from dikkat.translation.decoding.search import explain as explain_search
    from dikkat.translation.decoding.translation import Translation
    from dikkat.translation.decoding.translator import BaseTranslator, Ensemble, Translator
    from dikkat.translation.errors import CorpusError, ModelFolderError, SettingsError, TrainingFolderError
    from dikkat.translation.formats.recipe import Recipe
    from dikkat.translation.network.loss import linear_cross_entropy
    from dikkat.translation.network.model import TranslationModel
    from dikkat.translation.settings import Settings
    from dikkat.translation.terms import Terms
    from dikkat.translation.text.tokenizer import Tokenizer
    from dikkat.translation.training.results import (
        Training,
        TrainingDivergedError,
        TrainingError,
        TrainingMemoryError,
        TrainingStorageError,
    )

if TYPE_CHECKING:
    from dikkat.translation.training.continuing import continue_training
    from dikkat.translation.training.suited import settings_for
    from dikkat.translation.training.train import train

__all__ = [
    "AlignedCorpus", "BaseTranslator", "Bucket", "Calibration", "CatalogueCorpus", "ConfidenceModel", "Corpus",
    "CorpusError", "CorpusSource", "DatasetCorpus", "Difference", "Ensemble", "Evaluation", "GoldLinks", "Hypothesis",
    "InputError", "ModelFolderError", "NamedCorpus", "PairCorpus", "Recipe", "Search", "Settings", "SettingsError",
    "Terms", "TokenEvaluation", "Tokenizer", "Training", "TrainingDivergedError", "TrainingError",
    "TrainingFolderError", "TrainingMemoryError", "TrainingStorageError", "Translation", "TranslationModel",
    "Translator", "TsvCorpus", "alignment_error_rate", "as_corpus", "beam_search", "bleu_k", "calibration",
    "continue_training", "evaluate",
    "evaluate_by_length", "evaluate_lowercased_tokens", "explain_search", "forced_scores", "gold_links", "greedy",
    "hold_out", "linear_cross_entropy", "named", "read_links", "settings_for", "significance", "split", "train",
    "without_leaks",
]  # fmt: skip


_LAZY = {"continue_training": "continuing", "settings_for": "suited", "train": "train"}


def __getattr__(name: str) -> Any:
    """Import the training loop and its settings on first use: translating does not need them."""
    if name in _LAZY:
        return getattr(import_module(f"dikkat.translation.training.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
