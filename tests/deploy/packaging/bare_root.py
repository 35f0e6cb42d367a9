"""A root file system with a C library and nothing else, and programs started in it as an ordinary user."""

import os
import pathlib
import shutil
import subprocess
import unittest

SYSTEM_LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libutil.so.1",
                    "libresolv.so.2", "libnss_files.so.2", "libnss_dns.so.2")
USER = 65532


def make(root):
    """Fills `root`: the loader and the C library of this machine, /tmp and /etc."""
    root = pathlib.Path(root)
    loader = pathlib.Path("/lib64/ld-linux-x86-64.so.2")
    if not loader.exists():
        raise unittest.SkipTest("the tests of releases know x86-64 with the GNU C library")
    (root / "lib64").mkdir(parents=True)
    shutil.copy(loader.resolve(), root / "lib64" / loader.name)
    libraries = root / "lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in SYSTEM_LIBRARIES:
        source = pathlib.Path("/lib/x86_64-linux-gnu") / name
        if source.exists():
            shutil.copy(source.resolve(), libraries / name)
    for name in ("tmp", "etc", "proc", "dev"):
        (root / name).mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text(f"taopd:x:{USER}:{USER}::/tmp:/none\n")
    (root / "dev/null").touch()
    return root


def command(root, *words):
    """The command line that runs `words` in the root, without privileges. /proc is there, as in every container."""
    inside = ["chroot", str(root), *map(str, words)]
    namespaces = ["unshare", "--mount", "--user", "--map-root-user"]
    if os.geteuid() == 0:
        inside.insert(1, f"--userspec={USER}:{USER}")
        namespaces = ["unshare", "--mount"]
    done = subprocess.run([*namespaces, "true"], capture_output=True, check=False)
    if done.returncode != 0:
        raise unittest.SkipTest("this user may not make namespaces")
    return [*namespaces, "sh", "-c", f'mount --rbind /proc "{root}/proc" && exec "$@"', "sh", *inside]
