"""Find the name of a picture, and the picture of a name, without training: emoji, and what they are called.

The pictures (956 of Noto Emoji, in `emoji/`) are seen by random patches that have learnt nothing; their names are read
by a sentence encoder. `slimformer.match` solves for maps into one space on four fifths of the pairs and looks for
partners among the others. Any image encoder does in place of the patches: `slimformer.match("./vit", "demo:minilm",
"captions.jsonl")` reads pictures and captions itself.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

import slimformer

EDGE, PATCH, FILTERS = 24, 6, 256
HERE = Path(__file__).parent / "emoji"

names = (HERE / "names.tsv").read_text(encoding="utf-8").splitlines()[1:]
sheet = torch.from_numpy(np.array(Image.open(HERE / "emoji.png").convert("RGB"))).permute(2, 0, 1)
tiles = sheet.unfold(1, EDGE, EDGE).unfold(2, EDGE, EDGE).permute(1, 2, 0, 3, 4).reshape(-1, 3, EDGE, EDGE)
pictures = tiles[: len(names)].double() / 255

# Filters are patches of the pictures, whitened (Coates, Ng 2011); a picture is how much of each is in each quarter.
patches = F.unfold(pictures, PATCH, stride=3).permute(0, 2, 1).flatten(0, 1)
patches = patches - patches.mean(1, keepdim=True)
values, vectors = torch.linalg.eigh(torch.cov(patches.T))
whitened = patches @ (vectors * (values + 0.01).rsqrt()) @ vectors.T
drawn = whitened[torch.randperm(len(whitened), generator=torch.Generator().manual_seed(0))[:FILTERS]]
seen = F.conv2d(pictures, F.normalize(drawn).reshape(FILTERS, 3, PATCH, PATCH))
features = F.adaptive_avg_pool2d(F.relu(seen - seen.mean((0, 2, 3), keepdim=True)), 2).flatten(1)

found = slimformer.match(features, "demo:minilm", HERE / "names.tsv").report
print(f"{found['pairs']} pairs to fit, {found['held_out']} held out; by chance R@10 is {found['chance']['R@10']:.3f}")
for row in found["methods"]:
    there, back = row["cosine"]["forward"]["R@10"], row["cosine"]["backward"]["R@10"]
    print(f"{row['method']:10}  name of a picture among the ten nearest: {there:.3f}   picture of a name: {back:.3f}")
