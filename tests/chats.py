"""Small chat templates in the manner of published ones, and a tokenizer of bytes that knows their control tokens."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoConfig, PreTrainedTokenizerFast

from lpc_ray.records import Message
from tests.tiny import SHAPE

_EACH = "{%- for m in messages %}"
_OPEN = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
_LEAD = "<|im_start|>' + m.role + '\\n"

TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '" + _LEAD + "' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    # Qwen3: thinking in the last turn only, a switch that writes an empty block.
    "qwen3": _EACH + "{%- if m.role == 'assistant' %}{%- set said = m.content %}{%- set thought = '' %}"
    "{%- if '</think>' in said %}{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{%- set said = said.split('</think>')[-1].lstrip('\\n') %}{%- endif %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if loop.last %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}{{- said + '<|im_end|>\\n' }}"
    "{%- else %}{{- '" + _LEAD + "' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}",
    # A plain one that writes an empty block before whatever the last turn says.
    "qwen3_plain": _EACH + "{%- if m.role == 'assistant' and loop.last %}"
    "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + m.content + '<|im_end|>\\n' }}"
    "{%- else %}{{- '" + _LEAD + "' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}" + _OPEN + "{%- endif %}",
    # DeepSeek-R1: the prompt opens the thinking, and no turn shows any.
    "r1": "{{- bos_token }}" + _EACH + "{%- if m.role == 'system' %}{{- m.content }}"
    "{%- elif m.role == 'user' %}{{- '<start_of_turn>' + m.content }}"
    "{%- else %}{{- '<end_of_turn>' + m.content.split('</think>')[-1] + eos_token }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<end_of_turn><think>\\n' }}{%- endif %}",
    # Hybrids whose history shows no thinking but whose switched-off prompt closes an empty block.
    "hybrid": _EACH + "{{- '" + _LEAD + "' + m.content.split('</think>')[-1].strip() + '<|im_end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{{- '<think>\\n' if thinking else '<think></think>\\n' }}{%- endif %}",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}"
    "{{ m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
    "mistral": "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}",
    # Phi-3: a system message is passed over without a word, and a whole conversation ends twice.
    "phi3": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '<start_of_turn>\\n' + m.content + '<end_of_turn>\\n' }}"
    "{% elif m.role == 'assistant' %}{{ '<|im_start|>\\n' + m.content + '<end_of_turn>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
    "llama3": "{{- bos_token }}{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string + '\\n\\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content | trim }}{%- set messages = messages[1:] %}{%- endif %}"
    "{{- '<|eot_id|>' }}" + _EACH + "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}"
    "{{- m['content'] | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}",
    # A date within a macro, a loop that breaks off, and marks of what the assistant says.
    "marked": "{%- macro dated(style) %}{{ '<|im_start|>system\\nIt is ' ~ strftime_now(style) ~ ', 100%.<|im_end|>\\n' }}"
    "{%- endmacro %}{{- dated('%A, %-d %B %Y') }}\n    {% for m in messages %}\n"
    "    {% if loop.index > 9 %}{% break %}{% endif %}\n"
    "{{- '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
}  # fmt: skip
CONTROL = (
    "<s>",
    "</s>",
    "<unk>",
    "<|im_start|>",
    "<|im_end|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|start_header_id|>",
)
CONTROL += ("<|end_header_id|>", "<|eot_id|>", "<|endoftext|>")
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def byte_tokenizer(extra: int = 0) -> Tokenizer:
    """Bytes, a few merges, control tokens, and `extra` more tokens `<extra_N>`."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for merged in ("ĊĊ", "he", "is", "Ġt"):
        letters[merged] = len(letters)
    tokenizer = Tokenizer(BPE(letters, [("Ċ", "Ċ"), ("h", "e"), ("i", "s"), ("Ġ", "t")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in ("<think>", "</think>")])
    tokenizer.add_tokens([AddedToken(f"<extra_{number}>", special=False) for number in range(extra)])
    return tokenizer


def save_chat_model(
    folder: Path, template: str | None, extra: int = 0, tokenizer: Tokenizer | None = None, **config
) -> str:
    """Config, tokenizer and template of a tiny Llama, and an empty file of weights. template: of `TEMPLATES`, or Jinja."""
    shape = {**SHAPE, "vocab_size": 320, "max_position_embeddings": 8192, **config}
    AutoConfig.for_model("llama", **shape).save_pretrained(folder)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer or byte_tokenizer(extra), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    if template is not None:
        fast.chat_template = TEMPLATES.get(template, template)
    fast.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return str(folder)


def change(file: Path, **fields) -> None:
    """Set fields of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
