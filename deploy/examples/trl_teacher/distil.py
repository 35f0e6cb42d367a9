#!/usr/bin/env python3
"""Distils a student with TRL's DistillationTrainer, whose teacher is a taopd-teacher instead
of a model in this process.

    pip install trl deploy/python
    distil.py --teacher grpc://127.0.0.1:50051 --student DIR --prompts train.jsonl --output DIR

TRL generates, batches and steps; TaopdDistillationTrainer replaces its loss by that of TA-OPD: the reverse KL over the
teacher's k most probable tokens and one more outcome, all other tokens. The teacher sends the exact probability of the
tail, which vLLM's API does not. Student and teacher must have the same token ids.
"""

import argparse

import numpy as np
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DistillationConfig, DistillationTrainer

import taopd


class TaopdDistillationTrainer(DistillationTrainer):
    """Letters of shapes: B sequences, C completion tokens of each, padded; N rows, the completion
    tokens of all; k; V ids."""

    def __init__(self, *args, teacher: taopd.Teacher, top_k: int = 16, **options):
        super().__init__(*args, teacher_model=None, **options)
        self.teacher, self.top_k = teacher, top_k

    def ask_teacher(self, ids, mask, prompt_mask, device):
        """Returns the support's ids [N, k], the teacher's log-probs of them [N, k], and of all other ids [N]."""
        sequences = [row[keep].tolist() for row, keep in zip(ids, mask.bool())]
        scores = self.teacher.score(sequences, prompt_mask.sum(1).tolist(), self.top_k, temperature=self.temperature)
        parts = ([each.ids for each in scores], [each.logprobs for each in scores], [each.log_tail for each in scores])
        return [torch.from_numpy(np.concatenate(part)).to(device) for part in parts]

    def row_losses(self, logits, support, log_q, log_q_tail):
        """Returns the reverse KL of each row, [N]. logits: [N, V]."""
        log_p = logits.float().log_softmax(-1)
        log_p_support = log_p.gather(1, support)
        log_p_tail = log_p.scatter(1, support, -torch.inf).logsumexp(1)
        tail = torch.where(log_p_tail > -torch.inf, log_p_tail.exp() * (log_p_tail - log_q_tail), 0.0)
        return (log_p_support.exp() * (log_p_support - log_q)).sum(1) + tail

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        support, log_q, log_q_tail = self.ask_teacher(ids, mask, inputs["prompt_mask"], ids.device)
        num_completion = inputs["completion_ids"].size(1)
        logits_BCV = model(input_ids=ids, attention_mask=mask).logits[:, -num_completion - 1:-1] / self.temperature
        rows = inputs["completion_mask"].bool()
        loss = self.row_losses(logits_BCV[rows], support.long(), log_q, log_q_tail).sum()
        if self.model.training and inputs.get("num_items_in_batch") is not None:
            # The number counts the items of all processes and accumulated batches.
            loss = loss / (inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes)
        else:
            loss = loss / rows.sum().clamp(min=1)
        return (loss, None) if return_outputs else loss


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True, help="grpc://HOST:PORT of a taopd-teacher")
    parser.add_argument("--api-key", help="key of the teacher")
    parser.add_argument("--student", required=True, help="model directory, or a name of the Hugging Face hub")
    parser.add_argument("--prompts", required=True, help="JSON lines with the key prompt")
    parser.add_argument("--output", required=True, help="directory of the trained student")
    parser.add_argument("--top-k", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-completion-length", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    options = parser.parse_args()
    config = DistillationConfig(
        output_dir=options.output, max_steps=options.steps, per_device_train_batch_size=options.batch_size,
        max_completion_length=options.max_completion_length, learning_rate=options.learning_rate, logging_steps=1,
        save_strategy="no", report_to="none", bf16=False)
    with taopd.Teacher(options.teacher, api_key=options.api_key) as teacher:
        trainer = TaopdDistillationTrainer(
            model=AutoModelForCausalLM.from_pretrained(options.student), args=config, teacher=teacher,
            top_k=options.top_k, processing_class=AutoTokenizer.from_pretrained(options.student),
            train_dataset=load_dataset("json", data_files=options.prompts, split="train").select_columns("prompt"))
        trainer.train()
        trainer.save_model(options.output)


if __name__ == "__main__":
    main()
