"""The record of a call of attention, and the sizes of tiles."""

from dikkat._engine.record import Record

FOLD = 8
"""Additive features that share a division; packed features are padded to a multiple."""
TILE, TILE_BACK, GROUP = 16, 2, 4
"""Blocks of keys in a tile, forward and backward; rows that a tile of the backward processes together."""
SIDE, ROWS, PEAK_KEYS = 4, 8, 64
"""In the additive backward: keys processed together, the most rows processed with them, and keys of a `key_peak`."""

# Operands that batch elements may share: each has a step from one element to the next, or a table of elements.
SHARED = ("query", "key", "weight", "value", "bias", "key_bias", "lens", "starts", "exclude", "seeds", "mask")

CALL = Record(
    numbers="""
        query key weight value bias key_bias packed_key packed_value key_peak mean peak total weights mean_grad
        weights_grad total_grad drift query_grad key_grad weight_grad value_grad bias_grad key_bias_grad entropy
        top_weights
    """,
    doubles="key_sums_of_task cells_of_task",
    integers=" ".join(["lens starts exclude seeds top_keys bias_offsets turns", *(f"{name}_table" for name in SHARED)]),
    flags="mask key_beyond",
    whole=" ".join(f"{name}_step" for name in SHARED)
    + """
        element_tasks task_rows rows group profile queries keys features padded values value_stride blocks
        key_bias_stride causal lens_row starts_row mask_row mask_col exclude_row bias_row bias_col bias_row_apart
        bias_rows bias_cols dropout exact narrow key_owners keeps top cell_rows cell_cols by_largest
    """,
    real="kept_scale scale limit highest softcap",
    regions="""
        scores shares weights by_score in_fast drop_factors upstream reciprocals weight weight_sums query query_peak
        query_sums query_exact mean peaks sums totals drifts factors score_sums value_sums key_sums top_scores
        tile_peaks
    """,
    integer_regions="limits beyond sweeps exact_rows top_indices",
)

FEW = Record(
    numbers="""
        query key weight value mean peak total weights mean_grad weights_grad total_grad query_grad key_grad weight_grad
        value_grad
    """,
    integers="lens lens_table",
    whole="lens_step lens_row causal queries keys features padded values",
    real="highest limit scale",
    regions="query weight scores shares sums spare by_score query_sums weight_sums",
)
"""The record of a call with few queries, whose operands are not packed."""
