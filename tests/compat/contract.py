"""The contract of log-probs over HTTP: values, ranks, order, shapes, independence of batch and cache, errors.

The server at COMPAT_URL, which tests/compat/run sets, is checked.
"""

import json
import math
import os
import unittest
import urllib.request

from answers import unpacked
from cases import errors
from service import Service
from waiting import wait_for

PROMPT = "the cat and the thing on there"
OTHER = "another sentence that is a bit longer than the first one"
K = 5


class ServiceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service(os.environ["COMPAT_URL"], float(os.environ.get("COMPAT_TOLERANCE", "0")))
        cls.ours = cls.service.is_ours()
        cls.ids, cls.other = cls.service.tokens(PROMPT), cls.service.tokens(OTHER)

    def complete(self, prompt, **fields):
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
        return self.service.ask("/v1/completions", body)["choices"]

    def score(self, prompt, k=K, **fields):
        return self.complete(prompt, prompt_logprobs=k, **fields)[0]["prompt_logprobs"]

    def assert_same(self, first, second):
        """Equal structures, whose numbers differ by the tolerance at most."""
        if isinstance(first, float) and isinstance(second, float):
            self.assertLessEqual(abs(first - second), self.service.tolerance)
        elif isinstance(first, dict):
            self.assertEqual(first.keys(), second.keys())
            for key in first:
                self.assert_same(first[key], second[key])
        elif isinstance(first, list):
            self.assertEqual(len(first), len(second))
            for pair in zip(first, second):
                self.assert_same(*pair)
        else:
            self.assertEqual(first, second)

    def log_probs(self, positions):
        return [[entry["logprob"] for entry in position.values()] for position in positions[1:]]


class ContractTest(ServiceTest):
    # Shapes, order and ranks.

    def test_positions_and_entries(self):
        for k in (0, 1, K):
            positions = self.score(self.ids, k)
            self.assertEqual(len(positions), len(self.ids))
            self.assertIsNone(positions[0])
            for token, position in zip(self.ids[1:], positions[1:]):
                self.assertEqual(next(iter(position)), str(token))  # the actual token is first
                actual = position[str(token)]
                self.assertEqual(len(position), max(k, 1) if actual["rank"] <= max(k, 1) else k + 1)
                others = [entry for key, entry in position.items() if key != str(token)]
                self.assertEqual([entry["rank"] for entry in others],
                                 [r for r in range(1, k + 1) if r != actual["rank"]])
                by_rank = sorted(position.values(), key=lambda entry: entry["rank"])
                values = [entry["logprob"] for entry in by_rank]
                self.assertEqual(values, sorted(values, reverse=True))
                self.assertLessEqual(sum(math.exp(value) for value in values), 1 + 1e-5)

    def test_a_single_token_has_no_log_prob(self):
        self.assertEqual(self.score(self.ids[:1]), [None])

    def test_smaller_k_are_parts_of_larger_ones(self):
        all_positions = self.score(self.ids, K)
        for k in (0, 1, 2):
            for small, large in zip(self.score(self.ids, k)[1:], all_positions[1:]):
                for key, entry in small.items():
                    # The last bits may differ: an entry of the top k is computed otherwise than the actual token's.
                    self.assertAlmostEqual(entry["logprob"], large[key]["logprob"],
                                           delta=max(self.service.tolerance, 1e-6))

    def test_texts_and_ids_are_scored_alike(self):
        self.assert_same(self.score(PROMPT), self.score(self.ids))

    def test_decoded_tokens_make_the_text(self):
        for text in (PROMPT, "a \U0001F701 b"):
            ids = self.service.tokens(text)
            positions = self.score(ids, 0)
            first = self.service.ask("/detokenize", {"tokens": ids[:1]})["prompt"]
            decoded = [position[str(token)]["decoded_token"] for token, position in zip(ids[1:], positions[1:])]
            self.assertEqual(first + "".join(decoded), text)

    def test_texts_end_with_whole_characters(self):
        part = self.service.tokens("\U0001F701")[-1]
        if not self.service.ask("/detokenize", {"tokens": [part]})["prompt"].endswith("\ufffd"):
            self.skipTest("the tokenizer has whole characters")
        fields = {"allowed_token_ids": [part], "max_tokens": 3, "ignore_eos": True}
        self.assertEqual(self.complete(self.ids, **fields)[0]["text"], "")
        events = self.service.events("/v1/completions", {"prompt": self.ids, "temperature": 0, **fields})
        self.assertEqual("".join(event["choices"][0]["text"] for event in events), "")

    # Values.

    def test_generated_log_probs_are_those_of_scoring(self):
        choice = self.complete(self.ids, max_tokens=8, logprobs=K, return_token_ids=True, ignore_eos=True)[0]
        whole = self.ids + choice["token_ids"]
        positions = self.score(whole)
        for i, token in enumerate(choice["token_ids"]):
            scored = positions[len(self.ids) + i][str(token)]["logprob"]
            self.assertLessEqual(abs(choice["logprobs"]["token_logprobs"][i] - scored), 1e-4)

    def test_temperature_does_not_change_log_probs(self):
        self.assert_same(self.score(self.ids), self.score(self.ids, temperature=1.7, seed=3, top_p=0.5))

    def test_echo_shows_the_same_log_probs(self):
        choice = self.complete(self.ids, echo=True, logprobs=K, max_tokens=1)[0]
        positions, logprobs = choice["prompt_logprobs"], choice["logprobs"]
        self.assertEqual(len(logprobs["tokens"]), len(self.ids) + 1)
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertIsNone(logprobs["top_logprobs"][0])
        for i, token in enumerate(self.ids[1:], 1):
            self.assertEqual(logprobs["token_logprobs"][i], positions[i][str(token)]["logprob"])
        offsets = [0]
        for token in logprobs["tokens"]:
            offsets.append(offsets[-1] + len(token))
        self.assertEqual(logprobs["text_offset"], offsets[:-1])

    def test_greedy_is_the_most_probable_token(self):
        logprobs = self.complete(self.ids, max_tokens=4, logprobs=1, ignore_eos=True)[0]["logprobs"]
        for value, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"]):
            self.assertEqual(value, max(top.values()))

    # Independence.

    def test_independent_of_the_batch(self):
        alone = [self.score(ids) for ids in (self.ids, self.other)]
        together = self.complete([self.ids, self.other, self.ids[:3], self.ids], prompt_logprobs=K)
        self.assert_same([together[i]["prompt_logprobs"] for i in (0, 1, 3)], [*alone, alone[0]])

    def test_independent_of_the_cache(self):
        first = self.score(self.other)
        self.complete(self.other, max_tokens=4)
        self.assert_same(self.score(self.other), first)
        self.assert_same(self.score(self.other, cache_salt="pepper"), first)
        longer = self.score(self.other + self.ids)
        self.assert_same(self.log_probs(longer[:len(self.other)]), self.log_probs(first))

    def test_equal_seeds_give_equal_samples_and_none_give_others(self):
        def sample(**fields):
            choices = self.complete([self.ids, self.ids], max_tokens=8, temperature=1.5, n=2, top_k=-1, top_p=1,
                                    return_token_ids=True, ignore_eos=True, **fields)
            return [choice["token_ids"] for choice in choices]

        seeded = sample(seed=5)
        self.assertEqual(sample(seed=5), seeded)
        self.assertEqual(seeded[:2], seeded[2:])  # a seed counts from the first choice of each prompt
        self.assertNotEqual(seeded[0], seeded[1])
        unseeded = sample()
        self.assertEqual(len({json.dumps(ids) for ids in unseeded}), 4)

    # Streams, chats and tokens.

    def test_streams_make_the_whole_answer(self):
        body = {"prompt": self.ids, "max_tokens": 6, "temperature": 0, "logprobs": 2, "ignore_eos": True,
                "return_token_ids": True, "stream_options": {"include_usage": True}}
        events = self.service.events("/v1/completions", body)
        del body["stream_options"]
        whole = self.service.ask("/v1/completions", body)
        chunks = [event["choices"][0] for event in events if event["choices"]]
        self.assertEqual("".join(chunk["text"] for chunk in chunks), whole["choices"][0]["text"])
        for key in ("tokens", "text_offset"):
            self.assertEqual(sum((chunk["logprobs"][key] for chunk in chunks), []),
                             whole["choices"][0]["logprobs"][key])
        self.assertEqual(chunks[0]["prompt_token_ids"], self.ids)
        self.assertEqual(events[-1]["usage"]["completion_tokens"], 6)
        self.assertEqual(events[-1]["usage"]["total_tokens"], whole["usage"]["total_tokens"])

    def test_chats_are_completions_of_their_tokens(self):
        messages = [{"role": "user", "content": "the thing"}]
        ids = self.service.ask("/tokenize", {"messages": messages})["tokens"]
        chat = self.service.ask("/v1/chat/completions", {
            "messages": messages, "max_tokens": 4, "temperature": 0, "prompt_logprobs": K, "logprobs": True,
            "top_logprobs": 2, "return_token_ids": True})
        completion = self.complete(ids, max_tokens=4, prompt_logprobs=K, logprobs=2, return_token_ids=True)[0]
        self.assertEqual(chat["prompt_token_ids"], ids)
        self.assert_same(chat["prompt_logprobs"], completion["prompt_logprobs"])
        choice = chat["choices"][0]
        self.assertEqual(choice["token_ids"], completion["token_ids"])
        self.assertEqual(choice["message"]["content"], completion["text"])
        self.assert_same([entry["logprob"] for entry in choice["logprobs"]["content"]],
                         completion["logprobs"]["token_logprobs"])

    def test_an_empty_text_has_no_tokens(self):
        for prompt, ids in (("", []), (PROMPT, self.ids), ("", [])):
            self.assertEqual(self.service.tokens(prompt), ids)
            self.assertEqual(self.service.ask("/detokenize", {"tokens": ids})["prompt"], prompt)

    def test_tokens_in_tokens_out(self):
        answer = self.service.ask("/inference/v1/generate", {
            "token_ids": self.ids, "sampling_params": {"max_tokens": 3, "temperature": 0, "prompt_logprobs": K,
                                                       "logprobs": 2, "ignore_eos": True}})
        completion = self.complete(self.ids, max_tokens=3, prompt_logprobs=K, logprobs=2, return_token_ids=True,
                                   ignore_eos=True)[0]
        self.assert_same(answer["prompt_logprobs"], completion["prompt_logprobs"])
        self.assertEqual(answer["choices"][0]["token_ids"], completion["token_ids"])
        content = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual([entry["token_id"] for entry in content], completion["token_ids"])
        self.assert_same([entry["logprob"] for entry in content], completion["logprobs"]["token_logprobs"])
        self.assertEqual([entry["rank"] for entry in content], [1, 1, 1])

    # Errors.

    def test_errors(self):
        for name, path, body in errors():
            with self.subTest(name):
                status, text = self.service.request(path, body)
                self.assertEqual(status, 404 if "model" in body else 400, text[:200])
                error = json.loads(text)["error"]
                self.assertEqual(set(error), {"message", "type", "param", "code"})
                self.assertEqual(error["code"], status)
        self.assertEqual(self.service.request("/v1/completions", raw=b"{bad")[0], 400)
        self.assertEqual(self.service.request("/health")[0], 200)

    def test_unknown_fields_are_accepted(self):
        self.complete(self.ids, best_of=3, guided_regex="a", nobody_knows_this={"a": 1}, user="u", session_id="s",
                      priority=0, cache_salt="salt", response_format={"type": "text"})


class ExtensionsTest(ServiceTest):
    """What taopd-teacher has beyond vLLM."""

    def setUp(self):
        if not self.ours:
            self.skipTest("the server is not taopd-teacher")

    def test_compact_arrays_hold_the_same_numbers(self):
        compact = self.score(self.ids, K, prompt_logprobs_format="base64", prompt_logprobs_start=3)
        objects = self.score(self.ids, K, prompt_logprobs_start=3)
        self.assertEqual(objects[:3], [None] * 3)
        self.assertEqual(compact["shape"], [len(self.ids) - 3, K])
        ids, values, sampled, tails = (unpacked(key, compact[key]) for key in
                                       ("token_ids", "logprobs", "sampled_logprobs", "tail_logprobs"))
        for row, position in enumerate(objects[3:]):
            actual = str(self.ids[3 + row])
            self.assertAlmostEqual(position[actual]["logprob"], sampled[row], delta=1e-6)
            for j in range(K):
                entry = position[str(ids[row * K + j])]
                self.assertEqual(entry["rank"], j + 1)
                self.assertAlmostEqual(entry["logprob"], values[row * K + j], delta=1e-6)
            total = sum(math.exp(v) for v in values[row * K:row * K + K]) + math.exp(tails[row])
            self.assertAlmostEqual(total, 1.0, delta=1e-4)

    def metric(self, name):
        status, text = self.service.request("/metrics")
        self.assertEqual(status, 200)
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))

    def test_a_client_that_goes_ends_its_work(self):
        counter, num_choices, max_tokens = "vllm:generation_tokens_total", 1000, 200
        before = self.metric(counter)
        body = json.dumps({"prompt": self.ids, "max_tokens": max_tokens, "n": num_choices, "temperature": 1,
                           "ignore_eos": True, "stream": True}).encode()
        request = urllib.request.Request(self.service.url + "/v1/completions", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.readline()
        wait_for(lambda: self.service.ask("/load")["server_load"] == 0, "the end of the work")
        generated = self.metric(counter) - before
        self.assertGreater(generated, 0)
        self.assertLess(generated, num_choices * max_tokens / 2)

    def test_candidates(self):
        chosen = [5, 9, self.ids[2]]
        choice = self.complete(self.ids, prompt_logprobs=20, prompt_logprob_token_ids=chosen)[0]
        for position, values in list(zip(choice["prompt_logprobs"], choice["prompt_token_id_logprobs"]))[1:]:
            for token, value in zip(chosen, values):
                if str(token) in position:
                    self.assertEqual(position[str(token)]["logprob"], value)

    def test_sglang_and_trl_score_alike(self):
        positions = self.score(self.ids, 2)
        expected = [positions[i][str(token)]["logprob"] for i, token in enumerate(self.ids) if i >= 3]
        meta = self.service.ask("/generate", {
            "input_ids": self.ids, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True,
            "logprob_start_len": 2, "top_logprobs_num": 2})["meta_info"]
        self.assertEqual([entry[0] for entry in meta["input_token_logprobs"][1:]], expected)
        binary = self.service.ask("/get_sequence_logprobs/", {
            "sequences": [self.ids], "prompt_lengths": [3], "top_logprobs": 2, "response_format": "binary"})
        self.assert_close(unpacked("logprobs", binary["actual_logprobs_b64"]), expected)
        top = [entry[0] for row in meta["input_top_logprobs"][1:] for entry in row]
        self.assert_close(unpacked("logprobs", binary["logprobs_b64"]), top)

    def assert_close(self, first, second):
        self.assertEqual(len(first), len(second))
        for a, b in zip(first, second):
            self.assertAlmostEqual(a, b, delta=1e-6)

