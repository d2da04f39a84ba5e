"""What each command does; its help is written for someone who has never trained a translator."""

import dataclasses
import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, TextIO, cast, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from dikkat.translation import (
    InputError,
    Search,
    Settings,
    Translation,
    Translator,
    evaluate,
    hold_out,
    read_aligned,
    read_tsv,
)
from dikkat.translation.checkpoint import check_writable
from dikkat.translation.corpus import MAX_CHARACTERS, Pair, decode_line, read_lines
from dikkat.translation.precision import Precision
from dikkat.translation.settings import ScoreName
from dikkat.translation.tokenizer import Kind

_DEFAULT = Settings()
_SEARCH = Search()
_VALIDATION_SHARE = 0.05

_ARRIVING = 1 << 16  # bytes: most that are taken from standard input at once
_ONE_LINE = str.maketrans("\t\n\r", "   ")  # which a byte-pair model could write

_FLAG = " "  # as the name of a value: there is none


class _Command(TyperCommand):
    """A command whose --help is not shown as if it took a value."""

    def get_help_option(self, ctx: Any) -> Any:  # the types of typer's own copy of click
        """The option --help."""
        return _without_value(super().get_help_option(ctx))


class _Group(TyperGroup):
    """The commands together, likewise."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help."""
        return _without_value(super().get_help_option(ctx))


def _without_value(option: Any) -> Any:
    if option is not None:
        option.metavar = _FLAG
    return option


app = typer.Typer(
    name="dikkat",
    cls=_Group,
    help="Train a small translator that shows what it looks at, use it, score it, and see it at work.",
    epilog="Start with: dikkat train --phrasebook --output my-model",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_CORPUS = "Corpus (one of three: --phrasebook, --pairs, --source with --target)"
_RESULT, _VALIDATION, _NETWORK, _TRAINING = "Result", "Validation", "Network", "Training"
_OTHER_NAMES = {"num_layers": "--layers", "max_minutes": "--minutes", "bidirectional": "--no-bidirectional"}

PhrasebookOption = Annotated[
    bool,
    typer.Option(
        "--phrasebook",
        help="dikkat's own English-French phrasebook; no file needed.",
        rich_help_panel=_CORPUS,
        metavar=_FLAG,
    ),
]
PairsOption = Annotated[
    Path | None,
    typer.Option(
        help="A file of lines: sentence, tab, translation. Further columns are ignored. Plain or .gz.",
        rich_help_panel=_CORPUS,
        metavar="FILE",
    ),
]
SourceOption = Annotated[
    Path | None,
    typer.Option(help="A file of sentences, one a line. Plain or .gz.", rich_help_panel=_CORPUS, metavar="FILE"),
]
TargetOption = Annotated[
    Path | None,
    typer.Option(help="A file of their translations, line by line.", rich_help_panel=_CORPUS, metavar="FILE"),
]
ModelArgument = Annotated[Path, typer.Argument(help="A model folder that `dikkat train` made.", show_default=False)]
SentencesArgument = Annotated[list[str], typer.Argument(help="Sentences, each in quotes.", show_default=False)]
BatchSizeOption = Annotated[
    int, typer.Option(help="Sentences to translate at once. Larger: faster, more memory.", min=1, metavar="N")
]
BeamOption = Annotated[
    int,
    typer.Option(
        help="Ways to go on with a translation that are followed at once, before one is chosen. 1: fastest. Larger: "
        "slower, and mostly better, up to 5 or so.",
        metavar="N",
    ),
]
LengthPenaltyOption = Annotated[
    float,
    typer.Option(
        help="How much longer translations are preferred. 0: not at all, so that short ones win. No effect with a "
        "--beam of 1.",
        metavar="NUMBER",
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help="Of the largest products: float32, or bfloat16, a little coarser, and faster for many sentences at once "
        "where the processor has it.",
        metavar="TYPE",
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dikkat {version('dikkat')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True, metavar=_FLAG
        ),
    ] = False,
) -> None:
    """Train a small translator that shows what it looks at, use it, score it, and see it at work."""


def run() -> None:
    """Run the application; errors that a user can mend become one line on standard error and exit status 2."""
    from dikkat.translation.errors import InputError

    if not sys.stdout.isatty():
        _write_utf8(sys.stdout)
    try:
        app()
    except BrokenPipeError:  # the reader of our output has seen enough; nothing is to be said to it any more
        sys.stderr.close()
        raise SystemExit(1) from None
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except InputError as error:
        _fail(str(error))


def _write_utf8(stream: TextIO) -> None:
    """Translations have letters that a narrow locale has not; files and pipes get them as they are."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(encoding="utf-8")


def _fail(message: str) -> None:
    print("dikkat: " + " ".join(message.split()), file=sys.stderr)
    raise SystemExit(2)


@app.command(
    cls=_Command,
    epilog="Examples:\n\n"
    "dikkat train --phrasebook --output my-model\n\n"
    "dikkat train --pairs fra.txt --minutes 20 --output my-model\n\n"
    "dikkat train --source train.en.gz --target train.fr.gz --valid-source val.en.gz --valid-target val.fr.gz "
    "--tokenizer bpe --vocabulary-size 8000 --output my-model",
)
def train(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The model folder to make. A model there is replaced.",
            rich_help_panel=_RESULT,
            metavar="FOLDER",
            show_default=False,
        ),
    ],
    phrasebook: PhrasebookOption = False,
    pairs: PairsOption = None,
    source: SourceOption = None,
    target: TargetOption = None,
    valid_source: Annotated[
        Path | None,
        typer.Option(
            help="Sentences to judge the model by while it learns, one a line; needs --valid-target.",
            rich_help_panel=_VALIDATION,
            metavar="FILE",
        ),
    ] = None,
    valid_target: Annotated[
        Path | None, typer.Option(help="Their translations, line by line.", rich_help_panel=_VALIDATION, metavar="FILE")
    ] = None,
    valid_share: Annotated[
        float | None,
        typer.Option(
            help="Without such files: the share of the corpus that is set aside instead and not learnt from. "
            f"\\[default: {_VALIDATION_SHARE}]",
            rich_help_panel=_VALIDATION,
            metavar="SHARE",
        ),
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option(
            help="What a sentence is cut into: word (whole words, in lower case) or bpe (parts of words, so that rare "
            "words can be read and written too; for 10,000 pairs or more).",
            rich_help_panel=_NETWORK,
            metavar="KIND",
        ),
    ] = _DEFAULT.tokenizer,
    min_freq: Annotated[
        int,
        typer.Option(
            help="How often a word must occur to be learnt. Larger: fewer words are known, each one better.",
            rich_help_panel=_NETWORK,
            metavar="N",
        ),
    ] = _DEFAULT.min_freq,
    vocabulary_size: Annotated[
        int,
        typer.Option(
            help="Most words, or parts of words, of a language. Larger: fewer unknown words, slower training.",
            rich_help_panel=_NETWORK,
            metavar="N",
        ),
    ] = _DEFAULT.vocabulary_size,
    embedding_size: Annotated[
        int,
        typer.Option(
            help="Numbers that describe a word. Larger: finer distinctions, but slower, and a small corpus is learnt "
            "by heart.",
            rich_help_panel=_NETWORK,
            metavar="N",
        ),
    ] = _DEFAULT.embedding_size,
    hidden_size: Annotated[
        int,
        typer.Option(
            help="Numbers that the network remembers while it reads and writes. Larger: as for --embedding-size.",
            rich_help_panel=_NETWORK,
            metavar="N",
        ),
    ] = _DEFAULT.hidden_size,
    layers: Annotated[
        int,
        typer.Option(
            help="GRU layers of the encoder and of the decoder. More: slower, and worth it for large corpora only.",
            rich_help_panel=_NETWORK,
            metavar="N",
        ),
    ] = _DEFAULT.num_layers,
    no_bidirectional: Annotated[
        bool,
        typer.Option(
            "--no-bidirectional",
            help="Read sentences forwards only, not backwards as well: faster, and mostly worse.",
            rich_help_panel=_NETWORK,
            metavar=_FLAG,
        ),
    ] = not _DEFAULT.bidirectional,
    score: Annotated[
        str,
        typer.Option(
            help="How attention compares what it is about to write with a word of the source: "
            f"{', '.join(get_args(ScoreName))}.",
            rich_help_panel=_NETWORK,
            metavar="NAME",
        ),
    ] = _DEFAULT.score,
    max_length: Annotated[
        int,
        typer.Option(
            help="Pairs with more words, or parts of words, on a side are left out. Larger: more memory.",
            rich_help_panel=_TRAINING,
            metavar="N",
        ),
    ] = _DEFAULT.max_length,
    dropout: Annotated[
        float,
        typer.Option(
            help="Share of the network that is switched off at random while it learns. Larger: less is learnt by "
            "heart; for a small corpus.",
            rich_help_panel=_TRAINING,
            metavar="SHARE",
        ),
    ] = _DEFAULT.dropout,
    label_smoothing: Annotated[
        float,
        typer.Option(
            help="Share of the certainty taken from the right word and given to all. Larger: a less certain model, "
            "often a slightly better one; 0.1 is usual.",
            rich_help_panel=_TRAINING,
            metavar="SHARE",
        ),
    ] = _DEFAULT.label_smoothing,
    learning_rate: Annotated[
        float,
        typer.Option(
            help="How large a step of learning is. Larger: faster, until training diverges; then lower it.",
            rich_help_panel=_TRAINING,
            metavar="RATE",
        ),
    ] = _DEFAULT.learning_rate,
    warmup_steps: Annotated[
        int,
        typer.Option(
            help="Batches over which the learning rate rises from 0. Larger: a gentler start.",
            rich_help_panel=_TRAINING,
            metavar="N",
        ),
    ] = _DEFAULT.warmup_steps,
    gradient_clip: Annotated[
        float,
        typer.Option(
            help="Longest step that a single batch may ask for. Smaller: steadier and slower.",
            rich_help_panel=_TRAINING,
            metavar="NORM",
        ),
    ] = _DEFAULT.gradient_clip,
    batch_size: Annotated[
        int,
        typer.Option(
            help="Pairs to learn from at once. Larger: faster, more memory, fewer steps.",
            rich_help_panel=_TRAINING,
            metavar="N",
        ),
    ] = _DEFAULT.batch_size,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            help="Instead of --batch-size: words, or parts of words, to learn from at once, so that memory and time do "
            "not depend on how long the sentences are. \\[default: --batch-size counts]",
            rich_help_panel=_TRAINING,
            metavar="N",
        ),
    ] = _DEFAULT.batch_tokens,
    precision: Annotated[
        str,
        typer.Option(
            help="float32, or bfloat16: large products with fewer digits, faster on the processors that have them.",
            rich_help_panel=_TRAINING,
            metavar="KIND",
        ),
    ] = _DEFAULT.precision,
    epochs: Annotated[
        int,
        typer.Option(
            help="How often to go through the corpus at most. Larger: longer, and better up to a point.",
            rich_help_panel=_TRAINING,
            metavar="N",
        ),
    ] = _DEFAULT.epochs,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="When to stop at the latest. \\[default: no limit]",
            rich_help_panel=_TRAINING,
            metavar="MINUTES",
        ),
    ] = _DEFAULT.max_minutes,
    patience: Annotated[
        int,
        typer.Option(
            help="Epochs without improvement after which to stop. Larger: longer, in case it improves yet.",
            rich_help_panel=_TRAINING,
            metavar="N",
        ),
    ] = _DEFAULT.patience,
    seed: Annotated[
        int,
        typer.Option(
            help="Where the random numbers begin: the same seed gives the same model (without --minutes).",
            rich_help_panel=_TRAINING,
            metavar="N",
        ),
    ] = _DEFAULT.seed,
) -> None:
    """Train a translator on sentence pairs and save it as a model folder."""
    with _naming_options():
        settings = Settings(
            tokenizer=cast(Kind, tokenizer),  # Settings refuses what is none, in one line
            min_freq=min_freq,
            vocabulary_size=vocabulary_size,
            embedding_size=embedding_size,
            hidden_size=hidden_size,
            num_layers=layers,
            bidirectional=not no_bidirectional,
            score=cast(ScoreName, score),
            max_length=max_length,
            dropout=dropout,
            label_smoothing=label_smoothing,
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            gradient_clip=gradient_clip,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            precision=cast(Precision, precision),
            epochs=epochs,
            max_minutes=minutes,
            patience=patience,
            seed=seed,
        )
    check_writable(output)  # before the work, not after it
    corpus = _corpus(phrasebook, pairs, source, target, held_out=False)
    training, validation = _with_validation(corpus, valid_source, valid_target, valid_share)
    print(f"{len(training):,} pairs to learn from, {len(validation):,} to validate with", file=sys.stderr)
    from dikkat.translation.training import TrainingError
    from dikkat.translation.training import train as train_translator

    with _naming_options():
        try:
            result = train_translator(settings, training, validation)
        except TrainingError as error:
            if error.training is not None:
                error.training.translator.save(output)
                print("dikkat: the training broke off; the best model so far is saved", file=sys.stderr)
            raise InputError(str(error)) from error
        except KeyboardInterrupt:
            print("dikkat: interrupted before an epoch was over; nothing was saved", file=sys.stderr)
            raise typer.Exit(130) from None
    if result.interrupted:
        print("dikkat: interrupted; the best model so far is saved", file=sys.stderr)
    result.translator.save(output)
    best = min(result.epochs, key=lambda epoch: epoch.validation_loss)
    print(
        f"{output}: the model of epoch {best.number} of {len(result.epochs)}, validation loss "
        f"{best.validation_loss:.3f}; {result.seconds:.0f} s, {result.tokens_per_second:,.0f} tokens/s",
        file=sys.stderr,
    )


@app.command(
    cls=_Command,
    epilog="Examples:\n\n"
    'dikkat translate my-model "I am at home." "He is calm."\n\n'
    "dikkat translate my-model --file letters.en > letters.fr\n\n"
    "cat letters.en | dikkat translate my-model --json > letters.jsonl",
)
def translate(
    model: ModelArgument,
    sentences: Annotated[
        list[str] | None,
        typer.Argument(help="Sentences, each in quotes.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="A file of sentences, one a line.", metavar="FILE", show_default=False),
    ] = None,
    beam: BeamOption = _SEARCH.beam,
    n_best: Annotated[
        int,
        typer.Option(
            help="Translations of each sentence, the best first, at most as many as --beam. With 2 or more, a line "
            "holds the sentence's number, the translation's score (its log-probability) and the translation, with "
            "tabs between.",
            metavar="N",
        ),
    ] = _SEARCH.n_best,
    length_penalty: LengthPenaltyOption = _SEARCH.length_penalty,
    precision: PrecisionOption = _SEARCH.precision,
    batch_size: BatchSizeOption = 64,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print each translation as a line of JSON: source, target, the tokens of both, score, and for each "
            "token of the target how much it looked at each of the source.",
            metavar=_FLAG,
        ),
    ] = False,
) -> None:
    """Translate sentences: those given, those of a file, or those of standard input; one translation a line.

    A file may be of any length: it is read and translated part by part. From standard input, each line is translated
    as soon as it comes.
    """
    if sentences and file:
        raise InputError("sentences and --file are both given: give one of them")
    with _naming_options():
        search = Search(beam=beam, n_best=n_best, length_penalty=length_penalty, precision=cast(Precision, precision))
        translator = Translator.load(model)
        number = 0
        for group in _groups(sentences, file):
            for found in translator.translate_n_best(group, batch_size=batch_size, search=search):
                number += 1
                for translation in found:
                    print(_line(number, translation, as_json=as_json, numbered=n_best > 1), flush=True)


@app.command(
    cls=_Command,
    name="evaluate",
    epilog="Examples:\n\n"
    "dikkat evaluate my-model --phrasebook\n\n"
    "dikkat evaluate my-model --source test.en.gz --target test.fr.gz",
)
def evaluate_model(
    model: ModelArgument,
    phrasebook: PhrasebookOption = False,
    pairs: PairsOption = None,
    source: SourceOption = None,
    target: TargetOption = None,
    beam: BeamOption = _SEARCH.beam,
    length_penalty: LengthPenaltyOption = _SEARCH.length_penalty,
    precision: PrecisionOption = _SEARCH.precision,
    batch_size: BatchSizeOption = 64,
) -> None:
    """Score a model on sentence pairs that it has not seen: BLEU and chrF from 0 to 100, as sacreBLEU computes them.

    With --phrasebook, the pairs are those that training on the phrasebook leaves out.
    """
    with _naming_options():
        search = Search(beam=beam, length_penalty=length_penalty, precision=cast(Precision, precision))
        translator = Translator.load(model)
        corpus = _corpus(phrasebook, pairs, source, target, held_out=True)
        translations = translator.translate([first for first, _ in corpus], batch_size=batch_size, search=search)
    scores = evaluate([translation.target for translation in translations], [second for _, second in corpus])
    print(scores.bleu_line)
    print(f"signature: {scores.bleu_signature}")
    print(scores.chrf_line)
    print(f"signature: {scores.chrf_signature}")


@app.command(
    cls=_Command,
    epilog='Example:\n\ndikkat show my-model "I am at home." "He is calm." --output pictures',
)
def show(
    model: ModelArgument,
    sentences: SentencesArgument,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Where to put heatmap.png and translations.html.", metavar="FOLDER"),
    ] = Path(),
) -> None:
    """Translate sentences and show what the model looked at for each word, as a picture and as a page for a browser."""
    from dikkat.cli.pictures import draw

    translations = Translator.load(model).translate(sentences)
    picture, page = draw(translations, output)
    for translation in translations:
        print(f"{translation.source} => {translation.target}")
    print(f"picture: {picture}")
    print(f"page: {page}")


@contextmanager
def _naming_options() -> Iterator[None]:
    """Errors and warnings about settings name the options instead."""
    show = warnings.showwarning

    def renamed(message: Warning | str, *rest: Any, **more: Any) -> None:
        show(_with_options(str(message)), *rest, **more)

    warnings.showwarning = renamed
    try:
        yield
    except InputError as error:
        raise InputError(_with_options(str(error))) from error
    finally:
        warnings.showwarning = show


def _with_options(message: str) -> str:
    """A message with options for settings: where it begins with one, or where an underscore tells one from a word."""
    names = [field.name for options in (Settings, Search) for field in dataclasses.fields(options)]
    certain = "|".join(name for name in names if "_" in name)
    return re.sub(rf"^({'|'.join(names)})(?= is )|\b({certain})\b", lambda found: _option(found[0]), message)


def _option(setting: str) -> str:
    return _OTHER_NAMES.get(setting, "--" + setting.replace("_", "-"))


def _corpus(
    phrasebook: bool, pairs: Path | None, source: Path | None, target: Path | None, *, held_out: bool
) -> list[Pair]:
    """The pairs that the options name: exactly one of the three ways."""
    if (source is None) != (target is None):
        given, missing = ("--source", "--target") if source else ("--target", "--source")
        raise InputError(f"{given} is given without {missing}: give both files, or --pairs with one file of pairs")
    ways = [name for name, way in (("--phrasebook", phrasebook), ("--pairs", pairs), ("--source", source)) if way]
    if len(ways) != 1:
        came = f"{' and '.join(ways)} are given together" if ways else "no corpus is given"
        raise InputError(f"{came}: give exactly one of --phrasebook, --pairs FILE, or --source FILE --target FILE")
    if pairs:
        return read_tsv(pairs)
    if source and target:
        return read_aligned(source, target)
    from dikkat.translation.phrasebook import split

    return split()[1 if held_out else 0]


def _with_validation(
    corpus: list[Pair], valid_source: Path | None, valid_target: Path | None, share: float | None
) -> tuple[list[Pair], list[Pair]]:
    if (valid_source is None) != (valid_target is None):
        raise InputError("--valid-source and --valid-target belong together: give both, or neither")
    if valid_source is None or valid_target is None:
        return hold_out(corpus, _VALIDATION_SHARE if share is None else share)
    if share is not None:
        raise InputError("--valid-share and validation files are both given: give one of them")
    return corpus, read_aligned(valid_source, valid_target)


def _groups(sentences: list[str] | None, file: Path | None) -> Iterator[Iterable[str]]:
    """Sentences that can wait for each other."""
    if sentences:
        yield sentences
    elif file:
        yield read_lines(file)
    else:
        if sys.stdin.isatty():
            print("Type a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
        yield from _arriving(cast("BufferedReader", sys.stdin.buffer), "standard input")


def _arriving(stream: BufferedReader, name: str) -> Iterator[Iterator[str]]:
    """The lines of a stream in groups of what has come: who types, or waits for an answer, need not write more."""
    number, rest, ended = 0, b"", False
    while not ended:
        block = stream.read1(_ARRIVING)
        *lines, rest = (rest + block).split(b"\n")
        ended = not block
        if rest and (ended or len(rest) > 5 * MAX_CHARACTERS):  # no sentence has so many bytes: decoding says so
            lines, rest = [*lines, rest], b""
        yield (
            decode_line(line, f"{name}, line {at}", first=at == 1) for at, line in enumerate(lines, start=number + 1)
        )
        number += len(lines)


def _line(number: int, translation: Translation, *, as_json: bool, numbered: bool) -> str:
    if as_json:
        weights = [[round(weight, 4) for weight in row] for row in translation.weights.tolist()]
        return json.dumps({"sentence": number, **vars(translation), "weights": weights}, ensure_ascii=False)
    target = translation.target.translate(_ONE_LINE)
    return f"{number}\t{translation.score:.3f}\t{target}" if numbered else target
