"""The smallest model along the frontier whose divergence from the dense one is certified."""

from __future__ import annotations

from functools import partial

from slimformer.errors import BudgetOutOfReach
from slimformer.evaluate.certificate import certify, require_documents
from slimformer.evaluate.fidelity import document_harms, harm_name
from slimformer.messages.words import option
from slimformer.plan import Budget
from slimformer.plan.settings import CutSettings
from slimformer.report.names import source_names
from slimformer.run import Run
from slimformer.steps.frontier import budgets_at, frontier, reachable
from slimformer.steps.make import make

NEARLY_ALL = (0.99, 0.98, 0.97)  # budgets between the first two steps of a frontier, for small divergences
SHARES = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9, 1.0, 1.15, 1.3, 1.6, 2.0, 3.0)  # of what is allowed, as probes predict it


def require_certifiable(run: Run, max_kl: float | None) -> None:
    """Refuse, before the long work, if a certificate is asked for and there are too few documents for one."""
    if max_kl is not None:
        documents = sum(len(next(iter(batch.inputs.values()))) for batch in run.splits["certify"])
        require_documents(documents, epsilon=max_kl)


def smallest_certified(run: Run, settings: CutSettings, max_kl: float) -> Run:
    """The smallest model that passes, with its certificate. The certify split is opened here only."""
    batches, dense = run.splits["certify"], run.dense
    steps = reachable(run, settings)
    steps += [fraction for fraction in NEARLY_ALL if fraction > min(steps)]
    budgets = budgets_at(frontier(run, settings, steps), [share * max_kl for share in SHARES])
    if not budgets:
        raise BudgetOutOfReach(
            f"there is nothing to certify: no smaller model can be made; use {option('format', 'ragged')}"
        )
    measure = harm_name(dense, batches)
    runs: list[Run] = []

    def harms(fraction: float) -> list[float]:
        runs[:-1] = []  # of the models before, only the last may have to be returned
        runs.append(make(run, Budget(fraction), settings))
        return document_harms(dense, runs[-1].model, batches)

    certificate = certify(((fraction, partial(harms, fraction)) for fraction in budgets), epsilon=max_kl)
    line = certificate.statement(measure, population(run))
    if certificate.budget is None:
        raise BudgetOutOfReach(line)
    smallest = next(each for each in runs if each.decided.budget == certificate.budget)
    return smallest.reporting(certificate={**certificate.to_json(), "statement": line})


def population(run: Run) -> str:
    """What the mean of a certificate is over: texts like these, as far as they are read."""
    read = run.data
    assert read is not None, "a certificate rests on data"
    name, most = source_names(read.name), f" (the first {read.seq_len:,} tokens of each)"
    return f"{read.unit}s like those of {name}{'' if read.unit == 'image' else most}"
