"""Shrink a classifier: an encoder whose head is fitted by least squares on a few built-in sentences.

The data carry labels, so the report has an accuracy. Words of the test sentences occur nowhere else.
"""

import itertools
import tempfile

import torch
from transformers import AutoTokenizer, BertForSequenceClassification

import slimformer
from slimformer.calibrate.documents import Document
from slimformer.models.load import load_model

THINGS = ["film", "meal", "hotel", "concert", "novel", "journey", "lecture", "match", "play", "holiday", "cake", "show"]
ENDS = ["", ", from start to finish", ", and everybody said so", "; that is all I can say"]
BAD, GOOD = ["dreadful", "boring", "awful", "poor", "ugly"], ["wonderful", "exciting", "lovely", "superb", "charming"]
WORDS = {"train": [BAD, GOOD], "test": [["terrible", "dull", "horrible"], ["great", "delightful", "excellent"]]}


def documents(part):
    """Labelled sentences: 0 for a complaint, 1 for praise."""
    for label, words in enumerate(WORDS[part]):
        for thing, word, end in itertools.product(THINGS, words, ENDS):
            yield Document(f"The {thing} was {word}{end}.", label=label)


def features(model, tokenizer, rows):
    """What the classification head reads."""
    batch = tokenizer([row.text for row in rows], padding=True, return_tensors="pt")
    return model.bert(**batch).pooler_output, torch.tensor([row.label for row in rows])


def accuracy(model, tokenizer, rows):
    X, labels = features(model, tokenizer, rows)
    return float((model.classifier(X).argmax(1) == labels).float().mean())


with torch.no_grad(), tempfile.TemporaryDirectory() as scratch:
    encoder = load_model("demo:minilm")
    train, test, tokenizer = list(documents("train")), list(documents("test")), encoder.processor
    model = BertForSequenceClassification(encoder.model.config).eval()
    model.bert.load_state_dict(encoder.model.state_dict())
    X, labels = features(model, tokenizer, train)  # ridge regression of ±1 on the features
    Y, mean = 2.0 * torch.nn.functional.one_hot(labels) - 1, X.mean(0)
    W = torch.linalg.solve((X - mean).T @ (X - mean) + 1e-2 * torch.eye(X.shape[1]), (X - mean).T @ Y).T
    model.classifier.weight.copy_(W)
    model.classifier.bias.copy_(-W @ mean)

    result = slimformer.compress(model, train, macs=0.5, processor=tokenizer, seq_len=32, timing=False)
    small = slimformer.load(result.save(f"{scratch}/smaller"))
    print(f"accuracy on unseen words: {accuracy(model, tokenizer, test):.3f} before, ", end="")
    print(f"{accuracy(small, AutoTokenizer.from_pretrained(f'{scratch}/smaller'), test):.3f} after")
