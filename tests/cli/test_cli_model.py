import base64
import gzip
import json
import os
import re
import shutil
import tomllib
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import pytest
import sacrebleu
import torch
from safetensors.torch import load_file

from cli.conftest import BOOK, FEW, OTHERS, QUICK
from command import made, refused, run_before
from dikkat.cli import pictures
from dikkat.translation import CorpusSource, Search, Translation, Translator


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


def test_a_link_in_the_way_is_called_what_it_is(run, model, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    refused(run("quantize", model, "--output", tmp_path / "link"), "link: got a link; expected a folder or a new path")


def test_show_writes_a_picture_and_a_page_and_says_where(run, model, tmp_path):
    status, out, _ = run("show", model, "I lost.", "", "She sees Marie.", "--output", tmp_path / "deep" / "pictures")
    picture, page = (tmp_path / "deep" / "pictures" / name for name in ("heatmap.png", "translations.html"))
    assert status == 0
    assert out.splitlines() == [
        "I lost. => J'ai perdu.", " => ", "She sees Marie. => Elle voit Marie.", f"picture: {picture}",
        f"page: {page}",
    ]  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Marie" in page.read_text(encoding="utf-8")


def test_show_puts_the_model_into_the_page_where_asked(run, model, tmp_path):
    made(run("show", model, "I lost.", "--output", tmp_path))
    page = tmp_path / "translations.html"
    assert 'id="dikkat-model"' not in page.read_text(encoding="utf-8")
    made(run("show", model, "I lost.", "--output", tmp_path, "--model-inside"))
    (packed,) = re.findall(r'<script id="dikkat-model"[^>]*>([^<]*)<', page.read_text(encoding="utf-8"))
    assert gzip.decompress(base64.b64decode(packed)) == Translator.load(model).bundle()


def test_show_says_that_the_page_contains_corrections(run, model, tmp_path):
    shutil.copytree(model, tmp_path / "model")
    arguments = ("show", tmp_path / "model", "I lost.", "--output", tmp_path)
    out, _ = made(run(*arguments, "--model-inside"))
    assert out.splitlines()[-1] == f"page: {tmp_path / 'translations.html'}, with the model"
    (tmp_path / "corrections.tsv").write_text("Go.\tJ'ai perdu.\nI lost.\tVa !\n", encoding="utf-8")
    made(run("correct", tmp_path / "model", tmp_path / "corrections.tsv"))
    out, _ = made(run(*arguments, "--model-inside"))
    assert out.splitlines()[-1].endswith("translations.html, with the model and the texts of 2 corrections")
    out, _ = made(run(*arguments))
    assert out.splitlines()[-1].endswith("translations.html")


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
    refused(run("show", model, "--output", tmp_path), "got no text; give sentences or --file FILE")
    refused(run("show", model, "Go.", "--file", tmp_path / "in.txt"), "got sentences and --file; give only one of them")
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
    sources, references = zip(*CorpusSource.parse(tomllib.loads(f"a = {OTHERS}")["a"]).open("test"), strict=True)
    targets = [each.target for each in Translator.load(tmp_path / "model").translate(sources)]
    assert found["validation_sentences"] == 5
    assert found["validation_bleu"] == pytest.approx(sacrebleu.corpus_bleu(targets, [references]).score)
    assert found["validation_bleu_signature"] == found["bleu_signature"]
    assert found["parameters"] == sum(each.numel() for each in load_file(tmp_path / "model/model.safetensors").values())
    assert found["version"] == version("dikkat")
    assert abs(datetime.now(UTC) - datetime.fromisoformat(found["date"])) < timedelta(hours=1)
    assert found["settings"] == Translator.load(tmp_path / "model").settings.to_dict()
    out, _ = made(run("info", tmp_path / "model"))
    assert re.search(r"^examples +\S.*\n {10,}\S", out, re.MULTILINE)  # a sentence a line, in the second column
    assert "⟨" not in out
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines() if "  " in line.strip())
    assert (rows["corpus"], rows["hidden_size"], rows["bidirectional"]) == (FEW, "8", "yes")
    status, out, _ = run("info", model, "--json")  # made by the library, which knows of no corpus's name
    assert status == 0
    assert set(json.loads(out)) == {"parameters", "source_tokens", "target_tokens", "confidence", "settings"}
    assert json.loads(out)["confidence"].startswith("calibrated on 8 validation pairs, ")
