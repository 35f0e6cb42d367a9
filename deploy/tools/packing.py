"""The common part of deploy/release and deploy/wheel: version and time, programs, libraries, licenses and documents."""

import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import sbom
import shared_libraries

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE = "taopd-probe"  # the health check of containers, which has no version and no libraries of its own
# The tools that make packages and pages.
TOOLS_OF_THE_TREE = ("docs_reference", "docs_site", "mkdocs.yml", "packed_pages.py", "packing.py", "sbom.py",
                     "shared_libraries.py", "draw_result", "sizing_table")


def fail(message, code=70):
    print(f"{pathlib.Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(code)


def version():
    """Reads the version from the one file that has it."""
    return re.search(r"project\(taopd VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


@functools.cache  # a commit made meanwhile must not change the time
def epoch():
    """Returns the time of this release in seconds since 1970."""
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return int(os.environ["SOURCE_DATE_EPOCH"])
    done = subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True,
                          check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else 0


def copy_executable(source, target):
    shutil.copyfile(source, target)
    target.chmod(0o755)


def copy_programs(programs, bin_dir, target, search_path):
    """Copies programs, which then find their libraries in `search_path`. Returns name -> origin of the libraries."""
    libraries = {}
    target.mkdir(parents=True)
    for program in programs:
        source = bin_dir / program
        if not source.exists():
            fail(f"{source} is not there: build it first", 64)
        built = subprocess.run([source, "--version"], capture_output=True, text=True, check=False).stdout
        if program != PROBE and version() not in built.split():
            fail(f"{source} is of version {built.strip()}, the tree of {version()}: build it again", 64)
        libraries |= shared_libraries.needed(source)
        copy_executable(source, target / program)
        if program != PROBE:
            shared_libraries.search_in(target / program, search_path)
    return libraries


def pack_programs(programs, bin_dir, tree, search_path, licenses, has_torch=True):
    """Copies programs to bin/ of the tree, their libraries to lib/, and the licenses to a folder for each package. Returns
    the packages. Without `has_torch`, LibTorch and what its own wheel requires are left out."""
    try:
        libraries = copy_programs(programs, bin_dir, tree / "bin", search_path)
        if not has_torch:
            torch = libraries["libtorch_cpu.so"].parents[2].resolve()
            libraries = {name: path for name, path in libraries.items() if torch not in path.resolve().parents}
        (tree / "lib").mkdir()
        for name, path in libraries.items():
            copy_executable(path.resolve(), tree / "lib" / name)
        packages = sbom.packages_of(libraries) + sbom.packages_compiled_in()
        sbom.copy_licenses(packages, licenses)
        return packages
    except (shared_libraries.LibraryError, ValueError, OSError) as error:
        fail(str(error))


def copy_documents(tree, names):
    ignore = shutil.ignore_patterns("__pycache__", *TOOLS_OF_THE_TREE)
    for name in names:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, tree / name, ignore=ignore)
        elif path.exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tree / name)
    (tree / "VERSION").write_text(version() + "\n")


def files_of(tree):
    return sorted(path for path in tree.rglob("*") if path.is_file())


def checksum(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
