"""What is known of a server, question by question, and what experiments build on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dsv4kv.diagnose.probe.questioner import Questioner


@dataclass(frozen=True)
class Conclusion:
    """What is known of one question.

    Attributes:
        question: Its name.
        answer: A sentence; why it is undecidable where it is.
        value: The same for programs: tokens, or a word; None where it is undecidable.
        level: ``good``, ``note``, ``bad`` for a fault, ``undecided``.
        advice: The setting to change.
    """

    question: str
    answer: str
    value: int | str | None = None
    level: str = "note"
    advice: str = ""


@dataclass
class Known:
    """What later experiments build on.

    Attributes:
        hitting: Tokens of a prompt that hits when it is sent again.
        step: Tokens by which hits grow; 0 while it is not known.
        smallest: Tokens of the shortest prompt that hits when it is sent again.
        lost: Tokens that a hit gives up in addition to a prompt's last.
        reset: Whether the cache may be emptied.
        wait_s: How long to wait in the experiment that does.
        why: Why nothing can be built on it.
    """

    hitting: int = 0
    step: int = 0
    smallest: int = 0
    lost: int = 0
    reset: bool = False
    wait_s: float = 0.0
    why: str = ""

    def whole(self, tokens: int) -> int:
        """What of so many common tokens is hit where blocks are all that matters."""
        return max(0, tokens - self.lost) // self.step * self.step


Experiment = Callable[[Questioner, Known], Iterator[Conclusion]]


def undecided(question: str, why: str) -> Conclusion:
    """A question that cannot be answered."""
    return Conclusion(question, why, level="undecided")
