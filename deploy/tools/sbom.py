"""Lists the third-party parts of a release in a bill of materials (SPDX 2.3) and copies their licenses."""

import functools
import hashlib
import pathlib
import re
import shutil
import subprocess

# Packages that do not come from Debian: a pattern of paths -> the metadata.
WHEELS = {
    r"/torch/lib/": ("torch", "BSD-3-Clause"),
    r"/pyarrow/": ("pyarrow", "Apache-2.0"),
    r"/xgrammar/libxgrammar": ("xgrammar", "Apache-2.0"),
    r"/tvm_ffi/lib/": ("apache-tvm-ffi", "Apache-2.0"),
}
NVIDIA_LICENSE = "LicenseRef-NVIDIA-CUDA-EULA"
# Libraries that consist of headers, which the programs contain: a header -> the license.
COMPILED_IN = {"/usr/include/nlohmann/json.hpp": "MIT", "/usr/include/CLI/CLI.hpp": "BSD-3-Clause",
               "/usr/include/boost/version.hpp": "BSL-1.0"}


class Package:
    def __init__(self, name, version, purl, license, texts):
        self.name, self.version, self.purl, self.license = name, version, purl, license
        self.texts = texts  # files with the license
        self.libraries = []


def debian_packages(paths):
    """Returns path -> owning package, for the files of the system that a package owns."""
    names = {}  # a path with or without /usr -> the requested path
    for path in paths:
        names |= {str(path): path, str(path).removeprefix("/usr"): path}
    done = subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True, check=False)
    owners = {}
    for line in done.stdout.splitlines():
        owner, _, file = line.partition(": ")
        owners[names[file]] = owner.split(":")[0]
    versions = {}
    if owners:
        done = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *sorted(set(owners.values()))],
                              capture_output=True, text=True, check=True)
        versions = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    packages = {name: Package(name, version, f"pkg:deb/debian/{name}@{version}", "NOASSERTION",
                              [pathlib.Path(f"/usr/share/doc/{name}/copyright")]) for name, version in versions.items()}
    return {path: packages[name] for path, name in owners.items()}


@functools.cache
def wheel_package(name, license, root):
    distribution = next(root.glob(f"{name.replace('-', '_')}-*.dist-info"), None)
    if distribution is None:
        raise ValueError(f"{root} has no metadata of {name}")
    version = re.search(r"^Version: (.*)$", (distribution / "METADATA").read_text(encoding="utf-8"), re.M)[1]
    files = [path for path in distribution.rglob("*") if path.is_file()]
    listed = [root / line.split(",")[0] for line in (distribution / "RECORD").read_text(encoding="utf-8").splitlines()]
    texts = next(filter(None, (sorted(path for path in each if re.match(r"(LICENSE|NOTICE|License)", path.name))
                               for each in (files, listed))), [])
    return Package(name, version, f"pkg:pypi/{name}@{version}", license, texts)


def nvidia_wheel(path, root):
    """Returns the name of NVIDIA's wheel with the file."""
    for record in root.glob("nvidia_*.dist-info/RECORD"):
        if f"{path.relative_to(root)}," in record.read_text(encoding="utf-8"):
            return record.parent.name.partition("-")[0].replace("_", "-")
    raise ValueError(f"no package below {root} has {path}")


def wheel_of(path):
    """Returns the wheel of a library, or None if it does not come from a wheel."""
    root = next((parent for parent in path.parents if list(parent.glob("*.dist-info"))), None)
    if root is None:
        return None
    if path.is_relative_to(root / "nvidia"):
        return wheel_package(nvidia_wheel(path, root), NVIDIA_LICENSE, root)
    found = next((wheel for pattern, wheel in WHEELS.items() if re.search(pattern, str(path))), None)
    return wheel_package(*found, root) if found else None


def packages_of(libraries):
    """Returns the packages of the libraries (name -> path), sorted by name."""
    found = {}
    real = {name: path.resolve() for name, path in sorted(libraries.items())}
    wheels = {name: wheel_of(path) for name, path in real.items()}
    debian = debian_packages([path for name, path in real.items() if wheels[name] is None])
    for name, path in real.items():
        package = wheels[name] or debian.get(path)
        if package is None:
            raise ValueError(f"{path} belongs to no package: its license is not known")
        found.setdefault(package.name, package).libraries.append(name)
    return [found[name] for name in sorted(found)]


def packages_compiled_in():
    """Returns the packages of COMPILED_IN."""
    owners = debian_packages([pathlib.Path(header) for header in COMPILED_IN])
    for header, license in COMPILED_IN.items():
        if pathlib.Path(header) not in owners:
            raise ValueError(f"{header} belongs to no package: its license is not known")
        owners[pathlib.Path(header)].license = license
    return sorted(owners.values(), key=lambda package: package.name)


def copy_licenses(packages, target):
    """Copies the licenses of each package to a folder below `target`."""
    for package in packages:
        folder = target / package.name
        folder.mkdir(parents=True, exist_ok=True)
        if not package.texts:
            raise ValueError(f"{package.name} comes without a license")
        for text in package.texts:
            shutil.copyfile(text, folder / text.name)


def spdx(name, version, license, created, packages):
    """Returns the SPDX document of a release."""
    def identifier(text):
        return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", text)

    listed = [{"SPDXID": identifier("taopd"), "name": "taopd", "versionInfo": version, "licenseDeclared": license,
               "licenseConcluded": license, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
               "primaryPackagePurpose": "APPLICATION", "copyrightText": "NOASSERTION"}]
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                  "relatedSpdxElement": identifier("taopd")}]
    for package in packages:
        files = {"comment": "files: " + ", ".join(sorted(package.libraries))} if package.libraries else {}
        listed.append(files | {
            "SPDXID": identifier(package.name), "name": package.name, "versionInfo": package.version,
            "licenseDeclared": package.license, "licenseConcluded": "NOASSERTION", "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "primaryPackagePurpose": "LIBRARY", "copyrightText": "NOASSERTION",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": package.purl}]})
        relations.append({"spdxElementId": identifier("taopd"),
                          "relationshipType": "DYNAMIC_LINK" if files else "STATIC_LINK",
                          "relatedSpdxElement": identifier(package.name)})
    unique = hashlib.sha256(repr([(p["name"], p["versionInfo"]) for p in listed]).encode()).hexdigest()[:16]
    references = sorted({package.license for package in packages if package.license.startswith("LicenseRef-")})
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
            "documentNamespace": f"urn:taopd:{name}:{unique}",
            "creationInfo": {"created": created, "creators": ["Tool: deploy/release"]},
            "hasExtractedLicensingInfos": [{"licenseId": each, "name": each.removeprefix("LicenseRef-"),
                                            "extractedText": "See the folder licenses."} for each in references],
            "packages": listed, "relationships": relations}
