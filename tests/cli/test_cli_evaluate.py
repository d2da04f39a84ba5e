import json
import re

import pytest
import sacrebleu
import torch

from cli.conftest import QUICK
from command import made, refused
from dikkat.translation import (
    Translation,
    Translator,
    alignment_error_rate,
    evaluate,
    evaluate_lowercased_tokens,
    read_links,
)
from translation.taught import PAIRS, untrained


def test_of_few_sentences_no_comparison_is_called_more_than_chance(run, tmp_path):
    for name, lines_ in (("ref", ["the cat sat on the mat ."] * 3), ("other", ["a dog lay under it !"] * 3)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines_))
    files = ["--hypotheses", tmp_path / "ref", "--references", tmp_path / "ref", "--versus-file", tmp_path / "other"]
    out, _ = made(run("evaluate", *files))
    assert "below 0.05: not reliable with fewer than 100 sentences." in out
    assert "significant" not in out


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


@pytest.mark.filterwarnings("default")  # as outside the tests
def test_evaluate_warns_about_training_sentences(run, pairs, tmp_path):
    made(run("train", "--corpus", pairs, "--validation", "none", "-o", tmp_path / "model", *QUICK))
    new, mixed = tmp_path / "new.tsv", tmp_path / "mixed.tsv"
    new.write_text("They left.\tIls sont partis.\nWait.\tAttends !\n", encoding="utf-8")
    source = PAIRS[0][0].upper()  # case makes no difference
    mixed.write_text(f"{new.read_text('utf-8')}{source}\tSalut !\n", encoding="utf-8")
    assert made(run("evaluate", tmp_path / "model", "--corpus", new))[1] == ""
    for corpus, count in ((pairs, "8 of 8"), (mixed, "1 of 3")):
        _, err = made(run("evaluate", tmp_path / "model", "--corpus", corpus))
        assert err.startswith(f"dikkat: {corpus}: {count} source sentences are training sentences of {tmp_path}")
        assert "`dikkat train --test FILE` leaves the sentences of FILE out" in err
    _, err = made(run("evaluate", tmp_path / "model", "--corpus", pairs, "--versus", tmp_path / "model"))
    assert err.count("training sentences") == 1
    made(run("train", "--corpus", pairs, "--test", mixed, "--validation", "none", "-o", tmp_path / "other", *QUICK))
    assert made(run("evaluate", tmp_path / "other", "--corpus", mixed))[1] == ""


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
        ("1234567890-0\n" * 8, "links, line 1: got '1234567890-0'"),
    ):
        links.write_text(text)
        refused(run("evaluate", model, "--corpus", pairs, "--links", links), message)
    refused(run("evaluate", model, "--corpus", pairs, "--links", tmp_path / "none"), "none")
    untrained(Translator.load(model), score="none").save(tmp_path / "blind")
    links.write_text("0-0\n" * 8)
    for given in ([tmp_path / "blind"], [model, "--reverse", tmp_path / "blind"]):
        refused(run("evaluate", *given, "--corpus", pairs, "--links", links), "blind, a model without attention")
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
    assert shown.endswith(
        f"report: {folder}/report.json\npage: {folder}/worst.html\nreliability diagram: {folder}/reliability.png\n"
    )
    wanted = [each.confidence for each in Translator.load(model).translate(["I lost.", "Go Paris 12."])]
    assert [each["confidence"] for each in stored["sentences"]] == pytest.approx(wanted)
    assert stored["sentences"][1]["flags"][0] == "unknown words"
    found, is_right = stored["confidence"], [each["chrf"] >= 80 for each in stored["sentences"]]
    assert found["right"] == sum(is_right) / 2
    assert found["sentences"] == sum(each["sentences"] for each in found["bins"]) == 2
    assert f"Calibration error: {found['error']:.3f}. AUC: " in shown
    assert (folder / "reliability.png").read_bytes().startswith(b"\x89PNG")
    refused(run("evaluate", model, "--corpus", pairs, "--training", pairs), "--training needs --report")


@pytest.mark.parametrize("score", ["additive", "none"])
def test_a_report_leaves_out_what_nobody_can_know(run, model, pairs, tmp_path, score):
    other = tmp_path / "other"
    untrained(Translator.load(model), score=score).save(other)
    for more, unseen in (([], []), (["--training", pairs], ["unseen"])):
        _, out, _ = run("evaluate", other, "--corpus", pairs, "--report", tmp_path / "r", *more, "--json")
        faults = [*unseen, "not_copied", "doubled", *(["dropped"] if score == "additive" else [])]
        assert list(json.loads(out)["faults"]) == faults
        stored = json.loads((tmp_path / "r" / "report.json").read_text(encoding="utf-8"))
        fields = ["source", "target", "reference", "chrf", "confidence", "flags", *faults]
        assert list(stored["sentences"][0]) == fields
        assert "confidence" not in stored
        assert not (tmp_path / "r" / "reliability.png").exists()


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
        ([], "expected either a model folder or --hypotheses FILE"),
        (["m", "--hypotheses", "h"], "expected either a model folder or --hypotheses FILE"),
        (["m"], "expected either --corpus or --references FILE"),
        (["m", "--references", "r"], "--references has no sentences to translate"),
        (
            ["m", "--corpus", "x", "--versus", "a", "--versus-file", "b"],
            "--versus and --versus-file cannot be combined",
        ),
        (["--hypotheses", "h", "--corpus", "x", "--links", "l"], "--links needs a model"),
        (["m", "--corpus", "x", "--reverse", "n"], "--reverse needs --links"),
        (["--hypotheses", "h", "--references", "nowhere"], "nowhere: No such file"),
    ],
)
def test_evaluate_refuses_what_does_not_fit(run, arguments, message):
    refused(run("evaluate", *arguments), message)
