"""What known clients send and how they read the answer, replayed against the server at COMPAT_URL.

Each replay sends the client's body and parses the answer by the client's own rules, written here anew; the results
must agree with each other.
"""

from contract import ServiceTest, floats

TOP_K = 4


class ReplayTest(ServiceTest):
    def expected(self, ids):
        """The log-prob of each token but the first, by the plainest way."""
        choice = self.complete(ids, prompt_logprobs=0)[0]
        return [choice["prompt_logprobs"][i][str(token)]["logprob"] for i, token in enumerate(ids) if i > 0]

    def assert_close(self, first, second):
        self.assertEqual(len(first), len(second))
        for a, b in zip(first, second):
            self.assertAlmostEqual(a, b, delta=max(self.service.tolerance, 1e-6))


class ClientsTest(ReplayTest):
    def test_trl_over_completions(self):
        body = {"model": self.service.ask("/v1/models")["data"][0]["id"], "prompt": [self.ids, self.other],
                "max_tokens": 1, "temperature": 0.9, "prompt_logprobs": TOP_K}
        choices = self.service.ask("/v1/completions", body)["choices"]
        for ids, choice in zip((self.ids, self.other), choices):
            actual = []
            for token, position in zip(ids, choice["prompt_logprobs"]):
                if position is None:
                    continue
                top = sorted(position.items(), key=lambda item: item[1]["rank"])[:TOP_K]
                self.assertEqual([item["rank"] for _, item in top], list(range(1, TOP_K + 1)))
                actual.append(position[str(token)]["logprob"])
            self.assert_close(actual, self.expected(ids))

    def test_prime_rl(self):
        body = {"model": self.service.ask("/v1/models")["data"][0]["id"], "token_ids": self.ids,
                "sampling_params": {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "prompt_logprobs": 1}}
        answer = self.service.ask("/inference/v1/generate", body)
        values = [0.0 if position is None else next(iter(position.values()))["logprob"]
                  for position in answer["prompt_logprobs"]]
        self.assertEqual(values[0], 0.0)
        self.assert_close(values[1:], self.expected(self.ids))

    def test_verl(self):
        body = {"token_ids": self.ids, "sampling_params": {"max_tokens": 1, "temperature": 1.0, "detokenize": False,
                                                           "prompt_logprobs": TOP_K}}
        rows = []
        for position in self.service.ask("/inference/v1/generate", body)["prompt_logprobs"][1:]:
            self.assertIn(len(position), (TOP_K, TOP_K + 1))
            row = [None] * TOP_K
            for token, entry in position.items():
                if entry["rank"] <= TOP_K:
                    row[entry["rank"] - 1] = (int(token), entry["logprob"])
            self.assertNotIn(None, row)
            rows.append(row)
        self.assertEqual(len(rows), len(self.ids) - 1)

    def test_lm_eval(self):
        context = 3
        body = {"model": self.service.ask("/v1/models")["data"][0]["id"], "prompt": [self.ids, self.other],
                "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
        choices = self.service.ask("/v1/completions", body)["choices"]
        for ids, choice in zip((self.ids, self.other), sorted(choices, key=lambda c: c["index"])):
            values = choice["logprobs"]["token_logprobs"][context:-1]
            tops = choice["logprobs"]["top_logprobs"][context:-1]
            self.assert_close(values, self.expected(ids)[context - 1:])
            for value, top in zip(values, tops):
                self.assertLessEqual(value, max(top.values()))
        self.assertIn("eos_token", self.service.ask("/tokenizer_info"))
        self.assertEqual(set(self.service.ask("/tokenize", {"prompt": "test", "add_special_tokens": False})),
                         {"count", "max_model_len", "tokens", "token_strs"})


class SglangClientsTest(ReplayTest):
    """Clients that speak to SGLang's or TRL's own server."""

    def setUp(self):
        if not self.ours:
            self.skipTest("the server is not taopd-teacher")

    def test_slime(self):
        response_len = 4
        body = {"input_ids": self.ids, "sampling_params": {"temperature": 0, "max_new_tokens": 0,
                                                           "skip_special_tokens": False},
                "return_logprob": True, "logprob_start_len": 0}
        tokens = self.service.ask("/generate", body)["meta_info"]["input_token_logprobs"]
        self.assert_close([entry[0] for entry in tokens[1:]][-response_len:],
                          self.expected(self.ids)[-response_len:])

    def test_miles(self):
        union = [3, 8, self.ids[1]]
        body = {"input_ids": self.ids, "sampling_params": {"temperature": 0, "max_new_tokens": 0},
                "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": TOP_K,
                "token_ids_logprob": union}
        meta = self.service.ask("/generate", body)["meta_info"]
        for top, chosen in zip(meta["input_top_logprobs"][1:], meta["input_token_ids_logprobs"][1:]):
            self.assertEqual(len(top), TOP_K)
            self.assertEqual([entry[1] for entry in chosen], union)
            known = {entry[1]: entry[0] for entry in top}
            for value, token, _ in chosen:
                self.assertAlmostEqual(known.get(token, value), value, delta=1e-6)

    def test_trl_own_server(self):
        lengths = [3, 5]
        body = {"sequences": [self.ids, self.other], "prompt_lengths": lengths, "top_logprobs": TOP_K,
                "temperature": 1.0, "response_format": "binary"}
        answer = self.service.ask("/get_sequence_logprobs/", body)
        batch, longest, k = answer["shape"]
        self.assertEqual((batch, k), (2, TOP_K))
        actual = floats(answer["actual_logprobs_b64"])
        for i, (ids, length) in enumerate(zip((self.ids, self.other), lengths)):
            count = answer["completion_lengths"][i]
            self.assertEqual(count, len(ids) - length)
            self.assert_close(actual[i * longest:i * longest + count], self.expected(ids)[length - 1:])

