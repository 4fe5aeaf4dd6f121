"""Markup to running text, for the built-in calibration text."""

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser

SHORTEST, USUAL, LONGEST = 300, 800, 3_000  # characters of one document
SKIPPED_TAGS = {"script", "style", "pre", "table", "nav", "head", "svg", "title", "dl"}
PARAGRAPH_TAGS = {"p", "li", "h1", "h2", "h3", "h4", "dd", "dt", "blockquote", "title", "item"}


def tidy(text: str) -> str:
    """One paragraph on one line: NFC, plain spaces, no space before punctuation that lost its markup."""
    text = unicodedata.normalize("NFC", html.unescape(text)).replace("\u00ad", "").replace("\ufeff", "")
    text = re.sub(r"\s\(\s*[;,]?\s*\)", "", text)  # what a template between brackets leaves
    text = re.sub(r"[\s\u200b]+", " ", text).strip()
    return re.sub(r" +([,.;:!?)])(?=\s|$)", r"\1", text)


def paragraphs(text: str) -> list[str]:
    return [line for part in re.split(r"\n\s*\n", text.replace("\r", "")) if (line := tidy(part))]


def pack(parts: Iterable[str], usual: int = USUAL) -> Iterator[str]:
    """Neighbouring paragraphs joined to documents of natural length."""
    block: list[str] = []
    size = 0
    for part in parts:
        if block and size + len(part) > LONGEST:
            yield "\n\n".join(block)
            block, size = [], 0
        block.append(part)
        size += len(part) + 2
        if size >= usual:
            yield "\n\n".join(block)
            block, size = [], 0
    if block:
        yield "\n\n".join(block)


def from_wikitext(text: str) -> list[str]:
    text = re.sub(r"<!--.*?-->|<math.*?</math>|<gallery.*?</gallery>", "", text, flags=re.S)
    text = re.sub(r"<ref[^>/]*/>|<ref.*?</ref>", "", text, flags=re.S)
    text = re.sub(r"\{\{convert\|([\d.,]+)\|(\w+).*?\}\}", r"\1 \2", text)
    for _ in range(6):  # templates and tables are nested
        text = re.sub(r"\{\{[^{}]*\}\}|\{\|(?:(?!\{\|).)*?\|\}", "", text, flags=re.S)
        text = re.sub(r"\[\[(?:File|Image|Category)[^\[\]]*\]\]", "", text, flags=re.I)
        text = re.sub(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", r"\1", text)
    text = re.sub(r"\[https?:\S+ ([^\]]*)\]|\[https?:\S+\]", r"\1", text)
    text = re.sub(r"'{2,}|</?[a-zA-Z][^>]*>", "", text)
    lines = (line.strip() for line in text.split("\n"))
    return [tidy(line) for line in lines if len(line) > 80 and line[0] not in "*#:;|={}!<" and "|" not in line]


class _Prose(HTMLParser):
    def __init__(self, skipped: set[str]) -> None:
        super().__init__(convert_charrefs=True)
        self.skipped, self.depth, self.parts = skipped, 0, [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.skipped:
            self.depth += 1
        elif tag in PARAGRAPH_TAGS:
            self.parts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.skipped:
            self.depth = max(self.depth - 1, 0)
        elif tag in PARAGRAPH_TAGS:
            self.parts.append("")

    def handle_data(self, data: str) -> None:
        if not self.depth:
            self.parts[-1] += data


def from_html(text: str, skipped: set[str] | None = None) -> list[str]:
    parser = _Prose(SKIPPED_TAGS if skipped is None else skipped)
    parser.feed(text)
    parser.close()
    return [part for raw in parser.parts if (part := tidy(raw))]


def from_mallard(text: str) -> list[str]:
    """A GNOME help page: its title and paragraphs, without the block of authors and links."""
    text = re.sub(r"</key>\s*<key>", "</key>+<key>", text)
    text = re.sub(r"<\?.*?\?>|<!--.*?-->|<info>.*?</info>|<info .*?</info>|<code.*?</code>", "", text, flags=re.S)
    text = re.sub(r"<(?:\w+:)?(screen|table|comment|media)\b.*?</(?:\w+:)?\1>", "", text, flags=re.S)
    parts = from_html(text, skipped=set())  # a link without words leaves "See for more information."
    return [said for part in parts if (said := re.sub(r"\s*\bSee (?:for [^.]*)?\.", "", part).strip())]


def from_pod(text: str) -> list[str]:
    """Perl's documentation format; indented lines are code and stay as they are inside an answer."""
    for _ in range(3):
        text = re.sub(r"[BCIFSX]<{2,}\s(.*?)\s>{2,}", r"\1", text)
        text = re.sub(r"L<(?:[^<>|]*\|)?([^<>]*)>", r"\1", text)
        text = re.sub(r"[XZ]<[^<>]*>", "", text)
        text = re.sub(r"[BCIFS]<([^<>]*)>", r"\1", text)
    text = text.replace("E<gt>", ">").replace("E<lt>", "<")
    text = re.sub(r"^=(?:over|back|item|encoding|cut|begin|end|for).*$", "", text, flags=re.M)
    return text.split("\n\n")


def from_rst(text: str) -> list[str]:
    """Prose of reStructuredText: directives, tables and literal blocks are left out."""
    kept = []
    for part in re.split(r"\n\s*\n", text):
        lines = part.strip("\n").split("\n")
        marks = ("..", "+--", "===", "* ", ">>>", "|", ":", "- ", "#")
        if lines[0].lstrip().startswith(marks) or lines[0].startswith("   "):
            continue
        prose = " ".join(line.strip() for line in lines)
        prose = re.sub(r":[\w:+-]+:`[!~]?(?:([^`<]+?)\s*<[^`>]*>|([^`]*))`", lambda m: m[1] or m[2], prose)
        prose = re.sub(r"`([^`<]+?)\s*<[^`>]*>`__?", r"\1", prose)
        prose = re.sub(r"``([^`]*)``|\*\*([^*]+)\*\*|(?<!\*)\*([^*\s][^*]*)\*", lambda m: m[1] or m[2] or m[3], prose)
        prose = re.sub(r"`([^`]+)`_?|\[#\w+\]_|\|(\w+)\|", lambda m: m[1] or m[2] or "", prose)
        if len(prose) > 60 and not prose.endswith(":") and not re.search(r"([=~^*\"'-])\1{4}", prose):
            kept.append(tidy(prose))
    return kept


def sentences(text: str) -> list[str]:
    text = re.sub(r"\s+", " ", text)
    parts = re.split(r'(?<=[.!?]["”]) (?=[A-Z"“])|(?<=[.!?]) (?=[A-Z"“])', text)
    rows = [part.strip() for part in parts]
    broken = re.compile(r"\b(?:Mr|Mrs|Dr|St|vs|e\.g|i\.e|etc|U\.S|No|c)\.$")
    whole = [row for row in rows if 30 <= len(row) <= 220 and row[0].isupper() and row[-1] in '.!?"”']
    return [row for row in whole if not broken.search(row)]
