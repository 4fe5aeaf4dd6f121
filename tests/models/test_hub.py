"""A hub that cannot be reached is asked once; then its clients look at what was fetched before, and do not wait."""

from __future__ import annotations

import http.server
import threading

import pytest
from huggingface_hub import constants, get_session

from slimformer.errors import DataNotFound, ModelNotFound
from slimformer.models.hub import hub_or_cache
from slimformer.models.load import load_model


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Online, as far as anybody has been told; but nobody is there."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)


@pytest.mark.usefixtures("nowhere")
def test_where_nobody_answers_clients_are_offline_and_then_as_before():
    with hub_or_cache():
        assert constants.is_offline_mode()
    assert not constants.is_offline_mode()


@pytest.mark.usefixtures("nowhere")
def test_any_answer_will_do(monkeypatch):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:  # knows no method
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        with hub_or_cache():
            assert not constants.is_offline_mode()


@pytest.mark.usefixtures("nowhere")
def test_neither_models_nor_data_are_asked_for_again_and_again(monkeypatch):
    """One request each; the others are refused before they leave."""
    from slimformer.calibrate.tasks import read_task

    asked = []
    send = type(get_session()).send

    def counted(*args, **how):
        asked.extend([] if constants.is_offline_mode() else [args])
        return send(*args, **how)

    monkeypatch.setattr(type(get_session()), "send", counted)
    with pytest.raises(ModelNotFound, match="check the name and the network"):
        load_model("nobody/nothing")
    with pytest.raises(DataNotFound, match="OfflineModeIsEnabled"):
        read_task("sst2")
    assert len(asked) == 2


@pytest.mark.usefixtures("nowhere")
def test_two_threads_leave_the_settings_as_they_were():
    first, second = threading.Event(), threading.Event()

    def other():
        with hub_or_cache():
            second.set()
            first.wait(10)

    thread = threading.Thread(target=other)
    with hub_or_cache():
        thread.start()
        second.wait(1)  # without a lock it is inside by now, and takes what it finds for what was before
    first.set()
    thread.join()
    assert not constants.is_offline_mode()
