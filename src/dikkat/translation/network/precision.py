"""Products in bfloat16, and the processors that have them."""

import torch

from dikkat.translation.errors import SettingsError


def check_precision(precision: str, device: str) -> None:
    """Refuse products in bfloat16 where the processor has none."""
    if precision == "bfloat16" and not has_bfloat16(device):
        raise SettingsError(
            f"precision is 'bfloat16'; this {device.upper()} has no products in bfloat16, or this PyTorch cannot tell, "
            "and imitated ones are slower than float32: use float32"
        )


def has_bfloat16(device: str) -> bool:
    """True where products in bfloat16 are the processor's own, by what PyTorch tells of it."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if not hasattr(torch.cpu, "get_capabilities") or not torch.backends.mkldnn.is_available():
        return False  # a PyTorch that is too old to tell, or that has no library of such products
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"))
