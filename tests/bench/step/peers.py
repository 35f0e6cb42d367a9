"""One step of on-policy distillation in plain PyTorch, the peer of bin/taopd-trainer with bin/taopd-teacher.

    peers.py transformers|plain STUDENT_DIR TEACHER_DIR PROMPTS.json OPTIONS.json

Generates with the student, scores with the teacher, and trains, as a first implementation of the paper would. `plain`
uses this file's Qwen3 with a key-value cache; `transformers` uses AutoModelForCausalLM and generate. Runs in one
process with the parameters in their own type and torch.optim.AdamW. Prints one JSON object: the seconds of each step
by phase, the tokens of its responses, the seconds of CPU time, and the process's peak memory in MiB.
"""

import json
import pathlib
import resource
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class PlainModel(torch.nn.Module):
    """Qwen3 for a batch of sequences of equal length."""

    def __init__(self, directory):
        super().__init__()
        self.config = json.loads((pathlib.Path(directory) / "config.json").read_text())
        weights = load_file(str(pathlib.Path(directory) / "model.safetensors"))
        self.names = {name: name.replace(".", "_") for name in weights}
        for name, tensor in weights.items():
            self.register_parameter(self.names[name], torch.nn.Parameter(tensor))
        head_dim, length = self.config["head_dim"], self.config["max_position_embeddings"]
        frequencies = self.config["rope_theta"] ** (-torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.arange(length)[:, None] * frequencies[None]
        self.cos, self.sin = torch.cat([angles, angles], 1).cos(), torch.cat([angles, angles], 1).sin()

    def weight(self, name):
        return getattr(self, self.names[name])

    def norm(self, x, name):
        return F.rms_norm(x, (x.shape[-1],), self.weight(name), self.config["rms_norm_eps"])

    def rotate(self, x, first):
        cos, sin = (table[first:first + x.shape[2]] for table in (self.cos, self.sin))
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def attend(self, x, prefix, cache, first):
        batch, length, _ = x.shape

        def heads(name):
            y = F.linear(x, self.weight(f"{prefix}.{name}_proj.weight"))
            return y.view(batch, length, -1, self.config["head_dim"]).transpose(1, 2)

        q = self.rotate(self.norm(heads("q"), f"{prefix}.q_norm.weight"), first)
        k, v = self.rotate(self.norm(heads("k"), f"{prefix}.k_norm.weight"), first), heads("v")
        if cache is not None:
            cache[0][:, :, first:first + length], cache[1][:, :, first:first + length] = k, v
            k, v = (c[:, :, :first + length] for c in cache)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1, enable_gqa=True)
        return F.linear(out.transpose(1, 2).reshape(batch, length, -1), self.weight(f"{prefix}.o_proj.weight"))

    def forward(self, ids, caches=None, first=0):
        x = F.embedding(ids, self.weight("model.embed_tokens.weight"))
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            cache = None if caches is None else caches[i]
            x = x + self.attend(self.norm(x, f"{layer}.input_layernorm.weight"), f"{layer}.self_attn", cache, first)
            y = self.norm(x, f"{layer}.post_attention_layernorm.weight")
            gate, up = (F.linear(y, self.weight(f"{layer}.mlp.{name}_proj.weight")) for name in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, self.weight(f"{layer}.mlp.down_proj.weight"))
        x = self.norm(x, "model.norm.weight")
        tied = self.config.get("tie_word_embeddings", False)
        return F.linear(x, self.weight("model.embed_tokens.weight" if tied else "lm_head.weight"))

    @torch.no_grad()
    def generate_ids(self, prompts, max_new_tokens):
        """Generates responses [B, R] to prompts [B, P], padded with the end-of-text id."""
        batch, length = prompts.shape
        shape = (batch, self.config["num_key_value_heads"], length + max_new_tokens, self.config["head_dim"])
        caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(self.config["num_hidden_layers"])]
        end = self.config["eos_token_id"]
        responses = torch.full((batch, max_new_tokens), end)
        done = torch.zeros(batch, dtype=torch.bool)
        logits = self(prompts, caches)[:, -1]
        for t in range(max_new_tokens):
            ids = torch.multinomial(logits.softmax(-1), 1)[:, 0]
            responses[:, t] = torch.where(done, end, ids)
            done |= ids == end
            if done.all() or t == max_new_tokens - 1:
                return responses[:, :t + 1]
            logits = self(responses[:, t:t + 1], caches, length + t)[:, -1]
        return responses


class TransformersModel(torch.nn.Module):
    def __init__(self, directory):
        super().__init__()
        from transformers import AutoModelForCausalLM
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
        self.config = {"eos_token_id": self.model.config.eos_token_id}

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits

    @torch.no_grad()
    def generate_ids(self, prompts, max_new_tokens):
        out = self.model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0,
                                  max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens,
                                  pad_token_id=self.config["eos_token_id"])
        return out[:, prompts.shape[1]:]


def log_tail(log_probs, ids):
    return log_probs.scatter(-1, ids, float("-inf")).logsumexp(-1)


def teacher_scores(teacher, inputs, first_row, mask, top_k):
    with torch.no_grad():
        log_probs = teacher(inputs)[:, first_row:][mask].float().log_softmax(-1)
        log_q, ids = log_probs.topk(top_k, -1)
        return ids, log_q, log_tail(log_probs, ids)


def tail_aware_kl(log_probs, ids, log_q, log_q_tail):
    log_p, log_p_tail = log_probs.gather(-1, ids), log_tail(log_probs, ids)
    return (log_p.exp() * (log_p - log_q)).sum(-1) + log_p_tail.exp() * (log_p_tail - log_q_tail)


def step(student, teacher, optimizer, prompts, options):
    """Returns the seconds of the phases, and the number of response tokens."""
    seconds, last = {}, time.monotonic()

    def end(phase):
        nonlocal last
        now = time.monotonic()
        seconds[phase] = seconds.get(phase, 0) + now - last
        last = now

    responses = student.generate_ids(prompts, options["max_new_tokens"])
    end("rollout")
    ended = (responses == student.config["eos_token_id"]).cumsum(1)
    mask = (ended == 0) | ((ended == 1) & (responses == student.config["eos_token_id"]))
    inputs, first_row = torch.cat([prompts, responses[:, :-1]], 1), prompts.shape[1] - 1
    ids, log_q, log_q_tail = teacher_scores(teacher, inputs, first_row, mask, options["top_k"])
    end("teacher")
    row_sequence = torch.arange(len(prompts))[:, None].expand_as(mask)[mask]
    for sequences in torch.arange(len(prompts)).chunk(options["mini_batches"]):
        low, high = int(sequences[0]), int(sequences[-1]) + 1
        rows = (row_sequence >= low) & (row_sequence < high)
        logits = student(inputs[low:high])[:, first_row:][mask[low:high]]
        end("forward")
        loss = tail_aware_kl(logits.float().log_softmax(-1), ids[rows], log_q[rows], log_q_tail[rows]).mean()
        del logits
        end("head")
        optimizer.zero_grad()
        loss.backward()
        end("backward")
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        end("optimizer")
    return seconds, int(mask.sum())


def main():
    kind, student_dir, teacher_dir, prompts_path, options_path = sys.argv[1:]
    options = json.loads(pathlib.Path(options_path).read_text())
    torch.set_num_threads(options["threads"])
    torch.manual_seed(0)
    make = PlainModel if kind == "plain" else TransformersModel
    student, teacher = make(student_dir), make(teacher_dir).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(student.parameters(), lr=options["lr"], weight_decay=0.0)
    all_prompts = torch.tensor(json.loads(pathlib.Path(prompts_path).read_text()))
    result = {"steps": [], "tokens": [], "torch": torch.__version__}
    num_prompts = options["prompts_per_step"]
    cpu_before = 0.0
    for i in range(options["steps"]):
        if i == options["warm_up_steps"]:
            cpu_before = time.process_time()
        chosen = torch.arange(i * num_prompts, (i + 1) * num_prompts) % len(all_prompts)
        seconds, tokens = step(student, teacher, optimizer,
                               all_prompts[chosen].repeat_interleave(options["rollouts"], 0), options)
        if i >= options["warm_up_steps"]:
            result["steps"].append(seconds)
            result["tokens"].append(tokens)
    result["cpu_s"] = time.process_time() - cpu_before
    result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))


if __name__ == "__main__":
    main()
