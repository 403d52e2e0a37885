"""Ctrl-C, SIGTERM and SIGHUP are one and the same, and can be put off."""

import signal
import subprocess
import sys
import threading

import pytest

from dsv4kv import cli
from dsv4kv.cli import on_endings
from dsv4kv.cli.runs import endings_put_off

each_ending = pytest.mark.parametrize("number", cli.ENDINGS)
pytestmark = pytest.mark.usefixtures("handlers")


@each_ending
def test_each_way_to_end_is_ctrl_c(number: signal.Signals) -> None:
    on_endings()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    on_endings()
    signal.raise_signal(signal.SIGHUP)


@each_ending
def test_put_off_it_comes_once_the_block_has_ended(number: signal.Signals) -> None:
    on_endings()
    done = []

    def save() -> None:
        with endings_put_off():
            signal.raise_signal(number)
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        save()
    assert done == ["all of it"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_a_thread_puts_nothing_off_and_does_not_fail() -> None:
    done = []

    def run() -> None:
        with endings_put_off():
            done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@each_ending
def test_the_program_ends_as_by_ctrl_c(number: signal.Signals) -> None:
    program = (
        "import os, sys; from unittest.mock import patch; import dsv4kv.cli as cli\n"
        f"end = lambda *_, **__: os.kill(os.getpid(), {int(number)})\n"
        "with patch('dsv4kv.budget.answer.answer', end):\n"
        "    sys.argv = ['dsv4kv', 'budget']; cli.main()"
    )
    done = run(program)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr


@each_ending
def test_while_threads_of_a_written_answer_are_awaited_the_program_ends_quietly(
    number: signal.Signals,
) -> None:
    program = (
        "import os, sys, threading, time; import dsv4kv.cli as cli\n"
        "def late():\n"
        "    threading.main_thread().join()  # which has ended, and awaits this one\n"
        "    for _ in range(600):  # until it has begun to wait, which a signal interrupts\n"
        f"        os.kill(os.getpid(), {int(number)}); time.sleep(0.1)\n"
        "threading.Thread(target=late).start()\n"
        "sys.argv = ['dsv4kv', '--version']; cli.main()"
    )
    done = run(program)
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.startswith("dsv4kv ")
