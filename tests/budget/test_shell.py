"""Shell scripts are read in time that grows with their length."""

import tracemalloc
from contextlib import nullcontext, suppress
from time import process_time

import pytest

from dsv4kv.budget import shell
from dsv4kv.budget.servers import find_launches
from dsv4kv.errors import ConfigError


def test_a_default_of_a_variable_is_sought_nearby() -> None:
    assert shell.fill_in("${a:-" + "b" * 999 + "}", {}) == "b" * 999
    longer = "${a:-" + "b" * 1_000 + "}"
    assert shell.fill_in(longer, {}) == longer


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("$(( A * 2 + 1 ))", "17"),
        ("$((${A}/3))", "2"),
        ("$(( A > 16 ? A : B == 1 ? 4 : 5 ))", "5"),
        ("$(( A % 0 ))", "$(( A % 0 ))"),
        ("$(( A ** 99 ))", "$(( A ** 99 ))"),
        ("$(( A + UNSET ))", "$(( A + UNSET ))"),
        ("$(( " + "(" * 99 + "A" + ")" * 99 + " ))", "$(( " + "(" * 99 + "A" + ")" * 99 + " ))"),
    ],
)
def test_sums_of_what_is_set_are_solved(written: str, read: str) -> None:
    assert shell.fill_in(written, {"A": "8", "B": "2"}) == read


def test_a_mark_of_the_bytes_order_hides_no_command() -> None:
    (launch,) = find_launches("\ufeffvllm serve a")
    assert launch.flags == (("--model", "a"),)


DOUBLED = {
    "each of the one before": "A0=xxxxxxxxxxxxxxxx\n"
    + "".join(f"A{n}=$A{n - 1}$A{n - 1}\n" for n in range(1, 28))
    + "vllm serve $A27\n",
    "of itself": "M=xxxxxxxxxxxxxxxx\n" + 'M="$M $M"\n' * 28 + "vllm serve $M\n",
    "added to itself": "M=xxxxxxxxxxxxxxxx\n" + "M+=$M\n" * 28 + "vllm serve $M\n",
    "arrays": "M=(xxxxxxxxxxxxxxxx)\n" + "M+=(${M[@]} ${M[@]})\n" * 28 + "vllm serve ${M[@]}\n",
    "arguments": "set -- xxxxxxxxxxxxxxxx\n" + 'set -- "$@" "$@"\n' * 28 + 'vllm serve "$@"\n',
    "words of a statement": f"M={'x' * 2**15}\nvllm serve {'$M ' * 2**12}\n",
    "assignments of a statement": f"M={'x' * 2**15}\n{'N=$M ' * 2**12} vllm serve $N\n",
    "a condition": f"M={'x' * 2**15}\nif [ {'$M ' * 2**12} ]; then vllm serve a; fi\n",
    "many variables": f"M={'x' * 2**15}\n"
    + "".join(f"N{n}=$M\n" for n in range(2**12))
    + "vllm serve a\n",
    "many commands": f"M={'x' * 2**15}\n" + "vllm serve $M\n" * 2**12,
    "braces of a recipe": f"services:\n  a:\n"
    f"    environment: {{M: {'x' * 2**14}}}\n"
    f"    image: vllm/vllm-openai\n    command: [vllm, serve, '{'{M}' * 2**13}']\n",
}


@pytest.mark.parametrize("how", DOUBLED)
def test_variables_grow_to_a_bound(how: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=r"its variables become more than [0-9,]+ KiB"):
            list(find_launches(DOUBLED[how]))
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


LINEAR = {
    "braces": ('{"a":' * 40_000, ""),
    "containers": ("docker run " * 20_000, ""),
    "length": ("vllm serve a\n" * 2**15, "no launch command is longer than 256 KiB"),
    "commands": ("vllm serve a\n" * 257, "it has over 256 launch commands: give"),
    "aliases": (
        "a: &a\n" + "- vllm serve a --tp 2\n" * 1_000 + "b: [" + "*a," * 60 + "]\n",
        "it has over 256 launch commands",
    ),
    "blank lines": ("\n" * 250_000, ""),
    "documents without an end": ("\n".join(f"<<X{n}" for n in range(30_000)), ""),
    "variables": ("\n".join(f"V{n}=" for n in range(32_000)), "over 1,000 variables"),
    "calls": (
        "".join(f"f{n}() {{\nf{n + 1}\nf{n + 1}\n}}\n" for n in range(90)) + "f90() { a; }\nf0\n",
        "",
    ),
    "bodies": ("f() {\n" + ":\n" * 80_000 + "}\n" + "f\n" * 1_000, ""),
    "nested functions": ("".join(f"f{n}() {{\n" for n in range(12_000)) + "}\n" * 12_000, ""),
    "arguments": (
        "\n".join(f"V{n}=" for n in range(990)) + "\nf() {\na\n}" + "\nf b\nset -- c" * 15_000,
        "",
    ),
    "statements": ("\n".join(f"V{n}=" for n in range(999)) + "\nx" * 120_000, ""),
    "assignments": ("\n".join(f"V{n % 999}={n}" for n in range(24_000)), ""),
    "patterns": (
        f"P={'a' * 120_000}\nQ={'a' * 60_000}\n" + "if [[ $P == *${Q}b* ]]; then a; fi\n" * 9,
        "",
    ),
    "numbers": (f"if [ {'9' * 5_000} -gt 1 ]; then a; fi\n", ""),
    "conditions": ("if a; then x; " * 18_000, "over 100 conditions"),
    "keys": ("a: &a [x]\n" + "".join(f"b{n}: &b{n} [*a]\n" for n in range(12_000)), ""),
    "keys written otherwise": (
        "a:\n" + "".join(f'  "\\x61b{n}": [1]\n' for n in range(4_000)) + f"# {'- ' * 80_000}\n",
        "",
    ),
    "environments": (
        f"env: {{{', '.join(f'A{n}: b' for n in range(6_000))}}}\na:\n"
        + "".join(f"  k{n}: {{env: {{B: c}}}}\n" for n in range(6_000)),
        "",
    ),
}


@pytest.mark.parametrize("what", LINEAR)
def test_a_long_script_takes_seconds_or_is_refused(what: str) -> None:
    text, sentence = LINEAR[what]
    begun_s = process_time()
    with pytest.raises(ConfigError, match=sentence) if sentence else nullcontext():
        list(find_launches(text))
    assert process_time() - begun_s < 8


def test_a_here_document_ends_at_the_next_line_that_names_it() -> None:
    text = "cat > a <<E\n1\nE\ncat > b <<E\n2\nE\nE\n"
    bare, found = shell.take_documents(text)
    assert found == {"a": "1", "b": "2"}
    assert bare == "cat > a <<E\n\n\ncat > b <<E\n\n\nE\n"


def test_python_is_read_in_time_that_grows_with_its_length() -> None:
    doubled = "x = ['vllm serve a']\n" + "x = [x, x]\nx = x + x\n" * 60 + "run(x)\n"
    mapping = "x = {'a': 1}\n" + "x = {'a': x, 'b': x}\n" * 60 + "LLM(model='a', **x)\n"
    longer = "x = 'vllm serve a'\n" + "x = f'{x} {x}'\n" * 60 + "run(x)\n"
    begin = process_time()
    products = "x = 9\n" + "x = x * x\n" * 60 + "run(x)\n"
    calls = f"x = '{'a ' * 90_000}'\n" + "run(x)\n" * 6_000
    for text in (
        products,
        calls,
        doubled,
        mapping,
        longer,
        "(" * 3_000 + ")" * 3_000,
        "x=" * 3_000 + "1",
    ):
        with suppress(ConfigError):
            list(find_launches(text))
    assert process_time() - begin < 20
