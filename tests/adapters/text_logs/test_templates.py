"""Ordinary lines are glanced at: what is found is the same as where each is read in full."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.adapters.text_logs.logs import (
    WRITTEN,
    c10,
    elastic,
    progress,
    read_both,
    traceback,
    watchdog,
    write,
)
from tracekit.adapters.text_logs._reader import LogReader

PREFIXES = (
    "[rank{r}]: 2026-03-04 12:{m:02d}:{s:02d},{f:03d} ",
    "RANK {r} 12:{m:02d}:{s:02d} ",
    "RANK {r} 23:{m:02d}:{s:02d}.{f:03d} ",
    "2026-03-04T12:{m:02d}:{s:02d}.{f:03d}+01:00 [rank{r}] ",
    "[default{r}]:12:{m:02d}:{s:02d} ",
    "Mar  4 12:{m:02d}:{s:02d} node{r} train[77]: ",
    "[Wed Mar  4 12:{m:02d}:{s:02d} 2026] rank {r}: ",
    "{r}: ",
    "[1,{r}]<stdout>: ",
    "(worker pid=400{r}) [rank={r}] || ",
    "12:{m:02d}:{s:02d}Z [{r}]: ",
    "",
)
BODIES = (
    "INFO step {n} loss {f}.{s} lr 1.0e-0{r}\n",
    "epoch {m} batch {n}/900: 0x{n}f {f}%\n",
    "validation {f}.5 and .{s}\n",
    "saving the checkpoint to /c/step-{n}\n",
    "   \n",
    "\n",
    "[PG 0 Rank {r}] nothing much\n",
    "done (RankID {r})\n",
    "训练 第{n}步\n",
    "\x1b[32mgreen {n}\x1b[0m\n",
    "bar 10%|#\rbar 20%|##\rstep {n}\n",
    "node0:1:2 [0] NCCL INFO Using network IB\n",
    "Cuda failure {r} 'out of memory'\n",
    "ERROR number {n}\n",
    "RuntimeError: Connection reset by peer {n}\n",
    "[rank{r}]: glued [rank{r}]:[E304 12:10:00.000000001 a.cpp:1] step {n}\n",
    "Last error:\nsocketProgress: Connection closed by remote peer h{r}<{n}>\n",
    "31:61:99 is no time {n}\n",
)


@pytest.mark.parametrize("seed", range(12))
def test_logs_of_any_kind_are_read_alike(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    prefixes = chance.sample(PREFIXES, 3)
    parts = []
    for _ in range(400):
        told = {"r": chance.randrange(4), "m": chance.randrange(60), "s": chance.randrange(60),
                "f": chance.randrange(1000), "n": chance.choice((7, 12, 130, 4096))}  # fmt: skip
        line = chance.choice(prefixes) + chance.choice(BODIES[:4] * 4 + BODIES)
        parts.append(line.format(**told))
    for _ in range(6):
        rank = chance.randrange(4)
        what = chance.choice([
            traceback(rank, "ValueError: bad sample"), watchdog(rank, 77), c10(rank, "odd"),
            elastic({rank: 1, 5: -15}, first=rank), progress(range(4), minute=59),
        ])  # fmt: skip
        parts.insert(chance.randrange(len(parts)), what)
    raw = "".join(parts).encode("gb18030" if seed % 4 == 3 else "utf-8")
    read_both(write(tmp_path, {"job.log": raw, "3/stderr.log": raw[: len(raw) // 2]}))


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_of_a_trainings_log_few_lines_are_read_in_full(tmp_path: Path, ends: str) -> None:
    read: list[int] = []

    class Counting(LogReader):
        def _text(self, file: object, number: int, text: str) -> None:
            read.append(number)
            super()._text(file, number, text)  # type: ignore[arg-type]

    text = progress(range(4), steps=60) + traceback(2, "ValueError: bad") + progress((0, 1), 60)
    (path,) = write(tmp_path, {"job.log": text.replace("\n", ends)})
    reader = Counting()
    reader.read(path, "job.log", WRITTEN)
    assert reader.lines == text.count("\n")
    if ends == "\n":
        assert len(read) < 40
    assert read
