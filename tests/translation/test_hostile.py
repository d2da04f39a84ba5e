"""The folders of `tests.stress.hostile_models`, which measures their time and memory too, in this process."""

import json
import math
import random
import shutil
import subprocess
import tracemalloc

import pytest
import torch

from dikkat.translation import ModelFolderError, Tokenizer, Translator
from tests.stress import hostile_models as hostile


@pytest.fixture(scope="module", params=["word", "bpe"])
def good(request, tmp_path_factory):
    return hostile.make(tmp_path_factory.mktemp("good") / "model", request.param)


def outcome(good, folder, change, *, reseal):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder)
    change(folder)
    if reseal:
        hostile.seal(folder)
    try:
        translator = Translator.load(folder)
    except ModelFolderError as error:
        return "refused" if str(error).isprintable() and len(str(error)) < 1200 else str(error)
    assert math.isfinite(translator.translate([hostile.SENTENCE])[0].score)
    own, other = translator.model.state_dict(), Translator.load(good).model.state_dict()
    return "same" if all(torch.equal(own[name], other[name]) for name in other) else "valid"


def test_a_good_model_is_the_same(good, tmp_path):
    assert outcome(good, tmp_path / "model", lambda _: None, reseal=False) == "same"


def test_what_somebody_thought_of_is_refused(tmp_path):
    good = hostile.make(tmp_path / "good", "word")
    passed = {
        (name, reseal)
        for name, change in hostile.by_hand()
        for reseal in (False, True)
        if outcome(good, tmp_path / "model", change, reseal=reseal) != "refused"
    }
    assert passed == {("weights enormous", True)}  # a model like others, once its sums say so


def test_a_change_at_random_is_refused_or_leaves_a_model(good, tmp_path):
    chance = random.Random(7)
    for _ in range(25):
        change = hostile.at_random(chance.randrange(2**32))
        assert outcome(good, tmp_path / "model", change, reseal=False) == "refused"
    for _ in range(25):
        outcome(good, tmp_path / "model", hostile.at_random(chance.randrange(2**32)), reseal=True)


def test_weights_are_not_read_before_their_header_fits(good, tmp_path):
    """300 MB without content, which the settings would allow."""

    def enormous(folder):
        settings = json.loads((folder / "settings.json").read_text())
        settings["settings"] |= {"hidden_size": 65_536, "num_layers": 4}
        (folder / "settings.json").write_text(json.dumps(settings))
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(300_000_000)

    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    enormous(folder)
    hostile.seal(folder)
    with (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{'0' * 64}  model.safetensors\n")  # which is not read so far
    tracemalloc.start()
    with pytest.raises(ModelFolderError, match=r"got float32 \(.*The weights belong to other settings"):
        Translator.load(folder)
    assert tracemalloc.get_traced_memory()[1] < 30_000_000
    tracemalloc.stop()


def test_a_tokenizer_has_no_more_tokens_and_steps_than_a_language_needs(tmp_path):
    folder = hostile.make(tmp_path / "model", "word")
    path = folder / "target.tokenizer.json"
    content = json.loads(path.read_text())
    small = content["model"]["vocab"]
    content["model"]["vocab"] = small | {f"w{number}": number for number in range(len(small), 2**18 + 1)}
    with pytest.raises(ModelFolderError, match="got 262,145 tokens; expected at most 262,144"):
        Tokenizer.from_json(json.dumps(content).encode(), "it")
    names = {f"w{number}": number for number in range(len(small), 20_011)}
    content["model"]["vocab"] = small | names
    steps = content["decoder"]["decoders"]
    name = {"type": "Replace", "pattern": {"Regex": ""}, "content": "X"}
    more = [name | {"pattern": {"Regex": rf"(?<=[ ]){each}(?=[ ]|$)"}} for each in names]
    content["decoder"]["decoders"] = [*steps[:2], *more, *steps[2:]]
    with pytest.raises(ModelFolderError, match="decoder: got"):
        Tokenizer.from_json(json.dumps(content).encode(), "it")


def test_every_bit_of_the_weights_counts(good, tmp_path):
    def flip(folder):
        data = bytearray((folder / "model.safetensors").read_bytes())
        data[-3] ^= 1
        (folder / "model.safetensors").write_bytes(data)

    assert outcome(good, tmp_path / "model", flip, reseal=False) == "refused"
    assert outcome(good, tmp_path / "model", flip, reseal=True) == "valid"


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="there is no sha256sum")
def test_the_sums_are_those_of_the_systems_own_program(good):
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=good, check=True)
