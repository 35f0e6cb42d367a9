"""Structured output over HTTP: texts have the form that was asked for, forced tools are called, and contradictions are
refused.

The server at COMPAT_URL, which tests/compat/run sets, is checked.
"""

import json

from contract import PROMPT, ServiceTest

COLOR = {"type": "object",
          "properties": {"zone": {"enum": ["a", "b"]}, "name": {"enum": ["red", "blue"]},
                         "ok": {"type": "boolean"}, "size": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["zone", "name", "ok", "size"], "additionalProperties": False}
# Short: the model's context is, too.
ARGUMENTS = {"paint": [{"a": 1}, {"a": [2, "b"]}], "go": [{"s": 3}]}
TOOLS = [{"function": {"name": name, "parameters": {"enum": values}}} for name, values in ARGUMENTS.items()]
MESSAGES = [{"role": "user", "content": PROMPT}]


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


class StructuredCase(ServiceTest):
    def check_color(self, text):
        value = json.loads(text)
        # The keys of a text come in the order of the schema's.
        self.assertEqual(list(value), list(COLOR["properties"]))
        self.assertIn(value["zone"], ("a", "b"))
        self.assertIn(value["name"], ("red", "blue"))
        self.assertIsInstance(value["ok"], bool)
        self.assertTrue(isinstance(value["size"], int) and 0 <= value["size"] <= 99)

    def texts(self, path="/v1/completions", num=4, **fields):
        """Choices that have ended by themselves, of some seeds."""
        prompt = {"messages": MESSAGES} if "chat" in path else {"prompt": self.ids}
        answer = self.service.ask(path, {**prompt, "max_tokens": 200, "temperature": 1, "seed": 5, "n": num, **fields})
        for choice in answer["choices"]:
            self.assertEqual(choice["finish_reason"], "stop", choice)
        return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in answer["choices"]]

    def white_space(self):
        return [i for text in " \n\t\r" for i in self.service.tokens(text, add_special_tokens=False)]

    def id_of(self, text):
        return self.service.tokens(text, add_special_tokens=False)[0]


class StructuredTest(StructuredCase):
    def test_schemas_hold_in_every_protocol(self):
        compact = {"json": COLOR, "disable_any_whitespace": True}
        for fields in ({"structured_outputs": compact}, {"structured_outputs": {**compact, "json": json.dumps(COLOR)}},
                       {"response_format": schema_format(COLOR), "structured_outputs": None}):
            for path in ("/v1/completions", "/v1/chat/completions"):
                if "response_format" in fields:  # white space of any length: the texts may be long
                    fields = {**fields, "logit_bias": {str(i): -100 for i in self.white_space()}}
                texts = self.texts(path, **fields)
                for text in texts:
                    self.check_color(text)
                self.assertGreater(len(set(texts)), 1)  # each choice goes its own way
        answer = self.service.ask("/inference/v1/generate", {
            "token_ids": self.ids, "sampling_params": {"max_tokens": 200, "temperature": 1, "seed": 1,
                                                       "structured_outputs": compact}})
        ids = answer["choices"][0]["token_ids"]
        self.check_color(self.service.ask("/detokenize", {"tokens": ids[:-1]})["prompt"])

    def test_any_object(self):
        for text in self.texts("/v1/chat/completions", num=2, response_format={"type": "json_object"}, max_tokens=240,
                               logit_bias={str(self.id_of(c)): 20 for c in "}\"],1"}):
            self.assertIsInstance(json.loads(text), dict)

    def test_the_other_kinds(self):
        for text in self.texts(structured_outputs={"regex": r"(ab|cd){2,3}-[0-9]{1,4}"}):
            self.assertRegex(text, r"\A(ab|cd){2,3}-[0-9]{1,4}\Z")
        choices = ["the cat", "an\nant", "\"q\\\"", "caf\u00e9"]
        for text in self.texts(num=8, structured_outputs={"choice": choices}):
            self.assertIn(text, choices)
        for text in self.texts(structured_outputs={"grammar": "root ::= \"(\" root \")\" | \"x\" | \"yy\""}):
            self.assertRegex(text, r"\A\(*(x|yy)\)*\Z")
            self.assertEqual(text.count("("), text.count(")"))
        tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "hello there"}}
        self.assertEqual(set(self.texts(response_format=tag)), {"hello there"})
        self.assertEqual(set(self.texts(structured_outputs={"structural_tag": json.dumps(tag)})), {"hello there"})

    def test_masked_and_other_requests_do_not_change_each_other(self):
        body = {"prompt": self.ids, "max_tokens": 60, "temperature": 1, "seed": 3}
        masked = {**body, "structured_outputs": {"json": COLOR, "disable_any_whitespace": True}}
        alone = [self.service.ask("/v1/completions", each)["choices"][0]["text"] for each in (body, masked)]
        both = self.service.ask("/v1/completions", {**masked, "prompt": [self.ids, self.other, self.ids]})["choices"]
        self.assertEqual(both[0]["text"], alone[1])
        self.assertEqual(both[2]["text"], alone[1])
        self.assertEqual(self.service.ask("/v1/completions", body)["choices"][0]["text"], alone[0])

    def test_streams_have_the_same_text(self):
        body = {"prompt": self.ids, "max_tokens": 200, "temperature": 1, "seed": 9,
                "structured_outputs": {"json": COLOR, "disable_any_whitespace": True}}
        text = self.service.ask("/v1/completions", body)["choices"][0]["text"]
        self.check_color(text)
        events = self.service.events("/v1/completions", body)
        self.assertEqual("".join(event["choices"][0]["text"] for event in events), text)

    def test_contradictions_are_refused(self):
        regex = {"structured_outputs": {"regex": "a"}}
        for fields, part in [
                ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "only use one kind"),
                ({"structured_outputs": {"regex": "a", "grammar": "root ::= \"a\""}}, "only use one kind"),
                ({**regex, "response_format": {"type": "json_object"}}, "only use one kind"),
                ({"structured_outputs": {}}, "must use one kind"),
                ({"structured_outputs": {"choice": []}}, "cannot be an empty list"),
                ({"structured_outputs": {"json": " "}}, "cannot be"),
                ({"structured_outputs": {"json": "{\"type\":"}}, ""),
                ({"structured_outputs": {"json": {"type": "foo"}}}, ""),
                ({"structured_outputs": {"regex": "(a"}}, ""),
                ({"structured_outputs": {"regex": "a\0"}}, "NUL"),
                ({"structured_outputs": {"grammar": "root ::= missing"}}, ""),
                ({"structured_outputs": 5}, ""),
                ({"response_format": {"type": "json_schema"}}, "must be provided"),
                ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "name"),
                ({"response_format": {"type": "xml"}}, "json_object"),
                ({"response_format": {}}, "")]:
            status, text = self.service.request("/v1/completions", {"prompt": self.ids, **fields})
            self.assertEqual(status, 400, f"{fields}: {text[:300]}")
            self.assertIn(part, text, fields)
            self.assertEqual(json.loads(text)["error"]["code"], 400)


class ForcedToolsTest(StructuredCase):
    def setUp(self):
        if not self.ours:
            self.skipTest("vLLM forces calls only with a parser of the model's tools")

    def chat(self, **fields):
        white = {str(i): -100 for i in self.white_space()}
        return {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 200, "temperature": 1, "seed": 2,
                "logit_bias": white, **fields}

    def streamed(self, body):
        """Content, calls and the end of the only choice of a stream."""
        content, calls, reason = "", [], None
        for event in self.service.events("/v1/chat/completions", body):
            for choice in event["choices"]:
                delta = choice["delta"]
                content += delta.get("content") or ""
                for call in delta.get("tool_calls", []):
                    if call["index"] == len(calls):
                        self.assertEqual(call["type"], "function")
                        calls.append([call["function"]["name"], ""])
                    calls[call["index"]][1] += call["function"].get("arguments", "")
                reason = choice["finish_reason"] or reason
        return content, calls, reason

    def test_required(self):
        body = self.chat(tool_choice="required", parallel_tool_calls=False)
        choice = self.service.ask("/v1/chat/completions", body)["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertEqual(choice["message"]["content"], "")
        (call,) = choice["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        self.assertIn(arguments, ARGUMENTS[call["function"]["name"]])
        content, calls, reason = self.streamed(body)
        self.assertEqual((content, reason), ("", "tool_calls"))
        self.assertEqual([(name, json.loads(text)) for name, text in calls], [(call["function"]["name"], arguments)])

    def test_several_calls(self):
        def asked(seed):
            bias = {**self.chat()["logit_bias"], str(self.id_of(",")): seed % 8}
            return self.chat(tool_choice="required", tools=TOOLS[1:], logit_bias=bias, seed=seed)

        for seed in range(64):
            choice = self.service.ask("/v1/chat/completions", asked(seed))["choices"][0]
            calls = choice["message"].get("tool_calls", [])
            if len(calls) > 1:
                break
        self.assertGreater(len(calls), 1)
        self.assertEqual(choice["finish_reason"], "tool_calls")
        expected = [("go", json.loads(call["function"]["arguments"])) for call in calls]
        content, streamed, reason = self.streamed(asked(seed))
        self.assertEqual((content, reason), ("", "tool_calls"))
        self.assertEqual([(name, json.loads(text)) for name, text in streamed], expected)

    def test_named(self):
        body = self.chat(tool_choice={"type": "function", "function": {"name": "paint"}})
        choice = self.service.ask("/v1/chat/completions", body)["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop")  # OpenAI's way
        (call,) = choice["message"]["tool_calls"]
        self.assertEqual(call["function"]["name"], "paint")
        self.assertIn(json.loads(call["function"]["arguments"]), ARGUMENTS["paint"])
        self.assertEqual(self.streamed(body), ("", [["paint", call["function"]["arguments"]]], "stop"))

    def test_the_forced_form_goes_before_the_requests(self):
        body = self.chat(tool_choice="required", response_format={"type": "json_object"}, tools=TOOLS[1:])
        choice = self.service.ask("/v1/chat/completions", body)["choices"][0]
        self.assertEqual(choice["message"]["tool_calls"][0]["function"]["name"], "go")

    def test_choices_that_make_no_sense(self):
        for fields, part in [({"tool_choice": "must"}, "Invalid value for `tool_choice`"),
                             ({"tool_choice": {"type": "function"}}, "Invalid value for `function`"),
                             ({"tool_choice": {"function": {}}}, "Expected field `name`"),
                             ({"tool_choice": {"function": {"name": ""}}}, "Invalid `name`"),
                             ({"tool_choice": {"function": {"name": "sing"}}}, "does not match any"),
                             ({"tool_choice": "required", "tools": [{"type": "function"}]}, "no function tool"),
                             ({"tool_choice": "required", "tools": None}, "`tools` must be set")]:
            status, text = self.service.request("/v1/chat/completions", self.chat(**fields))
            self.assertEqual(status, 400, f"{fields}: {text[:300]}")
            self.assertIn(part, text, fields)
