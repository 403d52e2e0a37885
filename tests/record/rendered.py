# mypy: disable-error-code="import-not-found"
"""Chat templates and what Transformers makes of messages with them.

``python rendered.py``, where transformers 5.23.0 is installed, writes the file.
"""

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "rendered_transformers_5.23.0.json"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = {
    "chatml": "{{ bos_token }}\n{% for message in messages %}\n  {% if message.content %}\n"
    "<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n  {% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "tools": "{% if tools is defined and tools %}{{ tools | tojson(indent=1) }}{% endif %}"
    "{% for m in messages %}[{{ m['role'] }}]{{ m.get('content', '-') }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{{ eos_token }}{% endfor %}",
    "reasoning": "{% set ns = namespace(last=0) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content and loop.index0 > ns.last %}"
    "<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}{% endfor %}"
    "{{ '<think>' if enable_thinking else '</think>' }}",
    "generation": "{% for m in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}|{% endfor %}",
    "strict": "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}"
    "{% endif %}{{ messages[0].content }}{{ documents is none }}{{ nothing }}",
}
MESSAGES: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": " What is <b>é</b>? "}],
    [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "2", "reasoning": "easy"},
        {"role": "user", "content": "2+2"},
    ],
    [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "see", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": '{"sky": "ü"}'},
        {"role": "assistant", "content": "blue", "reasoning_content": "seen"},
    ],
]  # fmt: skip
TOOLS = [None, [{"type": "function", "function": {"name": "see", "description": "ä<>"}}]]
OPTIONS: list[dict[str, Any]] = [{}, {"enable_thinking": True}]


def cases() -> list[dict[str, Any]]:
    """Everything with everything."""
    return [
        {"template": name, "messages": messages, "tools": tools, "options": options}
        for name in TEMPLATES
        for messages in MESSAGES
        for tools in TOOLS
        for options in OPTIONS
    ]


def main() -> None:
    """Ask for every case; null where the template refuses it."""
    from jinja2 import TemplateError
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)
    rows = []
    for case in cases():
        try:
            text = tokenizer.apply_chat_template(
                case["messages"], tools=case["tools"], chat_template=TEMPLATES[case["template"]],
                add_generation_prompt=True, tokenize=False, **case["options"],
            )  # fmt: skip
        except TemplateError:
            text = None
        rows.append(text)
    FILE.write_text(json.dumps(rows, indent=0, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
