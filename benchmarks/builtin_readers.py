"""A reader for each source of the built-in text: from the folder of an unpacked package to documents."""

import bz2
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import yaml

from builtin_cleaning import (
    LONGEST,
    SHORTEST,
    from_html,
    from_mallard,
    from_pod,
    from_rst,
    from_wikitext,
    pack,
    paragraphs,
    sentences,
    tidy,
)

ENGLISH = re.compile(r"\b(?:the|your|you|and|with|from)\b.*\b(?:the|your|you|and|with|from|to|is|of)\b")


def files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.rglob(pattern) if path.is_file())


def long_enough(texts: Iterable[str], least: int = SHORTEST) -> Iterator[str]:
    return (text for text in texts if least <= len(text) <= LONGEST + 500)


def wikipedia(folder: Path) -> Iterator[str]:
    (file,) = files(folder, "enwiki-latest-pages-articles1*shortened.bz2")
    for page in re.findall(r"<page>(.*?)</page>", bz2.decompress(file.read_bytes()).decode(), re.S):
        text = re.search(r"<text[^>]*>(.*?)</text>", page, re.S)
        if text and "<redirect" not in page:
            body = text[1].replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
            yield from long_enough(pack(from_wikitext(body)))


def countries(folder: Path) -> Iterator[str]:
    """Background, economy and disputes of each country: the running text of the World Factbook."""
    for file in files(folder, "*.json"):
        if file.parent.name == "package":
            continue
        profile = json.loads(file.read_text("utf-8"))
        for chapter, entry in (
            ("Introduction", "Background"),
            ("Economy", "Economy - overview"),
            ("Transnational Issues", "Disputes - international"),
        ):
            said = profile.get(chapter, {}).get(entry, {})
            text = tidy(re.sub(r"\s*\+\+\s*|<[^>]+>", " ", said.get("text", "")))
            yield from long_enough([text], 200)


def speeches(folder: Path) -> Iterator[str]:
    for file in files(folder, "*.txt"):
        if file.stem[:4].isdigit() and int(file.stem[:4]) >= 1975:
            parts = re.split(r"(?<=[.!?]) (?=[A-Z])", tidy(re.sub(r"\[[^\]]*\]", "", file.read_text("utf-8"))))
            yield from long_enough(" ".join(block.split("\n\n")) for block in pack(parts))


def jargon(folder: Path) -> Iterator[str]:
    text = gzip.decompress(files(folder, "jargon.dict.dz")[0].read_bytes()).decode("utf-8", "replace")
    for entry in re.split(r"\n(?=\S)", text):
        headword, _, body = entry.partition("\n")
        parts = [re.sub(r"[{}]", "", part) for part in paragraphs(body) if not part.startswith("00-")]
        parts = [part for part in parts if "�" not in part and len(re.findall(r"[-+|_/\\#*=]{3,}", part)) == 0]
        if parts and not headword.startswith("00"):
            yield from long_enough(pack([f"{headword}: {parts[0]}", *parts[1:]]), 200)


def perl_questions(folder: Path) -> Iterator[str]:
    for file in files(folder, "perlfaq[1-9].pod"):
        for answer in re.split(r"^=head2 ", file.read_text("utf-8"), flags=re.M)[1:]:
            answer = re.split(r"^=head1 ", answer, flags=re.M)[0]
            parts = [part if part.startswith((" ", "\t")) else tidy(part) for part in from_pod(answer)]
            text = "\n\n".join(part.rstrip() for part in parts if part.strip())
            yield from long_enough([re.sub(r"\(contributed by [^)]*\)\s*", "", text)], 200)


def python_questions(folder: Path) -> Iterator[str]:
    for file in files(folder, "*.rst.txt"):
        if file.parent.name == "faq":
            for answer in re.split(r"\n(?=[^\n]+\?\n[-=]{4,}\n)", file.read_text("utf-8"))[1:]:
                question, _, body = answer.partition("\n")
                body = body.split("\n", 1)[-1]
                yield from long_enough(["\n\n".join([tidy(question), *from_rst(body)])], 200)


def python_documentation(folder: Path) -> Iterator[str]:
    for file in files(folder, "*.rst.txt"):
        if file.parent.name in ("howto", "tutorial", "reference", "library"):
            yield from long_enough(pack(from_rst(file.read_text("utf-8"))))


def botchan(folder: Path) -> Iterator[str]:
    text = (files(folder, "botchan.txt")[0]).read_text("utf-8-sig")
    body = text[text.index("CHAPTER I") : text.index("End of Project Gutenberg")]
    lines = [line for line in body.split("\n") if not re.match(r"\s*(?:CHAPTER|\[Footnote|\[Illus)", line)]
    parts = re.split(r"(?<=[.!?\"]) (?=[A-Z\"])", tidy(re.sub(r"\[\w+\]|\[\d+\]|_", "", " ".join(lines))))
    yield from long_enough(" ".join(block.split("\n\n")) for block in pack(parts))


def moby_dick(folder: Path) -> Iterator[str]:
    for file in files(folder / "package" / "data", "*.txt"):
        yield from long_enough(pack(paragraphs(file.read_text("utf-8").replace("_", ""))))


def austen(folder: Path) -> Iterator[str]:
    """The novels as R keeps them: compressed vectors of lines, each string with its length before it."""
    data = (files(folder / "usr/lib/R/site-library/janeaustenr/data", "Rdata.rdb")[0]).read_bytes()
    while data:  # each vector: its length unpacked, then the packed bytes
        packed = zlib.decompressobj()
        raw = packed.decompress(data[4:])
        data = packed.unused_data
        yield from long_enough(pack(paragraphs("\n".join(r_strings(raw)).replace("_", ""))))


def r_strings(raw: bytes) -> Iterator[str]:
    at = raw.find(b"\x00\x04\x00\x09")
    while at >= 0:
        size = int.from_bytes(raw[at + 4 : at + 8], "big")
        yield raw[at + 8 : at + 8 + size].decode("utf-8", "replace")
        following = at + 8 + size
        at = raw.find(b"\x00\x04\x00\x09", following)


def talk(folder: Path) -> Iterator[str]:
    """Passages of the novels in which nearly every paragraph is somebody speaking."""
    for text in austen(folder):
        parts = text.split("\n\n")
        if len(parts) > 3 and sum(part.startswith('"') for part in parts) >= 0.75 * len(parts):
            yield text


def chatterbot(folder: Path) -> Iterator[str]:
    """Conversations of several turns; exchanges of one question and one answer are joined by topic."""
    for file in files(folder / "chatterbot_corpus/data/english", "*.yml"):
        if file.stem in ("gossip", "politics", "humor", "emotion", "psychology", "botprofile", "greetings", "ai"):
            continue  # taste and harm
        talks = yaml.safe_load(file.read_text("utf-8"))["conversations"]
        once = {str(talk[0]).lower(): talk for talk in talks}  # many questions are there with several answers
        yield from long_enough(pack((turns(map(str, talk)) for talk in once.values()), 500), 120)


def turns(lines: Iterable[str]) -> str:
    return "\n".join(f"{'AB'[turn % 2]}: {tidy(line)}" for turn, line in enumerate(lines))


def flare(folder: Path) -> Iterator[str]:
    for file in files(folder, "*.txt"):
        text = file.read_text("utf-8", "replace")
        if not re.search(r"^you=", text, re.M):
            continue
        name = re.search(r"^name=(.*)$", text, re.M)
        talks = []
        for talk in text.split("[dialog]")[1:]:
            lines = re.findall(r"^(him|her|you)=(.*)$", talk, re.M)
            other = name[1] if name else "Stranger"
            talks.append("\n".join(f"{'Traveller' if who == 'you' else other}: {tidy(line)}" for who, line in lines))
        yield from long_enough(pack([talk for talk in talks if talk.count("\n") > 0], 600), 150)


def plays(folder: Path) -> Iterator[str]:
    for title in ("much_ado_about_nothing", "twelfth_night", "as_you_like_it", "the_taming_of_the_shrew"):
        for file in files(folder, f"{title}_gut.txt"):
            text = re.sub(r"\n{3,}", "\n\n", file.read_text("latin-1").replace("\r", ""))
            yield from long_enough(pack(re.sub(r" *\n *", "\n", part.strip()) for part in text.split("\n\n")[20:]))


def gnome(*languages: str) -> Callable[[Path], Iterator[str]]:
    def read(folder: Path) -> Iterator[str]:
        for language in languages:
            least = 100 if language.startswith(("zh", "ja", "ko")) else SHORTEST
            for file in files(folder / "usr/share/help" / language / "gnome-help", "*.page"):
                parts = from_mallard(file.read_text("utf-8"))
                original = folder / "usr/share/help/C/gnome-help" / file.name
                if language != "C":  # what nobody has translated yet stands there in English
                    english = set(from_mallard(original.read_text("utf-8"))) if original.exists() else set()
                    parts = [part for part in parts if part not in english and not ENGLISH.search(part)]
                yield from long_enough(pack(parts), least)

    return read


def handbook(*languages: str) -> Callable[[Path], Iterator[str]]:
    def read(folder: Path) -> Iterator[str]:
        for language in languages:
            for file in files(folder / "usr/share/doc/debian-handbook/html" / language, "sect.*.html"):
                parts = [part for part in from_html(file.read_text("utf-8")) if len(part) > 80]
                yield from long_enough(pack(parts), 100 if language.startswith(("zh", "ja")) else SHORTEST)

    return read


def lessons(folder: Path) -> Iterator[str]:
    for file in files(folder, "*.json"):
        if "challenges" not in file.parts or "08-coding-interview-prep" in file.parts:
            continue  # that chapter has texts of others, under other licences
        for lesson in json.loads(file.read_text("utf-8")).get("challenges", []):
            said = [part for part in lesson.get("description", []) if isinstance(part, str)]
            parts = [line for part in said for line in lesson_lines(part)]
            yield from long_enough(["\n\n".join([lesson["title"], *parts])])


def lesson_lines(part: str) -> list[str]:
    code = re.sub(r"<sup>(.*?)</sup>", r"^\1", re.sub(r"</?blockquote>", "\n", part))
    code = re.sub(r"<br\s*/?>", "\n", code)
    return [line for raw in code.split("\n") if (line := tidy(re.sub(r"<[^>]+>", "", raw)))]


def metamath(folder: Path) -> Iterator[str]:
    """Comments before theorems and definitions, with the statement."""
    text = files(folder, "set.mm")[0].read_text("utf-8", "replace")
    for comment, statement in re.findall(r"\$\(((?:(?!\$\)).)*?)\$\)\s*\S+ \$[ap] \|- (.*?) \$[.=]", text, re.S):
        said = re.sub(r"\((?:Contributed|Revised|Proof shortened|New usage|Proof modification)[^)]*\)", "", comment)
        said = re.sub(r"(?: of)? \[[^\]]*\](?: p\. \w+)?", "", tidy(said))
        said = re.sub(r"``\s?(.*?)``|~ (\S+)|_(\w+)_", lambda match: match[1] or match[2] or match[3], said)
        formula = " ".join(statement.split())
        yield from long_enough([f"{tidy(said)}\n\n{formula}"], 250)


NOT_CODE = r"/(?:test|tests|\.|node_modules|examples?)/|\.min\."


def code(*patterns: str, skip: str = NOT_CODE) -> Callable[[Path], Iterator[str]]:
    """Pieces of source files: whole definitions with their lines, without the licence at the top."""

    def read(folder: Path) -> Iterator[str]:
        for pattern in patterns:
            for file in files(folder, pattern):
                if not re.search(skip, str(file.relative_to(folder))):
                    yield from long_enough(definitions(file.read_text("utf-8", "replace").replace("\r", "")))

    return read


def definitions(text: str) -> Iterator[str]:
    blocks = re.split(r"\n(?=(?:def |class |function |async |export |static |template|STBI|void |int |@|/\*\*))", text)
    block = ""
    for piece in blocks[1:]:
        if re.search(r"copyright|licen[sc]e", piece, re.I) or max(map(len, piece.split("\n"))) > 200:
            continue
        if block and len(block) + len(piece) > LONGEST:
            yield block.strip("\n")
            block = ""
        block += piece.rstrip() + ("\n" if piece.startswith("@") and "\n" not in piece.strip() else "\n\n")
        if len(block) > 900:
            yield block.strip("\n")
            block = ""


def human_rights(folder: Path) -> Iterator[str]:
    tags = "arb hin tur pol nld swh ind ell_monotonic heb tha vie ben kor fin ukr"
    for name in tags.split():
        for file in files(folder, f"{name}.html"):
            yield from long_enough(pack(from_html(file.read_text("utf-8"), {"head"}), 900), 150)


def definitions_and_examples(folder: Path) -> Iterator[str]:
    for file in files(folder, "data.*"):
        for line in file.read_text("utf-8").split("\n"):
            if line.startswith("  ") or "|" not in line:
                continue
            words, gloss = line.split("|", 1)
            word = words.split()[4].replace("_", " ")
            examples = [example for example in re.findall(r'"([^"]+)"', gloss) if len(example) > 25]
            definition = gloss.split('"')[0].strip(" ;")
            if 40 <= len(definition) <= 200:
                yield f"{word}: {definition}"
            yield from examples[:1]


def questions(folder: Path) -> Iterator[str]:
    for file in files(folder / "chatterbot_corpus/data/english", "*.yml"):
        topics = "trivia science history computers sports literature food health money tech_support"
        if file.stem in topics.split():
            for talk in yaml.safe_load(file.read_text("utf-8"))["conversations"]:
                question = tidy(str(talk[0]))
                yield question[:1].upper() + question[1:]


def single(read: Callable[[Path], Iterable[str]]) -> Callable[[Path], Iterator[str]]:
    """Single sentences of a source, for encoders and classifiers."""

    def read_sentences(folder: Path) -> Iterator[str]:
        for text in read(folder):
            yield from sentences(text)

    return read_sentences


def titles(folder: Path) -> Iterator[str]:
    for file in files(folder / "usr/share/help/C/gnome-help", "*.page"):
        parts = from_mallard(file.read_text("utf-8"))
        yield from (part for part in parts[:1] if len(part) > 12)
