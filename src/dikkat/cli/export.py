"""`dikkat export`."""

from pathlib import Path
from typing import Annotated

from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import in_browser, suggest
from dikkat.cli.options import ModelArgument
from dikkat.errors import InputError
from dikkat.storage.files import check_replaceable
from dikkat.translation import Translator
from dikkat.translation.formats import model_folder


@app.command(
    cls=Command,
    epilog="Examples:\n\ndikkat export my-model --html translator.html\n\n"
    'dikkat export my-model --html translator.html --title "Phrasebook" --example "She is tired."\n\n'
    "dikkat export my-model --onnx my-graphs",
)
def export(
    model: ModelArgument,
    html: Annotated[
        Path | None, option("The page to write: one file, which a browser opens from the disk.", "FILE", "--html")
    ] = None,
    title: Annotated[str | None, option("The page's heading. [default: the languages, if known]", "TEXT")] = None,
    example: Annotated[
        list[str] | None,
        option("A sentence for the page to begin with. May be given several times.", "SENTENCE", "--example"),
    ] = None,
    onnx: Annotated[
        Path | None, option("The folder of graphs to make. Graphs there are replaced.", "FOLDER", "--onnx")
    ] = None,
) -> None:
    """Write a translator for use without Python: as one page for a browser, or as two ONNX graphs.

    The page translates by itself, and shows its attention. The graphs are an encoder and a step of a decoder; they are
    written only if ONNX Runtime computes the same with them as PyTorch.
    """
    if (html is None) == (onnx is None):
        raise InputError("give --html FILE or --onnx FOLDER, and not both")
    if html is None and (title or example):
        raise InputError("--title and --example are of a page: give them with --html FILE")
    if onnx is not None:
        from dikkat.translation.formats.onnx_folder import DECODER, ENCODER, FILES

        model_folder.check_writable(onnx, FILES)
        Translator.load(model).export_onnx(onnx)
        encoder, decoder = ((onnx / name).stat().st_size / 1e6 for name in (ENCODER, DECODER))
        print(f"{onnx}: an encoder of {encoder:.1f} MB, a step of a decoder of {decoder:.1f} MB, as PyTorch computes")
    if html is not None:
        check_replaceable(html)
        translator = Translator.load(model)
        translator.export_html(html, title=title, examples=example or [])
        print(f"{html}: a page of {html.stat().st_size / 1e6:.1f} MB, with the model inside")
        suggest(in_browser(html))
