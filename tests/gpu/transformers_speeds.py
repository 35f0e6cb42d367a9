#!/usr/bin/env python3
"""The speeds of tests/gpu/run with transformers, which runs the same model in PyTorch.

    transformers_speeds.py MODEL_DIR DEVICE PROMPT_LENGTH NEW_TOKENS PAIR_LENGTH

Prints one line: tokens/s of a prompt, of its scores (top 20 and log-sum-exp at each position), of decoding 1, 16 and 64
sequences, and of training steps with 8 pairs. Each is the second of two runs. Attention is PyTorch's
(sdpa), the optimizer its fused AdamW. Exit code 77: torch or transformers is not installed, or has no such device.
"""

import sys
import time

try:
    import torch
    import transformers
except ImportError as error:
    print(f"{error.name} is not installed")
    sys.exit(77)


def seconds(device, run):
    for _ in range(2):
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
    return time.perf_counter() - start


def main(model_dir, device, prompt_length, new_tokens, pair_length):
    if device == "cuda" and not torch.cuda.is_available():
        print("torch finds no GPU")
        sys.exit(77)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16, attn_implementation="sdpa").to(device)
    prompt = torch.tensor([[3 + i % 500 for i in range(prompt_length)]], device=device)
    found = {}

    @torch.inference_mode()
    def prefill():
        return model(prompt, logits_to_keep=1, use_cache=True).logits[0, -1].argmax().item()

    @torch.inference_mode()
    def score():
        logits = model(prompt).logits[0].float()
        log_probs, ids = torch.log_softmax(logits, -1).topk(20)
        return log_probs.cpu(), ids.cpu()

    found["prefill"] = prompt_length / seconds(device, prefill)
    found["score"] = prompt_length / seconds(device, score)
    for n in (1, 16, 64):
        def decode(n=n):
            with torch.inference_mode():
                model.generate(prompt[:, :16].expand(n, -1), attention_mask=torch.ones(n, 16, device=device), do_sample=True, top_k=0,
                               max_new_tokens=new_tokens, min_new_tokens=new_tokens, pad_token_id=0)
        found[f"decode {n}"] = n * new_tokens / seconds(device, decode)

    # Weights in float32 for the optimizer, products in bfloat16, as this project trains.
    model = model.float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    ids = torch.tensor([[5] * 8 + [3 + i % 500 for i in range(pair_length)]] * 8, device=device)
    labels = ids.clone()
    labels[:, :8] = -100

    def step():
        with torch.autocast(device, torch.bfloat16):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    found["step"] = 8 * pair_length / seconds(device, step)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: "
          + ", ".join(f"{name} {value:.0f} tokens/s" for name, value in found.items()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
