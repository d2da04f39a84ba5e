import dataclasses
import re
import shutil
import signal
import warnings

import pytest
import torch
from safetensors.torch import load_file

from cli.conftest import BOOK, OTHERS, QUICK
from command import made, refused, run_before
from dikkat.translation import Tokenizer, TranslationModel, Translator
from dikkat.translation.data.store import Store
from dikkat.translation.formats.origin import Origin
from dikkat.translation.formats.recipe import Recipe
from dikkat.translation.training import suited
from dikkat.translation.training import train as trainings
from dikkat.translation.training.state import Validation
from dikkat.translation.training.train import train as train_translator
from translation.taught import PAIRS, tell_bfloat16


def test_a_training_makes_a_model_and_replaces_one(run, pairs, tmp_path):
    folder = tmp_path / "model"
    status, out, err = run(
        "train", "--corpus", pairs, "--output", folder, "--validation", "{share = 0.3}", "--score", "dot", *QUICK
    )
    assert (status, out) == (0, "")
    assert "epoch 1: training loss" in err
    assert f"{folder}: the best of 1 validations, best loss" in err
    settings = Translator.load(folder).settings
    assert (settings.score, settings.hidden_size, settings.epochs, settings.min_freq) == ("dot", 8, 1, 1)
    weights = folder / "model.safetensors"
    before, again = weights.read_bytes(), ["train", "--corpus", pairs, "-o", folder, "--validation", "none", *QUICK]
    refused(
        run(*again),
        f"dikkat: {folder}: already has a model. Choose another folder, or add --overwrite to replace it, or --resume "
        "to continue its training",
    )
    assert weights.read_bytes() == before
    refused(
        run(*again, "--overwrite", "--resume"),
        "resume and overwrite (--resume, --overwrite): expected only one of them",
    )
    made(run(*again, "--overwrite"))
    assert weights.read_bytes() != before


def test_settings_follow_from_the_corpus_where_none_are_given(run, pairs, tmp_path):
    folder = tmp_path / "model"
    options = ["--corpus", pairs, "-o", folder, "--validation", "{share = 0.3}", "--epochs", 1, "--hidden-size", 8]
    _, err = made(run("train", *options, "--embedding-size", 8))
    corpus_text = r"\(\d+ pairs; \d+% of running words occur once\)"
    assert re.search(rf"^settings from the corpus {corpus_text}: whole words", err, re.MULTILINE)
    settings = Translator.load(folder).settings
    assert (settings.min_freq, settings.epochs, settings.hidden_size, settings.batch_size) == (1, 1, 8, 32)
    assert settings.dropout == 0.4
    recipe = tmp_path / "own.toml"
    recipe.write_text(f'corpus = "{pairs}"\nepochs = 1\nhidden_size = 8\nembedding_size = 8\n')
    _, err = made(run("train", recipe, "-o", folder, "--validation", "{share = 0.3}", "--overwrite"))
    assert "occur once" in err
    assert Translator.load(folder).settings == settings
    complete = shutil.copy(tmp_path / "model.training" / "recipe.toml", tmp_path / "complete.toml")
    _, err = made(run("train", complete, "-o", folder, "--overwrite"))
    assert "occur once" not in err
    assert Translator.load(folder).settings == settings


@pytest.mark.filterwarnings("default")  # as outside the tests
def test_train_on_aligned_files_with_validation_files(run, tmp_path):
    for name, side in (("en", 0), ("fr", 1)):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    (tmp_path / "val.tsv").write_text("Come in.\tEntrez !\ngo.\tVa !\n", encoding="utf-8")
    corpus = f'{{source = "{tmp_path / "en"}", target = "{tmp_path / "fr"}"}}'
    options = ["--corpus", corpus, "--validation", tmp_path / "val.tsv", *QUICK]
    _, err = made(run("train", *options, "-o", tmp_path / "model"))
    assert "1 of 8 pairs left out, because their source sentence is held out" in err


def test_the_model_is_scored_on_the_test_pairs_of_the_recipe(run, tmp_path):
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        'corpus = {name = "phrasebook", first = 30}\nvalidation = {share = 0.2}\ntest = {tsv = "test.tsv"}\n'
    )
    (tmp_path / "test.tsv").write_text("Come in.\tEntrez !\n", encoding="utf-8")
    status, out, err = run("train", recipe, "-o", tmp_path / "model", *QUICK)
    assert (status, out) == (0, "")
    assert "on 1 test pairs:\nBLEU = " in err
    assert re.search(r"^\d+ training pairs, \d+ validation pairs$", err, re.MULTILINE)


def test_what_ended_a_training_is_said(run, pairs, tmp_path):
    options = ["--corpus", pairs, "--validation", "{share = 0.3}", *QUICK, "--epochs", 1000, "--patience", 1000]
    _, err = made(run("train", *options, "--max-minutes", 0.01, "-o", tmp_path / "model"))
    assert re.search(r"^stopped after 0.01 minutes, in epoch \d+ of 1000", err, re.MULTILINE)


def test_a_file_of_pairs_in_place_of_a_recipe_is_met_with_the_option(run, pairs, tmp_path):
    refused(
        run("train", pairs, "-o", tmp_path / "m"),
        f"got sentence pairs; expected a recipe. Pass them with --corpus {pairs}",
    )
    table = pairs.with_suffix(".csv")
    table.write_text("English,French\nGo.,Va !\n", encoding="utf-8")
    refused(run("train", table, "-o", tmp_path / "m"), f"expected a recipe. Pass them with --corpus {table}")


def test_what_is_read_and_found_is_said_before_the_training(run, pairs, tmp_path):
    options = ["--validation", "none", *QUICK, "--embedding-size", 7]
    _, err = made(run("train", "--corpus", pairs, "-o", tmp_path / "model", *options))
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    source, target = tensors["source_embedding.weight"].shape[0], tensors["target_embedding.weight"].shape[0]
    parameters = sum(each.numel() for each in tensors.values())
    threads = torch.get_num_threads()
    assert err.splitlines()[:4] == [
        f"reading {pairs}, for the vocabularies",
        "8 training pairs, 0 validation pairs",
        f"{source} source and {target} target tokens, {parameters:,} parameters",
        f"on the CPU, {threads} {'thread' if threads == 1 else 'threads'}",
    ]


def test_a_watched_training_is_the_same_and_writes_the_decoders_attention(run, pairs, tmp_path):
    options, table = ["--corpus", pairs, "--validation", "none", *QUICK, "--epochs", 21], tmp_path / "attention.csv"
    made(run("train", *options, "-o", tmp_path / "plain"))
    made(run("train", *options, "-o", tmp_path / "watched", "--watch", table))
    plain, watched = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "watched"))
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    head, *lines = (line.split(",") for line in table.read_text().splitlines())
    assert head == ["step", "layer", "module", "head", "max_score", "entropy", "first_mass"]
    assert [line[:5] for line in lines] == [[step, "-1", "model.decoder", "0", ""] for step in ("0", "20")]
    assert all(0 < float(number) < 3 for line in lines for number in line[5:])


def test_a_resumed_training_continues_the_file_of_its_watch(run, pairs, tmp_path):
    options, table = (
        [*QUICK, "-o", tmp_path / "model", "--watch", tmp_path / "attention.csv"],
        tmp_path / "attention.csv",
    )
    made(run("train", "--corpus", pairs, "--validation", "none", *options, "--epochs", 30))
    first = table.read_text()
    made(run("train", "--resume", *options, "--epochs", 41))
    assert table.read_text().startswith(first)
    assert [line.split(",")[0] for line in table.read_text().splitlines()] == ["step", "0", "20", "40"]


def test_a_watch_that_cannot_work_is_named(run, pairs, tmp_path):
    options = ["--corpus", pairs, "--validation", "none", *QUICK, "-o", tmp_path / "model", "--watch"]
    refused(run("train", *options, "a.txt"), "--watch: got 'a.txt'; expected a path that ends in .csv or .html")
    refused(run("train", *options, tmp_path / "no-folder" / "a.csv"), "no-folder' does not exist")
    refused(run("train", *options, tmp_path / "a.csv", "--score", "none"), "--watch has no effect with --score none")


def test_early_stopping_is_said(run, tmp_path):
    options = [*QUICK, "--epochs", 9, "--patience", 2, "--learning-rate", 1, "--schedule", "constant"]
    _, err = made(run("train", *BOOK, *options, "--warmup-steps", 0, "-o", tmp_path / "model"))
    losses = [float(loss) for loss in re.findall(r"^epoch \d+: .*validation loss ([\d.]+)", err, re.MULTILINE)]
    best = losses.index(min(losses))
    assert len(losses) == best + 3 < 9
    assert (
        f"stopped after epoch {len(losses)}: 2 validations without improvement; selected epoch {best + 1}, validation "
        f"loss {losses[best]:.3f}\n"
    ) in err


def test_the_loss_that_is_kept_is_that_of_the_best_validation(run, tmp_path, monkeypatch):
    def scored_otherwise(*rest, **more):
        validations = [
            Validation(step, loss, bleu) for step, loss, bleu in ((2, 3.0, 5.0), (3, 2.0, 7.0), (5, 4.0, 11))
        ]
        return dataclasses.replace(train_translator(*rest, **more), validations=validations)

    monkeypatch.setattr(trainings, "train", scored_otherwise)
    for criterion, wanted in (("loss", 2), ("bleu", 4)):
        made(run("train", *BOOK, *QUICK, "--criterion", criterion, "-o", tmp_path / criterion))
        assert Translator.load(tmp_path / criterion).origin.validation_loss == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "corpus: got none; expected one in the recipe or with --corpus"),
        (["nowhere"], "nowhere: neither a file nor a built-in recipe; there are book, multi30k-en-de,"),
        (["phrasebok"], "phrasebok: neither a file nor a built-in recipe; did you mean phrasebook?"),
        (["--corpus", "pairs"], "pairs: unknown corpus; there are phrasebook, tatoeba-fra-eng, "),
        (["--corpus", "{tsv: x}"], '--corpus: got {tsv: x}; expected a table such as {name = "phrasebook", first'),
        (["--corpus", "phrasebook", "--validation", "phrasebook"], "the phrasebook has no validation part: write"),
        (["--dropout", "2"], "dikkat: --dropout: got 2; expected a number of at least 0 and less than 1"),
        (["--max-minutes", "0"], "dikkat: --max-minutes: got 0; expected a number greater than 0"),
        (["--hidden-size", "3"], "dikkat: --hidden-size: got 3; expected an even number"),
        (["--score", "foo"], "dikkat: --score: got 'foo'; expected one of additive, dot, scaled_dot"),
        (
            ["--score", "none", "--attention-dropout", "0.1"],
            "dikkat: --attention-dropout: got 0.1; expected 0 with score 'none'",
        ),
        (["own-corpus"], "dikkat: pairs.tsv: No such file or directory"),
        (
            ["--batch-size", 8, "--batch-tokens", 99],
            "--batch-size and --batch-tokens cannot be combined: remove one of them",
        ),
        (
            ["--validation", "none", "--patience", 2],
            "--patience has no effect with --validation none: remove one of them",
        ),
        (
            ["--corpus", "phrasebook", "--tokenizer", "bpe", "--vocabulary-size", 100],
            "dikkat: --vocabulary-size: got 100;",
        ),
        (
            ["--corpus", "phrasebook", "--average", 5, "--epochs", 2],
            "dikkat: --average: got 5; expected at most 2, the number of epochs",
        ),
        (
            ["--corpus", "phrasebook", "--validation", '{name = "phrasebook", part = "validation"}'],
            "dikkat: --validation is {na",
        ),
        (["--resume"], "recipe.toml: missing, so there is no training to resume. Train without --resume"),
        (["book", "--resume"], "model.training; remove book"),
    ],
)
def test_train_refuses_what_does_not_fit(run, tmp_path, arguments, message):
    refused(run("train", "-o", tmp_path / "model", *arguments), message)
    assert not (tmp_path / "model").exists()


def test_options_count_instead_of_the_recipes_values(run, pairs, tmp_path):
    (tmp_path / "r.toml").write_text(
        'corpus = {tsv = "pairs.tsv"}\nvalidation = "none"\nbatch_tokens = 50\ncell = "lstm"\n'
    )
    options = ["--batch-tokens", "none", "--no-bidirectional", "--learning-rate", "1e-3", *QUICK]
    made(run("train", tmp_path / "r.toml", "-o", tmp_path / "model", *options))
    settings = Translator.load(tmp_path / "model").settings
    assert (settings.batch_tokens, settings.bidirectional, settings.learning_rate) == (None, False, 1e-3)
    assert (settings.cell, settings.min_freq) == ("lstm", 1)


def test_training_does_not_overwrite_what_is_no_model(run, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "one.tex").write_text("years of work")
    refused(run("train", "phrasebook", "-o", tmp_path / "thesis"), "has one.tex, which would be lost. Choose another")
    assert (tmp_path / "thesis" / "one.tex").read_text() == "years of work"


def test_a_place_that_cannot_be_written_is_known_before_the_training(run, pairs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    refused(run("train", "--corpus", pairs, "-o", tmp_path / "file" / "model"), "cannot save a model there")
    monkeypatch.chdir(tmp_path)
    refused(run("train", "--corpus", pairs, "-o", "."), "the current folder")


@pytest.mark.parametrize("after", [1, 5])
def test_an_interrupted_training_is_resumed_to_the_same_model(run, tmp_path, monkeypatch, after):
    recipe = [*BOOK, *QUICK, "--epochs", 3, "--batch-size", 2]
    made(run("train", *recipe, "-o", tmp_path / "whole"))
    steps = []

    def interrupted(model, *_, **__):
        steps.append(model.training)
        if model.training and sum(steps) == after:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(suited, "_describe_time", lambda *_: "")  # which takes steps too
    run_before(monkeypatch, TranslationModel, "loss", interrupted)
    folder = tmp_path / "a model"
    status, _, err = run("train", *recipe, "-o", folder)
    assert status == 130
    assert f"To resume: dikkat train --resume --output '{folder}'" in err
    assert folder.exists() == (after == 5)  # hardly begun, there is no model worth keeping
    monkeypatch.undo()
    refused_status, _, err = run("train", *recipe, "-o", folder)
    assert refused_status == 2
    assert "--resume" in err.splitlines()[-1]
    assert "--overwrite" in err.splitlines()[-1]
    refused(run("train", "--resume", "--hidden-size", 10, "-o", folder), "--hidden-size was 8 and is 10")
    made(run("train", "--resume", "-o", folder))
    weights = [(each / "model.safetensors").read_bytes() for each in (folder, tmp_path / "whole")]
    assert weights[0] == weights[1]


def test_overwrite_replaces_an_interrupted_training(run, tmp_path, monkeypatch):
    steps, options = [], [*BOOK, *QUICK, "--batch-size", 2, "-o", tmp_path / "model"]

    def interrupted(model, *_, **__):
        steps.append(model.training)
        if model.training and sum(steps) == 5:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(suited, "_describe_time", lambda *_: "")  # which takes steps too
        run_before(patch, TranslationModel, "loss", interrupted)
        assert run("train", *options, "--epochs", 3, "--seed", 1)[0] == 130
    _, err = made(run("train", *options, "--overwrite"))
    assert "the best of 1 validations" in err


def test_a_corpus_without_a_repeated_word_says_so(run, tmp_path):
    (tmp_path / "tiny.tsv").write_text("go now\tva\ngo away\tpars\ngo\tmarche\nnow go\tallez\n")
    options = ["--corpus", tmp_path / "tiny.tsv", "--validation", "none", "--min-freq", 2]
    status, _, err = run("train", *options, "-o", tmp_path / "m")
    assert status == 2
    assert "word occurs 2 times, so the vocabulary would be empty: use a --min-freq of 1" in err


def test_a_diverging_training_is_one_line(run, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(TranslationModel, "loss", lambda *_, **__: torch.tensor(torch.nan, requires_grad=True))
    status, _, err = run("train", "--corpus", pairs, "--validation", "none", "-o", tmp_path / "model", *QUICK)
    assert status == 2
    assert "the loss became nan at step 1" in err
    assert "Use a --learning-rate below 0.002 or a --gradient-clip below 1.0" in err
    assert "Traceback" not in err
    assert not (tmp_path / "model").exists()


def test_a_training_that_breaks_off_later_saves_the_best_model_and_fails(run, tmp_path, monkeypatch):
    steps = []

    def demanding(model, *_, **__):
        steps.append(model.training)
        if sum(steps) == 5:
            torch.empty(2**60)

    monkeypatch.setattr(suited, "_describe_time", lambda *_: "")  # which takes steps too
    run_before(monkeypatch, TranslationModel, "loss", demanding)
    options = [*BOOK, *QUICK, "--epochs", 9, "--batch-size", 2]
    status, out, err = run("train", "-o", tmp_path / "model", *options)
    assert (status, out) == (2, "")
    assert err.splitlines()[-2:] == [
        "dikkat: the training failed; the best model so far is saved",
        *re.findall(r"^dikkat: out of memory after \d steps, on a batch of 2 pairs.*$", err, re.MULTILINE),
    ]
    assert "use a smaller --batch-size (or --batch-tokens), --max-length or --hidden-size" in err
    made(run("translate", tmp_path / "model", "Go."))


def test_batches_by_tokens_and_precision_are_settings(run, pairs, tmp_path, monkeypatch):
    tell_bfloat16(monkeypatch, bf16=True)
    options = ["--corpus", pairs, "--validation", "none", "--precision", "bfloat16", *QUICK]
    made(run("train", "--batch-tokens", 37, "-o", tmp_path / "model", *options))
    settings = Translator.load(tmp_path / "model").settings
    assert (settings.batch_tokens, settings.precision) == (37, "bfloat16")
    tell_bfloat16(monkeypatch)
    status, _, err = run("train", "-o", tmp_path / "other", *options)
    assert status == 2
    assert "dikkat: --precision: got 'bfloat16'; expected 'float32', as PyTorch finds no bfloat16 products" in err
    options[options.index("bfloat16")] = "float32"
    status, _, err = run("train", "-o", tmp_path / "other", "--batch-tokens", 3, *options)
    assert status == 2
    assert "dikkat: --batch-tokens: got 3; expected at least" in err


@pytest.mark.parametrize(
    ("place", "name", "said"),
    [
        (Recipe, "data", "before the first checkpoint; nothing is saved"),
        (Tokenizer, "train", "before the first checkpoint; nothing is saved"),
        (Translator, "save", "To resume: dikkat train --resume --output"),
    ],
)
def test_ctrl_c_is_told_in_words_at_any_time(run, tmp_path, monkeypatch, place, name, said):
    run_before(monkeypatch, place, name, lambda *_, **__: signal.raise_signal(signal.SIGINT))
    status, out, err = run("train", *BOOK, *QUICK, "-o", tmp_path / "model")
    assert (status, out) == (130, "")
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err
    assert "Aborted" not in err


def test_pairs_left_out_are_said_in_a_line_with_the_option(run, pairs, tmp_path, recwarn):
    warnings.simplefilter("default")  # as outside the tests; recwarn puts it back
    options = ["--max-length", 4, "--validation", "none", *QUICK]
    _, err = made(run("train", "--corpus", pairs, "-o", tmp_path / "model", *options))
    lines = [line for line in err.splitlines() if line.startswith("dikkat: ")]
    assert lines[0] == "dikkat: training corpus: 4 of 8 pairs left out: 4 longer than --max-length tokens on a side"


def test_a_rank_without_torchrun_does_not_silence_the_training(run, tmp_path, monkeypatch):
    """Other launchers set it too; the training takes no notice of it."""
    monkeypatch.setenv("RANK", "1")
    _, err = made(run("train", *BOOK, *QUICK, "-o", tmp_path / "model"))
    assert "the best of 1 validations" in err
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_a_training_that_does_not_begin_leaves_the_recipe_that_is_there(run, tmp_path, monkeypatch):
    recipe = tmp_path / "model.training" / "recipe.toml"
    made(run("train", *BOOK, *QUICK, "-o", tmp_path / "model"))
    before = recipe.read_bytes()
    status, _, err = run("train", *BOOK, *QUICK, "-o", tmp_path / "model", "--overwrite", "--min-freq", 999)
    assert status == 2
    assert "word occurs 999 times" in err

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "build", interrupted)
        assert run("train", *BOOK, *QUICK, "-o", tmp_path / "model", "--overwrite", "--seed", 5)[0] == 130
        status, _, err = run("train", *BOOK, *QUICK, "-o", tmp_path / "new")
    assert status == 130
    assert err.splitlines()[-1] == "dikkat: interrupted before the first checkpoint; nothing is saved"
    assert recipe.read_bytes() == before
    made(run("train", *BOOK, *QUICK, "-o", tmp_path / "model", "--overwrite", "--seed", 5))
    assert b"seed = 5" in recipe.read_bytes()


@pytest.fixture
def corrections(tmp_path):
    path = tmp_path / "corrections.tsv"
    path.write_text("Go.\tAllez !\nShe won.\tElle a gagné.\n", encoding="utf-8")
    return path


def test_a_model_learns_corrections(run, model, pairs, corrections, tmp_path):
    folder = tmp_path / "new"
    old = ["--from", model, "--corpus", pairs, "--validation", OTHERS, "--learning-rate", 0.01, "--dropout", 0]
    out, err = made(run("train", *old, "--corrections", corrections, "--output", folder))
    assert out == ""
    assert f"{folder}: 2 of 2 corrections right (0 before), BLEU " in err
    assert [t.target for t in Translator.load(folder).translate(["Go.", "She won."])] == ["Allez !", "Elle a gagné."]
    assert not folder.with_name("new.training").exists()
    refused(run("train", *old, "--corrections", corrections, "--output", folder), "already has a model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "MODEL", "--corpus", "PAIRS"], "--corrections: missing; expected it with --from"),
        (["--corrections", "NEW", "--corpus", "PAIRS"], "--from: missing; expected it with --corrections"),
        (["--from", "MODEL", "--corrections", "NEW"], "--corpus: missing; expected old training pairs with --from"),
        (["book", "--from", "MODEL", "--corrections", "NEW"], "--from: got a recipe too"),
        (["--from", "MODEL", "--corrections", "NEW", "--corpus", "PAIRS", "--resume"], "--from: got --resume too"),
        (["--from", "MODEL", "--corrections", "NEW", "--corpus", "PAIRS", "--test", "PAIRS"], "--test has no effect"),
        (
            ["--from", "MODEL", "--corrections", "NEW", "--corpus", "PAIRS", "--validation", "none"],
            "--validation: got none",
        ),
        (
            ["--from", "MODEL", "--corrections", "NEW", "--corpus", "PAIRS", "--hidden-size", 64],
            "--hidden-size: got 64; expected 32, as in the trained model",
        ),
        (["--from", "INT8", "--corrections", "NEW", "--corpus", "PAIRS"], "int8: got int8 weights, which cannot be"),
        (["--from", "MODEL", "--corrections", "./none.tsv", "--corpus", "PAIRS"], "none.tsv"),
    ],
)
def test_options_that_do_not_go_with_a_model_to_continue(run, model, pairs, corrections, tmp_path, arguments, message):
    Translator.load(model).save(tmp_path / "int8", int8=True)
    places = {"MODEL": model, "PAIRS": pairs, "NEW": corrections, "INT8": tmp_path / "int8"}
    refused(run("train", *(places.get(word, word) for word in arguments), "-o", tmp_path / "new"), message)
    assert not (tmp_path / "new").exists()


@pytest.mark.filterwarnings("ignore:.*skipped the column names:UserWarning")
def test_corrections_of_other_languages_raise(run, model, pairs, corrections, tmp_path):
    translator = Translator.load(model)
    origin = dataclasses.replace(translator.origin or Origin.now(), source_language="en-GB", target_language="fr")
    dataclasses.replace(translator, origin=origin).save(tmp_path / "old")
    train = ["train", "--from", tmp_path / "old", "--validation", OTHERS, "--epochs", 1, "-o", tmp_path / "new"]
    german = tmp_path / "german.tsv"
    german.write_text("en\tde\nGo.\tLos!\n", encoding="utf-8")
    refused(
        run(*train, "--corpus", pairs, "--corrections", german),
        f'{{tsv = "german.tsv"}}: got en and de; expected en-GB and fr, the languages of {tmp_path / "old"}',
    )
    named = tmp_path / "named.tsv"
    named.write_text("English\tFrench\nShe lost.\tElle a perdu.\n", encoding="utf-8")
    made(run(*train, "--corpus", pairs, "--corrections", named))
