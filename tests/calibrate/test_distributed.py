"""Two processes under torchrun find what one finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import slimformer
from families import tiny, tiny_batches
from slimformer.calibrate.collect import collect
from slimformer.calibrate.distributed import ALONE, Followed, World, _together, lead_only, world
from slimformer.calibrate.store import open_statistics
from slimformer.cli.terminal import require_alone
from slimformer.errors import ModelBroken, ProcessLost, SlimformerError
from slimformer.models import describe
from slimformer.models.residence import InMemory
from terminal import done

LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
APART = """
import os, sys
os.chdir(os.environ["RANK"])
from slimformer.cli.app import main
main()
"""


def started(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Two processes."""
    source = str(Path(slimformer.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [*LAUNCH, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=cwd)


def torchrun(*arguments: object) -> None:
    """The command line in two processes."""
    found = started("-m", "slimformer", *arguments)
    assert found.returncode == 0, found.stderr[:4000] + found.stderr[-1000:]
    assert found.stdout.count("macs_kept") <= 1  # one of them speaks


def require_near(ours: Tensor, theirs: Tensor) -> None:
    """Products in single precision about other points: each is as good as the largest is rounded."""
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6 * float(ours.abs().max()))


@pytest.mark.slow
def test_two_processes_give_the_moments_and_the_plan_of_one(shelf, tmp_path):
    data = ("--data", shelf / "text.txt", "--tokens", 600, "--seq-len", 16)  # several batches of every split
    done("calibrate", shelf / "llama", *data, "--out", tmp_path / "one", "-q")
    torchrun("calibrate", shelf / "llama", *data, "--out", tmp_path / "two", "-q")
    one, two = open_statistics(tmp_path / "one"), open_statistics(tmp_path / "two")
    assert one.provenance == two.provenance
    for i in range(one.provenance.n_blocks):
        ours, theirs = one.block(i), two.block(i)
        assert ours.error_weight == pytest.approx(theirs.error_weight, rel=1e-9)
        for name, splits in ours.sites.items():
            for split, moments in splits.items():
                other = theirs.sites[name][split]
                assert moments.count == other.count
                require_near(moments.gram, other.gram)
        for split, response in ours.responses.items():
            assert response.count == theirs.responses[split].count
            torch.testing.assert_close(response.planes, theirs.responses[split].planes, rtol=1e-6, atol=1e-6)
        for split, moments in ours.joint.items():
            require_near(moments.gram, theirs.joint[split].gram)
    how = (*data, "--macs", 0.6, "--no-timing", "--json")
    done("compress", shelf / "llama", *how, "--out", tmp_path / "small-one")
    torchrun("compress", shelf / "llama", *how, "--out", tmp_path / "small-two")
    plans = [json.loads((tmp_path / f"small-{name}" / "plan.json").read_text()) for name in ("one", "two")]
    harms = [plan.pop("predicted_kl") for plan in plans]
    assert plans[0] == plans[1] and harms[0] == pytest.approx(harms[1], rel=1e-5)


@pytest.mark.slow
def test_processes_that_read_different_data_are_refused(shelf, tmp_path):
    text = (shelf / "text.txt").read_text()
    for rank, content in enumerate((text, text.upper())):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "text.txt").write_text(content)
    (tmp_path / "apart.py").write_text(APART)
    how = ("--data", "text.txt", "--tokens", 600, "--seq-len", 16, "--out", tmp_path / "stats", "-q")
    found = started("apart.py", "calibrate", shelf / "llama", *how, cwd=tmp_path)
    assert found.returncode != 0
    assert "process 1 does not see the same data as process 0" in found.stderr
    assert "same model and" not in found.stderr.replace("put the same model and", "")
    assert not (tmp_path / "stats").exists()


def test_a_lost_process_is_said_in_one_line():
    def broken(*_args: object) -> None:
        raise RuntimeError("[pair.cc:534] Connection closed by peer")

    with pytest.raises(ProcessLost, match="another process of this run has ended"):
        _together(broken, torch.zeros(1))


def test_shares_add_up_to_the_whole():
    model = tiny("llama")
    architecture, data = describe(model), {"fit": tiny_batches(model, 5)}
    whole = list(collect(model, architecture, data))
    parts = [list(collect(model, architecture, data, residence=InMemory((which, 2)))) for which in range(2)]
    for i, block in enumerate(whole):
        for site, splits in block.sites.items():
            total = parts[0][i].sites[site]["fit"] + parts[1][i].sites[site]["fit"]
            assert total.count == splits["fit"].count
            require_near(total.gram, splits["fit"].gram)
        responses = [part[i].responses["fit"] for part in parts if "fit" in part[i].responses]
        assert sum(r.count for r in responses) == block.responses["fit"].count


def test_alone_nothing_is_changed():
    assert world() == ALONE
    assert ALONE.leads
    assert all(ALONE.deals(n) for n in range(3))
    assert [World(1, 3).deals(n) for n in range(4)] == [False, True, False, False]
    assert ALONE.told({"a": 1}) == {"a": 1}
    lead_only()


def test_followers_end_well_and_other_commands_are_for_one(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(Followed) as ended:
        lead_only()
    assert ended.value.code == 0
    require_alone("compress")
    with pytest.raises(SlimformerError, match="for one process"):
        require_alone("plan")


def test_a_dispatched_model_stays_where_it_is():
    """accelerate moves what every block is given; nothing here moves the model."""
    accelerate = pytest.importorskip("accelerate")
    model = tiny("llama")
    data = {"fit": tiny_batches(model, 2)}
    before = [block.sites for block in collect(model, describe(model), data)]
    dispatched = accelerate.dispatch_model(model, {"": "cpu"}, main_device="cpu", force_hooks=True)
    hooks = [id(module._hf_hook) for module in dispatched.modules() if hasattr(module, "_hf_hook")]
    assert hooks
    after = [block.sites for block in collect(dispatched, describe(dispatched), data)]
    for ours, theirs in zip(before, after, strict=True):
        assert all(torch.equal(ours[site]["fit"].gram, theirs[site]["fit"].gram) for site in ours)
    assert hooks == [id(module._hf_hook) for module in dispatched.modules() if hasattr(module, "_hf_hook")]


def test_a_model_that_is_offloaded_is_refused(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    offloaded = accelerate.disk_offload(tiny("llama"), tmp_path, execution_device="cpu")
    with pytest.raises(ModelBroken, match=r"offloaded .* compress_streamed"):
        slimformer.compress(offloaded, torch.zeros(2, 8, dtype=torch.long), macs=0.6)
