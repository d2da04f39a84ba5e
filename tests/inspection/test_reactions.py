"""A trained model: which atom of a product was which of a reactant, as chemistry has it; and eager attention."""

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import reactions

import dikkat

pytestmark = pytest.mark.skipif(
    not reactions.WHEEL.exists(),
    reason="needs rxnmapper's weights: pip download --no-deps rxnmapper==0.4.3 -d .rxnmapper",
)

# Ten that the head maps rightly. It is no oracle: an oxygen of Fischer's ester it takes from the acid.
# Of each atom of the product, in the order of its SMILES, the atom of the reactants that it was; of atoms that symmetry
# makes alike, any.
MAPS = {
    "amide from an acid chloride": ("CC(=O)Cl.CN>>CC(=O)NC", [0, 1, 2, 5, 4]),
    "Williamson's ether": ("CCBr.[Na+].C[O-]>>CCOC", [0, 1, 5, 4]),
    "Suzuki's coupling": (
        "Cc1ccc(Br)cc1.OB(O)c1ccccc1>>Cc1ccc(-c2ccccc2)cc1",
        [0, 1, {2, 7}, {3, 6}, 4, 11, {12, 16}, {13, 15}, 14, {13, 15}, {12, 16}, {3, 6}, {2, 7}],
    ),
    "reduction of a ketone": (
        "CC(=O)c1ccccc1.[BH4-].[Na+]>>CC(O)c1ccccc1",
        [0, 1, 2, 3, {4, 8}, {5, 7}, 6, {5, 7}, {4, 8}],
    ),
    "hydrolysis of an ester": ("CCOC(C)=O.O>>CC(=O)O", [4, 3, 5, 6]),
    "Grignard's addition": ("C[Mg]Br.O=Cc1ccccc1>>CC(O)c1ccccc1", [0, 4, 3, 5, {6, 10}, {7, 9}, 8, {7, 9}, {6, 10}]),
    "Friedel and Crafts's acylation": ("CC(=O)Cl.c1ccccc1>>CC(=O)c1ccccc1", [0, 1, 2, *[set(range(4, 10))] * 6]),
    "an amide from an acid": (
        "NCc1ccccc1.O=C(O)c1ccncc1>>O=C(NCc1ccccc1)c1ccncc1",
        [8, 9, 0, 1, 2, {3, 7}, {4, 6}, 5, {4, 6}, {3, 7}, 11, {12, 16}, {13, 15}, 14, {13, 15}, {12, 16}],
    ),
    "reductive amination": (
        "CN.O=Cc1ccccc1.[BH4-].[Na+]>>CNCc1ccccc1",
        [0, 1, 3, 4, {5, 9}, {6, 8}, 7, {6, 8}, {5, 9}],
    ),
    "removal of Boc": ("CC(C)(C)OC(=O)NCc1ccccc1>>NCc1ccccc1", [7, 8, 9, {10, 14}, {11, 13}, 12, {11, 13}, {10, 14}]),
}


@pytest.mark.parametrize("name", MAPS)
def test_head_5_of_layer_10_maps_atoms(name: str) -> None:
    reaction, right = MAPS[name]
    found = reactions.atom_map(reaction)
    assert len(found) == len(right)
    assert all(each in (one if isinstance(one, set) else {one}) for each, one in zip(found, right, strict=True)), found


def test_singly_padded_and_long() -> None:
    """Weights of every layer are those of eager attention, and a chosen head is recorded alone."""
    eager, fused = reactions.model("eager"), reactions.model()
    texts = [reactions.tokens_of(reaction) for reaction, _ in MAPS.values()]
    texts.append(reactions.tokens_of(".".join([reactions.REACTION.split(">>")[0]] * 22) + ">>" + "C" * 10))
    for group in ([texts[3]], texts[:3], [texts[-1]]):
        longest = max(map(len, group))
        ids, mask = (torch.zeros(len(group), longest, dtype=torch.int64) for _ in range(2))
        for row, tokens in enumerate(group):
            ids[row, : len(tokens)] = reactions.numbers_of(tokens)[0]
            mask[row, : len(tokens)] = 1
        with torch.no_grad():
            right = eager(ids, attention_mask=mask, output_attentions=True).attentions
        found = dikkat.attentions(fused, ids, attention_mask=mask)
        assert len(found) == len(right) == 12
        live = mask[:, None, :, None]
        for ours, theirs in zip(found, right, strict=True):
            torch.testing.assert_close(ours * live, theirs * live, rtol=1e-4, atol=2e-5)
        with torch.no_grad(), dikkat.record(fused, layers=10, heads=5, weights=True) as trace:
            fused(ids, attention_mask=mask)
        assert len(trace) == 1
        torch.testing.assert_close(trace[10, 5].weights, found[10][:, 5])
        with torch.no_grad(), dikkat.record(fused, layers=[-1, 0], top_k=1) as trace:
            fused(ids, attention_mask=mask)
        assert [call.layer for call, _ in trace.calls()] == [0, 11]
        assert torch.equal(trace[11].argmax if trace[11].argmax is not None else trace[11].top_keys[..., 0],
                           found[11].argmax(-1))  # fmt: skip
