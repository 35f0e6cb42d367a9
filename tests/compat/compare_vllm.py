"""The same requests to vLLM and to taopd-teacher, answers compared field by field.

Texts, keys and their order must be equal, numbers may differ by 1e-4, and errors are compared by their status and
shape. differences.json lists the known and wanted differences with their reasons. A difference that is not listed
fails, and so does a listed one that no longer occurs.

TAOPD_BIN_DIR and TAOPD_VLLM name the programs. Exit code 77: there is no vLLM.
"""

import json
import pathlib
import sys

import service
from answers import differences
from cases import cases


def joined(events):
    """A stream as one answer: what is divided differently between events is put together."""
    answer = {"events": len(events) > 0, "choices": {}, "usage": None, "keys": sorted({key for e in events for key in e})}
    for event in events:
        if "error" in event:
            return {"error": event["error"]}
        answer["usage"] = event.get("usage") or answer["usage"]
        for choice in event["choices"]:
            whole = answer["choices"].setdefault(choice["index"], {})
            text = choice.get("text", choice.get("delta", {}).get("content", ""))
            whole["text"] = whole.get("text", "") + text
            whole["keys"] = list(choice) if len(choice) >= len(whole.get("keys", [])) else whole["keys"]
            for key in ("finish_reason", "stop_reason"):
                whole[key] = choice.get(key) if choice.get(key) is not None else whole.get(key)
            whole["token_ids"] = whole.get("token_ids", []) + (choice.get("token_ids") or [])
            for key, values in (choice.get("logprobs") or {}).items():
                whole.setdefault("logprobs", {}).setdefault(key, []).extend(values)
    answer["choices"] = dict(sorted(answer["choices"].items()))  # they begin in any order
    return answer


def read(status, text):
    if text.startswith("data: "):
        events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
        assert events[-1] == "[DONE]", text
        answer = joined([json.loads(event) for event in events[:-1]])
    else:
        try:
            answer = json.loads(text) if text else None
        except ValueError:
            answer = text
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        status = answer["error"]["code"]  # vLLM finds some errors when the stream has begun
        answer = {"error": sorted(answer["error"])}
    return status, answer


def main():
    service.skip_without_vllm()
    listed = json.loads((pathlib.Path(__file__).parent / "differences.json").read_text())
    reasons = {entry["case"]: entry["reason"] for entry in listed}
    failed, seen, count = 0, set(), 0
    with service.tiny_model_dir() as model, service.teacher(model) as teacher:
        with service.given_vllm(model) as vllm:
            for name, path, body in cases():
                count += 1
                found = list(compare(teacher, vllm, path, body))
                if found and name in reasons:
                    seen.add(name)
                elif found:
                    failed += 1
                    print(f"DIFFERS {name}: {json.dumps(body)[:200]}")
                    for where, what in found[:5]:
                        print(f"    {where}: {what[:300]}")
    for name in sorted(set(reasons) - seen):
        failed += 1
        print(f"LISTED but equal: {name}")
    print(f"{count} requests, {count - len(seen) - failed} equal, {len(seen)} differ as listed, {failed} failed")
    return 1 if failed else 0


def compare(teacher, vllm, path, body):
    ours, theirs = read(*teacher.request(path, body)), read(*vllm.request(path, body))
    if ours[0] != theirs[0]:
        yield "status", f"{ours[0]} and {theirs[0]}"
    else:
        yield from differences(ours[1], theirs[1])


if __name__ == "__main__":
    sys.exit(main())
