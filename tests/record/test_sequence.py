"""Messages come out in order, once, whatever the network did; what never came is a gap."""

from collections.abc import Iterable
from time import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.record.events import WAIT_S, Item, Message, Sequence
from tests.record.frames import CLEARED, Frames, frames, removed

Short = int | tuple[int, int] | str


def short(items: Iterable[Item]) -> list[Short]:
    """Numbers, gaps as pairs, restarts and what cannot be read as words."""
    names: list[Short] = []
    for item in items:
        if isinstance(item, Message):
            names.append(item.number)
        elif item["what"] == "gap":
            names.append((item["first"], item["last"]))
        else:
            names.append(item["what"])
    return names


class Server:
    """A publisher that remembers what it sent."""

    def __init__(self, count: int, begun_s: float = 0.0) -> None:
        self.sent = [frames(number, CLEARED, at_s=begun_s + number) for number in range(count)]

    def again(self, first: int) -> list[Frames]:
        return [[b"", *message] for message in self.sent[first:]]


def taken(sequence: Sequence, messages: Iterable[Frames]) -> list[Short]:
    items = [item for message in messages for item in sequence.take(message)]
    return short([*items, *sequence.give_up(at_once=True)])


@given(st.permutations(range(12)), st.lists(st.integers(0, 11)))
def test_messages_come_out_in_order_and_once(order: list[int], again: list[int]) -> None:
    sent = Server(12).sent
    assert taken(Sequence(), [sent[number] for number in order + again]) == list(range(12))


@given(st.lists(st.integers(0, 11), unique=True, min_size=1).map(sorted))
def test_what_did_not_come_is_sent_again(came: list[int]) -> None:
    server = Server(12)
    sequence = Sequence(lambda first: server.again(first)[: came[-1] + 1 - first])
    assert taken(sequence, [server.sent[number] for number in came]) == list(range(came[-1] + 1))


@given(st.sets(st.integers(0, 11), max_size=6))
def test_what_never_comes_is_a_gap_where_it_is_missing(lost: set[int]) -> None:
    came = [message for number, message in enumerate(Server(12).sent) if number not in lost]
    found = taken(Sequence(), came)
    numbers = [one for one in found if isinstance(one, int)]
    missing = [n for one in found if isinstance(one, tuple) for n in range(one[0], one[1] + 1)]
    assert sorted([*numbers, *missing]) == list(range(max(numbers) + 1))
    assert numbers == sorted(set(range(12)) - lost)


def test_a_message_that_was_cut_is_one_that_did_not_come() -> None:
    server = Server(4)
    topic, number, payload = server.sent[1]
    came = [server.sent[0], [topic, number, payload[:-1]], [number], *server.sent[2:]]
    torn = ["unreadable"] * 2
    assert taken(Sequence(), came) == [0, *torn, (1, 1), 2, 3]
    assert taken(Sequence(server.again), came) == [0, *torn, 1, 2, 3]


def test_what_is_missing_is_waited_for_so_long() -> None:
    now_s = [0.0]
    sequence, sent = Sequence(clock=lambda: now_s[0]), Server(4).sent
    assert short(sequence.take(sent[0])) == [0]
    assert short(sequence.take(sent[2])) == []
    now_s[0] = WAIT_S
    assert short(sequence.give_up()) == []
    now_s[0] += 0.1
    assert short(sequence.give_up()) == [(1, 1), 2]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_time_far_ahead_hides_no_restart(resumed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv4kv.record.events._REMEMBERED", 1)
    sequence = Sequence(after=(2, 1e11)) if resumed else Sequence()
    before = [] if resumed else [*Server(2).sent, frames(2, CLEARED, at_s=1e11)]
    after = Server(2, begun_s=time() + 3600.0)
    expected = [*range(len(before)), "restart", 0, 1]
    assert taken(sequence, before + after.sent) == expected


def test_of_a_restarted_server_the_first_messages_are_asked_for() -> None:
    before, after = Server(5), Server(4, begun_s=100.0)
    sequence = Sequence(after.again)
    assert taken(sequence, [*before.sent, after.sent[3]]) == [*range(5), "restart", *range(4)]


@pytest.mark.parametrize(("begun_s", "found"), [(0.0, [3, 4, 5]), (100.0, ["restart", *range(6)])])
def test_a_recording_goes_on_behind_its_last_message(begun_s: float, found: list[Short]) -> None:
    server = Server(6, begun_s)
    sequence = Sequence(server.again, after=(2, 2.0))
    assert short(sequence.catch_up()) == found
    assert taken(sequence, server.sent) == []


def test_restarts_are_told_from_messages_that_come_twice() -> None:
    server = Server(3)
    assert taken(Sequence(), server.sent + server.sent) == [0, 1, 2]
    assert short(Sequence(after=(9, 9.0)).take(frames(0, at_s=10.0)))[0] == "restart"


def test_of_messages_that_wait_for_a_lost_one_few_are_held() -> None:
    waiting = Sequence()
    long = [frames(number, removed(b"x" * 2**19)) for number in range(1, 100)]
    assert next(one for each in long for one in short(waiting.take(each))) == (0, 0)
    again = Sequence(lambda first: [frames(3 * each, CLEARED) for each in range(first, 1_000)])
    list(again.take(frames(1, CLEARED)))
    assert len(again._early) < 300
