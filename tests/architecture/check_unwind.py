"""check_unwind.py PROGRAM...

No two unwind entries of a program begin at the same address. GCC 12 may write one for an empty part of a function, and
lld 14 then drops the entry of the function at that address: an exception that passes it ends the process.
Exit code 77: skipped, because readelf is missing.
"""
import re
import shutil
import subprocess
import sys


def hidden_entries(program):
    frames = subprocess.run(["readelf", "-wF", program], capture_output=True, text=True, check=True).stdout
    entries = re.findall(r"pc=([0-9a-f]+)\.\.([0-9a-f]+)", frames)
    if not entries:
        raise ValueError(f"{program} has no unwind entries")
    empty = {start for start, end in entries if start == end}
    return sorted({start for start, end in entries if start != end} & empty)


def main():
    if not shutil.which("readelf"):
        print("skipped: there is no readelf")
        return 77
    failed = 0
    for program in sys.argv[1:]:
        for address in hidden_entries(program):
            print(f"{program}: an empty unwind entry hides the one at 0x{address.lstrip('0')}; "
                  "-fno-reorder-blocks-and-partition for its library avoids it")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
