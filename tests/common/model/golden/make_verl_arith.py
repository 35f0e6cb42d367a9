"""Writes greedy continuations of verl's digit-completion model by transformers.

    make_verl_arith.py SHARED_DATA

The output is verl_arith_llama/golden_greedy.json next to this file. It was made with torch 2.11.0 and
transformers 5.17.0 on the CPU, with one thread and eager attention; the weights are stored in
bfloat16 and computed in float32.
"""

import json
import pathlib
import sys

import pyarrow.parquet
import torch
import transformers

# The vocabulary of the model's CharTokenizer: four special tokens, then these.
CHARACTERS = "0123456789,:"
NUM_SPECIAL = 4
NUM_PROMPTS = 12
NUM_NEW = 48


def main():
    model_dir = pathlib.Path(sys.argv[1]) / "models" / "verl_arith_llama"
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    rows = pyarrow.parquet.read_table(model_dir / "test.parquet").slice(0, NUM_PROMPTS).to_pylist()
    cases, smallest_gap = [], float("inf")
    for row in rows:
        prompt = row["prompt"][0]["content"]
        ids = [NUM_SPECIAL + CHARACTERS.index(c) for c in prompt]
        output = model.generate(torch.tensor([ids]), max_new_tokens=NUM_NEW, do_sample=False, eos_token_id=None,
                                pad_token_id=2, output_scores=True, return_dict_in_generate=True)
        new_ids = output.sequences[0, len(ids):].tolist()
        log_probs = []
        for scores, new_id in zip(output.scores, new_ids):
            best, second = torch.topk(scores[0], 2).values.tolist()
            smallest_gap = min(smallest_gap, best - second)
            log_probs.append(round(torch.log_softmax(scores[0].double(), -1)[new_id].item(), 8))
        text = "".join(CHARACTERS[i - NUM_SPECIAL] if i >= NUM_SPECIAL else f"<{i}>" for i in new_ids)
        cases.append({"prompt": prompt, "prompt_ids": ids, "ids": new_ids, "text": text, "logprobs": log_probs})
    golden = {"source": f"transformers {transformers.__version__}, torch {torch.__version__}, float32, greedy",
              "characters": CHARACTERS, "smallest_logit_gap": smallest_gap, "cases": cases}
    path = pathlib.Path(__file__).parent / "verl_arith_llama" / "golden_greedy.json"
    path.write_text(json.dumps(golden).replace('{"prompt"', '\n{"prompt"') + "\n", encoding="ascii")
    print(f"{path}: {len(cases)} continuations, smallest gap between the best two logits {smallest_gap:.2e}")


if __name__ == "__main__":
    main()
