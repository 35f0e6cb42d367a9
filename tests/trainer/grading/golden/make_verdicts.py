#!/usr/bin/env python3
"""Golden verdicts of math-verify 0.9.0 on spelling variations of published answers.

    make_verdicts.py DATA_DIR COUNT SEED > verdicts.jsonl

DATA_DIR holds the Parquet files of the evaluation sets. Needs math-verify==0.9.0 (with
antlr4-python3-runtime 4.13.2 and sympy 1.14.0) and pyarrow. The verdict of a row is that of TA-OPD's
evaluation: math-verify on the whole response, then on the answer region.
"""
import json
import random
import re
import sys

import pyarrow.parquet as parquet
from math_verify import parse, verify

# Right answers, and boxes to judge against them: rules that the published answers hardly touch.
FIXED = {
    "x=2": ["2x=4", "x+3=3x-1", "2x+0y=4", "-x=-2"], "x^2=4": ["2x^2=8"], "x=2, y=3": ["2x=4, 3y=9"],
    "x=a": ["2x=2a"], "x=2y": ["2x=4y"],  # equations in one unknown are not solved
    "100": ["100.0000001", "100.0"], "2.0000001": ["2"], "0": ["0.0000001"], "\\sqrt{4}": ["2.0000001"],
    "(1,2)": ["(1.0000001,2)"], "5": ["500.00000001\\%", "5.0000000000000004"], "\\log_2 8": ["3.0"],  # exact integers
}
MARKERS = ["**Final Answer**", "**Final Answer:**", "**Answer**", "**Answer:**"]


def region(text):
    """From the first marker to the second, or to the end of the first box behind it."""
    starts = [(text.find(m), m) for m in MARKERS if m in text]
    if not starts:
        return text.strip()
    first, marker = min(starts)
    later = [p for p in (text.find(m, first + len(marker)) for m in MARKERS) if p != -1]
    if later:
        return text[first:min(later)].strip()
    tail = text[first:]
    box = tail.find("\\boxed")
    opening = tail.find("{", box) if box != -1 else -1
    depth = 0
    for i in range(opening, len(tail)) if opening != -1 else ():
        depth += {"{": 1, "}": -1}.get(tail[i], 0)
        if depth == 0:
            return tail[:i + 1].strip()
    return tail.strip()


def verdict(response, answer, timeout_s=5):
    """timeout_s: math-verify's limit (wall time) for each step; 5 is its default."""
    gold = parse("$" + answer + "$", parsing_timeout=timeout_s)
    return any(verify(gold, parse(text, parsing_timeout=timeout_s), timeout_seconds=timeout_s)
               for text in (response, region(response)))


def answers(data_dir):
    pools = {}
    for name in ("valid_math500", "valid_without_mmlu_pro", "dapo-math-17k-processed"):
        table = parquet.read_table(f"{data_dir}/{name}.parquet")
        for row in table.to_pylist():
            text = str(row["reward_model"]["ground_truth"])
            if len(text) < 160:
                pools.setdefault(row["data_source"], []).append(text)
    return pools


def integer_forms(rng, n):
    return [f"{n:,}", f"{n}.0", f"\\frac{{{n * 3}}}{{3}}", f"{n - 7} + 7", f"2 \\cdot {n} - {n}", f"{n}^1", f"({n})",
            f"{n}\\%", f"{n}^\\circ", f"\\${n}", f"{n}\\text{{ cm}}^2", f"{n} units", f"\\text{{{n}}}", f"+{n}",
            f"{n}!/{max(n, 1)}", f"\\sqrt{{{n * n}}}", f"x = {n}", f"x={n}, y={n + 1}", f"{n}_{{10}}", f"0{n}",
            f"{n},000", f"\\approx {n}", f"{n} \\times 10^{{2}}", f"\\frac{n}1", f"\\{{{n}\\}}", f"\\left({n}\\right)",
            f"\\mathbf{{{n}}}", f"{n + 1}", f"-{n}", f"{n}.", f"{n}e0", f"\\lfloor {n}.5 \\rfloor", f"|-{n}|",
            f"{n} \\text{{ and }} {n + 2}", f"{n}\\ \\text{{km/h}}", f"n={n}k", f"{n}:1", f"{n}/1", f"\\binom{{{n}}}{{1}}"]


def variations(rng, text):
    """Spellings of an answer, some of them of another answer."""
    out = [text, text.replace("\\frac", "\\dfrac"), text.replace(" ", ""), f"\\left({text}\\right)", f"x = {text}",
           f"{text}.", f"\\text{{{text}}}", f"\\mathrm{{{text}}}", f"-{text}", f"{text}+1", f"2({text})/2", f"\\{{{text}\\}}",
           f"{text} \\text{{ units}}", f"{text}^\\circ", f"\\displaystyle {text}", f"{{{text}}}", f"({text})+0",
           text.replace("\\cdot", "\\times"), text.replace("{", " { ", 1).replace("}", " } ", 1),
           re.sub(r"(\d)", lambda m: str((int(m.group(1)) + 1) % 10), text, count=1),
           text.replace("\\left", "").replace("\\right", ""), text.replace("x", "y"), text.replace("\\pi", "3.14159265"),
           re.sub(r"\\sqrt\{(\w+)\}", r"\1^{1/2}", text), re.sub(r"\\frac\{(\w+)\}\{(\w+)\}", r"\1/\2", text),
           re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", text)]
    for left, right in (("(", "["), (")", "]"), ("<", "\\le "), ("\\leq", "<")):
        if left in text:
            out.append(text.replace(left, right))
    if "," in text:
        parts = text.split(",")
        out += [",".join(reversed(parts)), ", ".join(p.strip() for p in parts), ";".join(parts),
                " \\text{ and } ".join(parts), "\\{" + text.strip("()[]") + "\\}", "(" + text + ")"]
    if "=" in text:
        left, right = text.split("=", 1)
        out += [right, f"{right} = {left}", f"{left} - ({right}) = 0", f"2({left}) = 2({right})"]
    fraction = re.fullmatch(r"\$?(-?)\\frac\{(\d+)\}\{(\d+)\}\$?", text)
    if fraction and int(fraction[3]):
        sign, top, bottom = fraction[1], int(fraction[2]), int(fraction[3])
        out += [f"{sign}{top / bottom:.6f}", f"{sign}{top / bottom:.3f}", f"{sign}{top}/{bottom}",
                f"\\frac{{{sign}{top}}}{{{bottom}}}", f"{sign}\\frac{{{2 * top}}}{{{2 * bottom}}}",
                f"{sign}{top // bottom}\\frac{{{top % bottom}}}{{{bottom}}}", f"{sign}{100 * top / bottom}\\%",
                f"{sign}{bottom}/{top}", f"\\frac{top}{bottom}", f"{sign}{top / bottom}"]
    if re.fullmatch(r"-?\d{1,9}", text):
        out += integer_forms(rng, int(text))
    if re.fullmatch(r"-?\d+\.\d+", text):
        value = float(text)
        out += [f"{value:g}", f"{value:.1f}", f"{value:.8f}", f"{value + 1e-7:.9f}", f"{value}\\%", f"{value:e}",
                text.replace(".", ","), f"{value} \\text{{ m}}", f"\\approx {value}", f"{int(value * 100)}/100"]
    return out


def framings(rng, text):
    return [f"The answer is \\boxed{{{text}}}.", f"Thus we get ${text}$.", f"Answer: {text}", text, f"\\[ {text} \\]",
            f"**Final Answer**\n\\[ \\boxed{{{text}}} \\]", f"<think>\nIs it 7? No, \\boxed{{9}}.\n</think>\nIt is \\({text}\\).",
            f"Final Answer: The final answer is ${text}$. I hope it is correct.", f"So the answer is {text}",
            f"We find $a = 3$, so that $${text}$$", f"**Answer:** ${text}$", f"The final answer is: \\boxed{{{text}}}",
            f"From 12 apples we take 5, so the result is ${text}$", f"$\\boxed{{{text}}}$", f"Hence x = ${text}$ holds.",
            f"\\boxed{{3}} or rather \\boxed{{{text}}}", f"the value = {text}\nQED", f"\\fbox{{{text}}}"]


def cases(data_dir, count, seed):
    """Distinct pairs of a response and the right answer: the fixed ones, and `count` others."""
    for answer, boxes in FIXED.items():
        yield from ((f"\\boxed{{{box}}}", answer) for box in boxes)
    rng = random.Random(seed)
    pools = answers(data_dir)
    sources = sorted(pools)
    seen = set()
    while len(seen) < count:
        pool = pools[rng.choice(sources)]
        answer = rng.choice(pool)
        said = rng.choice(pool) if rng.random() < 0.25 else answer
        response = rng.choice(framings(rng, rng.choice(variations(rng, said))))
        if (response, answer) not in seen:
            seen.add((response, answer))
            yield response, answer


def main():
    for response, answer in cases(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])):
        print(json.dumps({"response": response, "answer": answer, "expected": verdict(response, answer)}))


if __name__ == "__main__":
    main()
