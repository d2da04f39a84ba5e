"""`dikkat quantize`."""

import shlex
from pathlib import Path
from typing import Annotated

from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import suggest
from dikkat.cli.options import ModelArgument, OverwriteOption
from dikkat.errors import InputError


@app.command(
    cls=Command,
    epilog="Example:\n\ndikkat quantize my-model --output my-small-model\n\n"
    'dikkat translate my-small-model --precision int8 "She is tired."',
)
def quantize(
    model: ModelArgument,
    output: Annotated[Path, option("Output folder.", "FOLDER", "--output", "-o")],
    overwrite: OverwriteOption = False,
) -> None:
    """Save a translator with int8 weights: a quarter of the size, nearly the same translations.

    You cannot train the small model further, so keep the original.
    """
    from dikkat.translation import Translator
    from dikkat.translation.formats import model_folder

    if output.resolve() == model.resolve():
        raise InputError(f"--output: got {output}, the model itself; expected another folder, as int8 loses digits")
    model_folder.check_writable(output, overwrite=overwrite)
    translator = Translator.load(model)
    translator.save(output, int8=True)
    before, after = ((folder / model_folder.WEIGHTS).stat().st_size for folder in (model, output))
    print(f"{output}: weights of {after / 1e6:.1f} MB, {after / before:.0%} of {before / 1e6:.1f} MB")
    suggest(f'dikkat translate {shlex.quote(str(output))} --precision int8 "A sentence."')
