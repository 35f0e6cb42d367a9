"""The student's head as one would write it in PyTorch, for a figure beside this project's: pytorch_head.py ROWS HIDDEN
VOCABULARY DEVICE prints the milliseconds of forward and backward of a cross-entropy in bfloat16."""

import sys
import time

import torch


def main():
    rows, hidden_size, vocabulary = map(int, sys.argv[1:4])
    device = sys.argv[4]
    if device == "cuda" and not torch.cuda.is_available():
        print("PyTorch sees no GPU")
        return
    hidden = torch.randn(rows, hidden_size, device=device, dtype=torch.bfloat16, requires_grad=True)
    lm_head = torch.randn(vocabulary, hidden_size, device=device, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(vocabulary, (rows,), device=device)

    def step():
        hidden.grad = lm_head.grad = None
        torch.nn.functional.cross_entropy((hidden @ lm_head.t()).float(), targets).backward()
        if device == "cuda":
            torch.cuda.synchronize()

    step()
    start = time.monotonic()
    for _ in range(3):
        step()
    print(f"PyTorch {torch.__version__}: eager head [{rows}, {hidden_size}] x {vocabulary} "
          f"{(time.monotonic() - start) / 3 * 1000:.1f} ms")


if __name__ == "__main__":
    main()
