"""A small ViT that has learnt something, made here: timm's `test_vit`, trained on rendered letters. About ten minutes on one core.

DoPrompt and its companions start from a ViT of ImageNet. Where its weights cannot be had, and for nets that small, this is
the next best: the 26 letters in both cases and twenty typefaces that matplotlib brings along, turned, sheared, shifted and
in any two colours. No digit is among them, and none of the four looks of `digits`.

python benchmarks/letters.py letters.safetensors
unseen bench --protocol digits-vit --weights letters.safetensors --methods fedavg,doprompt,doprompt+ga --targets all --out vit
"""

from __future__ import annotations

import argparse
import math
import string
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from rich.progress import track
from torch import Tensor

from unseen.core.files import write_tensors
from unseen.core.seeding import torch_generator
from unseen.core.tensors import snapshot
from unseen.nets.backbones import create_net

FACES = ("DejaVuSans", "DejaVuSerif", "STIXGeneral", "cmb", "cmr", "cmss", "cmtt")
SIDE, POINTS = 48, 34  # of a drawn letter
BATCH, RATE, WARM_UP = 64, 3e-3, 500


def drawn() -> tuple[Tensor, Tensor]:
    """Every letter in every typeface, white on black, and its place in the alphabet."""
    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    faces = sorted(f for f in folder.glob("*.ttf") if f.name.startswith(FACES) and "Display" not in f.name)
    pictures, labels = [], []
    for face in faces:
        font = ImageFont.truetype(str(face), POINTS)
        for label, letter in enumerate(string.ascii_lowercase):
            for shown in (letter, letter.upper()):
                picture = Image.new("L", (SIDE, SIDE))
                ImageDraw.Draw(picture).text((SIDE / 2, SIDE / 2), shown, fill=255, font=font, anchor="mm")
                pictures.append(np.asarray(picture, dtype=np.float32) / 255)
                labels.append(label)
    return torch.from_numpy(np.stack(pictures))[:, None], torch.tensor(labels)


def batch(letters: Tensor, labels: Tensor, size: int, colour: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Letters from anywhere. `colour` goes from 0, white on black, to 1, any colour on any other."""

    def uniform(*shape: int, width: float = 1.0) -> Tensor:
        return width * torch.rand(BATCH, *shape, generator=rng)

    rows = torch.randint(len(letters), (BATCH,), generator=rng)
    turn, shear, shift = uniform(width=0.5) - 0.25, uniform(width=0.6) - 0.3, uniform(2, 1, width=0.3) - 0.15
    matrix = torch.stack([turn.cos(), shear - turn.sin(), turn.sin(), turn.cos()], dim=1).view(BATCH, 2, 2)
    matrix = matrix * (uniform(2, 1, width=0.6) - 0.3).exp()
    grid = F.affine_grid(torch.cat([matrix, shift], dim=2), [BATCH, 1, size, size], align_corners=False)
    ink = F.grid_sample(letters[rows], grid, align_corners=False)
    front, back = 1 - colour * uniform(3, 1, 1), colour * uniform(3, 1, 1)
    swapped = uniform(1, 1, 1) < colour / 2
    front, back = torch.where(swapped, back, front), torch.where(swapped, front, back)
    noise = 0.05 * torch.randn(BATCH, 3, size, size, generator=rng)
    return (back + (front - back) * ink + noise).clamp(0, 1), labels[rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    letters, labels = drawn()
    net = create_net("test_vit", 26, image_size=args.size, seed=args.seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.05)
    rng = torch_generator(args.seed, purpose="letters")
    right = 0.0
    for step in track(range(args.steps), description="letters"):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / args.steps)) / 2
        # White on black for the first quarter: with any colours from the start nothing is learnt in thousands of steps.
        colour = min(1.0, max(0.0, 4 * step / args.steps - 1))
        x, y = batch(letters, labels, args.size, colour, rng)
        logits = net(x)
        optimizer.zero_grad()
        F.cross_entropy(logits, y).backward()
        optimizer.step()
        right = 0.99 * right + 0.01 * float((logits.argmax(1) == y).float().mean())
        if (step + 1) % (args.steps // 8) == 0:
            print(f"step {step + 1}: {100 * right:.1f} % of the last letters")
    write_tensors(args.out, snapshot(net.backbone))
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
