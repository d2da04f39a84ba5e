import base64
import dataclasses
import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
import sacrebleu
import torch
from safetensors.torch import load_file

from command import command_line, made, refused, run_before
from dikkat.cli import lines, options, pictures
from dikkat.cli.messages import complain
from dikkat.cli.train import _stopped_early
from dikkat.translation import (
    InputError,
    Search,
    Settings,
    Tokenizer,
    Translation,
    TranslationModel,
    Translator,
    alignment_error_rate,
    evaluate,
    evaluate_lowercased_tokens,
    read_links,
)
from dikkat.translation.data.store import Store
from dikkat.translation.formats.origin import Origin
from dikkat.translation.formats.recipe import Recipe
from dikkat.translation.text.special_tokens import END
from dikkat.translation.training import suited
from dikkat.translation.training import train as trainings
from dikkat.translation.training.results import Training
from dikkat.translation.training.state import Epoch, Validation
from dikkat.translation.training.train import train as train_translator
from processes import python
from translation.conftest import PAIRS, TINY, tell_bfloat16, untrained


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("cli") / "model"
    train_translator(TINY, PAIRS, PAIRS, progress=False).translator.save(folder)
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line; returns (status, standard output, standard error)."""
    return command_line(monkeypatch, capsys)


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\tCC-BY\n" for source, target in PAIRS), encoding="utf-8")
    return path


QUICK = ["--epochs", 1, "--hidden-size", 8, "--embedding-size", 8, "--min-freq", 1]


FEW, OTHERS = '{name = "phrasebook", first = 8}', '{name = "phrasebook", part = "test", first = 5}'
BOOK = ["--corpus", FEW, "--validation", OTHERS]


def test_a_training_makes_a_model_and_replaces_one(run, pairs, tmp_path):
    folder = tmp_path / "model"
    status, out, err = run(
        "train", "--corpus", pairs, "--output", folder, "--validation", "{share = 0.3}", "--score", "dot", *QUICK
    )
    assert (status, out) == (0, "")
    assert "epoch 1: training loss" in err
    assert f"{folder}: the best of 1 validations, the best one's loss" in err
    settings = Translator.load(folder).settings
    assert (settings.score, settings.hidden_size, settings.epochs, settings.min_freq) == ("dot", 8, 1, 1)
    assert run("train", "--corpus", pairs, "-o", folder, "--validation", "none", *QUICK)[0] == 0  # replaces it


def test_settings_follow_from_the_corpus_where_none_are_given(run, pairs, tmp_path):
    folder = tmp_path / "model"
    options = ["--corpus", pairs, "-o", folder, "--validation", "{share = 0.3}", "--epochs", 1, "--hidden-size", 8]
    _, err = made(run("train", *options, "--embedding-size", 8))
    assert re.search(r"^\d+ pairs, \d+% of running words occur once: whole words", err, re.MULTILINE)
    settings = Translator.load(folder).settings
    assert (settings.min_freq, settings.epochs, settings.hidden_size, settings.batch_size) == (1, 1, 8, 32)
    assert settings.dropout == 0.4
    recipe = tmp_path / "own.toml"
    recipe.write_text(f'corpus = "{pairs}"\nepochs = 1\nhidden_size = 8\nembedding_size = 8\n')
    _, err = made(run("train", recipe, "-o", folder, "--validation", "{share = 0.3}"))
    assert "occur once" in err
    assert Translator.load(folder).settings == settings
    complete = shutil.copy(tmp_path / "model.training" / "recipe.toml", tmp_path / "complete.toml")
    _, err = made(run("train", complete, "-o", folder))
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
    assert "1 of 8 pairs left out: their source sentence is held out" in err


def test_the_model_is_scored_on_the_test_pairs_of_the_recipe(run, tmp_path):
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        'corpus = {name = "phrasebook", first = 30}\nvalidation = {share = 0.2}\ntest = {tsv = "test.tsv"}\n'
    )
    (tmp_path / "test.tsv").write_text("Come in.\tEntrez !\n", encoding="utf-8")
    status, out, err = run("train", recipe, "-o", tmp_path / "model", *QUICK)
    assert (status, out) == (0, "")
    assert "on 1 test pairs:\nBLEU = " in err
    assert re.search(r"^\d+ pairs to learn from, \d+ to validate with$", err, re.MULTILINE)


def test_translate_arguments_file_and_standard_input(run, model, tmp_path):
    assert run("translate", model, "I lost.", "", "Go.") == (0, "J'ai perdu.\n\nVa !\n", "")
    (tmp_path / "in.txt").write_bytes(b"I lost.\r\n\r\nGo.")
    assert run("translate", model, "--file", tmp_path / "in.txt") == (0, "J'ai perdu.\n\nVa !\n", "")
    assert run("translate", model, stdin=b"I lost.\n\nGo.\n") == (0, "J'ai perdu.\n\nVa !\n", "")
    assert run("translate", model, "--batch-size", 1, stdin=b"I lost.\n\nGo.\n") == (0, "J'ai perdu.\n\nVa !\n", "")
    assert run("translate", model, stdin=b"") == (0, "", "")
    assert run("translate", model, "--ensemble", model, "I lost.") == (0, "J'ai perdu.\n", "")


def test_alternatives_are_numbered_lines_best_first(run, model):
    wanted = Translator.load(model).translate_n_best(["I lost.", "", "Go."], search=Search(4, n_best=3))
    out, _ = made(run("translate", model, "I lost.", "", "Go.", "--beam", 4, "--n-best", 3))
    assert out.splitlines() == [
        f"{number}\t{each.score:.3f}\t{each.target}" for number, found in enumerate(wanted, 1) for each in found
    ]
    assert [line[0] for line in out.splitlines()] == list("1112333")
    assert out.splitlines()[3] == "2\t0.000\t"


def test_translations_as_lines_of_json(run, model):
    wanted = Translator.load(model).translate(["Où I lost.", ""], search=Search(beam=1))
    status, out, _ = run("translate", model, "Où I lost.", "", "--json", "--beam", 1)
    found = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert "Où" in out
    for number, (one, other) in enumerate(zip(found, wanted, strict=True), 1):
        weights = torch.tensor(one.pop("weights")).reshape(other.weights.shape)
        torch.testing.assert_close(weights, other.weights, atol=5e-5, rtol=0)
        assert one == {
            "sentence": number,
            "source": other.source,
            "target": other.target,
            "source_tokens": other.source_tokens,
            "target_tokens": other.target_tokens,
            "unknown": list(other.unknown),
            "score": other.score,
            "finished": other.finished,
            "repeated": False,
            "alignment": [max(range(len(row)), key=row.__getitem__) for row in other.weights.tolist()],
        }


def test_a_translation_is_one_line_whatever_the_model_writes():
    found = Translation("a", "b\nc\td\u00a0!", ["a"], ["b"], torch.ones(1, 1), -1.0)
    assert lines.line(7, found, as_json=False, numbered=False) == "b c d\u00a0!"
    assert lines.line(7, found, as_json=False, numbered=True) == "7\t-1.000\tb c d\u00a0!"


@pytest.fixture(scope="module")
def obeyed(tmp_path_factory):
    """A stranger's model, of whose words and origin a terminal would obey some letters."""
    english = Tokenizer.train(["go"], "word", min_freq=1, vocabulary_size=9)
    french = Tokenizer.train(["\x9b"] * 2, "word", min_freq=1, vocabulary_size=9)
    settings = Settings(embedding_size=2, hidden_size=2)
    tiny = TranslationModel(settings, len(english), len(french))
    with torch.no_grad():
        for parameter in tiny.parameters():
            parameter.zero_()
        tiny.output_bias[:END] = -99.0
        tiny.output_bias[END] = -1.0
    origin = Origin("today\n\x1b[2J", "1", corpus="\x1b]0;OWNED\x07", test="\x9b31m\u2028\x7f")
    folder = tmp_path_factory.mktemp("obeyed") / "model"
    Translator(tiny, settings, english, french, origin=origin).save(folder)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ["translate", "--max-length", 5, "Go"],
        ["translate", "--max-length", 5, "--n-best", 2, "Go"],
        ["translate", "--max-length", 5, "--json", "Go"],
        ["show", "Go \x1b[31m"],
        ["info"],
        ["info", "--json"],
    ],
)
def test_a_terminal_obeys_no_letter_of_a_model(run, obeyed, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(command[0], obeyed, *command[1:])
    assert (status, err.count("\n")) == (0, err.count("dikkat: sentence 1: the translation"))
    assert not [letter for letter in out + err if not letter.isprintable() and letter != "\n" and letter != "\t"]
    if "--json" in command:
        assert re.search(r"\\u00[19]b", out)
    else:
        assert re.search("⟨[19]B⟩", out)


def test_control_letters_in_a_message_are_shown(capsys):
    complain("a\x1b[2Jb\x9bc\nd")
    assert capsys.readouterr().err == "dikkat: a⟨1B⟩[2Jb⟨9B⟩c d\n"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/dev/full", "/dev/full: got a device or a pipe, which cannot be replaced; expected the name of a file"),
        ("/dev/fd/{pipe}", ": got a device or a pipe, which cannot be replaced; expected the name of a file"),
        ("pipe", "pipe: got a device or a pipe, which cannot be replaced; expected the name of a file"),
        (".", "is a folder; give the name of a file in it"),
        ("/nope/x.html", "dikkat: the folder '/nope' does not exist; create it before writing 'x.html'"),
    ],
)
def test_a_place_where_no_page_can_be_is_said_before_the_model_is_loaded(
    run, model, tmp_path, monkeypatch, place, said
):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Translator, "load", lambda *_: pytest.fail("loaded"))
    reader, writer = os.pipe()  # as standard output may be one
    refused(run("export", model, "--html", place.format(pipe=writer)), said)
    os.close(reader)
    os.close(writer)


def test_line_ends_of_old_macs_are_named(run, model, tmp_path):
    (tmp_path / "mac.tsv").write_bytes(b"Go.\tVa !\rI lost.\tJ'ai perdu.\r")
    said = "mac.tsv: its lines end in CR alone, as those of old Macs; expected LF, or CR LF"
    refused(run("train", "--corpus", tmp_path / "mac.tsv", "-o", tmp_path / "m"), said)
    refused(run("translate", model, "--file", tmp_path / "mac.tsv"), said)
    (tmp_path / "one").write_bytes(b"Go.\r")  # the last line of a file from Windows, cut short
    assert run("translate", model, "--file", tmp_path / "one") == (0, "Va !\n", "")


def test_a_link_in_the_way_is_called_what_it_is(run, model, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    refused(
        run("quantize", model, "--output", tmp_path / "link"), "link: got a link; expected a folder, or a free name"
    )


def test_the_epoch_of_the_best_validation_is_said(model):
    settings = dataclasses.replace(Settings(), patience=2)
    translator = dataclasses.replace(Translator.load(model), settings=settings)
    validations = [Validation(5 * number, loss) for number, loss in enumerate((1.5, 1.2, 1.3, 1.4), start=1)]
    result = Training(translator, [Epoch(number, 2.0, 1.0, 9.0) for number in (1, 2, 3, 4)], 9, 1.0, 9.0)
    said = _stopped_early(dataclasses.replace(result, validations=validations), settings, Path("m"))
    assert said == "stopped after epoch 4: 2 validations without improvement; kept epoch 2, validation loss 1.200"


def test_what_ended_a_training_is_said(run, pairs, tmp_path):
    options = ["--corpus", pairs, "--validation", "{share = 0.3}", *QUICK, "--epochs", 1000, "--patience", 1000]
    _, err = made(run("train", *options, "--max-minutes", 0.01, "-o", tmp_path / "model"))
    assert re.search(r"^stopped after 0.01 minutes, in epoch \d+ of 1000", err, re.MULTILINE)


def test_of_few_sentences_no_comparison_is_called_more_than_chance(run, tmp_path):
    for name, lines_ in (("ref", ["the cat sat on the mat ."] * 3), ("other", ["a dog lay under it !"] * 3)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines_))
    files = ["--hypotheses", tmp_path / "ref", "--references", tmp_path / "ref", "--versus-file", tmp_path / "other"]
    out, _ = made(run("evaluate", *files))
    assert "below 0.05: fewer than 100 sentences say little." in out
    assert "hardly chance" not in out


def test_search_options_reach_the_search(run, model, pairs, monkeypatch):
    searches = []

    def translate(self, lines, *, batch_size, search, markup=None, **_):
        searches.append((batch_size, search))
        return iter([])

    monkeypatch.setattr(Translator, "translate_n_best", translate)
    options = ["--beam", 3, "--length-penalty", 1.5, "--batch-size", 7, "--precision", "int8"]
    run("translate", model, "Go.", "--n-best", 2, *options)
    run("evaluate", model, "--corpus", pairs, *options)
    run("translate", model, "Go.")
    assert searches == [
        (7, Search(3, n_best=2, length_penalty=1.5, precision="int8")),
        (7, Search(3, length_penalty=1.5, precision="int8")),
        (64, Search()),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--beam", 0], "dikkat: --beam: got 0; expected a whole number of at least 1"),
        (["--n-best", 6], "dikkat: --n-best: got 6; expected a whole number from 1 to 5, the beam"),
        (["--length-penalty", -1], "dikkat: --length-penalty: got -1; expected a number from 0 to 10"),
        (["--beam", 999], "dikkat: --beam: got 999; expected at most"),
    ],
)
def test_a_search_that_cannot_be_is_one_line(run, model, arguments, message):
    refused(run("translate", model, "Go.", *arguments), message)


def test_signs_of_wrong_translations_are_told_with_the_line(run, model, tmp_path, capsys):
    out, err = made(run("translate", model, "The astronaut is calm.", "Go.", "Go. A pilot, an astronaut: pilot €"))
    assert err == (
        "dikkat: sentence 1: not learnt by the model: astronaut\n"
        "dikkat: sentence 3: not learnt by the model: A, pilot, an, astronaut\n"
    )
    assert out.count("Va !") == 2
    (tmp_path / "lines").write_text("\nGo.\nThe astronaut.\n")
    cut = "the translation did not end and was cut"
    _, err = made(run("translate", model, "--file", tmp_path / "lines", "--max-length", 1))
    assert err == (
        f"dikkat: {tmp_path}/lines, line 2: {cut}\n"
        f"dikkat: {tmp_path}/lines, line 3: not learnt by the model: astronaut; {cut}\n"
    )
    _, err = made(run("translate", model, "--max-length", 1, stdin=b"\nGo.\n"))
    assert err == f"dikkat: standard input, line 2: {cut}\n"
    lines.warn_about(Translation("a", "b", [], [], torch.zeros(0, 0), 0.0, repeated=True), None, 7)
    assert capsys.readouterr().err == "dikkat: sentence 7: the translation repeated itself and was cut\n"
    assert json.loads(made(run("translate", model, "The astronaut.", "--json"))[0])["unknown"] == ["astronaut"]


def test_an_error_of_markup_names_the_line(run, model, tmp_path):
    text = b"Go.\n\n<b>Go.\n"
    (tmp_path / "lines").write_bytes(text)
    html = ["--markup", "html"]
    status, out, err = run("translate", model, *html, stdin=text)
    assert (status, out.count("\n")) == (2, 2)
    assert err.startswith("dikkat: standard input, line 3: got <b>")
    assert run("translate", model, *html, "--file", tmp_path / "lines")[2].startswith(
        f"dikkat: {tmp_path}/lines, line 3: "
    )
    assert run("translate", model, *html, "Go.", "<b>Go.")[2].startswith("dikkat: sentence 2: ")


def test_attributes_are_printed_as_they_were(run, model):
    tag = '<a title="x\ty\u2028z\x85">'
    out, _ = made(run("translate", model, "--markup", "html", f"{tag}Go</a>."))
    assert out.startswith('<a title="x&#9;y&#8232;z\x85">')


def test_a_file_of_pairs_in_place_of_a_recipe_is_met_with_the_option(run, pairs, tmp_path):
    refused(
        run("train", pairs, "-o", tmp_path / "m"),
        f"got lines with tabs, and no recipe. Give sentence pairs by --corpus {pairs}",
    )


def test_each_line_of_a_pipe_is_answered_before_the_next_is_written_in_utf8_whatever_the_locale(model):
    command, environment = [sys.executable, "-m", "dikkat", "translate", str(model)], {"PYTHONIOENCODING": "ascii"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(command, env=os.environ | environment, **pipes) as process:
        for source, target in [("I lost.", "J'ai perdu."), ("", ""), ("Where is the man?", "Où est l'homme ?")]:
            process.stdin.write(f"{source}\n".encode())
            assert process.stdout.readline().decode() == f"{target}\n"
        process.stdin.write(b"I lost.")  # a last line without an end
        process.stdin.close()
        assert process.stdout.read().decode() == "J'ai perdu.\n"


class Dripping(io.BytesIO):
    """A stream of which a read gives no more than so many bytes."""

    def __init__(self, data, most):
        super().__init__(data)
        self.most = most

    def read1(self, size=-1):
        return super().read1(min(size, self.most))


@pytest.mark.parametrize("most", [1, 2, 5, 1000])
def test_lines_are_whole_however_they_arrive(most):
    data = "\ufeffÉté !\r\n\n漢字\x0c\u2028x\nno end".encode()
    found = [line for group in lines.arriving(Dripping(data, most), "it") for line in group]
    assert found == ["Été !", "", "漢字\x0c\u2028x", "no end"]


def test_a_line_without_an_end_is_not_read_for_ever():
    class Endless(io.BytesIO):
        def read1(self, size=-1):
            return b"a" * size

    with pytest.raises(InputError, match="it, line 1: got more than 10,000 characters"):
        [line for group in lines.arriving(Endless(), "it") for line in group]


def scored(hypotheses, references):
    bleu, chrf = sacrebleu.corpus_bleu(hypotheses, [references]), sacrebleu.corpus_chrf(hypotheses, [references])
    return [f"{bleu.score:.2f}", f"{chrf.score:.2f}"]


def test_evaluate_prints_sacrebleus_own_scores_by_length(run, model, tmp_path):
    pairs = [*PAIRS, ("I lost . " * 6, "J'ai perdu."), ("a " * 11, "b c d e")]
    (tmp_path / "test.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs), encoding="utf-8")
    status, out, _ = run("evaluate", model, "--corpus", tmp_path / "test.tsv")
    found = [each.target for each in Translator.load(model).translate([source for source, _ in pairs])]
    references = [target for _, target in pairs]
    assert status == 0
    table = [line.split() for line in out.splitlines()[:7]]
    assert table[1] == ["1", "to", "10", "8", *scored(found[:8], references[:8])]
    assert table[2] == ["11", "to", "20", "2", *scored(found[8:], references[8:])]
    assert table[3] == ["all", "10", *scored(found, references)]
    assert table[5:] == [
        ["sentences", "exact", "matches", "lost", "numbers", "invented", "numbers"],
        ["10", str(sum(map(str.__eq__, found, references))), "0", "0"],
    ]
    scores = evaluate(found, references)
    assert out.splitlines()[8:] == [
        scores.bleu_line,
        f"signature: {scores.bleu_signature}",
        scores.chrf_line,
        f"signature: {scores.chrf_signature}",
    ]
    assert not [line for line in out.splitlines() if line != line.rstrip()]


def test_evaluate_as_json_with_links_and_another_model(run, model, pairs, tmp_path):
    words = [(len(source.split()), len(target.split())) for source, target in PAIRS]
    everything = "\n".join(" ".join(f"{i}p{j}" for i in range(s) for j in range(t)) for s, t in words)
    (tmp_path / "links").write_text(f"{everything}\n")
    options = ["--corpus", pairs, "--versus", model, "--links", tmp_path / "links", "--json"]
    status, out, _ = run("evaluate", model, *options)
    report = json.loads(out)
    assert status == 0
    assert report["alignment_error_rate"] == 0  # where every link is possible, none is wrong
    assert report["sentences"] == 8
    assert [each["p_value"] for each in report["versus"]] == [1, 1]
    assert [each["sentences"] for each in report["by_length"]] == [8]
    wrong = "\n".join("0-0" if s == t == 1 else f"{s - 1}-0" for s, t in words)  # the last word with the first
    (tmp_path / "links").write_text(f"{wrong}\n")
    rate = json.loads(run("evaluate", model, *options)[1])["alignment_error_rate"]
    assert f"alignment error rate: {rate:.3f}" in run("evaluate", model, *options[:-1])[1]
    translator, gold = Translator.load(model), read_links(tmp_path / "links")
    assert rate == alignment_error_rate(translator.align(PAIRS), gold) > 0
    both = json.loads(run("evaluate", model, *options, "--reverse", model)[1])["alignment_error_rate"]
    assert both == alignment_error_rate(translator.align(PAIRS, reverse=translator), gold)


def test_what_evaluate_takes_is_checked_before_the_work(run, model, pairs, tmp_path, monkeypatch):
    def too_late(*_, **__):
        raise AssertionError("translated before everything was checked")

    monkeypatch.setattr(Translator, "translate_lines", too_late)
    links = tmp_path / "links"
    for text, message in (
        ("0-0\n" * 7, "links: got links of 7 pairs; expected 8, a line for each"),
        ("0-0\n" + "0-9\n" * 7, "links, line 2: got a link 0-9; expected source words below"),
        ("1234567890-0\n" * 8, "links, line 1: '1234567890-0' is no link"),
    ):
        links.write_text(text)
        refused(run("evaluate", model, "--corpus", pairs, "--links", links), message)
    refused(run("evaluate", model, "--corpus", pairs, "--links", tmp_path / "none"), "none")
    untrained(Translator.load(model), score="none").save(tmp_path / "blind")
    links.write_text("0-0\n" * 8)
    for given in ([tmp_path / "blind"], [model, "--reverse", tmp_path / "blind"]):
        refused(run("evaluate", *given, "--corpus", pairs, "--links", links), "blind has none")
    monkeypatch.chdir(tmp_path)
    refused(run("evaluate", model, "--corpus", pairs, "--links", "./phrasebook"), "phrasebook")
    refused(run("evaluate", model, "--corpus", pairs, "--report", "r", "--training", "phrasebok"), "phrasebook")
    refused(run("evaluate", model, "--corpus", pairs, "--report", links), "links")
    links.write_text("Va !\n" * 7)
    refused(run("evaluate", model, "--corpus", pairs, "--versus-file", links), "links: got 7 lines; expected 8")
    refused(run("evaluate", model, "--corpus", pairs, "--versus", tmp_path / "none"), "none")


def test_evaluate_over_lowercased_tokens(run, model, pairs):
    status, out, _ = run("evaluate", model, "--corpus", pairs, "--lowercased-tokens", "fr")
    found = [each.target for each in Translator.load(model).translate([source for source, _ in PAIRS])]
    scores = evaluate_lowercased_tokens(found, [target for _, target in PAIRS], "fr")
    assert status == 0
    assert out.splitlines()[-2:] == [scores.bleu_line, f"signature: {scores.bleu_signature}"]
    refused(
        run("evaluate", "no-model", "--corpus", pairs, "--lowercased-tokens", "xx"),
        "dikkat: --lowercased-tokens: got 'xx'; expected one of as, bn,",
    )


def test_align_links_the_words_of_each_line(run, model, tmp_path):
    (tmp_path / "pairs.tsv").write_text("I lost.\tJ'ai perdu.\tCC-BY\n\tVa !\n\nGo.\tVa !\n", encoding="utf-8")
    found = Translator.load(model).align([("I lost.", "J'ai perdu."), ("Go.", "Va !")])
    lines = [" ".join(f"{one}-{other}" for one, other in sorted(each)) for each in found]
    wanted = f"{lines[0]}\n\n\n{lines[1]}\n"
    assert run("align", model, tmp_path / "pairs.tsv") == (0, wanted, "")
    assert run("align", model, tmp_path / "pairs.tsv", "--output", tmp_path / "links") == (0, "", "")
    assert (tmp_path / "links").read_text() == wanted
    assert run("align", model, tmp_path / "pairs.tsv", "--reverse", model)[0] == 0
    (tmp_path / "pairs.tsv").write_text("Go.\tVa !\nGo.\n")
    refused(
        run("align", model, tmp_path / "pairs.tsv", "-o", tmp_path / "more"),
        "pairs.tsv, line 2: got no tab; expected a sentence, a tab and its translation",
    )
    assert not (tmp_path / "more").exists()
    refused(run("align", "no-model", tmp_path / "pairs.tsv", "-o", tmp_path), "is a folder; give the name of a file")


def test_links_of_the_phrasebook_are_known(run, model):
    corpus = '{name = "phrasebook", part = "test"}'
    _, out, _ = run("evaluate", model, "--corpus", corpus, "--links", "phrasebook", "--beam", 1, "--json")
    assert 0.5 < json.loads(out)["alignment_error_rate"] < 1  # the model knows eight sentences


def test_a_report_has_the_faults_of_each_sentence_and_a_page_of_the_worst(run, model, pairs, tmp_path, monkeypatch):
    (tmp_path / "test.tsv").write_text("I lost.\tJ'ai perdu.\nGo Paris 12.\tVa à Paris 12.\n", encoding="utf-8")
    folder = tmp_path / "report"
    options = ["--corpus", tmp_path / "test.tsv", "--report", folder, "--training", pairs]
    _, out, _ = run("evaluate", model, *options, "--json")
    results = json.loads(out)
    assert [(each["least"], each["most"], each["sentences"]) for each in results["by_rarity"]] == [(0, 0, 1), (1, 1, 1)]
    assert results["faults"]["unseen"] == 2
    stored = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert stored["faults"] == results["faults"]
    assert [each["unseen"] for each in stored["sentences"]] == [[], ["Paris", "12"]]
    assert [each["reference"] for each in stored["sentences"]] == ["J'ai perdu.", "Va à Paris 12."]
    page = (folder / "worst.html").read_text(encoding="utf-8")
    assert page.index("Go Paris 12.") < page.index("I lost.")
    empty = Translation("I lost.", "", ["I"], [], torch.zeros(0, 1), 0.0)
    found = [empty, Translator.load(model).translate("Go Paris 12.")]
    with monkeypatch.context() as patch:  # the first sentence's, which is then the worst
        patch.setattr(Translator, "translate_lines", lambda *_, **__: iter(found))
        made(run("evaluate", model, *options))
    page = (folder / "worst.html").read_text(encoding="utf-8")
    assert page.index("I lost.") < page.index("Go Paris 12.")
    shown = run("evaluate", model, *options)[1]
    assert re.search(r"^never +1 ", shown, re.MULTILINE)
    assert re.search(r"^not copied +\d", shown, re.MULTILINE)
    refused(run("evaluate", model, "--corpus", pairs, "--training", pairs), "--training is given without --report")


@pytest.mark.parametrize("score", ["additive", "none"])
def test_a_report_leaves_out_what_nobody_can_know(run, model, pairs, tmp_path, score):
    other = tmp_path / "other"
    untrained(Translator.load(model), score=score).save(other)
    for more, unseen in (([], []), (["--training", pairs], ["unseen"])):
        _, out, _ = run("evaluate", other, "--corpus", pairs, "--report", tmp_path / "r", *more, "--json")
        faults = [*unseen, "not_copied", "doubled", *(["dropped"] if score == "additive" else [])]
        assert list(json.loads(out)["faults"]) == faults
        stored = json.loads((tmp_path / "r" / "report.json").read_text(encoding="utf-8"))
        assert list(stored["sentences"][0]) == ["source", "target", "reference", "chrf", *faults]


def test_files_of_translations_are_scored_without_a_model(run, tmp_path):
    references = [f"the cat number {number} sat on mat {number % 7} ." for number in range(40)]
    worse = [line if number % 2 else line.replace("sat on", "lay under") for number, line in enumerate(references)]
    for name, content in (("ref", references), ("hyp", references), ("other", worse)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in content))
    files = ["--hypotheses", tmp_path / "hyp", "--references", tmp_path / "ref", "--versus-file", tmp_path / "other"]
    out, _ = made(run("evaluate", *files))
    assert out.splitlines()[1].split() == ["all", "40", "100.00", "100.00"]
    assert re.search(rf"^BLEU +100.00 ± 0.00 +{scored(worse, references)[0]} ± \S+ +0.00\d\d$", out, re.MULTILINE)
    assert "signature of the comparison: BLEU|nrefs:1|bs:1000|seed:12345" in out
    (tmp_path / "other").write_text("too short\n")
    refused(run("evaluate", *files), "other: got 1 lines; expected 40, one for each pair")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either a model folder or --hypotheses FILE, and not both"),
        (["m", "--hypotheses", "h"], "give either a model folder or --hypotheses FILE, and not both"),
        (["m"], "give either --corpus or --references FILE, and not both"),
        (["m", "--references", "r"], "--references has no sentences for a model to translate"),
        (["m", "--corpus", "x", "--versus", "a", "--versus-file", "b"], "--versus and --versus-file are both given"),
        (["--hypotheses", "h", "--corpus", "x", "--links", "l"], "--links needs a model"),
        (["m", "--corpus", "x", "--reverse", "n"], "--reverse is given without --links"),
        (["--hypotheses", "h", "--corpus", "x"], "x: no such corpus"),
        (["--hypotheses", "h", "--references", "nowhere"], "nowhere: No such file"),
    ],
)
def test_evaluate_refuses_what_does_not_fit(run, arguments, message):
    refused(run("evaluate", *arguments), message)


def test_recipes_are_listed_with_their_purpose_and_place(run):
    out, _ = made(run("recipes"))
    assert re.search(r"^book +The textbook's experiment", out, re.MULTILINE)
    assert Path(out.splitlines()[-1].removeprefix("files: "), "book.toml").is_file()


def test_show_writes_a_picture_and_a_page_and_says_where(run, model, tmp_path):
    status, out, _ = run("show", model, "I lost.", "", "She sees Marie.", "--output", tmp_path / "deep" / "pictures")
    picture, page = (tmp_path / "deep" / "pictures" / name for name in ("heatmap.png", "translations.html"))
    assert status == 0
    assert out.splitlines() == [
        "I lost. => J'ai perdu.",
        " => ",
        "She sees Marie. => Elle voit Marie.",
        f"picture: {picture}",
        f"page: {page}",
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Marie" in page.read_text(encoding="utf-8")


def test_show_puts_the_model_into_the_page_where_asked(run, model, tmp_path):
    made(run("show", model, "I lost.", "--output", tmp_path))
    page = tmp_path / "translations.html"
    assert 'id="dikkat-model"' not in page.read_text(encoding="utf-8")
    made(run("show", model, "I lost.", "--output", tmp_path, "--model-inside"))
    (packed,) = re.findall(r'<script id="dikkat-model"[^>]*>([^<]*)<', page.read_text(encoding="utf-8"))
    assert gzip.decompress(base64.b64decode(packed)) == Translator.load(model).bundle()


def test_a_long_sentence_is_left_to_the_page_and_that_is_said(tmp_path, capsys, monkeypatch):
    def translation(tokens):
        words = ["a"] * tokens
        return Translation(" ".join(words), " ".join(words), words, words, torch.eye(tokens), 0.0, True)

    shown = []
    monkeypatch.setattr(pictures, "heatmaps", lambda weights, **_: shown.extend(map(len, weights)))
    monkeypatch.setattr(pictures, "save", lambda *_: None)
    pictures.draw([translation(tokens) for tokens in (2, 61, 60, 3, 4, 5)], tmp_path)
    assert shown == [2, 60, 3, 4]
    assert capsys.readouterr().err.splitlines() == [
        "1 sentence of more than 60 tokens: on the page, not in the picture",
        "the picture shows 4 of 6 sentences; the page shows all",
    ]
    assert (tmp_path / "translations.html").read_text(encoding="utf-8").count("<article") == 6


def test_show_takes_a_file_and_a_beam(run, model, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("I lost.\nGo.\n")
    searches = []
    run_before(monkeypatch, Translator, "translate", lambda *_, search, **_more: searches.append(search))
    status, out, _ = run("show", model, "--file", tmp_path / "in.txt", "--beam", 3, "--output", tmp_path)
    assert (status, out.splitlines()[:2]) == (0, ["I lost. => J'ai perdu.", "Go. => Va !"])
    assert searches == [Search(beam=3)]
    refused(run("show", model, "--output", tmp_path), "give sentences, or --file FILE, and not both")
    refused(run("show", model, "Go.", "--file", tmp_path / "in.txt"), "give sentences, or --file FILE, and not both")
    refused(run("show", model, "", "--output", tmp_path / "pictures"), "every sentence is empty")


def test_info_has_settings_sizes_and_where_the_model_comes_from(run, model, tmp_path):
    """The scores are sacreBLEU's own; the number of parameters is that of the stored tensors."""
    test = tmp_path / "test.tsv"
    test.write_text("Come in.\tEntrez donc vite ici !\n", encoding="utf-8")
    _, err = made(run("train", *BOOK, *QUICK, "--epochs", 2, "--test", test, "-o", tmp_path / "model"))
    status, out, _ = run("info", tmp_path / "model", "--json")
    found = json.loads(out)
    assert (status, found["corpus"], found["epochs"]) == (0, FEW, 2)
    assert found["test"] == '{tsv = "test.tsv"}'  # a model may go to others, whom the folders here are no concern of
    target = Translator.load(tmp_path / "model").translate(["Come in."])[0].target
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu([target], [["Entrez donc vite ici !"]]).score)
    assert found["bleu_signature"] in err
    assert found["parameters"] == sum(each.numel() for each in load_file(tmp_path / "model/model.safetensors").values())
    assert found["version"] == version("dikkat")
    assert abs(datetime.now(UTC) - datetime.fromisoformat(found["date"])) < timedelta(hours=1)
    assert found["settings"] == Translator.load(tmp_path / "model").settings.to_dict()
    out, _ = made(run("info", tmp_path / "model"))
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines() if "  " in line.strip())
    assert (rows["corpus"], rows["hidden_size"], rows["bidirectional"]) == (FEW, "8", "yes")
    status, out, _ = run("info", model, "--json")  # made by the library, which knows of no corpus's name
    assert status == 0
    assert set(json.loads(out)) == {"parameters", "source_tokens", "target_tokens", "settings"}


def test_what_is_read_and_found_is_said_before_the_training(run, pairs, tmp_path):
    options = ["--validation", "none", *QUICK, "--embedding-size", 7]
    _, err = made(run("train", "--corpus", pairs, "-o", tmp_path / "model", *options))
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    source, target = tensors["source_embedding.weight"].shape[0], tensors["target_embedding.weight"].shape[0]
    parameters = sum(each.numel() for each in tensors.values())
    threads = torch.get_num_threads()
    assert err.splitlines()[:4] == [
        f"reading {pairs}, for the vocabularies",
        "8 pairs to learn from, 0 to validate with",
        f"{source} source and {target} target tokens, {parameters:,} parameters",
        f"on the CPU, {threads} {'thread' if threads == 1 else 'threads'}",
    ]


def test_early_stopping_is_said(run, tmp_path):
    options = [*QUICK, "--epochs", 9, "--patience", 2, "--learning-rate", 1, "--schedule", "constant"]
    _, err = made(run("train", *BOOK, *options, "--warmup-steps", 0, "-o", tmp_path / "model"))
    losses = [float(loss) for loss in re.findall(r"^epoch \d+: .*validation loss ([\d.]+)", err, re.MULTILINE)]
    best = losses.index(min(losses))
    assert len(losses) == best + 3 < 9
    assert (
        f"stopped after epoch {len(losses)}: 2 validations without improvement; kept epoch {best + 1}, validation loss "
        f"{losses[best]:.3f}\n"
    ) in err


def test_the_loss_that_is_kept_is_that_of_the_best_validation(run, tmp_path, monkeypatch):
    def scored_otherwise(*rest, **more):
        validations = [
            Validation(step, loss, bleu) for step, loss, bleu in ((2, 3.0, 5.0), (3, 2.0, 7.0), (5, 4.0, 11))
        ]
        return dataclasses.replace(train_translator(*rest, **more), validations=validations)

    monkeypatch.setattr(trainings, "train", scored_otherwise)
    for criterion, wanted in (("loss", 2), ("bleu", 4)):
        made(run("train", *BOOK, *QUICK, "--criterion", criterion, "-o", tmp_path / "model"))
        assert Translator.load(tmp_path / "model").origin.validation_loss == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no corpus is given: name one in the recipe or with --corpus"),
        (["nowhere"], "nowhere: no such file and no such recipe of dikkat's; there are book, multi30k-en-de,"),
        (["phrasebok"], "phrasebok: no such file and no such recipe of dikkat's; did you mean phrasebook?"),
        (["nowhere.toml"], "nowhere.toml: No such file or directory"),
        (["--corpus", '{tsv = "nowhere.tsv"}'], "nowhere.tsv: No such file or directory"),
        (["--corpus", "nowhere.tsv"], "nowhere.tsv: No such file or directory"),
        (["--corpus", "pairs"], "pairs: no such corpus; there are phrasebook, tatoeba-fra-eng, "),
        (["--corpus", "{tsv: x}"], '--corpus: got {tsv: x}; expected such as {name = "phrasebook", first = 600}'),
        (["--corpus", "phrasebook", "--validation", "{share = 2}"], "validation: {'share': 2}: write {share = NUMBER}"),
        (["--corpus", "phrasebook", "--validation", "phrasebook"], "the phrasebook has no validation part: write"),
        (["--dropout", "2"], "dikkat: --dropout: got 2; expected a number of at least 0 and less than 1"),
        (["--dropout", "much"], "dikkat: --dropout: got 'much'; expected a number"),
        (["--max-minutes", "0"], "dikkat: --max-minutes: got 0; expected a number greater than 0"),
        (["--hidden-size", "3"], "dikkat: --hidden-size: got 3; expected an even number"),
        (["--num-layers", "1.5"], "dikkat: --num-layers: got 1.5; expected a whole number"),
        (["--precision", "half"], "dikkat: --precision: got 'half'; expected one of float32, bfloat16"),
        (["--score", "foo"], "dikkat: --score: got 'foo'; expected one of additive, dot, scaled_dot"),
        (
            ["--score", "none", "--attention-dropout", "0.1"],
            "dikkat: --attention-dropout is 0.1 and score is 'none': without attention",
        ),
        (["own-corpus"], "dikkat: pairs.tsv: No such file or directory"),
        (
            ["--batch-size", 8, "--batch-tokens", 99],
            "--batch-size and --batch-tokens are both given: leave one of them",
        ),
        (["--validation", "none", "--patience", 2], "--patience is given and --validation is none: without validation"),
        (
            ["--corpus", "phrasebook", "--tokenizer", "bpe", "--vocabulary-size", 100],
            "dikkat: --vocabulary-size: got 100;",
        ),
        (
            ["--corpus", "phrasebook", "--average", 5, "--epochs", 2],
            "dikkat: --average is 5 and epochs is 2: each epoch",
        ),
        (
            ["--corpus", "phrasebook", "--validation", '{name = "phrasebook", part = "validation"}'],
            "dikkat: --validation is {na",
        ),
        (["--resume"], "recipe.toml: missing, so there is no training to resume. Train without --resume"),
        (["book", "--resume"], "model.training; leave out book"),
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


@pytest.mark.parametrize("content", [b"", b"no tab\n", b"\xff\t\xff\n", b"a" * 100_000])
def test_a_bad_corpus_is_one_line(run, tmp_path, content):
    (tmp_path / "bad.tsv").write_bytes(content)
    refused(run("train", "--corpus", tmp_path / "bad.tsv", "-o", tmp_path / "model"), "bad.tsv")


def test_training_does_not_overwrite_what_is_no_model(run, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "one.tex").write_text("years of work")
    refused(
        run("train", "phrasebook", "-o", tmp_path / "thesis"), "holds one.tex, which would be lost. Give another name"
    )
    assert (tmp_path / "thesis" / "one.tex").read_text() == "years of work"


def test_a_place_that_cannot_be_written_is_known_before_the_training(run, pairs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    refused(run("train", "--corpus", pairs, "-o", tmp_path / "file" / "model"), "no model can be saved there")
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

    monkeypatch.setattr(suited, "_minutes", lambda *_: "")  # which takes steps too
    run_before(monkeypatch, TranslationModel, "loss", interrupted)
    folder = tmp_path / "a model"
    status, _, err = run("train", *recipe, "-o", folder)
    assert status == 130
    assert f"To go on: dikkat train --resume --output '{folder}'" in err
    assert folder.exists() == (after == 5)  # hardly begun, there is no model worth keeping
    monkeypatch.undo()
    refused_status, _, err = run("train", *recipe, "-o", folder)
    assert refused_status == 2
    assert "--resume" in err.splitlines()[-1]
    refused(run("train", "--resume", "--hidden-size", 10, "-o", folder), "--hidden-size was 8 and is 10")
    made(run("train", "--resume", "-o", folder))
    weights = [(each / "model.safetensors").read_bytes() for each in (folder, tmp_path / "whole")]
    assert weights[0] == weights[1]


def test_a_corpus_without_a_repeated_word_says_so(run, tmp_path):
    (tmp_path / "tiny.tsv").write_text("go now\tva\ngo away\tpars\ngo\tmarche\nnow go\tallez\n")
    options = ["--corpus", tmp_path / "tiny.tsv", "--validation", "none", "--min-freq", 2]
    status, _, err = run("train", *options, "-o", tmp_path / "m")
    assert status == 2
    assert "word occurs 2 times, so that none would be learnt: use a --min-freq of 1" in err


def test_a_bad_model_folder_is_one_line(run, tmp_path):
    refused(run("translate", tmp_path / "none", "Go."), "no such model folder")
    refused(run("translate", tmp_path, "Go."), "settings.json: missing")


def test_bad_input_to_translate_is_one_line(run, model, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"Go.\n\xe9t\xe9\n")
    status, out, err = run("translate", model, "-f", tmp_path / "bad.txt")
    assert (status, err.count("\n")) == (2, 1)
    assert out.count("\n") == 1  # the line before it is translated
    assert "bad.txt, line 2: not UTF-8" in err
    refused(run("translate", model, stdin=b"a" * 100_000), "standard input, line 1: got more than 10,000 characters")
    refused(run("translate", model, "Go.", "-f", tmp_path / "bad.txt"), "both given")
    refused(run("translate", model, "-f", tmp_path / "none.txt"), "none.txt: No such file or directory")
    refused(run("translate", model, "\udcff"), "expected Unicode")


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

    monkeypatch.setattr(suited, "_minutes", lambda *_: "")  # which takes steps too
    run_before(monkeypatch, TranslationModel, "loss", demanding)
    options = [*BOOK, *QUICK, "--epochs", 9, "--batch-size", 2]
    status, out, err = run("train", "-o", tmp_path / "model", *options)
    assert (status, out) == (2, "")
    assert err.splitlines()[-2:] == [
        "dikkat: the training broke off; the best model so far is saved",
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
    assert "dikkat: --precision is 'bfloat16'; this CPU has no products in bfloat16" in err
    options[options.index("bfloat16")] = "float32"
    status, _, err = run("train", "-o", tmp_path / "other", "--batch-tokens", 3, *options)
    assert status == 2
    assert "dikkat: --batch-tokens: got 3; expected at least" in err


HOW = f'is not installed. Run: pip install -e "{Path(__file__).parents[2]}[{{extra}}]"'


@pytest.mark.parametrize(
    ("command", "module", "extra"), [("train", "typer", "translation"), ("regress", "typer", "regression")]
)
def test_a_missing_library_says_what_to_install(command, module, extra):
    code = f"import sys; sys.modules[{module!r}] = None; from dikkat.cli import main; main()"
    done = python(code, command, status=2)
    assert done.stderr.splitlines()[-1] == f"dikkat: {module} {HOW.format(extra=extra)}"


LIBRARIES = {
    "from dikkat.translation import Translator": ("tokenizers", "translation"),
    "from dikkat.regression import NadarayaWatson": ("scipy", "regression"),
    "from dikkat.textbook import torch": ("tokenizers", "textbook"),
}


def test_the_libraries_too_say_what_to_install():
    code = (
        "import sys\n"
        "sys.modules['tokenizers'] = sys.modules['scipy'] = None\n"
        f"for statement in {list(LIBRARIES)}:\n"
        "    try:\n"
        "        exec(statement)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error)\n"
    )
    assert python(code).stdout.splitlines() == [
        f"{module} {HOW.format(extra=extra)}" for module, extra in LIBRARIES.values()
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--nosuch"], "dikkat: no such option: --nosuch. See dikkat train --help\n"),
        (["train", "--epoch", 3], "no such option: --epoch; did you mean --epochs? See dikkat train --help"),
        (["train", "--corpsu", "x"], "no such option: --corpsu; did you mean --corpus? See"),
        (["train", "--no-bidirectionl"], "did you mean --no-bidirectional? See"),
        (["trian"], "no such command 'trian'. Did you mean 'train'? See dikkat --help"),
        (["translate"], "missing argument 'model'. See dikkat translate --help"),
        (["translate", "m", "--batch-size", 0, "Go."], "'--batch-size'"),
        (
            ["translate", "m", "--max-length", 0, "Go."],
            "--max-length: got 0; expected a whole number of at least 1, or",
        ),
        (["train", "-o"], "option '-o' requires an argument. See dikkat"),
    ],
)
def test_a_command_that_is_written_wrongly_is_one_line(run, arguments, message):
    refused(run(*arguments), message)


def test_help_does_not_wait_for_pytorch():
    code = (
        "import sys\n"
        "from dikkat.cli import main\n"
        "sys.argv[1:] = ['--help']\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "False")


@pytest.mark.parametrize(("chosen", "kept"), [(None, "passive"), ("active", "active")])
def test_threads_wait_passively_unless_the_user_says_otherwise(chosen, kept):
    """Before PyTorch is imported, since its threads read it then; those that wait busily take other work's cores."""
    code = (
        "import os, sys\n"
        "class Seeing:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch':\n"
        "            print(os.environ.get('OMP_WAIT_POLICY'), flush=True)\n"
        "            os._exit(0)\n"
        "sys.meta_path.insert(0, Seeing())\n"
        "from dikkat.cli import main\n"
        "main()\n"
    )
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment = inherited | ({} if chosen is None else {"OMP_WAIT_POLICY": chosen})
    command = [sys.executable, "-c", code, "report"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == kept


@pytest.mark.parametrize("library", ["typer", "dikkat.translation.text.tokenizer"])
def test_an_interrupt_while_libraries_are_imported_is_one_line(tmp_path, library):
    code = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {library!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from dikkat.cli import main\n"
        "main()\n"
    )
    done = python(code, "translate", tmp_path, "Go.", status=130)
    assert (done.stdout, done.stderr) == ("", "dikkat: interrupted\n")


COMMANDS = [
    "train",
    "translate",
    "evaluate",
    "show",
    "info",
    "quantize",
    "export",
    "serve",
    "recipes",
    "regress",
    "warm",
    "report",
]


@pytest.mark.parametrize("columns", [80, 40])
def test_help_begins_with_an_example_and_fits_the_terminal(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in COMMANDS:
        status, page, _ = run(command, "--help")
        assert status == 0
        assert page.startswith(f"Example:\n  dikkat {command}")
        quoted = re.compile(r" +'.+'")  # which cannot be broken
        assert max(len(line) for line in page.splitlines() if not quoted.match(line)) <= columns
        assert not re.search(r"<(bool|str|path|list|int|float)|[\\…│\x1b]", re.sub(r" \\\n", "", page), re.IGNORECASE)
        assert "(0.05)" not in page
    _, page, _ = run("--help")
    assert all(re.search(rf"^  {name}\b", page, re.MULTILINE) for name in COMMANDS)
    assert max(map(len, page.splitlines())) <= columns
    assert run("--version") == (0, f"dikkat {version('dikkat')}\n", "")
    _, page, _ = run("train", "--help")
    page = " ".join(page.split())
    for text in ("--no-bidirectional ", "[default: 64]", "[default: none]", "--max-length", "scaled_dot,"):
        assert text in page


def test_dikkat_alone_shows_the_ways_in(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    status, page, error = run()
    assert (status, error) == (0, "")
    assert len(page.splitlines()) < 30
    assert max(map(len, page.splitlines())) <= 40
    typed = page.replace(" \\\n", "")
    for way in (
        "dikkat train --corpus",
        "dikkat export my-model --html",
        "dikkat regress",
        "with dikkat.record(model)",
    ):
        assert f"\n  {way}" in re.sub(" +", " ", typed).replace("\n ", "\n  ")


@pytest.mark.parametrize(("lines", "paged"), [(20, True), (2000, False)])
def test_help_that_a_terminal_is_too_low_for_is_paged(run, monkeypatch, lines, paged):
    pages = []
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("pydoc.pager", pages.append)
    _, shown, _ = run("train", "--help")
    assert ("--embedding-size" in shown) != paged
    assert len(pages) == paged


def test_a_terminal_is_told_the_next_step(run, model, tmp_path, monkeypatch):
    page = tmp_path / "a page.html"
    assert run("export", model, "--html", page)[2] == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run("export", model, "--html", page)[2] == f"next: open {page.as_uri()} in a browser\n"
    assert "%20" in page.as_uri()
    assert run("translate", model, "Go.")[2] == f"next: dikkat show {model} Go., to see what it looked at\n"


def test_every_setting_and_every_way_of_searching_has_the_option_of_its_name(run):
    for command, kind in (("train", Settings), ("translate", Search)):
        _, page, _ = run(command, "--help")
        for field in dataclasses.fields(kind):
            assert f"--{field.name.replace('_', '-')} " in page
    assert set(options._SEARCH_HELP) == {field.name for field in dataclasses.fields(Search)}


def test_the_shell_completes_options_and_values(run, monkeypatch):
    def completed(words):
        for name, value in (("COMPLETE", "complete_bash"), ("COMP_WORDS", words), ("COMP_CWORD", words.count(" "))):
            monkeypatch.setenv(name.replace("COMPLETE", "_DIKKAT_COMPLETE"), str(value))
        return run()[1].split()

    assert {"--num-layers", "--no-bidirectional"} <= set(completed("dikkat train --n"))
    assert completed("dikkat train --score b") == ["bilinear", "boxcar"]
    assert completed("dikkat regress --set kernel=ep") == ["kernel=epanechnikov"]


def test_interrupted_translating_has_the_status_of_the_shell(run, model, monkeypatch):
    def translate(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Translator, "translate_n_best", translate)
    assert run("translate", model, "Go.")[0] == 130


@pytest.mark.parametrize(
    ("place", "name", "said"),
    [
        (Recipe, "data", "before there was a checkpoint; nothing is saved"),
        (Tokenizer, "train", "before there was a checkpoint; nothing is saved"),
        (Translator, "save", "To go on: dikkat train --resume --output"),
    ],
)
def test_ctrl_c_is_told_in_words_at_any_time(run, tmp_path, monkeypatch, place, name, said):
    run_before(monkeypatch, place, name, lambda *_, **__: signal.raise_signal(signal.SIGINT))
    status, out, err = run("train", *BOOK, *QUICK, "-o", tmp_path / "model")
    assert (status, out) == (130, "")
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err
    assert "Aborted" not in err


def test_a_path_is_named_as_it_is_though_it_has_an_options_name(run, model, tmp_path):
    folder = tmp_path / "batch_size" / "label_smoothing.d"
    folder.mkdir(parents=True)
    (folder / "hidden_size.tsv").write_text("no tab\n")
    refused(
        run("train", "--corpus", folder / "hidden_size.tsv", "-o", tmp_path / "m"), f"{folder}/hidden_size.tsv, line 1"
    )
    refused(
        run("evaluate", model, "--corpus", "phrasebook", "--report", tmp_path / "r", "--training", "{oops"),
        "--training: got",
    )


def test_samples_are_drawn_again_with_the_same_seed(run, model):
    draw = ["translate", model, "--sample", "--temperature", "9", "--top-k", 5, "--n-best", 3, "I lost.", "--seed"]
    first, again, other = (run(*draw, seed) for seed in (1, 1, 2))
    assert first == again
    assert first[1].count("\n") == 3
    assert other != first
    refused(run("translate", model, "--top-k", 5, "Go."), "--top-k is 5")


def test_the_bar_is_drawn_on_standard_error_alone(run, model, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"I lost.\n\nGo.")
    assert lines.line_count(tmp_path / "in.txt") == 3
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"I lost.\n\nGo.\n"))
    assert lines.line_count(tmp_path / "in.gz") == 3
    assert run("translate", model, "-f", tmp_path / "in.gz")[1].count("\n") == 3
    (tmp_path / "half.gz").write_bytes(gzip.compress(b"I lost.\n" * 99)[:-9])
    assert lines.line_count(tmp_path / "half.gz") is None
    assert lines.line_count(None) is None
    shell = f"{sys.executable} -m dikkat translate {model} --file {tmp_path / 'in.txt'} > {tmp_path / 'out'}"
    done = subprocess.run(["script", "-qec", shell, "/dev/null"], capture_output=True, text=True, check=True)
    assert "3/3" in done.stdout
    assert (tmp_path / "out").read_text() == "J'ai perdu.\n\nVa !\n"


def test_lines_are_counted_for_a_bar_alone(run, model, tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "line_count", lambda _: pytest.fail("the file is read before the first translation"))
    (tmp_path / "in.txt").write_bytes(b"I lost.\n")
    assert run("translate", model, "--file", tmp_path / "in.txt") == (0, "J'ai perdu.\n", "")


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
    status, _, err = run("train", *BOOK, *QUICK, "-o", tmp_path / "model", "--min-freq", 999)
    assert status == 2
    assert "word occurs 999 times" in err

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "build", interrupted)
        assert run("train", *BOOK, *QUICK, "-o", tmp_path / "model", "--seed", 5)[0] == 130
        status, _, err = run("train", *BOOK, *QUICK, "-o", tmp_path / "new")
    assert status == 130
    assert err.splitlines()[-1] == "dikkat: interrupted before there was a checkpoint; nothing is saved"
    assert recipe.read_bytes() == before
    made(run("train", *BOOK, *QUICK, "-o", tmp_path / "model", "--seed", 5))
    assert b"seed = 5" in recipe.read_bytes()
