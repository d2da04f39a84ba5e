"""Images of 48 × 48 pixels in 8 × 8 patches, and the training loop of `digits.py` and `scenes.py`."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

SIDE, PATCH = 48, 6  # pixels
GRID = SIDE // PATCH  # patches in a row


def patch_layers(channels: int, width: int) -> nn.Sequential:
    """Return two convolutions, which read images (B, channels, 48, 48) as (B, width, 8, 8)."""
    first = nn.Conv2d(channels, width // 2, 5, stride=2, padding=2)
    return nn.Sequential(first, nn.GELU(), nn.Conv2d(width // 2, width, 5, stride=3, padding=1))


def distant_patches() -> Tensor:
    """Return a mask (64, 64), True for pairs of different patches that are not neighbours."""
    cells = torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).float()
    return torch.cdist(cells, cells, torch.inf) > 1


def patches_inside(boxes: Tensor) -> Tensor:
    """Return a mask (..., 64) of the patches whose centres are inside boxes (..., 4): left, top, right and bottom."""
    centres = PATCH * (torch.arange(GRID) + 0.5)
    left, top, right, bottom = boxes[..., None].unbind(-2)
    rows, columns = (centres >= top) & (centres < bottom), (centres >= left) & (centres < right)
    return (rows[..., :, None] & columns[..., None, :]).flatten(-2)


def train(model: nn.Module, compute_loss: Callable[[], Tensor], steps: int, weight_decay: float) -> None:
    """Train the model with AdamW, and print the loss every 200 steps."""
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.05)
    for step in range(steps):
        loss = compute_loss()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step == steps - 1 or step % 200 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    model.eval()
