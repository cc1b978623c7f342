"""Small files in the layouts of public benchmarks, with rows that can be learned."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path

from made_rows import WORDS

LABELS = {"mnli": ("contradiction", "entailment", "neutral"), "chemprot": ("CPR:3", "CPR:4", "CPR:9", "false")}


def _text(draw: random.Random, *marks: str) -> str:
    words = [*draw.choices(WORDS, k=draw.randrange(3, 8)), *marks]
    draw.shuffle(words)
    return " ".join(words)


def _write(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """As GLUE's files are: tabs, and quotes are text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def made_mrpc(folder: Path, counts: Sequence[int] = (48, 16, 8)) -> None:
    """train.tsv, dev.tsv and test.tsv; a second text with a quotation mark that is never closed is among them."""
    draw = random.Random(0)
    for part, count in zip(("train", "dev", "test"), counts, strict=True):
        rows = [["Quality" if part != "test" else "index", "#1 ID", "#2 ID", "#1 String", "#2 String"]]
        for number in range(count):
            right = draw.random() < 0.6
            second = _text(draw, "lovely" if right else "awful") + (' "' if number == 3 else "")
            first = str(number) if part == "test" else str(int(right))
            rows.append([first, "1", "2", _text(draw), second])
        _write(folder / "MRPC" / f"{part}.tsv", rows)


def made_inference(folder: Path, name: str) -> None:
    """train.tsv, dev.tsv and test.tsv of RTE or QNLI, which have the same labels."""
    draw = random.Random(6)
    texts = {"RTE": ["sentence1", "sentence2"], "QNLI": ["question", "sentence"]}[name]
    for part, count in (("train", 48), ("dev", 16), ("test", 8)):
        labelled = part != "test"
        rows = [["index", *texts, *(["label"] if labelled else [])]]
        for number in range(count):
            right = number % 2 == 0
            label = ["entailment" if right else "not_entailment"] if labelled else []
            rows.append([str(number), _text(draw), _text(draw, "lovely" if right else "awful"), *label])
        _write(folder / name / f"{part}.tsv", rows)


def made_mnli(folder: Path) -> None:
    """All five files, and the diagnostic set with labels and without."""
    draw = random.Random(1)
    names = ["index", "promptID", "pairID", "genre", "b1", "b2", "p1", "p2", "sentence1", "sentence2", "label1"]
    for part in ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        labelled = not part.startswith("test")
        rows = [[*names[:10], *(["label1", "gold_label"] if labelled else [])]]
        for number in range(36 if part == "train" else 12):
            label = LABELS["mnli"][number % 3]
            texts = [_text(draw), _text(draw, {"entailment": "lovely", "contradiction": "awful"}.get(label, "word0"))]
            rows.append([str(number), *[""] * 7, *texts, *([label, label] if labelled else [])])
        _write(folder / "MNLI" / f"{part}.tsv", rows)
    plain, full = [["index", "sentence1", "sentence2"]], [[*"abcde", "Premise", "Hypothesis", "Label"]]
    for number in range(6):
        texts = [_text(draw), _text(draw)]
        plain.append([str(number), *texts])
        full.append([*[""] * 5, *texts, LABELS["mnli"][number % 3]])
    _write(folder / "diagnostic" / "diagnostic.tsv", plain)
    _write(folder / "diagnostic" / "diagnostic-full.tsv", full)


def made_chemprot(folder: Path) -> None:
    """As NVIDIA's formatter writes them: by the csv module, with an entity pair marked, a quote and a line break."""
    draw = random.Random(2)
    for part, count in (("train", 40), ("dev", 16), ("test", 16)):
        path = folder / "chemprot" / f"{part}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(["index", "sentence", "label"])
            for number in range(count):
                between = '"word1"\nword2' if number == 1 else "word3"
                sentence = f"{_text(draw)} @CHEMICAL$ {between} @GENE$ {_text(draw)}"
                writer.writerow([f"1.T{number}.T9", sentence, LABELS["chemprot"][number % 4]])


def _endings(draw: random.Random) -> tuple[list[str], int]:
    right = draw.randrange(4)
    return [_text(draw, "lovely" if place == right else "awful") for place in range(4)], right


def made_swag(folder: Path) -> None:
    """train.csv, val.csv and test.csv with the columns of SWAG, quoted where a cell has a comma."""
    draw = random.Random(3)
    names = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
    names += [f"ending{number}" for number in range(4)]
    for part, count in (("train", 120), ("val", 40), ("test", 8)):
        path = folder / f"{part}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*names, *(["label"] if part != "test" else [])])
            for number in range(count):
                endings, right = _endings(draw)
                first, second = f"{_text(draw)} , word1 .", "word2"
                row = [str(number), "v", "0", f"{first} {second}", first, second, "gold0-orig", *endings]
                writer.writerow([*row, *([str(right)] if part != "test" else [])])


def made_codah(folder: Path, fold: int = 0) -> None:
    """A fold, without a header."""
    draw = random.Random(4)
    for part, count in (("train", 120), ("dev", 40), ("test", 40)):
        rows = []
        for _ in range(count):
            endings, right = _endings(draw)
            rows.append(["o", _text(draw), *endings, str(right)])
        _write(folder / f"fold_{fold}" / f"{part}.tsv", rows)


def made_bc5cdr(folder: Path) -> None:
    """Chemicals as BioBERT has them: a word and B, I or O a line, by a tab."""
    draw = random.Random(5)
    for part, count in (("train", 60), ("devel", 20), ("test", 20)):
        lines = []
        for _ in range(count):
            words = _text(draw).split()
            lines += [f"{word}\tO" for word in words] + ["lovely\tB", "awful\tI", ""]
        path = folder / "BC5CDR" / "chem" / f"{part}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def made_conll2003(folder: Path) -> None:
    """Four columns by spaces, documents marked, and IOB1: B- only where an entity follows another of its type."""
    text = (
        "-DOCSTART- -X- -X- O\n\nlovely NNP B-NP I-PER\nawful NNP I-NP B-PER\nword1 VBZ B-VP O\n\nword2 NN B-NP I-LOC\n"
    )
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (folder / "conll2003").mkdir(parents=True, exist_ok=True)
        (folder / "conll2003" / name).write_text(text, encoding="utf-8")
