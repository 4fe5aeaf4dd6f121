"""The small set of emoji in examples/emoji: one sheet of pictures of 24 × 24, and their names.

python benchmarks/emoji_sheet.py     from emoji-datasource-google@16.0.0, npm packed, in ~/.cache/slimformer/data/emoji

Skin tones are left out, and so is what is not in the pictures' own set. Pictures: Noto Emoji, Apache-2.0.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from PIL import Image

FOLDER = Path(__file__).parents[1] / "examples" / "emoji"
ARCHIVE = Path("~/.cache/slimformer/data/emoji/emoji-datasource-google-16.0.0.tgz").expanduser()
EDGE, ACROSS, EVERY = 24, 40, 2  # every second emoji


def main() -> None:
    with tarfile.open(ARCHIVE) as package:
        files = {member.name: member for member in package.getmembers()}
        rows = json.load(package.extractfile(files["package/emoji.json"]))  # type: ignore[arg-type]
        known = [row for row in rows if f"package/img/google/64/{row['image']}" in files and row["has_img_google"]]
        tiles, lines = [], ["name\tgroup"]
        for row in sorted(known, key=lambda row: row["sort_order"])[::EVERY]:
            content = package.extractfile(files[f"package/img/google/64/{row['image']}"]).read()  # type: ignore[union-attr]
            picture = Image.open(io.BytesIO(content)).convert("RGBA")
            white = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
            tiles.append(white.resize((EDGE, EDGE), Image.Resampling.BOX))
            said = ", ".join(row["short_names"]).replace("_", " ").replace("-", " ")
            lines.append(f"{row['name'].lower()}: {said}\t{row['category']}")
    sheet = Image.new("RGB", (ACROSS * EDGE, -(-len(tiles) // ACROSS) * EDGE), "white")
    for i, tile in enumerate(tiles):
        sheet.paste(tile, (i % ACROSS * EDGE, i // ACROSS * EDGE))
    FOLDER.mkdir(exist_ok=True)
    sheet.quantize(128, dither=Image.Dither.NONE).save(FOLDER / "emoji.png", optimize=True)
    (FOLDER / "names.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(tiles)} emoji in {FOLDER}")


if __name__ == "__main__":
    main()
