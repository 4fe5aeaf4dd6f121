from pathlib import Path

import datasets
import pyarrow as arrow
import pytest
from pyarrow import parquet

from slimformer.calibrate.documents import Document
from slimformer.calibrate.tasks import TASKS, read_data, read_task
from slimformer.errors import ColumnNotFound, DataEmpty, DataNotFound, UnknownTask


@pytest.fixture(autouse=True)
def hub_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder ./owner/name is what `datasets` takes for owner/name; nothing else can be reached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    return tmp_path


def publish(name: str, parts: dict[str, dict[str, list]]) -> None:
    """Write the data set of a task as the hub holds it: parquet files and a README that lists them."""
    task = TASKS[name]
    root = Path(task.path)
    config = task.config or "default"
    listing = ["---", "configs:", f"- config_name: {config}", "  data_files:"]
    for part, columns in parts.items():
        file = root / config / f"{part}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(arrow.table(columns), file)
        listing += [f"  - split: {part}", f"    path: {config}/{part}.parquet"]
    (root / "README.md").write_text("\n".join([*listing, "---", ""]))


def test_calibration_and_evaluation_are_different_parts():
    publish(
        "sst2",
        {
            "train": {"idx": [0, 1], "sentence": ["good", "bad"], "label": [1, 0]},
            "validation": {"idx": [0], "sentence": ["fine"], "label": [1]},
        },
    )
    assert read_task("sst2") == [Document("good", label=1), Document("bad", label=0)]
    assert read_task("sst2", split="evaluation") == [Document("fine", label=1)]


def test_pairs_scores_and_matched_validation():
    publish(
        "mnli",
        {
            "train": {"premise": ["p"], "hypothesis": ["h"], "label": [2]},
            "validation_matched": {"premise": ["p2"], "hypothesis": ["h2"], "label": [0]},
        },
    )
    assert read_task("mnli", split="evaluation") == [Document("p2", "h2", 0)]


def test_scores_stay_numbers():
    publish("stsb", {"train": {"sentence1": ["a"], "sentence2": ["b"], "label": [3.5]}})
    assert read_task("stsb") == [Document("a", "b", 3.5)]


def test_questions_of_one_article_form_a_group():
    columns = {"title": ["T", "T"], "context": ["c", "c"], "question": ["q1", "q2"], "answers": ["", ""]}
    publish("squad", {"train": columns})
    assert read_task("squad") == [Document("q1", "c", group="T"), Document("q2", "c", group="T")]


def test_lines_of_wikitext_are_joined_into_articles():
    lines = [
        "",
        " = One = \n",
        "",
        " text . \n",
        " = = Part = = \n",
        "",
        " more . \n",
        "",
        " = Two = \n",
        "",
        " x \n",
    ]
    publish("wikitext2", {"train": {"text": lines}, "test": {"text": lines}})
    first, second = read_task("wikitext2", split="evaluation")
    assert first.text.startswith("= One =") and first.text.endswith("more .")
    assert second.text == "= Two = \n\n x"


def test_sentences_of_ptb_are_joined_into_passages():
    publish("ptb", {"train": {"sentence": ["no it was n't black monday"] * 200}})
    documents = read_task("ptb")
    assert 2 <= len(documents) <= 6


def test_c4_is_streamed_up_to_the_limit():
    publish("c4", {"train": {"text": [f"page {i}" for i in range(50)], "url": ["u"] * 50}})
    assert read_task("c4", limit=3) == [Document(f"page {i}") for i in range(3)]
    assert len(read_task("c4")) == 50


def test_a_limit_takes_rows_from_the_whole_set():
    publish("cola", {"train": {"sentence": [f"s{i}" for i in range(100)], "label": [0] * 100}})
    found = [int(document.text[1:]) for document in read_task("cola", limit=10)]
    assert len(found) == 10 and found == sorted(found) and found[-1] > 20
    assert read_task("cola", limit=10) == read_task("cola", limit=10)


def test_names_and_files_can_be_mixed():
    publish("sst2", {"train": {"sentence": ["good"] * 9, "label": [1] * 9}})
    Path("a.txt").write_text("\n\n".join(["file"] * 9))
    texts = [document.text for document in read_data("sst2, a.txt")]
    assert set(texts) == {"good", "file"}
    assert {document.text for document in read_data("a.txt")} == {"file"}
    assert len(read_data("sst2", limit=2)) == 2
    assert read_data(["x", "y"], limit=1) in ([Document("x")], [Document("y")])


def test_an_unknown_task_lists_the_known_ones():
    with pytest.raises(UnknownTask) as caught:
        read_task("sst3")
    assert str(caught.value) == f"there is no data set 'sst3'; choose from {', '.join(TASKS)}"


@pytest.mark.parametrize("name", ["sst2", "c4", "ptb"])
def test_without_network_a_local_file_is_asked_for(name):
    with pytest.raises(DataNotFound) as caught:
        read_task(name)
    message = str(caught.value)
    assert message.startswith(f"train of {name} ({TASKS[name].path}) cannot be had: ")
    assert message.endswith("connect to the network, or give a local file with data=…")
    assert "\n" not in message


def test_a_missing_part_is_named():
    publish("sst2", {"train": {"sentence": ["a"], "label": [1]}})
    with pytest.raises(DataNotFound, match=r"validation of sst2 \(nyu-mll/glue\) cannot be had"):
        read_task("sst2", split="evaluation")


def test_a_missing_column_lists_what_is_there():
    publish("sst2", {"train": {"phrase": ["a"], "label": [1]}})
    with pytest.raises(ColumnNotFound, match=r"column 'sentence' is not in sst2 .*; it has: phrase, label"):
        read_task("sst2")


def test_a_set_without_text_is_empty():
    publish("sst2", {"train": {"sentence": [" "], "label": [1]}})
    with pytest.raises(DataEmpty, match=r"train of sst2 \(nyu-mll/glue\) holds no text"):
        read_task("sst2")
