"""The stored requests of other projects' clients (golden/make_exchanges.py), sent to taopd-teacher with the tiny model.

Each answer must be the stored reply, field by field: the same keys in the same order, the same texts, ids and ranks,
numbers within the tolerance. Fields of one moment and those of a token drawn at random are compared by their type.
"""

import base64
import json
import math
import pathlib
import re
import struct
import sys
import unittest

import service
import tiny_model

# Two programs sum in another order; the log-probs of the tiny model are between -30 and 0.
TOLERANCE = 1e-4
# These differ between processes or moments.
VOLATILE = {"id", "created", "request_id", "system_fingerprint", "root", "owned_by"}
GOLDEN = sorted((pathlib.Path(__file__).parent / "golden").glob("*.json"))


def kind_of(value):
    return "null or text" if value is None or isinstance(value, str) else type(value)


def unpacked(key, text):
    kind = "i" if "ids" in key else "f"
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}{kind}", data))


def differences(ours, theirs, sampled, path=""):
    """Where and how an answer differs from the stored reply."""
    key = path.rsplit(".", 1)[-1]
    if key in VOLATILE or re.sub(r"\[\d+\]", "[]", path).lstrip(".") in sampled:
        if kind_of(ours) != kind_of(theirs):
            yield path, f"{ours!r} and {theirs!r}"
    elif isinstance(ours, dict) and isinstance(theirs, dict):
        if list(ours) != list(theirs):
            yield path, f"keys {list(ours)} and {list(theirs)}"
        for name in ours:
            if name in theirs:
                yield from differences(ours[name], theirs[name], sampled, f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            yield path, f"{len(ours)} and {len(theirs)} items"
        for i, pair in enumerate(zip(ours, theirs)):
            yield from differences(*pair, sampled, f"{path}[{i}]")
    elif isinstance(ours, float) and isinstance(theirs, float):
        if not (ours == theirs or math.isclose(ours, theirs, rel_tol=0, abs_tol=TOLERANCE)):
            yield path, f"{ours} and {theirs}"
    elif key.endswith("_b64") and isinstance(ours, str) and isinstance(theirs, str):
        yield from differences(unpacked(key, ours), unpacked(key, theirs), sampled, path + "[]")
    elif ours != theirs or type(ours) is not type(theirs):
        yield path, f"{ours!r} and {theirs!r}"


class ExchangesTest(unittest.TestCase):
    def test_every_client_gets_the_stored_replies(self):
        self.assertEqual([path.stem for path in GOLDEN],
                         ["lm_eval", "miles", "prime_rl", "slime", "trl", "trl_own_server", "verl"])
        with service.tiny_model_dir() as model, service.teacher(model, max_logprobs=100) as teacher:
            for path in GOLDEN:
                stored = json.loads(path.read_text())
                self.assertEqual(stored["model_sha256"], tiny_model.sha256(model),
                                 f"tiny_model.py has changed since {path.name} was made: run golden/make_exchanges.py")
                for exchange in stored["exchanges"]:
                    with self.subTest(client=stored["client"], request=str(exchange["request"])[:200]):
                        answer = teacher.ask(exchange["path"], exchange["request"])
                        found = list(differences(answer, exchange["reply"], exchange["sampled"]))
                        self.assertEqual(found[:5], [])

    def test_what_differs_is_found(self):
        reply = {"id": "a", "rows": [[-1.0, 2, None]], "text": "x", "values_b64": "AACAPw=="}
        self.assertEqual(list(differences({**reply, "id": "b"}, reply, [])), [])
        for changed in ({**reply, "id": 1}, {**reply, "rows": [[-1.001, 2, None]]}, {**reply, "rows": [[-1.0, 3, None]]},
                        {**reply, "rows": [[-1, 2, None]]}, {**reply, "text": "y"}, {**reply, "more": 1},
                        {**reply, "values_b64": "AAAAQA=="}, dict(reversed(reply.items()))):
            self.assertNotEqual(list(differences(changed, reply, [])), [], changed)
        self.assertEqual(list(differences({**reply, "text": "y"}, reply, ["text"])), [])


if __name__ == "__main__":
    sys.exit(unittest.main())
