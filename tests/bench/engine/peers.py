"""Runs one case of the engine benchmark with another program; compare.py runs each in a fresh process.

    python peers.py PEER MODEL DTYPE THREADS (score | generate) SEQUENCES PROMPT RESULTS REPEAT

PEER is transformers, transformers-by-sequence, transformers-whole, llama.cpp (MODEL is a GGUF file) or vllm. Prints
one JSON object with the members of engine_bench (engine_bench.cc): seconds, cpu_s, decode_s, decode_cpu_s,
load_s (with the imports), loaded_bytes, peak_bytes, threads; and version. Memory counts from the end of the imports.
`generate` is greedy if the peer samples.
"""

import itertools
import json
import os
import pathlib
import sys
import time

import numpy as np


def status_bytes(field):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(field)


def now():
    """Returns the wall-clock time and the CPU time of all threads of this process."""
    return time.perf_counter(), time.process_time()


def since(start, end):
    return tuple(b - a for a, b in zip(start, end))


class Steps:
    """The times of decoding steps, from the first token to the last."""

    def __init__(self):
        self.times = []

    def __call__(self):
        self.times.append(now())

    def seconds(self):
        return since(self.times[0], self.times[-1]) if self.times else (0.0, 0.0)


class Transformers:
    """Eager PyTorch. Scores a batch with one call of the model and its log_softmax by sequence, so that
    the float32 log-probs of one sequence exist at a time; or calls the model once a sequence; or takes the
    log_softmax of the whole batch."""

    def __init__(self, model, dtype, threads, scoring):
        import torch
        import transformers
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(threads)
        self.torch, self.scoring = torch, scoring
        self.version = f"{transformers.__version__}, torch {torch.__version__}"
        self.start_bytes = status_bytes("VmRSS")
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self.vocab_size = self.model.config.vocab_size
        self.threads = torch.get_num_threads()

    def score(self, prompts, top_k):
        torch = self.torch
        ids = torch.tensor(prompts)
        results = []
        with torch.inference_mode():
            for batch in ids.split(1 if self.scoring == "by sequence" else len(ids)):
                logits = self.model(input_ids=batch, use_cache=False).logits
                if self.scoring == "whole":
                    log_probs = logits[:, :-1].float().log_softmax(-1)
                    results.append((log_probs.topk(top_k), log_probs.gather(-1, batch[:, 1:, None])))
                    continue
                for row, row_ids in zip(logits, batch):
                    log_probs = row[:-1].float().log_softmax(-1)
                    results.append((log_probs.topk(top_k), log_probs.gather(-1, row_ids[1:, None])))
        return results

    def generate(self, prompts, num_new, on_step):
        torch = self.torch

        class Watch:  # a stopping criterion is called after each token
            def __call__(self, input_ids, scores, **kwargs):
                on_step()
                return torch.zeros(len(input_ids), dtype=torch.bool)

        ids = torch.tensor(prompts)
        with torch.inference_mode():
            self.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                min_new_tokens=num_new, max_new_tokens=num_new, pad_token_id=0,
                                stopping_criteria=[Watch()])


class LlamaCpp:
    """Uses the C interface as llama-bench does: decoding feeds random tokens and does not sample."""

    def __init__(self, model, dtype, threads, num_sequences, num_tokens):
        import llama_cpp
        import torch  # for log-probs and top-k of the logits
        del dtype  # that of the file
        torch.set_num_threads(threads)
        self.lib, self.torch, self.threads = llama_cpp, torch, threads
        self.version = llama_cpp.__version__
        self.start_bytes = status_bytes("VmRSS")
        llama_cpp.llama_backend_init()
        self.weights = llama_cpp.llama_model_load_from_file(
            os.fsencode(model), llama_cpp.llama_model_default_params())
        if not self.weights:
            sys.exit(f"llama.cpp cannot load {model}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_sequences * num_tokens
        params.n_batch = num_sequences * num_tokens
        params.n_ubatch = 512
        params.n_seq_max = num_sequences
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.weights, params)
        if not self.context:
            sys.exit("llama.cpp cannot make a context")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.weights))
        self.batch = llama_cpp.llama_batch_init(num_sequences * num_tokens, 0, 1)

    def decode(self, rows):
        """Computes rows of (token, position, sequence, whether its logits are wanted)."""
        for i, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = wanted
        self.batch.n_tokens = len(rows)
        if self.lib.llama_decode(self.context, self.batch) != 0:
            sys.exit("llama_decode failed")
        self.lib.llama_synchronize(self.context)

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def score(self, prompts, top_k):
        results = []
        for ids in prompts:
            self.clear()
            self.decode([(int(token), i, 0, True) for i, token in enumerate(ids)])
            pointer = self.lib.llama_get_logits(self.context)
            logits = np.ctypeslib.as_array(pointer, (len(ids), self.vocab_size))
            rows = self.torch.from_numpy(logits)[:-1]
            log_sum = rows.logsumexp(-1, keepdim=True)
            top = rows.topk(top_k)
            chosen = rows.gather(-1, self.torch.tensor(ids[1:])[:, None])
            results.append((top.values - log_sum, top.indices, chosen - log_sum))
        return results

    def generate(self, prompts, num_new, on_step):
        self.clear()
        length = prompts.shape[1]
        self.decode([(int(token), i, s, i == length - 1) for s, ids in enumerate(prompts)
                     for i, token in enumerate(ids)])
        on_step()
        for step in range(num_new - 1):
            self.decode([(int(ids[step % length]), length + step, s, True) for s, ids in enumerate(prompts)])
            on_step()


class Vllm:
    """The offline engine, stepped by hand in this process."""

    def __init__(self, model, dtype, threads, num_sequences, num_tokens):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
        import torch
        import vllm
        torch.set_num_threads(threads)
        self.vllm = vllm
        self.version = vllm.__version__
        self.start_bytes = status_bytes("VmRSS")
        self.llm = vllm.LLM(model=model, dtype=dtype, skip_tokenizer_init=True, enforce_eager=True,
                            max_model_len=num_tokens + 1, max_num_seqs=num_sequences, max_logprobs=64,
                            enable_prefix_caching=False, disable_log_stats=True)
        self.vocab_size = self.llm.model_config.get_vocab_size()
        self.threads = torch.get_num_threads()
        self.ids = itertools.count()

    def run(self, prompts, on_step, **sampling):
        params = self.vllm.SamplingParams(temperature=0, ignore_eos=True, detokenize=False, **sampling)
        engine = self.llm.llm_engine
        for ids in prompts:
            engine.add_request(str(next(self.ids)), {"prompt_token_ids": [int(i) for i in ids]}, params)
        results = []
        while engine.has_unfinished_requests():
            outputs = engine.step()
            results += [output for output in outputs if output.finished]
            if len(outputs) == len(prompts):  # every sequence has got a token
                on_step()
        return results

    def score(self, prompts, top_k):
        return self.run(prompts, lambda: None, max_tokens=1, prompt_logprobs=top_k)

    def generate(self, prompts, num_new, on_step):
        self.run(prompts, on_step, max_tokens=num_new)


def make_peer(name, model, dtype, threads, num_sequences, num_tokens):
    if name == "llama.cpp":
        return LlamaCpp(model, dtype, threads, num_sequences, num_tokens)
    if name == "vllm":
        return Vllm(model, dtype, threads, num_sequences, num_tokens)
    return Transformers(model, dtype, threads, scoring=name.removeprefix("transformers").strip("-").replace("-", " "))


def main():
    name, model, dtype, threads, kind, *sizes = sys.argv[1:]
    num_sequences, length, num_results, repeat = map(int, sizes)
    num_tokens = max(length + (num_results if kind == "generate" else 1), 32)
    start = time.perf_counter()
    peer = make_peer(name, model, dtype, int(threads), num_sequences, num_tokens)
    random = np.random.default_rng(1)
    result = {"version": peer.version, "threads": peer.threads,
              "loaded_bytes": status_bytes("VmRSS") - peer.start_bytes, "load_s": time.perf_counter() - start}

    def run(num_prompts, length, num_results):
        prompts = random.integers(peer.vocab_size, size=(num_prompts, length))
        steps = Steps()
        start = now()
        if kind == "score":
            peer.score(prompts, num_results)
        else:
            peer.generate(prompts, num_results, steps)
        return since(start, now()) + steps.seconds()

    run(1, 16, 2)
    runs = [run(num_sequences, length, num_results) for _ in range(repeat)]
    result.update(zip(("seconds", "cpu_s", "decode_s", "decode_cpu_s"), map(min, zip(*runs))))
    result["peak_bytes"] = status_bytes("VmHWM") - peer.start_bytes
    print(json.dumps(result))


if __name__ == "__main__":
    main()
