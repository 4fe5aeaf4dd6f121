"""Refinement may help or do nothing; it never leaves the outputs farther away than it found them."""

import torch

import slimformer
from families import tiny
from slimformer.steps import refine as refinement

IDS = torch.randint(0, 60, (80, 16), generator=torch.Generator().manual_seed(0))


def weights(**how):
    return slimformer.compress(tiny("llama"), IDS, macs=0.6, timing=False, **how).model.state_dict()


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_it_changes_readers_and_the_same_seed_gives_the_same_bits():
    assert not same(weights(refine=True), weights(refine=False))
    assert same(weights(refine=True), weights(refine=True))


def test_a_refinement_that_moves_the_outputs_away_is_taken_back(monkeypatch):
    real = refinement.correct

    def ruinous(small, *args, **kwargs):
        found = real(small, *args, **kwargs)
        small.get_submodule("model.layers.1.mlp.down_proj").weight.mul_(-50)
        return found

    monkeypatch.setattr(refinement, "correct", ruinous)
    assert same(weights(refine=True), weights(refine=False))
