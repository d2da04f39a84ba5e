"""`dikkat export`."""

from pathlib import Path
from typing import Annotated

from dikkat.cli.app import Command, app, option
from dikkat.cli.options import ModelArgument
from dikkat.translation import Translator
from dikkat.translation.formats import model_folder


@app.command(cls=Command, epilog="Example:\n\ndikkat export my-model --onnx my-graphs")
def export(
    model: ModelArgument,
    onnx: Annotated[Path, option("The folder to make. Graphs there are replaced.", "FOLDER", "--onnx")],
) -> None:
    """Write a translator as two ONNX graphs, the encoder and a step of the decoder, for programs without PyTorch.

    Before anything is written, ONNX Runtime has to compute what PyTorch does.
    """
    from dikkat.translation.formats import onnx_folder

    translator = Translator.load(model)
    model_folder.check_writable(onnx, onnx_folder.FILES)
    translator.export_onnx(onnx)
    sizes = [(onnx / name).stat().st_size / 1e6 for name in (onnx_folder.ENCODER, onnx_folder.DECODER)]
    print(f"{onnx}: an encoder of {sizes[0]:.1f} MB, a step of a decoder of {sizes[1]:.1f} MB, as PyTorch computes")
