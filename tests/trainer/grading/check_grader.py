"""The trainer's grade command against math-verify, asked afresh, on spelling variations of published answers.

    check_grader.py TRAINER SHARED_DATA [--cases N] [--seed S]

Versions: tests/requirements-oracle.txt. Exit code 77 (skipped) where the library or data are absent. Ends with 1 unless
the verdicts agree as the default grader's acceptance asks: 98.5 % equal, 0.3 % right here and wrong there.
"""

import argparse
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "golden"))
try:
    import make_verdicts
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

MIN_EQUAL = 0.985
MAX_FALSE_CORRECT = 0.003
TIMEOUT_S = 60  # a busy machine must not decide a verdict


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer")
    parser.add_argument("shared_data", type=pathlib.Path)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=20)  # not the golden file's
    arguments = parser.parse_args()
    if not (arguments.shared_data / "valid_math500.parquet").is_file():
        print("skipped: shared data is absent")
        sys.exit(77)
    cases = list(make_verdicts.cases(arguments.shared_data, arguments.cases, arguments.seed))
    lines = "".join(json.dumps({"response": response, "answer": answer, "grader": "math"}) + "\n" for response, answer in cases)
    done = subprocess.run([arguments.trainer, "grade"], input=lines, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if len(rows) != len(cases):
        sys.exit(f"{len(rows)} verdicts on {len(cases)} lines\n{done.stderr}")
    num_different = num_false_correct = 0
    for (response, answer), row in zip(cases, rows):
        expected = make_verdicts.verdict(response, answer, TIMEOUT_S)
        if row["correct"] != expected:
            num_different += 1
            num_false_correct += row["correct"]
            print(f"math-verify {expected}: {answer!r} in {response!r}\n  ours {row}")
    print(f"{len(cases)} cases, {num_different} differences, {num_false_correct} of them right here and wrong there")
    sys.exit(num_different > (1 - MIN_EQUAL) * len(cases) or num_false_correct > MAX_FALSE_CORRECT * len(cases))


main()
