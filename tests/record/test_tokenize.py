"""A data set's trace has the lengths, the ids and the order that a server would see."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

from dsv4kv.choices import TRACE_LINES  # noqa: E402
from dsv4kv.cli import app  # noqa: E402
from dsv4kv.engines.names import RULES  # noqa: E402
from dsv4kv.engines.rule import SPECULATIONS  # noqa: E402
from dsv4kv.errors import ConfigError, TraceError  # noqa: E402
from dsv4kv.record import Veil, templates  # noqa: E402
from dsv4kv.record import tokenize as tk  # noqa: E402
from dsv4kv.record.templates import Tokens, load_template  # noqa: E402
from dsv4kv.replay.rules import Pool, run_rule  # noqa: E402
from dsv4kv.traces import read_trace  # noqa: E402
from dsv4kv.traces.paths import collect_paths  # noqa: E402
from dsv4kv.traces.request import Request  # noqa: E402
from tests.engines.oracles import chains  # noqa: E402
from tests.engines.oracles.recorded import PAGE, Trace, read_traces  # noqa: E402
from tests.engines.oracles.test_recorded import MODEL, V41  # noqa: E402
from tests.record import rendered  # noqa: E402

SALT = bytes(range(32))
TEMPLATE = (
    "<s>{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = ["the", "cache", "keeps", "what", "a", "prompt", "begins", "with", "again", "é", "漢字"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder: byte-level BPE with ChatML's tokens."""
    folder = tmp_path_factory.mktemp("model")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    made.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose tokens are the numbers that a text is written in."""
    names = {str(number): number for number in range(60_000)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    path = tmp_path_factory.mktemp("numbers") / "tokenizer.json"
    made.save(str(path))
    return path


def say(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words))


def talks(count: int) -> list[list[tuple[str, str]]]:
    """Conversations by role; one in three is not answered yet."""
    draw = random.Random(count)
    made = []
    for number in range(count):
        turns = [("system", "be brief")] if number % 2 else []
        for _ in range(draw.randint(1, 4)):
            turns += [("user", say(draw, 40)), ("assistant", say(draw, 60))]
        made.append(turns[: -1 if number % 3 == 0 else None])
    return made


def as_openai(turns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def as_sharegpt(turns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    names = {"user": "human", "assistant": "gpt"}
    return {"conversations": [{"from": names.get(r, r), "value": text} for r, text in turns]}


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make(data: Path, tokenizer: Path, **options: Any) -> list[Request]:
    """The requests of a data set."""
    job = tk.Job(tokenizer, SALT, block_tokens=options.get("block_tokens", 64))
    processes = options.pop("processes", 1)
    read = {n: options.pop(n) for n in ("text", "time") if n in options}
    made = tk.tokenize(tk.read_dialogues(data, **read), job, processes)
    return list(tk.arrange(made, tk.Counts(), **options))


def test_a_request_has_the_tokens_of_prompt_and_answer(tmp_path: Path, model: Path) -> None:
    made = make(write(tmp_path / "data", [as_openai(turns) for turns in talks(9)]), model)
    known = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    render, veil = load_template(model, None, {}), Veil(SALT)
    assert render
    expected = []
    for session, turns in enumerate(talks(9)):
        for place in (*(n for n, turn in enumerate(turns) if turn[0] == "assistant"), None):
            if place is None and turns[-1][0] == "assistant":
                continue
            before = as_openai(turns[:place])["messages"]
            tokens = known.encode(render(before, None, {}), add_special_tokens=False).ids
            answer = known.encode(turns[place][1]).ids[1:] if place is not None else []
            expected.append((session, len(tokens), len(answer), tuple(veil.prompt(tokens))))
    assert expected == sorted(
        [(r.session, r.input_tokens, r.output_tokens, tuple(full(r))) for r in made],
        key=lambda row: row[:2],
    )


def test_a_data_set_is_the_same_in_every_shape(tmp_path: Path, model: Path) -> None:
    rows = [as_openai(turns) for turns in talks(6)]
    lines = make(write(tmp_path / "lines", rows), model)
    array = tmp_path / "array"
    array.write_text(json.dumps([as_sharegpt(turns) for turns in talks(6)], indent=2))
    parts = tmp_path / "parts"
    for row in rows:
        for message in row["messages"]:
            message["content"] = [{"type": "text", "text": message["content"]}]
    write(parts, [{"custom_id": "1", "body": row} for row in rows])
    assert lines == make(array, model) == make(parts, model)


def test_prompts_get_a_completions_special_tokens(tmp_path: Path, model: Path) -> None:
    texts = [say(random.Random(n), 90) for n in range(3)]
    known = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    plain = tmp_path / "plain.txt"
    plain.write_text("\n\n".join(texts) + "\n")
    made = make(plain, model)
    assert [request.input_tokens for request in made] == [len(known.encode(t).ids) for t in texts]
    assert made == make(write(tmp_path / "rows", [{"prompt": text} for text in texts]), model)
    odd = tmp_path / "odd.txt"
    odd.write_text("{not JSON}\n")
    assert [request.input_tokens for request in make(odd, model, text=True)] == [
        len(known.encode("{not JSON}").ids)
    ]


@pytest.mark.slow
def test_processes_make_the_trace_that_one_makes(tmp_path: Path, model: Path) -> None:
    data = write(tmp_path / "data", [as_openai(turns) for turns in talks(100)])
    assert make(data, model, processes=2) == make(data, model)


ADDED = ["<a>", "<ab>", "b<a", ">c", "<a><a>", "b<a>c", "aba"]
SPLITS: dict[str, Any] = {
    "bytes": tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True),
    "metaspace": tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first"),
    "words": tokenizers.pre_tokenizers.Whitespace(),
}
NORMALS: dict[str, Any] = {
    "lower": tokenizers.normalizers.Lowercase(), "prepend": tokenizers.normalizers.Prepend("▁"),
}  # fmt: skip


@given(
    st.data(),
    st.sampled_from(sorted(SPLITS)),
    st.sampled_from([None, *NORMALS]),
    st.lists(
        st.tuples(st.sampled_from(ADDED), st.booleans(), st.booleans()), unique_by=lambda a: a[0]
    ),
)
def test_a_text_that_goes_on_has_the_tokens_of_the_whole(
    data: st.DataObject, split: str, normal: str | None, added: list[tuple[str, bool, bool]]
) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE(*_merges(), unk_token="?"))
    made.pre_tokenizer = SPLITS[split]
    if normal:
        made.normalizer = NORMALS[normal]
    made.add_tokens([tokenizers.AddedToken(text, normalized=n, rstrip=r) for text, n, r in added])
    pieces = st.sampled_from([*ADDED, "a", "b", "c", " ", "A", "<", ">", "ab ab"])
    texts = st.lists(pieces, max_size=8).map("".join)
    tokens_of = Tokens(made)
    incremental, before = tk.Incremental(tokens_of.encode, tokens_of.splits()), ""
    for _ in range(3):
        kept = before if data.draw(st.booleans()) else before[: data.draw(st.integers(0, 20))]
        text = kept + data.draw(texts)
        tokens = made.encode(text, add_special_tokens=False).ids
        assert incremental.encode(text) == tokens
        answer = data.draw(texts)
        incremental.answer(answer)
        before = text + answer


def _merges() -> tuple[dict[str, int], list[tuple[str, str]]]:
    letters = ["?", *sorted({*"".join(ADDED), *"abcA<> ▁Ġ"})]
    merges = [("a", "b"), ("ab", "c"), ("▁", "a"), ("Ġ", "a"), ("<", "a"), ("c", "<")]
    names = [*letters, *("".join(pair) for pair in merges)]
    return {name: number for number, name in enumerate(names)}, merges


def pattern(chains_of: Sequence[Sequence[object]]) -> list[list[int]]:
    """Chains by which of their names are equal."""
    known: dict[object, int] = {}
    return [[known.setdefault(name, len(known)) for name in chain] for chain in chains_of]


def full(request: Request) -> Sequence[int]:
    """Ids of full blocks."""
    return request.prefix_hashes[: request.input_tokens // request.hash_block_tokens]


def spell(path: Path, prompts: Sequence[Sequence[int]]) -> Path:
    return write(path, [{"prompt": " ".join(map(str, tokens))} for tokens in prompts])


@pytest.mark.parametrize("number", range(len(chains.read())))
def test_ids_are_equal_where_vllms_hashes_are(number: int, tmp_path: Path, numbers: Path) -> None:
    asked = chains.read()[number]
    block, ahead = asked["block"], asked["look_ahead"]
    grain = 1 if ahead else block  # a block's hash covers tokens behind it: ids must be finer
    made = make(spell(tmp_path / "data", asked["prompts"]), numbers, block_tokens=grain)
    ends = [range(block + ahead, len(tokens) + 1, block) for tokens in asked["prompts"]]
    ids = [
        [request.prefix_hashes[end // grain - 1] for end in each]
        for request, each in zip(made, ends, strict=True)
    ]
    assert pattern(ids) == pattern(asked["hashes"])
    drafts = SPECULATIONS["mtp" if ahead else "none"]
    assert drafts.key_tokens == ahead
    pool = Pool(collect_paths(made), 10_000 * block, block, MODEL, speculation=drafts)
    assert run_rule("vllm", pool).resumed_tokens.tolist() == asked["hits"]
    assert any(asked["hits"])


def recorded() -> Iterator[tuple[str, Trace]]:
    """A trace of every rule that an engine's own manager answered."""
    for engine in ("vllm", "sglang"):
        rules = {trace.rule: trace for trace in read_traces(engine)}
        yield from ((rule, trace) for rule, trace in rules.items() if RULES[rule].engine)


@pytest.mark.parametrize(("rule", "trace"), list(recorded()))
def test_a_text_hits_as_in_engines(rule: str, trace: Trace, tmp_path: Path, numbers: Path) -> None:
    spelled = [
        [page * PAGE + place for page in pages for place in range(PAGE)][:tokens]
        for tokens, pages in trace.prompts
    ]
    data = spell(tmp_path / "data", spelled)
    size = RULES[rule].block_tokens
    model = MODEL if "v4" in RULES[rule].kinds else V41
    for speculation, hits in trace.hits.items():
        drafts, chunk = SPECULATIONS[speculation], trace.chunk_pages * PAGE
        table = collect_paths(make(data, numbers, block_tokens=1 if drafts.key_tokens else 64))
        pool = Pool(table, trace.pages * size, size, model, chunk, drafts)
        assert run_rule(rule, pool).resumed_tokens.tolist() == hits


def rendering(folder: Path, text: str, name: str = "given.jinja", **options: Any) -> Any:
    """What renders by a template, in a file of this name."""
    (folder / name).write_text(text)
    render = load_template(folder, str(folder / name), options)
    assert render
    return render


def test_templates_make_what_transformers_makes(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(rendered.SPECIAL))
    told = json.loads(rendered.FILE.read_text("utf-8"))
    assert len(told) == len(rendered.cases())
    for case, text in zip(rendered.cases(), told, strict=True):
        render = rendering(tmp_path, rendered.TEMPLATES[case["template"]], **case["options"])
        if text is not None:
            assert render(case["messages"], case["tools"], {}) == text
            continue
        with pytest.raises(ValueError, match="the chat template refuses it"):
            render(case["messages"], case["tools"], {})
    assert None in told


LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
SHARED = "{% for i in range(99999) %}{% endfor %}"
IN_C = (  # lists of lists are compared without looking at signals
    "{% set n = namespace(a=[0], b=[0]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}"
    "{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}"
)
ENDLESS = "def encode_messages(messages):\n    while True: pass\n"
TELLING = "def encode_messages(messages):\n    raise ValueError(messages)\n"
SLOW = "takes more than 0.2 s for one conversation"
REFUSES = "the chat template refuses it"
# bounded memory and time; nothing of the messages is told
REFUSED = [
    ('{{ "a".center(10**10) }}', REFUSES),
    ("{{ [0] * 10**10 }}", REFUSES),
    (LOOPS, SLOW),
    (SHARED, SLOW),
    (IN_C, SLOW),
    ("{{ [1, -9**9]|map('round', -10**9)|list }}", SLOW),
    (ENDLESS, SLOW),
    ("{{ raise_exception('no roles') }}", f"{REFUSES} (TemplateError in line 1: no roles)"),
    ("\n{{ raise_exception(messages|string) }}", f"{REFUSES} (TemplateError in line 2)"),
    ("{{ raise_exception(messages[0].content[1:9]) }}", f"{REFUSES} (TemplateError in line 1)"),
    ("{{ {}[messages[0].content] + 1 }}", f"{REFUSES} (UndefinedError in line 1)"),
    (TELLING, f"{REFUSES} (ValueError in line 2)"),
]


@pytest.mark.parametrize(("template", "told"), REFUSED)
def test_a_template_is_refused_in_its_own_words(
    template: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if told == SLOW:
        monkeypatch.setattr(templates, "RENDER_S", 0.2)
    render = rendering(tmp_path, template, "given.py" if "def " in template else "given.jinja")
    for _ in range(1 + (template is LOOPS)):  # the next conversation has a process of its own
        prompts = range(3_000 if template is SHARED else 1)  # which share its time
        asked: list[Any] = [[{"role": "user", "content": "MY SECRET"}], None, {}]
        with pytest.raises(ValueError, match=re.escape(told)) as raised:
            [render(*asked, first=not number) for number in prompts]
        assert "SECRET" not in str(raised.value)
        assert str(raised.value).endswith(told) or told == REFUSES


@pytest.mark.parametrize(
    "template",
    [
        f"{{{{ {'(' * 20_000}1{')' * 20_000} }}}}",
        "{% for i in [1] %}" * 60 + "{% endfor %}" * 60, f"{{{{ {'9' * 100_000} }}}}",
        "{{ 9**(9**9) }}", f"{{% {'x' * 100_000} %}}",
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_compiled_is_broken(
    tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "RENDER_S", 0.2)
    with pytest.raises(ConfigError, match=r"^the chat template (default )?is broken: .{9,300}$"):
        rendering(tmp_path, template)


GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
SEEKS = {"type": "Replace", "pattern": {"Regex": "a*a*[bd]"}, "content": "c"}


@pytest.mark.parametrize(
    ("normalizer", "too_much"),
    [
        ({"type": "Sequence", "normalizers": [GROWS] * 34}, "memory than it may"),
        ({**GROWS, "content": "a" * 2**20}, "memory than it may"),
        (SEEKS, "than 1 s"),
    ],
    ids=["grows again and again", "grows at once", "seeks"],
)
def test_a_tokenizer_takes_no_more_than_it_may(
    tmp_path: Path, model: Path, normalizer: dict[str, Any], too_much: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(templates, "RENDER_BYTES", 2**26)
    monkeypatch.setattr(templates, "RENDER_S", 1.0)
    made = json.loads((model / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**made, "normalizer": normalizer}))
    rows = [{"prompt": "b c"}, {"prompt": "a" * 4096 + "cd"}, {"prompt": "b d"}]
    data = write(tmp_path / "data", rows)
    code, said = run(data, tmp_path / "out", "--tokenizer", tmp_path, "--skip-defects")
    assert code == 0, said
    assert f"2: the tokenizer takes more {too_much}" in said
    assert len(list(read_trace(tmp_path / "out"))) == 2


ENCODER = """
def encode_messages(messages, thinking_mode, drop_thinking=True):
    said = "".join(f"[{m['role']}{'+' if m.get('tools') else ''}]{m['content']}" for m in messages)
    return thinking_mode + said
"""


def test_an_encoder_is_a_template_once_told_to_think(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="thinking as vLLM or chat as SGLang"):
        rendering(tmp_path, ENCODER, "encoding_dsv4.py")
    render = rendering(tmp_path, ENCODER, "encoding_dsv4.py", thinking_mode="chat")
    messages = [{"role": "user", "content": "hi"}]
    assert render(messages, None, {}) == "chat[user]hi"
    assert render(messages, [{}], {"thinking_mode": "x"}) == "x[system+][user]hi"


def test_conversations_arrive_at_the_rate_in_turns(tmp_path: Path, model: Path) -> None:
    rows = [as_openai([("user", "a"), ("assistant", "b")] * 2)] * 400
    data = write(tmp_path / "data", rows)
    made = make(data, model, rate=5.0, gap_s=3.0, seed=1)
    assert made == make(data, model, rate=5.0, gap_s=3.0, seed=1)
    times = [request.arrival_s for request in made]
    assert times == sorted(times)
    assert times[0] == 0
    begins = {r.session: r.arrival_s for r in reversed(made)}
    assert 60 < max(begins.values()) < 100  # 400 at 5 a second
    ends = {r.session: r.arrival_s for r in made}
    gaps = [ends[session] - begin for session, begin in begins.items()]
    assert 2.5 < sum(gaps) / len(gaps) < 3.5


def test_times_of_the_data_are_kept(tmp_path: Path, model: Path) -> None:
    def at(time: object, *more: object) -> dict[str, Any]:
        turns = [("user", "a"), ("assistant", "b"), ("user", "c")]
        row = as_openai(turns)
        for message, when in zip(row["messages"][2:], more, strict=False):
            message["ts"] = when
        return row | {"ts": time}

    rows = [
        at("2024-05-01T10:00:00Z", "2024-05-01T10:00:30+00:00"),
        at("2024-05-01T12:00:10+02:00"),
    ]
    made = make(write(tmp_path / "data", rows), model, time="ts")
    assert [r.arrival_s for r in made if r.session == 0] == [0.0, 30.0]
    assert next(r.arrival_s for r in made if r.session == 1) == 10.0
    assert len(made) == 4
    late = write(tmp_path / "late", [at(10), at(5)])
    with pytest.raises(TraceError, match=r"conversation 2 begins 5\.000 s before the one above"):
        make(late, model, time="ts")


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["trace", "tokenize", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


GOOD = json.dumps(as_openai([("user", "hi")]))
ANSWERED = {"role": "assistant", "content": "a"}
ODD = {
    "a text too long": (json.dumps({"prompt": "a" * (2**24 + 1)}), "than the 16,777,216 that"),
    "broken JSON": (f"{GOOD}\n{{oops", ":2: broken JSON"),
    "nothing": ('{"a": 1}', ":1: none of messages, conversations, conversation, prompt, text"),
    "unknown role": (
        '{"messages": [{"role": "narrator", "content": "x"}]}',
        ":1: message 1 is by 'narrator', expected one of system, developer, user, assistant",
    ),
    "a speaker that is none": (
        '{"conversations": [{"from": ["human"], "value": "q"}]}',
        ":1: message 1 is by ['human'], expected one of",
    ),
    "options that are none": (
        '{"messages": [{"role": "user", "content": "q"}], "chat_template_kwargs": ["x"]}',
        ":1: chat_template_kwargs is ['x'], expected an object",
    ),
    "no content": ('{"messages": [{"role": "user"}]}', ":1: message 1 has no content"),
    "a picture": (
        '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        "only text can be tokenized",
    ),
    "very many turns": (
        json.dumps({"messages": [{"role": "user", "content": "q"}, ANSWERED] * 3_000}),
        "its 3,000 prompts have 9,000,000 messages in all, more than the 4,194,304",
    ),
    "very many of the assistant alone": (  # who is asked first is looked for once
        json.dumps({"messages": [ANSWERED] * 40_000}),
        "all messages are the assistant's",
    ),
    "array without end": (f"[{GOOD},\n{GOOD}", ":2: after this element the JSON array neither"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_defect_of_the_data_names_file_and_line(name: str, tmp_path: Path, model: Path) -> None:
    text, sentence = ODD[name]
    data, out = tmp_path / "data", tmp_path / "out"
    data.write_text(text)
    code, said = run(data, out, "--tokenizer", model)
    assert code == TraceError.exit_code
    assert "".join(f"{data}{sentence}".split()) in "".join(said.split()) or sentence in said
    assert not out.exists()
    if name == "broken JSON":
        code, said = run(data, out, "--tokenizer", model, "--skip-defects")
        assert (code, "1 records skipped, the first" in said) == (0, True)
        assert len(list(read_trace(out))) == 1


TOKENIZERS: dict[str, dict[str, Any]] = {
    "broken": {"model": None},
    "listed": {},
    "fails": {
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "gone"},
        "pre_tokenizer": None,
    },
    "panics": {
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated",
            "invert": False,
        }
    },
    "panicking": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
}  # fmt: skip
JINJA = {
    "bad.jinja": "{% if %}", "refusing.jinja": "{{ raise_exception('not today') }}",
    "plain.jinja": "a{{ messages[0].content }}" + "a" * 40 + "!",
}  # fmt: skip


@pytest.mark.parametrize(
    ("tokenizer", "words", "code", "sentence"),
    [
        ("none", "", 2, "there is no none"),
        ("broken", "", 2, "cannot be used"),
        ("panicking", "", 2, "cannot be used ("),
        ("", "--chat-template bad.jinja", 2, "chat template is broken"),
        ("", "--chat-template none", 2, "none: there is no such file"),
        ("", f"--chat-template {'9' * 300}", 2, "there is no such file"),
        ("", "--chat-template refusing.jinja", 4, "(TemplateError in line 1: not today)"),
        ("listed", "", 2, "chat_template is [1], expected a text: give"),
        ("fails", "--chat-template plain.jinja", 4, "1: the tokenizer failed (WordLevel"),
        ("panics", "--chat-template plain.jinja", 4, "1: the tokenizer failed (Onig: "),
        ("fails", "", 2, "no chat template: give one, --chat-template FILE, such as"),
        ("", "--salt none", 2, "--salt"),
        ("", "--template-options []", 2, "give a JSON object"),
    ],
)
def test_what_is_no_tokenizer_and_no_template_is_said(
    tokenizer: str, words: str, code: int, sentence: str, tmp_path: Path, model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("data").write_text(GOOD)
    for name, text in JINJA.items():
        Path(name).write_text(text)
    if tokenizer in TOKENIZERS:
        Path(tokenizer, "encoding").mkdir(parents=True)
        Path(tokenizer, "encoding", "encoding_dsv4.py").touch()
        made = json.loads((model / "tokenizer.json").read_text()) | TOKENIZERS[tokenizer]
        Path(tokenizer, "tokenizer.json").write_text(json.dumps(made))
    if tokenizer == "listed":
        Path(tokenizer, "tokenizer_config.json").write_text('{"chat_template": [1]}')
    told, said = run("data", "out", "--tokenizer", tokenizer or model, *words.split())
    assert (told, sentence in said) == (code, True), said


def test_no_format_tells_text_or_tokens(tmp_path: Path, numbers: Path) -> None:
    marked = list(range(50_001, 51_301))
    rows = [{"prompt": " ".join(map(str, marked[:n])), "id": "SECRET"} for n in (1300, 1200, 40)]
    data, out = write(tmp_path / "data", rows), tmp_path / "out"
    for to in TRACE_LINES:
        code, said = run(data, out, "--tokenizer", numbers, "--to", to)
        assert code == 0, said
        text = out.read_bytes()
        assert text
        assert b"SECRET" not in text
        assert not {*map(int, re.findall(rb"\d+", text))} & {*marked}


def test_the_guide_leads_from_conversations_to_an_answer(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = (Path(__file__).parents[2] / "docs" / "tokenize.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(model)
    write(tmp_path / "conversations.jsonl", [as_sharegpt(turns) for turns in talks(30)])
    commands = [line for line in section.splitlines() if line.startswith("dsv4kv ")]
    assert len(commands) == 3
    for command in commands:
        done = CliRunner().invoke(app, command.split()[1:])
        assert done.exit_code == 0, f"{command}: {done.output}"
