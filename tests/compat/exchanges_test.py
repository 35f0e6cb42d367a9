"""The stored requests of other projects' clients (golden/make_exchanges.py), sent to taopd-teacher with the tiny model.

Each answer must be the stored reply, field by field: the same keys in the same order, the same texts, ids and ranks,
numbers within the tolerance. Fields of one moment and those of a token drawn at random are compared by their type.
"""

import json
import pathlib
import sys
import unittest

import service
import tiny_model
from answers import differences

GOLDEN = sorted((pathlib.Path(__file__).parent / "golden").glob("*.json"))


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
        self.assertEqual(list(differences({**reply, "id": "b"}, reply)), [])
        for changed in ({**reply, "id": 1}, {**reply, "rows": [[-1.001, 2, None]]}, {**reply, "rows": [[-1.0, 3, None]]},
                        {**reply, "rows": [[-1, 2, None]]}, {**reply, "text": "y"}, {**reply, "more": 1},
                        {**reply, "values_b64": "AAAAQA=="}, dict(reversed(reply.items()))):
            self.assertNotEqual(list(differences(changed, reply)), [], changed)
        self.assertEqual(list(differences({**reply, "text": "y"}, reply, ["text"])), [])


if __name__ == "__main__":
    sys.exit(unittest.main())
