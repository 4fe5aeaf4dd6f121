"""A classifier without training: features of a frozen encoder, a head in closed form, learning and forgetting.

Words of the test sentences occur nowhere in the training sentences.
"""

import itertools

import torch

from slimformer.calibrate.documents import Document
from slimformer.heads.analytic import AnalyticHead
from slimformer.heads.attach import attach
from slimformer.heads.classify import probe, score
from slimformer.heads.features import Features, feature_chunks
from slimformer.models.load import load_model

THINGS = ["film", "meal", "hotel", "concert", "novel", "journey", "lecture", "match", "play", "holiday"]
WORDS = {
    "train": {"bad": ["dreadful", "boring", "awful", "poor"], "good": ["wonderful", "exciting", "lovely", "superb"]},
    "test": {"bad": ["terrible", "dull", "horrible"], "good": ["great", "delightful", "excellent"]},
}


def documents(part):
    """Labelled sentences."""
    for label, words in WORDS[part].items():
        for thing, word in itertools.product(THINGS, words):
            yield Document(f"The {thing} was {word}.", label=label)


encoder = load_model("demo:minilm")
found = probe(encoder, documents("train"), Features(("cls", "mean"), (3, 6), seq_len=32))
scores = score(encoder, found, documents("test"))
print(f"read at {found.reading}; accuracy on unseen words {scores['accuracy']['value']:.3f}")

# The same head by hand: features, sums, a merge, and a row that is forgotten.
chunk = next(feature_chunks(encoder.model, encoder.processor, documents("train"), [found.reading], seq_len=32))
X, y = chunk.features[found.reading], chunk.labels
one, two = AnalyticHead("lda").fit(X[::2], y[::2]), AnalyticHead("lda").fit(X[1::2], y[1::2])
both = one + two
assert abs(both.coef_ - AnalyticHead("lda").fit(X, y).coef_).max() < 1e-6 * abs(both.coef_).max()
both.forget(X[:1], y[:1])
print(f"after forgetting one sentence: {both.moments_.counts.sum():.0f} rows, classes {both.classes_.tolist()}")

# Where stock classes can hold the head (the first position), it becomes one.
if found.reading.pool == "cls":
    classifier = attach(encoder.model, found.head, found.reading)
    batch = encoder.processor(["The soup was excellent."], return_tensors="pt")
    with torch.no_grad():
        print(type(classifier).__name__, classifier(**batch).logits.softmax(1).tolist())
