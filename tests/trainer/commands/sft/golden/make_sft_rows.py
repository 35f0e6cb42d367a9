"""Writes sft_rows.json: what TRL's SFTTrainer makes of conversational prompt-completion rows.

Versions: trl 1.16.0, transformers 5.23.0, torch 2.15.0; Python 3.11.
    python make_sft_rows.py DIRECTORY_OF_TOKENIZERS
The directory has qwen2.5 and qwen3 with their published tokenizers and chat templates.
"""

import json
import pathlib
import sys
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

CONVERSATIONS = [
    [("user", "What is 17 + 25?"), ("assistant", "17 + 25 = 42.")],
    [("system", "Answer briefly."), ("user", "Hi!"), ("assistant", "Hello."), ("user", "And  now?\n"),
     ("assistant", "Nothing,  really.\n\n")],
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"), ("assistant", "f")],
]
# Contradicts enable_thinking = false, which ends the thinking in the prompt.
THINKS = [("user", "Gr\u00f6\u00dfe?"), ("assistant", "<think>\nunits\n</think>\n\n1,83 m")]
KWARGS = {"qwen2.5": [{}], "qwen3": [{}, {"enable_thinking": False}]}


def messages(turns):
    return [{"role": role, "content": content} for role, content in turns]


def rows_of(tokenizer, model, conversations, kwargs):
    rows = [{"prompt": messages(turns[:-1]), "completion": messages(turns[-1:])} for turns in conversations]
    if kwargs:
        rows = [{**row, "chat_template_kwargs": kwargs} for row in rows]
    with tempfile.TemporaryDirectory() as directory:
        trainer = SFTTrainer(model=model, processing_class=tokenizer, train_dataset=Dataset.from_list(rows),
                             args=SFTConfig(output_dir=directory, report_to="none", use_cpu=True, max_length=None))
        batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(rows))])
    made = []
    for ids, labels, mask in zip(*(batch[key].tolist() for key in ("input_ids", "labels", "attention_mask"))):
        pairs = [(token, label) for token, label, used in zip(ids, labels, mask) if used]
        num_prompt = next(i for i, (_, label) in enumerate(pairs) if label != -100)
        assert all(label == token for token, label in pairs[num_prompt:])  # what follows is all learned
        made.append({"prompt_ids": [token for token, _ in pairs[:num_prompt]],
                     "response_ids": [token for token, _ in pairs[num_prompt:]]})
    return made


def main():
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=152000, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                         num_attention_heads=1, num_key_value_heads=1))
    cases = []
    for name, all_kwargs in KWARGS.items():
        tokenizer = AutoTokenizer.from_pretrained(pathlib.Path(sys.argv[1]) / name)
        for kwargs in all_kwargs:
            conversations = CONVERSATIONS + ([] if kwargs else [THINKS])
            rows = rows_of(tokenizer, model, conversations, kwargs)
            cases.append({"tokenizer": name, "chat_template_kwargs": kwargs,
                          "rows": [{"messages": messages(turns), **row} for turns, row in zip(conversations, rows)]})
    path = pathlib.Path(__file__).parent / "sft_rows.json"
    lines = [json.dumps(case) for case in cases]
    path.write_text("[" + ",\n".join(lines) + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
