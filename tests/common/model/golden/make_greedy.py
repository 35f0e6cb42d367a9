"""Writes greedy continuations of 200 random prompts by transformers, in float32.

They are for the tiny models next to this file and for stories260K: greedy.safetensors in each
model's directory.

    pip install torch==2.11.0 transformers==5.17 safetensors
    python make_greedy.py

    prompts        int64 [200, 40], padded with -1
    continuations  int64 [200, 16]

If any of a prompt's 16 choices is nearer than 1e-3 (in logits) to the second best, the prompt is
drawn again, because float32 sums in another order may choose differently.
"""

import pathlib

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
MODELS = {name: HERE / name for name in ("qwen3_tied", "llama_bias", "llama31", "qwen2_window", "qwen3_moe")}
MODELS["stories260K"] = HERE.parents[3] / "deploy/examples/stories260K"
NUM_PROMPTS, MAX_PROMPT, NUM_NEW, SMALLEST_GAP = 200, 40, 16, 1e-3


def greedy(model, prompt):
    """The continuation, or None if a choice is close."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(NUM_NEW):
            best = model(input_ids=torch.tensor([ids])).logits[0, -1].float().topk(2)
            if best.values[0] - best.values[1] < SMALLEST_GAP:
                return None
            ids.append(best.indices[0].item())
    return ids[len(prompt):]


def main():
    torch.set_num_threads(1)
    for name, directory in MODELS.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, local_files_only=True, attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(7)
        prompts, continuations, num_close = [], [], 0
        while len(prompts) < NUM_PROMPTS:
            length = torch.randint(1, MAX_PROMPT + 1, (1,), generator=generator).item()
            prompt = torch.randint(model.config.vocab_size, (length,), generator=generator).tolist()
            continuation = greedy(model, prompt)
            if continuation is None:
                num_close += 1
                continue
            prompts.append(prompt + [-1] * (MAX_PROMPT - length))
            continuations.append(continuation)
        save_file({"prompts": torch.tensor(prompts),
                   "continuations": torch.tensor(continuations)},
                  HERE / name / "greedy.safetensors",
                  {"torch": torch.__version__, "transformers": transformers.__version__})
        print(name, "prompts with a close choice:", num_close)


if __name__ == "__main__":
    main()
