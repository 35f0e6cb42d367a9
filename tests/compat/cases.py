"""Requests to servers of vLLM's API that serve the tiny model: (name, path, body)."""

IDS = [257, 32, 99, 97, 116, 267, 262]
CHAT = [{"role": "user", "content": "the cat"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d",
                                           "parameters": {"type": "object", "properties": {}}}}]


def completions():
    base = {"prompt": IDS, "temperature": 0, "max_tokens": 4, "ignore_eos": True}
    variants = {
        "plain": {}, "text": {"prompt": "the cat and"}, "texts": {"prompt": ["the cat", "and"]},
        "batch": {"prompt": [IDS, IDS[:2], [5]]}, "one token": {"prompt": [5], "prompt_logprobs": 2},
        "logprobs 0": {"logprobs": 0}, "logprobs 3": {"logprobs": 3},
        "prompt_logprobs 0": {"prompt_logprobs": 0}, "prompt_logprobs 3": {"prompt_logprobs": 3},
        "ids": {"return_token_ids": True, "logprobs": 1},
        "names": {"return_tokens_as_token_ids": True, "logprobs": 2},
        "echo": {"echo": True}, "echo logprobs": {"echo": True, "logprobs": 2},
        "echo only": {"echo": True, "max_tokens": 0, "logprobs": 1},
        "echo ids": {"echo": True, "return_token_ids": True, "logprobs": 1},
        "echo special": {"prompt": [274, 257, 272], "echo": True, "logprobs": 0},
        "echo text": {"prompt": "the cat", "echo": True},
        "bytes": {"prompt": [271, 159, 156, 129, 98], "echo": True, "logprobs": 0},
        "incomplete": {"allowed_token_ids": [159], "logprobs": 1}, "space and byte": {"allowed_token_ids": [271]},
        "stop": {"allowed_token_ids": [257], "stop": ["het"]},
        "stop kept": {"allowed_token_ids": [257], "stop": ["het"], "include_stop_str_in_output": True},
        "stop id": {"allowed_token_ids": [257], "stop_token_ids": [257]},
        "eos": {"allowed_token_ids": [274], "ignore_eos": False},
        "eos kept": {"allowed_token_ids": [274], "skip_special_tokens": False},
        "min tokens": {"logit_bias": {"274": 100}, "ignore_eos": False, "min_tokens": 2},
        "bias": {"logit_bias": {"99": 100}}, "bad words": {"bad_words": ["the"], "logprobs": 1},
        "penalties": {"presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 1.5, "logprobs": 1},
        "truncate": {"truncate_prompt_tokens": 3, "return_token_ids": True},
        "truncate right": {"truncate_prompt_tokens": 3, "truncation_side": "right", "return_token_ids": True},
        "salt": {"cache_salt": "a"}, "unknown": {"best_of": 2, "nobody": 1, "guided_json": {}},
        "fills the context": {"prompt": [99] * 250, "max_tokens": 100},
        "lax": {"max_tokens": "2", "echo": "yes", "temperature": "0", "ignore_eos": 1},
        "two choices": {"n": 2, "temperature": 1, "top_k": 1, "seed": 1, "prompt_logprobs": 1},
        "user": {"user": "u", "session_id": "s", "priority": 0, "response_format": {"type": "text"}},
        "regex": {"structured_outputs": {"regex": "(ab|cd){2}[0-9]"}, "max_tokens": 9, "ignore_eos": False},
        "choice": {"structured_outputs": {"choice": ["the cat", "an ant"]}, "max_tokens": 9, "ignore_eos": False},
        "choice and on": {"structured_outputs": {"choice": ["the", "an"]}, "max_tokens": 9},
        "grammar": {"structured_outputs": {"grammar": "root ::= \"(\" root \")\" | \"x\""}, "max_tokens": 9},
        "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "enum": [{"a": 1}, [2, True], "three"]}}}, "max_tokens": 30, "ignore_eos": False},
        "format": {"response_format": {"type": "json_object"}, "max_tokens": 9},
    }
    for name, fields in variants.items():
        yield "completions: " + name, "/v1/completions", {**base, **fields}
    streams = ("plain", "logprobs 3", "ids", "echo logprobs", "echo only", "echo ids", "batch", "stop", "stop kept",
               "stop id", "eos", "incomplete", "bytes")
    for name in streams:
        yield "stream: " + name, "/v1/completions", {**base, **variants[name], "stream": True}
    usage = {"include_usage": True}
    yield "stream: usage", "/v1/completions", {**base, "stream": True, "stream_options": usage}
    usage = {**usage, "continuous_usage_stats": True}
    yield "stream: all usage", "/v1/completions", {**base, "stream": True, "stream_options": usage}


def chats():
    base = {"messages": CHAT, "temperature": 0, "max_tokens": 4, "ignore_eos": True}
    answer = [*CHAT, {"role": "assistant", "content": "and"}]
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": "cat"}]
    variants = {
        "plain": {}, "logprobs": {"logprobs": True}, "top": {"logprobs": True, "top_logprobs": 2},
        "prompt": {"prompt_logprobs": 2}, "ids": {"return_token_ids": True},
        "names": {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True},
        "text": {"return_prompt_text": True}, "echo": {"echo": True},
        "continue": {"messages": answer, "add_generation_prompt": False, "continue_final_message": True},
        "continue echo": {"messages": answer, "add_generation_prompt": False, "continue_final_message": True,
                          "echo": True},
        "no generation prompt": {"add_generation_prompt": False, "return_prompt_text": True},
        "parts": {"messages": [{"role": "user", "content": parts}], "return_prompt_text": True},
        "kwargs": {"chat_template_kwargs": {"enable_thinking": False}, "return_prompt_text": True},
        "effort": {"reasoning_effort": "none", "return_prompt_text": True},
        "tools": {"tools": TOOLS, "tool_choice": "none", "return_prompt_text": True},
        "tools auto": {"tools": TOOLS}, "tools required": {"tools": TOOLS, "tool_choice": "required"},
        "two limits": {"max_completion_tokens": 2}, "no limit": {"max_tokens": None, "logit_bias": {"99": 100}},
        "special": {"add_special_tokens": True, "return_token_ids": True},
    }
    for name, fields in variants.items():
        yield "chat: " + name, "/v1/chat/completions", {**base, **fields}
    for name in ("plain", "top", "ids", "continue echo", "text"):
        yield "chat stream: " + name, "/v1/chat/completions", {**base, **variants[name], "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    yield "chat stream: usage", "/v1/chat/completions", {**base, "stream": True, "stream_options": options}


def tokens():
    base = {"temperature": 0, "max_tokens": 3, "ignore_eos": True}
    params = {"plain": {}, "logprobs": {"logprobs": 2}, "prompt": {"prompt_logprobs": 2},
              "plain ids": {"prompt_logprobs": 1, "detokenize": False}, "no logprobs": {"logprobs": 0}}
    for name, fields in params.items():
        body = {"token_ids": IDS, "sampling_params": {**base, **fields}}
        yield "generate: " + name, "/inference/v1/generate", body
    body = {"token_ids": IDS, "sampling_params": {**base, "logprobs": 2}, "return_token_ids": True}
    yield "generate: text", "/inference/v1/generate", {**body, "output_mode": "text"}
    yield "generate stream", "/inference/v1/generate", {**body, "stream": True}
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    yield "generate stream: usage", "/inference/v1/generate", {**body, "stream": True}
    for name, body in {"text": {"prompt": "the cat"}, "strings": {"prompt": "the cat", "return_token_strs": True},
                       "chat": {"messages": CHAT}, "empty": {"prompt": ""}}.items():
        yield "tokenize: " + name, "/tokenize", body
    for name, ids in {"ids": IDS, "special": [274, 257], "beyond": [9999], "none": []}.items():
        yield "detokenize: " + name, "/detokenize", {"tokens": ids}


def errors():
    """Requests that are refused: with 404 for a model that is not served, and with 400 for all other reasons."""
    yield "error: nothing", "/v1/completions", {}
    completion = {"prompt": IDS, "max_tokens": 1}
    for name, fields in {
            "model": {"model": "x"}, "empty": {"prompt": ""}, "no prompts": {"prompt": []},
            "empty ids": {"prompt": [[]]}, "vocabulary": {"prompt": [10**6]}, "negative": {"prompt": [-1]},
            "mixed": {"prompt": [1, "a"]}, "object": {"prompt": {}}, "k": {"prompt_logprobs": 21},
            "logprobs": {"logprobs": 21}, "k negative": {"prompt_logprobs": -2}, "k text": {"prompt_logprobs": "x"},
            "stream k": {"stream": True, "prompt_logprobs": 1}, "options": {"stream_options": {"include_usage": True}},
            "max_tokens": {"max_tokens": 0}, "max_tokens text": {"max_tokens": "x"}, "max_tokens half": {"max_tokens": 1.5},
            "long": {"prompt": [5] * 257}, "full": {"prompt": [5] * 256}, "temperature": {"temperature": 3},
            "top_p": {"top_p": 0}, "top_k": {"top_k": -2}, "min_p": {"min_p": 2}, "n": {"n": 0},
            "greedy n": {"n": 2, "temperature": 0}, "allowed": {"allowed_token_ids": []},
            "allowed beyond": {"allowed_token_ids": [10**6]}, "stop": {"stop": [""]}, "stop type": {"stop": 5},
            "stop id": {"stop_token_ids": [10**6]}, "bias": {"logit_bias": {"x": 1}}, "bias id": {"logit_bias": {"1000000": 1}},
            "bad words": {"bad_words": [""]}, "salt": {"cache_salt": ""}, "salt char": {"cache_salt": "a/b"},
            "suffix": {"suffix": "x"}, "user": {"user": 5}, "echo": {"echo": "perhaps"},
            "min_tokens": {"min_tokens": 2}, "penalty": {"presence_penalty": 3}, "format": {"response_format": {"type": "x"}},
            "budget": {"thinking_token_budget": 5}}.items():
        yield "error: " + name, "/v1/completions", {**completion, **fields}
    chat = {"messages": CHAT, "max_tokens": 1}
    for name, fields in {
            "empty": {"messages": []}, "text": {"messages": "x"}, "no role": {"messages": [{"content": "x"}]},
            "content": {"messages": [{"role": "user", "content": 5}]}, "top": {"top_logprobs": 2},
            "top k": {"logprobs": True, "top_logprobs": 21}, "tools": {"tools": []}, "choice": {"tool_choice": "auto"},
            "both": {"continue_final_message": True}, "template": {"chat_template": "x"}, "max_tokens": {"max_tokens": 0}, "model": {"model": "x"},
            "image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    }.items():
        yield "chat error: " + name, "/v1/chat/completions", {**chat, **fields}
    for name, body in {"no ids": {"sampling_params": {}}, "no params": {"token_ids": [1]},
                       "empty": {"token_ids": [], "sampling_params": {}},
                       "type": {"token_ids": [1], "sampling_params": {"temperature": "x"}},
                       "zero": {"token_ids": [1], "sampling_params": {"max_tokens": 0}}}.items():
        yield "generate error: " + name, "/inference/v1/generate", body
    for name, body in {"nothing": {}, "type": {"prompt": 5}, "model": {"prompt": "x", "model": "y"}}.items():
        yield "tokenize error: " + name, "/tokenize", body
    for name, body in {"nothing": {}, "type": {"tokens": "x"}, "negative": {"tokens": [-1]}}.items():
        yield "detokenize error: " + name, "/detokenize", body


def cases():
    yield from completions()
    yield from chats()
    yield from tokens()
    yield from errors()
    for path in ("/health", "/ping", "/version", "/v1/models", "/tokenizer_info", "/load", "/nothing", "/v1/completions",
                 "/v1/models/tiny"):
        yield "GET " + path, path, None
