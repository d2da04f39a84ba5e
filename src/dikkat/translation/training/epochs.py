"""The models after each epoch of a training."""

from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import load as load_tensors

from dikkat.storage.files import parse_json
from dikkat.storage.tensors import describe, joined, misfits
from dikkat.translation.decoding.translator import Translator
from dikkat.translation.errors import TrainingFolderError
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.settings import Settings
from dikkat.translation.training.run_folder import SETTINGS, RunFolder


def load_epochs(folder: Path) -> Iterator[tuple[int, Translator]]:
    """Yield each epoch of a training with `keep_epochs`, and its translator; one model at a time is in memory.

    Raises:
        TrainingFolderError: The folder has no epochs, or a file is missing or damaged.
    """
    run_folder = RunFolder(folder, writes=False)
    files = run_folder.epoch_files()
    if not files:
        raise TrainingFolderError(
            f"{folder}: got no weights of epochs; expected another model, or a training with keep_epochs"
        )
    try:
        settings = Settings.from_dict(parse_json((folder / SETTINGS).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise TrainingFolderError(f"{folder / SETTINGS}: missing or damaged ({error}). Train again") from error
    source, target, slots = run_folder.tokenizers()
    for epoch, path in files.items():
        model = TranslationModel(settings, len(source), len(target))
        try:
            tensors = load_tensors(path.read_bytes())
        except Exception as error:  # safetensors raises nothing narrower
            raise TrainingFolderError(f"{path}: truncated or damaged ({error}). Train again") from error
        models = (model.state_dict(), tensors)
        if faults := misfits(*({name: describe(tensor) for name, tensor in state.items()} for state in models)):
            raise TrainingFolderError(f"{path}: {joined(faults)}. The weights belong to another training: train again")
        model.load_state_dict(tensors)
        yield epoch, Translator(model.eval(), settings, source, target, slots=slots)
