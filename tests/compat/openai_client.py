"""The unmodified openai package against taopd-teacher: completions, chats, streams, and errors as its classes.

Usage: openai_client.py URL
"""

import sys

import openai


def main(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    whole = client.completions.create(model=model, prompt="the cat", max_tokens=6, temperature=0, logprobs=2,
                                      extra_body={"prompt_logprobs": 1, "ignore_eos": True})
    assert len(whole.choices[0].logprobs.tokens) == 6
    assert whole.choices[0].prompt_logprobs[0] is None
    assert whole.usage.completion_tokens == 6
    stream = client.completions.create(model=model, prompt="the cat", max_tokens=6, temperature=0, stream=True,
                                       stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
    text, usage = "", None
    for chunk in stream:
        text += "".join(choice.text for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == whole.choices[0].text, (text, whole.choices[0].text)
    assert usage.completion_tokens == 6

    messages = [{"role": "user", "content": [{"type": "text", "text": "the cat"}]}]
    arguments = {"model": model, "messages": messages, "max_completion_tokens": 5, "temperature": 0,
                 "extra_body": {"ignore_eos": True}}
    chat = client.chat.completions.create(**arguments, logprobs=True, top_logprobs=2)
    assert chat.choices[0].message.role == "assistant"
    assert len(chat.choices[0].logprobs.content) == 5
    assert len(chat.choices[0].logprobs.content[0].top_logprobs) == 2
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**arguments, stream=True)]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content for delta in deltas) == chat.choices[0].message.content

    for expected, arguments in ((openai.NotFoundError, {"model": "another", "prompt": "x"}),
                                (openai.BadRequestError, {"model": model, "prompt": "x", "temperature": 5}),
                                (openai.BadRequestError, {"model": model, "prompt": []})):
        try:
            client.completions.create(**arguments)
        except expected as error:
            assert error.body["message"], error.body
        else:
            raise AssertionError(arguments)
    print("openai", openai.__version__, "is served")


if __name__ == "__main__":
    main(sys.argv[1])
