"""The unmodified lm-evaluation-harness against taopd-teacher: a task of multiple choice over local-completions, with the
tokenizer asked from the server. Its log-likelihoods must be the sums of the server's own log-probs.

Usage: lm_eval_client.py URL
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from service import MODEL_NAME, Service

QUESTIONS = [("the cat and", [" the thing", " on there"]), ("on there", [" the cat", " a thing"])]
TASK = """task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def log_likelihood(service, context, choice):
    ids = service.tokens(context + choice, add_special_tokens=False)
    start = len(service.tokens(context, add_special_tokens=False))
    answer = service.ask("/v1/completions", {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 0})
    positions = answer["choices"][0]["prompt_logprobs"]
    return sum(positions[i][str(ids[i])]["logprob"] for i in range(start, len(ids)))


def main(url):
    service = Service(url)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        data = scratch / "data.jsonl"
        data.write_text("".join(json.dumps({"question": question, "choices": choices, "answer": 0}) + "\n"
                                for question, choices in QUESTIONS))
        (scratch / "tiny_choice.yaml").write_text(TASK.format(data=data))
        arguments = f"model={MODEL_NAME},base_url={url}/v1/completions,tokenizer_backend=remote,max_length=256"
        subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", arguments,
                        "--tasks", "tiny_choice", "--include_path", scratch, "--batch_size", "2", "--log_samples",
                        "--output_path", scratch / "out"], check=True,
                       env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(scratch)})
        (samples,) = (scratch / "out").glob("**/samples_*.jsonl")
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(rows) == len(QUESTIONS), rows
    for row in rows:
        question, choices = row["doc"]["question"], row["doc"]["choices"]
        for choice, response in zip(choices, row["resps"]):
            value, expected = float(response[0][0]), log_likelihood(service, question, choice)
            assert abs(value - expected) < 1e-4, (question, choice, value, expected)
    print("lm-evaluation-harness is served")


if __name__ == "__main__":
    main(sys.argv[1])
