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
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AlbertConfig, AlbertForMaskedLM

import dikkat

WHEEL = Path(__file__).resolve().parents[1] / ".rxnmapper" / "rxnmapper-0.4.3-py3-none-any.whl"
LAYER, HEAD = 10, 5

# Acetanilide from acetyl chloride and aniline: chlorine goes, nitrogen takes its place.
REACTION = "CC(=O)Cl.Nc1ccccc1>>CC(=O)Nc1ccccc1"

# Common reactions for `needed_heads`.
REACTIONS = """
CC(=O)Cl.Nc1ccccc1>>CC(=O)Nc1ccccc1
CC(=O)O.OCC>>CC(=O)OCC
O=C(O)c1ccccc1.CO>>COC(=O)c1ccccc1
CCBr.Oc1ccccc1>>CCOc1ccccc1
CI.Oc1ccc(C)cc1>>COc1ccc(C)cc1
O=Cc1ccccc1.NCC>>CCN=Cc1ccccc1
CC(C)=O.NN>>CC(C)=NN
c1ccccc1.BrBr>>Brc1ccccc1
Cc1ccccc1.O[N+](=O)[O-]>>Cc1ccc([N+](=O)[O-])cc1
OB(O)c1ccccc1.Brc1ccc(C)cc1>>Cc1ccc(-c2ccccc2)cc1
CC(=O)OC(C)=O.Oc1ccccc1C(=O)O>>CC(=O)Oc1ccccc1C(=O)O
CC(=O)OC(C)=O.Nc1ccc(O)cc1>>CC(=O)Nc1ccc(O)cc1
C=CC=C.C=CC(=O)OC>>COC(=O)C1CC=CCC1
CCO.ClC(=O)c1ccccc1>>CCOC(=O)c1ccccc1
CS(=O)(=O)Cl.OCCc1ccccc1>>CS(=O)(=O)OCCc1ccccc1
BrCc1ccccc1.C1CCNCC1>>C1CCN(Cc2ccccc2)CC1
CC(C)Br.SCC>>CCSC(C)C
C[Mg]Br.O=Cc1ccccc1>>CC(O)c1ccccc1
O=C1CCCCC1.OO>>O=C1CCCCCO1
CC(C)(C)OC(=O)OC(=O)OC(C)(C)C.NCc1ccccc1>>CC(C)(C)OC(=O)NCc1ccccc1
ClC(Cl)=O.Nc1ccccc1>>O=C=Nc1ccccc1
O=C=Nc1ccccc1.CCO>>CCOC(=O)Nc1ccccc1
CCN.ClC(=O)OCc1ccccc1>>CCNC(=O)OCc1ccccc1
Clc1ncccn1.C1COCCN1>>c1cnc(N2CCOCC2)nc1
""".split()  # noqa: SIM905


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


def needed_heads(reactions: Sequence[str]) -> tuple[list[tuple[int, int]], Tensor]:
    """Return the heads (layer, head) before `LAYER`, and the effect (heads, reactions) of cutting each.

    The effect is the change of the mean weight that an atom of the product gives to the reactant's atom that it maps
    to in the uncut model. All reactions are one padded batch.
    """
    tokens = [tokens_of(reaction) for reaction in reactions]
    padded = pad_sequence([numbers_of(row)[0] for row in tokens], batch_first=True, padding_value=vocabulary()["[PAD]"])
    mask = (padded != vocabulary()["[PAD]"]).long()

    def map_weights() -> list[Tensor]:
        with torch.no_grad(), dikkat.record(model(), layers=LAYER, heads=HEAD, weights=True) as trace:
            model()(padded, attention_mask=mask)
        maps = trace[LAYER, HEAD].weights
        return [
            rows[products][:, reactants]
            for rows, (reactants, products) in zip(maps, map(atoms_of, tokens), strict=True)
        ]

    uncut = map_weights()
    heads = [(layer, head) for layer in range(LAYER) for head in range(model().config.num_attention_heads)]
    effects = torch.empty(len(heads), len(reactions))
    for row, head in zip(effects, heads, strict=True):
        with dikkat.change(model(), heads=[head], cut=True):
            for column, (before, after) in enumerate(zip(uncut, map_weights(), strict=True)):
                best = before.argmax(-1, keepdim=True)
                row[column] = (after.gather(-1, best) - before.gather(-1, best)).mean()
    return heads, effects


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
