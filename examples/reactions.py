"""Which atom of a product was which atom of a reactant: what one head of a trained transformer looks at.

The model is rxnmapper's (Schwaller et al. 2021, "Extraction of organic chemistry grammar from unsupervised learning
of chemical reactions"; MIT licence): an ALBERT that read 1.3 million reactions, and nobody told which atom is which.
Its one layer runs twelve times; head 5 of layer 10 looks from the product's atoms to the reactants'. Its weights are
read from its wheel, which is not installed:

    pip download --no-deps rxnmapper==0.4.3 -d .rxnmapper
    python examples/reactions.py reaction.html
"""

import io
import json
import re
import sys
import zipfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from transformers import AlbertConfig, AlbertForMaskedLM

import dikkat

WHEEL = Path(__file__).resolve().parents[1] / ".rxnmapper" / "rxnmapper-0.4.3-py3-none-any.whl"
LAYER, HEAD = 10, 5

# Acetanilide from acetyl chloride and aniline: chlorine goes, nitrogen takes its place.
REACTION = "CC(=O)Cl.Nc1ccccc1>>CC(=O)Nc1ccccc1"


@cache
def vocabulary() -> dict[str, int]:
    """The number of each token."""
    return {token: number for number, token in enumerate(read("vocab.txt").decode().splitlines())}


@cache
def model(attention: str = "sdpa") -> AlbertForMaskedLM:
    """The model with its trained weights."""
    config = AlbertConfig(**json.loads(read("config.json")), attn_implementation=attention)
    made = AlbertForMaskedLM(config).eval()
    made.load_state_dict(
        torch.load(io.BytesIO(read("pytorch_model.bin")), map_location="cpu", weights_only=True), strict=False
    )
    return made


def read(name: str) -> bytes:
    """A file of the model, out of the wheel."""
    with zipfile.ZipFile(WHEEL) as wheel:
        return wheel.read(f"rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/{name}")


def tokens_of(reaction: str) -> list[str]:
    """The tokens of a reaction in SMILES, one an atom, a bond, a bracket or a ring's number."""
    return ["[CLS]", *re.findall(r"\[[^\]]*\]|Br|Cl|>>|%\d\d|.", reaction), "[SEP]"]


def numbers_of(tokens: list[str]) -> Tensor:
    """(1, n): what the model reads."""
    return torch.tensor([[vocabulary()[token] for token in tokens]])


def atoms_of(tokens: list[str]) -> tuple[list[int], list[int]]:
    """The places of the reactants' atoms, and of the product's."""
    arrow = tokens.index(">>")
    atoms = [
        place
        for place, token in enumerate(tokens)
        if re.match(r"\[?[A-Za-z]", token) and token not in ("[CLS]", "[SEP]")
    ]
    return [place for place in atoms if place < arrow], [place for place in atoms if place > arrow]


def atom_map(reaction: str) -> list[int]:
    """Of each atom of the product, which atom of the reactants it was, counted from 0."""
    tokens = tokens_of(reaction)
    reactants, products = atoms_of(tokens)
    with torch.no_grad(), dikkat.record(model(), layers=LAYER, heads=HEAD, queries=products, weights=True) as trace:
        model()(numbers_of(tokens))
    return trace[LAYER, HEAD].weights[0][:, reactants].argmax(-1).tolist()


def main(path: str) -> None:
    """Print the map of a reaction, and write the page of all heads."""
    tokens = tokens_of(REACTION)
    reactants, products = atoms_of(tokens)
    for place, number in zip(products, atom_map(REACTION), strict=True):
        print(f"{tokens[place]} of the product, token {place}: {tokens[reactants[number]]}, token {reactants[number]}")
    labels = [dikkat.inspection.Token(each, special=each in ("[CLS]", "[SEP]")) for each in tokens]
    trace = dikkat.show.attention(model(), numbers_of(tokens), tokens=labels, path=path, title=REACTION)
    print(f"{path}: layer {LAYER}, head {HEAD} is the one that maps atoms\n{trace}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "reaction.html")
