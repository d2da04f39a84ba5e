"""`dikkat info`."""

import shlex
from typing import Any

from dikkat.cli.app import Command, app
from dikkat.cli.lines import json_text
from dikkat.cli.messages import suggest
from dikkat.cli.options import JsonOption, ModelArgument
from dikkat.cli.tables import show_table


@app.command(cls=Command, epilog="Examples:\n\ndikkat info my-model\n\ndikkat info my-model --json")
def info(model: ModelArgument, as_json: JsonOption = False) -> None:
    """Print the origin, the size, the scores and all settings of a translator."""
    from dikkat.translation import Translator

    translator = Translator.load(model)
    origin = translator.origin.to_dict() if translator.origin else {}  # a model from Python may have none
    origin.pop("training_hashes", None)
    facts = {
        **origin,
        "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
        "source_tokens": len(translator.source_tokenizer),
        "target_tokens": len(translator.target_tokenizer),
    }
    if translator.memory:
        facts["stored_pairs"] = len(translator.memory)
    if shapes := translator.slots.shapes:
        used = {name: shape for name, shape in shapes.items() if shape.written is not None}
        facts["slots"] = ", ".join(f"{name} ({shape.times:,} of {shape.of:,})" for name, shape in used.items())
    if model_of_confidence := translator.confidence_model:
        right, pairs = model_of_confidence.right, model_of_confidence.pairs
        facts["confidence"] = f"calibrated on {pairs:,} validation pairs, {right:,} of which were right"
    settings = translator.settings.to_dict()
    if as_json:
        print(json_text({**facts, "settings": settings}, indent=2))
        return
    show_table(["", ""], [[name.replace("_", " "), _format(value)] for name, value in facts.items()], text_columns=2)
    print()
    show_table(["setting", "value"], [[name, _format(value)] for name, value in settings.items()], text_columns=2)
    suggest(f'dikkat translate {shlex.quote(str(model))} "A sentence."')


def _format(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
