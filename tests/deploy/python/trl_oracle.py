"""The loss of deploy/examples/trl_teacher beside the definition, computed in double from both models' dense logits.

    trl_oracle.py EXAMPLE GRPC_ENDPOINT STUDENT_DIR TEACHER_DIR

Runs where trl is (trl_example_test.py). Ends with 1 if they differ.
"""

import importlib.util
import sys
import types

import torch
from transformers import AutoModelForCausalLM

import taopd

TOP_K = 8
# float32 logits of two programs, summed over 128 ids.
TOLERANCE = 2e-5


def defined_loss(log_p, log_q, k):
    """sum over the teacher's top k of p log(p/q), plus the same for one outcome that has the rest of both."""
    log_q_top, support = log_q.topk(k, dim=-1)
    p, q = log_p.gather(-1, support).exp(), log_q_top.exp()
    p_rest, q_rest = 1 - p.sum(-1), 1 - q.sum(-1)
    return (p * (p / q).log()).sum(-1) + p_rest * (p_rest / q_rest).log()


def main():
    example, endpoint, student_dir, teacher_dir = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("distil", example)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trainer = module.TaopdDistillationTrainer
    student, teacher = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval() for path in (student_dir, teacher_dir))

    torch.manual_seed(0)
    # Prompts are padded on the left, completions on the right, as TRL does.
    prompt_mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    completion_mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
    inputs = {"prompt_ids": torch.randint(0, 100, prompt_mask.shape) * prompt_mask, "prompt_mask": prompt_mask,
              "completion_ids": torch.randint(0, 100, completion_mask.shape) * completion_mask, "completion_mask": completion_mask}
    worst = 0.0
    for temperature in (1.0, 0.7):
        expected, num_rows = 0.0, 0
        for row in range(len(prompt_mask)):
            sequence = torch.cat([inputs[f"{part}_ids"][row][inputs[f"{part}_mask"][row].bool()] for part in ("prompt", "completion")])
            num_prompt = int(prompt_mask[row].sum())
            log_p, log_q = (model(input_ids=sequence[None]).logits[0, num_prompt - 1:-1].div(temperature).log_softmax(-1)
                            for model in (student, teacher))
            expected += defined_loss(log_p, log_q, TOP_K).sum().item()
            num_rows += len(sequence) - num_prompt
        with taopd.Teacher(endpoint) as client:
            own = types.SimpleNamespace(teacher=client, top_k=TOP_K, temperature=temperature, model=types.SimpleNamespace(training=False))
            own.ask_teacher = types.MethodType(trainer.ask_teacher, own)
            own.row_losses = types.MethodType(trainer.row_losses, own)
            loss = trainer.compute_loss(own, student, inputs).item()
        worst = max(worst, abs(loss - expected / num_rows))
    print(f"largest difference {worst:.2e}, allowed {TOLERANCE:.0e}")
    return 1 if worst > TOLERANCE or expected == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
