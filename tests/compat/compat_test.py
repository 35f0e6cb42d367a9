"""taopd-teacher with the tiny model keeps the contract of tests/compat."""

import os
import pathlib
import subprocess
import sys

import service


def main():
    here = pathlib.Path(__file__).parent
    with service.tiny_model_dir() as model, service.teacher(model) as teacher:
        result = subprocess.run([here / "run", "--url", teacher.url], env=os.environ, check=False)
        for path in ("/openapi.json", "/config", "/load", "/server_info", "/get_model_info", "/v1/models"):
            teacher.ask(path)
        assert "eos_token" in teacher.ask("/tokenizer_info")
        status, page = teacher.request("/docs")
        assert status == 200 and "/v1/completions" in page, page[:200]
        assert teacher.request("/health_generate")[0] == 200
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
