"""`dikkat recipes`."""

from dikkat.cli.app import Command, app
from dikkat.cli.messages import suggest
from dikkat.cli.tables import show_table


@app.command(cls=Command, epilog="Example:\n\ndikkat recipes")
def recipes() -> None:
    """List the built-in recipes. `dikkat train NAME --output FOLDER` trains with one."""
    from dikkat.translation.formats.recipe import built_in, purpose

    show_table(["name", "purpose"], [[name, purpose(path)] for name, path in built_in().items()], text_columns=2)
    print(f"files: {next(iter(built_in().values())).parent}")
    suggest("dikkat train phrasebook --output my-model")
