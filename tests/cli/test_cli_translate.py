import dataclasses
import gzip
import io
import json
import os
import subprocess
import sys
import warnings

import pytest
import torch

from command import made, refused
from dikkat.cli import lines
from dikkat.translation import InputError, Search, Translation, Translator
from translation.taught import untrained


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
    without, _ = made(run("translate", model, "Où I lost.", "", "--json", "--beam", 1))
    status, out, _ = run("translate", model, "Où I lost.", "", "--json", "--weights", "--beam", 1)
    found = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [json.loads(line) | {"weights": None} for line in without.splitlines()] == [
        each | {"weights": None} for each in found
    ]
    assert "weights" not in without
    assert run("translate", model, "I lost.", "--weights")[2].endswith(
        "--weights: got it without --json; expected both, as only JSON has the attention weights\n"
    )
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
            "lost": [],
            "invented": [],
            "confidence": other.confidence,
            "sources": [],
            "unused_terms": [],
            "flags": list(other.flags),
            "alignment": [max(range(len(row)), key=row.__getitem__) for row in other.weights.tolist()],
        }


def test_a_translation_is_one_line_whatever_the_model_writes():
    found = Translation("a", "b\nc\td\u00a0!", ["a"], ["b"], torch.ones(1, 1), -1.0)
    assert lines.line(7, found, numbered=False) == "b c d\u00a0!"
    assert lines.line(7, found, numbered=True) == "7\t-1.000\tb c d\u00a0!"


HEADINGS = "line\tconfidence\tflags\tsource\ttarget\n"


def test_lines_to_check_come_first(run, model, tmp_path):
    sentences = ["I lost.", "The astronaut calm\u2028man.", "", "Where is the man?"]
    (tmp_path / "lines").write_text("\n".join(sentences), encoding="utf-8")
    wanted = Translator.load(model).translate(sentences)
    rows = [
        f"{number}\t{each.confidence:.3f}\t{', '.join(each.flags)}\t{each.source}\t{each.target}\n".replace(
            "\u2028", "⟨2028⟩"
        )
        for number, each in enumerate(wanted, 1)
    ]
    assert wanted[1].flags == ("unknown words",)
    out, _ = made(run("translate", model, "--file", tmp_path / "lines", "--sort", "line"))
    assert out == HEADINGS + "".join(rows)
    order = sorted(range(4), key=lambda k: wanted[k].confidence)
    out, err = made(run("translate", model, "--file", tmp_path / "lines", "--sort", "confidence"))
    assert out == HEADINGS + "".join(rows[k] for k in order)
    assert "line 2: unknown words: astronaut" in err
    out, _ = made(run("translate", model, "--file", tmp_path / "lines", "--sort", "confidence", "--json"))
    assert [json.loads(line)["sentence"] for line in out.splitlines()] == [k + 1 for k in order]
    out, _ = made(run("translate", model, "--file", tmp_path / "lines", "--sort", "confidence", "--n-best", 2))
    numbers = [int(line.split("\t")[0]) for line in out.splitlines()[1:]]
    assert list(dict.fromkeys(numbers)) == [k + 1 for k in order]
    assert numbers.count(1) == 2


def test_an_error_of_a_late_line_comes_after_the_sorted_rows(run, model, tmp_path):
    sentences = ["Go.", "The astronaut calm man.", "I lost.", "a" * 10_001]
    (tmp_path / "lines").write_text("\n".join(sentences), encoding="utf-8")
    confidences = [result.confidence for result in Translator.load(model).translate(sentences[:3])]
    code, out, err = run("translate", model, "--file", tmp_path / "lines", "--sort", "confidence", "--batch-size", 1)
    order = sorted(range(3), key=confidences.__getitem__)
    assert [line.split("\t")[0] for line in out.splitlines()] == ["line", *(str(index + 1) for index in order)]
    assert code == 2
    assert f"{tmp_path / 'lines'}, line 4: " in err


def test_a_model_without_confidence_cannot_sort(run, model, tmp_path):
    translator = Translator.load(model)
    dataclasses.replace(translator, confidence_model=None).save(tmp_path / "model")
    refused(run("translate", tmp_path / "model", "Go.", "--sort", "confidence"), "--sort: got confidence, but ")
    out, _ = made(run("translate", tmp_path / "model", "Go.", "--sort", "line"))
    assert out == f"{HEADINGS}1\t\t\tGo.\tVa !\n"
    assert run("translate", model, "Go.", "--sort", "length")[0] == 2


def test_terms_of_a_file(run, model, tmp_path):
    (tmp_path / "terms.tsv").write_text("man\tami\nman\tgars\n", encoding="utf-8")
    options = ["--terms", tmp_path / "terms.tsv", "The man is calm.", "Go."]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        out, err = made(run("translate", model, *options))
    assert out == "L'gars est calme.\nVa !\n"
    assert "terms.tsv: got two translations of 'man', 'ami' and 'gars'; dikkat uses the last one" in err
    (tmp_path / "terms.tsv").write_text("man\tgars\n", encoding="utf-8")
    out, _ = made(run("translate", model, "--ensemble", model, *options))
    assert out == "L'gars est calme.\nVa !\n"
    _, err = made(run("translate", model, *options[:2], "--no-split", "man " * 51))
    assert "sentence 1: " in err
    assert "unused terms: man" in err
    (tmp_path / "terms.tsv").write_text("man\n", encoding="utf-8")
    refused(run("translate", model, *options), "terms.tsv, line 1: got 'man'")
    refused(run("translate", model, "--terms", tmp_path / "none", "Go."), "none: No such file")
    other = tmp_path / "other"
    untrained(Translator.load(model), score="none").save(other)
    (tmp_path / "terms.tsv").write_text("man\tami\n", encoding="utf-8")
    refused(run("translate", other, *options), "terms: got terms, and a model without attention")


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
        "dikkat: sentence 1: unknown words: astronaut\ndikkat: sentence 3: unknown words: A, pilot, an, astronaut\n"
    )
    assert out.count("Va !") == 2
    (tmp_path / "lines").write_text("\nGo.\nThe astronaut.\n")
    cut = "the translation did not end and was cut"
    _, err = made(run("translate", model, "--file", tmp_path / "lines", "--max-length", 1))
    assert err == (
        f"dikkat: {tmp_path}/lines, line 2: {cut}\ndikkat: {tmp_path}/lines, line 3: unknown words: astronaut; {cut}\n"
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
    found = [line for group in lines.read_stream(Dripping(data, most), "it") for line in group]
    assert found == ["Été !", "", "漢字\x0c\u2028x", "no end"]


def test_a_line_without_an_end_is_not_read_for_ever():
    class Endless(io.BytesIO):
        def read1(self, size=-1):
            return b"a" * size

    with pytest.raises(InputError, match="it, line 1: got more than 10,000 characters"):
        [line for group in lines.read_stream(Endless(), "it") for line in group]


def test_bad_input_to_translate_is_one_line(run, model, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"Go.\n\xe9t\xe9\n")
    status, out, err = run("translate", model, "-f", tmp_path / "bad.txt")
    assert (status, err.count("\n")) == (2, 1)
    assert out.count("\n") == 1  # the line before it is translated
    assert "bad.txt, line 2: not UTF-8" in err
    refused(run("translate", model, stdin=b"a" * 100_000), "standard input, line 1: got more than 10,000 characters")
    refused(run("translate", model, "Go.", "-f", tmp_path / "bad.txt"), "cannot be combined")
    refused(run("translate", model, "-f", tmp_path / "none.txt"), "none.txt: No such file or directory")
    refused(run("translate", model, "\udcff"), "expected Unicode")


def test_interrupted_translating_has_the_status_of_the_shell(run, model, monkeypatch):
    def translate(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Translator, "translate_n_best", translate)
    assert run("translate", model, "Go.")[0] == 130


def test_samples_are_drawn_again_with_the_same_seed(run, model):
    draw = ["translate", model, "--sample", "--temperature", "9", "--top-k", 5, "--n-best", 3, "I lost.", "--seed"]
    first, again, other = (run(*draw, seed) for seed in (1, 1, 2))
    assert first == again
    assert first[1].count("\n") == 3
    assert other != first
    refused(run("translate", model, "--top-k", 5, "Go."), "--top-k: got 5 with sample=False")


def test_the_bar_is_drawn_on_standard_error_alone(run, model, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_bytes(b"I lost.\n\nGo.")
    assert lines.line_count(tmp_path / "in.txt") == 3
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"I lost.\n\nGo.\n"))
    assert lines.line_count(tmp_path / "in.gz") == 3
    assert run("translate", model, "-f", tmp_path / "in.gz")[1].count("\n") == 3
    (tmp_path / "half.gz").write_bytes(gzip.compress(b"I lost.\n" * 99)[:-9])
    assert lines.line_count(tmp_path / "half.gz") is None
    assert lines.line_count(None) is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    out, err = made(run("translate", model, "--file", tmp_path / "in.txt"))
    assert "3/3" in err
    assert out == "J'ai perdu.\n\nVa !\n"


def test_lines_are_counted_for_a_bar_alone(run, model, tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "line_count", lambda _: pytest.fail("the file is read before the first translation"))
    (tmp_path / "in.txt").write_bytes(b"I lost.\n")
    assert run("translate", model, "--file", tmp_path / "in.txt") == (0, "J'ai perdu.\n", "")
