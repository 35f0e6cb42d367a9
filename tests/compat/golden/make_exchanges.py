"""Writes what the clients of other projects send, and what their own server answers with the tiny model.

There is one file per client: its request bodies, field by field as its sources build them, and the replies. The clients that
speak to vLLM are answered by a vLLM; it must be on the path of this interpreter (TAOPD_VLLM names the program). There
is no SGLang and no TRL server for the CPU: their replies are written here, in the form of their sources, around
numbers that transformers computes. Run it with vLLM's interpreter, which has transformers and torch:

  TAOPD_VLLM=VENV/bin/vllm VENV/bin/python tests/compat/golden/make_exchanges.py

`sampled` names the fields of a reply that depend on a token drawn at random: they are compared by their type.
"""

import base64
import importlib.metadata
import json
import pathlib
import struct
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import service  # noqa: E402
import tiny_model  # noqa: E402

MAX_LOGPROBS = 100
IDS = [257, 32, 99, 97, 116, 267, 262]
OTHER = [97, 110, 268, 116, 104]
RESPONSE = 4  # tokens of IDS that count as the response
SAMPLED_COMPLETION = ["choices[].text", "choices[].finish_reason", "choices[].stop_reason"]
SAMPLED_TOKENS = ["choices[].token_ids", "choices[].finish_reason"]


def vllm_clients():
    """(file, source, [(path, body, sampled)])."""
    completions, tokens = "/v1/completions", "/inference/v1/generate"
    trl = {"model": service.MODEL_NAME, "prompt": [IDS[:4], OTHER], "max_tokens": 1, "temperature": 0.9}
    yield "trl", "huggingface/trl trl/generation/vllm_client.py at 02adeb8f", [
        ("/v1/models", None, []),
        (completions, {**trl, "prompt_logprobs": 100}, SAMPLED_COMPLETION),  # its default
        (completions, {**trl, "prompt_logprobs": 5}, SAMPLED_COMPLETION)]
    yield "prime_rl", "PrimeIntellect-ai/prime-rl utils/client.py, prefill_logprobs, at 559b4477", [
        (tokens, {"model": service.MODEL_NAME, "token_ids": ids,
                  "sampling_params": {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "prompt_logprobs": 1}},
         SAMPLED_TOKENS) for ids in (IDS, OTHER, IDS[:1])]
    verl = {"max_tokens": 1, "temperature": 1.0, "detokenize": False}
    yield "verl", "verl-project/verl verl/experimental/teacher_loop/teacher_manager.py at 1dda039b", [
        (tokens, {"token_ids": IDS, "sampling_params": {**verl, "prompt_logprobs": k}}, SAMPLED_TOKENS)
        for k in (0, 2, 64)]
    yield "lm_eval", "EleutherAI/lm-evaluation-harness lm_eval/models/api_models.py at 4e7e0d47", [
        (completions, {"model": service.MODEL_NAME, "prompt": [IDS, OTHER], "temperature": 0, "max_tokens": 1,
                       "logprobs": 1, "seed": 1234, "echo": True}, []),
        ("/tokenize", {"prompt": "test", "add_special_tokens": False}, []),
        ("/detokenize", {"tokens": IDS}, [])]


class Scores:
    """Log-probs of a sequence by transformers, rows 1 to the end."""

    def __init__(self, model, ids):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        self.ids = ids
        self.rows = torch.log_softmax(logits[:-1].double(), dim=-1).float()

    def actual(self):
        return [self.rows[i, token].item() for i, token in enumerate(self.ids[1:])]

    def top(self, row, k):
        values, ids = torch.topk(self.rows[row], k)
        return list(zip(values.tolist(), ids.tolist()))


def sglang_reply(scores, k=0, chosen=None):
    count = len(scores.ids)
    meta = {"id": "id", "finish_reason": {"type": "length", "length": 0}, "prompt_tokens": count,
            "completion_tokens": 0, "cached_tokens": 0, "weight_version": "default"}
    meta["input_token_logprobs"] = [[None, scores.ids[0], None]] + [
        [value, token, None] for value, token in zip(scores.actual(), scores.ids[1:])]
    meta["output_token_logprobs"] = []
    if k > 0:
        meta["input_top_logprobs"] = [None] + [
            [[value, token, None] for value, token in scores.top(row, k)] for row in range(count - 1)]
        meta["output_top_logprobs"] = []
    if chosen is not None:
        meta["input_token_ids_logprobs"] = [None] + [
            [[scores.rows[row, token].item(), token, None] for token in chosen] for row in range(count - 1)]
        meta["output_token_ids_logprobs"] = []
    return {"text": "", "output_ids": [], "meta_info": meta}


def sglang_clients(model):
    """(file, source, [(path, body, reply)])."""
    scores = Scores(model, IDS)
    body = {"input_ids": IDS, "return_logprob": True, "logprob_start_len": 0}
    slime = {"temperature": 1.0, "max_new_tokens": 0, "skip_special_tokens": False}
    yield "slime", "THUDM/slime slime/rollout/on_policy_distillation.py at 624b824a", [
        ("/generate", {**body, "sampling_params": slime}, sglang_reply(scores))]
    miles = {"temperature": 0, "max_new_tokens": 0, "skip_special_tokens": False}
    union = [3, 8, IDS[1]]
    yield "miles", "radixark/miles, the same file, at 31f1ca96", [
        ("/generate", {**body, "sampling_params": miles, "top_logprobs_num": 4}, sglang_reply(scores, 4)),
        ("/generate", {**body, "sampling_params": miles, "top_logprobs_num": 4, "token_ids_logprob": union},
         sglang_reply(scores, 4, union))]


def packed(kind, values):
    return base64.b64encode(struct.pack(f"<{len(values)}{kind}", *values)).decode()


def trl_own_server(model):
    """TRL's server of its own answers about the responses alone, padded to the longest."""
    sequences, lengths, k = [IDS, OTHER], [len(IDS) - RESPONSE, 3], 3
    body = {"sequences": sequences, "prompt_lengths": lengths, "top_logprobs": k, "temperature": 1.0}
    counts = [len(ids) - length for ids, length in zip(sequences, lengths)]
    tops, top_ids, actual, actual_ids, rows, row_ids = [], [], [], [], [], []
    for ids, length in zip(sequences, lengths):
        scores = Scores(model, ids)
        rows.append([])
        row_ids.append([])
        for i in range(max(counts)):
            t = length + i
            best = scores.top(t - 1, k) if t < len(ids) else [(-float("inf"), 0)] * k
            tops += [value for value, _ in best]
            top_ids += [token for _, token in best]
            actual.append(scores.actual()[t - 1] if t < len(ids) else -float("inf"))
            actual_ids.append(ids[t] if t < len(ids) else 0)
            if t < len(ids):
                if ids[t] not in [token for _, token in best]:
                    best.append((scores.actual()[t - 1], ids[t]))
                rows[-1].append([value for value, _ in best])
                row_ids[-1].append([token for _, token in best])
    binary = {"logprobs_b64": packed("f", tops), "token_ids_b64": packed("i", top_ids),
              "actual_logprobs_b64": packed("f", actual), "actual_token_ids_b64": packed("i", actual_ids),
              "shape": [2, max(counts), k], "completion_lengths": counts}
    path = "/get_sequence_logprobs/"
    return "trl_own_server", "huggingface/trl trl/scripts/vllm_serve.py at f2cd5771", [
        (path, {**body, "response_format": "binary"}, binary),
        (path, {**body, "response_format": "json"}, {"logprobs": rows, "logprob_token_ids": row_ids})]


def write(name, source, answered_by, model_sha256, exchanges):
    content = {"client": name, "source": source, "answered_by": answered_by, "model_sha256": model_sha256,
               "exchanges": exchanges}
    lines = json.dumps({**content, "exchanges": []}, indent=1).rsplit("[]", 1)
    rows = ",\n  ".join(json.dumps(exchange, separators=(",", ":")) for exchange in exchanges)
    (HERE / f"{name}.json").write_text(f"{lines[0]}[\n  {rows}\n ]{lines[1]}\n")


def main():
    versions = {name: importlib.metadata.version(name) for name in ("vllm", "transformers", "torch")}
    with service.tiny_model_dir() as directory:
        sha256 = tiny_model.sha256(directory)
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        reference = f"transformers {versions['transformers']} on torch {versions['torch']}, in the form of the source"
        for name, source, exchanges in [*sglang_clients(model), trl_own_server(model)]:
            write(name, source, reference, sha256,
                  [{"path": path, "request": body, "sampled": [], "reply": reply}
                   for path, body, reply in exchanges])
        with service.vllm(directory, ("--max-logprobs", str(MAX_LOGPROBS))) as vllm:
            for name, source, exchanges in vllm_clients():
                write(name, source, f"vLLM {versions['vllm']} on torch {versions['torch']}", sha256,
                      [{"path": path, "request": body, "sampled": sampled, "reply": vllm.ask(path, body)}
                       for path, body, sampled in exchanges])


if __name__ == "__main__":
    main()
